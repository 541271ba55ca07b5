"""The command evaluate.trace: what it prints and writes for one trace and for two, and what it refuses."""

import gzip
import json

import pytest
from made_traces import made_trace
from reports import refused, write_probe

from evaluate import trace
from evaluate.timing import stream


def run(*arguments):
    return trace.main([str(one) for one in arguments])


def test_text_has_the_step_the_shares_and_the_rates(tmp_path, capsys):
    assert run(made_trace(tmp_path / "a.json", device="NVIDIA H200")) == 0
    out = capsys.readouterr().out
    for text in (
        *("NVIDIA H200, step 3", "A step takes 1 ms: 65.0% idle", "(4096, 1024) x (1024, 4096)"),
        "0.07 ms a step, 29% of it during computation, 0.05 ms exposed",
        "343.6",  # 2 * 4096 * 4096 * 1024 / 100 us = 343.6 TFLOP/s
    ):
        assert text in out


def test_a_share_of_the_probes_rate_needs_a_probe_of_the_same_device(tmp_path, capsys):
    probe = write_probe(tmp_path, device_name="NVIDIA H200")
    assert run(made_trace(tmp_path / "a.json", device="NVIDIA H200"), "--probe", probe) == 0
    assert " 43%" in capsys.readouterr().out  # 343.6 / 800
    assert run(made_trace(tmp_path / "b.json", device="NVIDIA H100"), "--probe", probe) == 0
    captured = capsys.readouterr()
    assert "43%" not in captured.out
    assert "the probe is of NVIDIA H200, the trace of NVIDIA H100" in captured.err


def test_two_traces_are_aligned_by_computation_and_shape(tmp_path, capsys):
    slow = {"product": "Cijk_Alik_Bljk", "microseconds": 150, "idle_microseconds": 600, "device": "AMD Instinct MI300X"}
    paths = made_trace(tmp_path / "a.json"), made_trace(tmp_path / "b.json", **slow)
    assert run(*paths, "--format", "json", "--output", tmp_path / "out") == 0
    out = json.loads(capsys.readouterr().out)
    assert out == json.loads((tmp_path / "out" / "trace.json").read_text())
    first, *rest = out["operators"]
    assert (first["operator"], first["kind"]) == ("matrix product", "matmul")
    assert [one["difference_ms"] for one in (first, *rest)] == pytest.approx([0.05] + [0.0] * len(rest))
    assert (out["kinds_difference_ms"]["idle"], out["difference_ms"]) == pytest.approx((-0.05, 0.0))
    page = (tmp_path / "out" / "trace.html").read_text()
    assert "AMD Instinct MI300X" in page and page.count("<script") == 1, "that of every page"


def test_a_name_in_a_trace_cannot_put_anything_into_the_page_or_the_terminal(tmp_path, capsys):
    device, kernel = "<script>alert(1)</script>\x1b[2J", "<img src=x onerror=alert(1)>"
    path = made_trace(tmp_path / "a.json", product=kernel, device=device)
    assert run(path, "--output", tmp_path / "out") == 0 and "\x1b" not in capsys.readouterr().out
    page = (tmp_path / "out" / "trace.html").read_text()
    assert "<img" not in page and page.count("<script") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{dir}/missing.json",), "missing.json"),
        (("{dir}",), "{dir}"),
        (("{dir}/good.json", "--steps", "9"), "the trace has step 3"),
        *((("{dir}/good.json", f"--steps={steps}"), "--steps") for steps in ("5-3", "a-b", "", "-1", "1-")),
        (("{dir}/good.json", "--device", "4"), "--device: got 4"),
        (("{dir}/good.json", "--probe", "{dir}/foreign.json"), "no probe"),
        (("{dir}/good.json",) * 3, "wanted one, or two"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, said, tmp_path):
    made_trace(tmp_path / "good.json")
    (tmp_path / "foreign.json").write_text("{}")
    assert said.format(dir=tmp_path) in refused(trace.main, *(one.format(dir=tmp_path) for one in arguments))


# A file that is cut off, foreign or damaged is one clear error; a whole one is read in any form and piece size.

EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm é", "ts": 1.5, "dur": 2, "args": {"Input Dims": [[2, 3], [3, 4]]}},
    {"ph": "M", "name": "process_name", "args": {"name": "a } ] , { [ \\ b"}},
    {"ph": "X", "cat": "kernel", "name": "k\x07", "ts": 1e6, "dur": 0.25, "args": {"device": 0}},
]
WHOLE = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "G"}], "traceEvents": EVENTS, "n": 12345678}


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_events_are_the_same_in_any_form_and_piece_size(piece, indent, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "PIECE", piece)
    for content in (WHOLE, EVENTS):
        text = json.dumps(content, indent=indent, ensure_ascii=False).encode()
        for name, data in (("a.json", text), ("a.json.gz", gzip.compress(text)), ("named.json", gzip.compress(text))):
            path = tmp_path / name
            path.write_bytes(data)
            found = stream.EventStream(path)
            assert list(found) == EVENTS
            if content is WHOLE:
                assert found.header == {key: value for key, value in WHOLE.items() if key != "traceEvents"}


def test_a_trace_is_cut_off_wherever_it_ends_early(tmp_path):
    text = json.dumps(WHOLE).encode()
    path = tmp_path / "cut.json"
    for length in range(1, len(text)):
        path.write_bytes(text[:length])
        error = refused(trace.main, path)
        assert "cut off" in error or "no valid JSON" in error
    path.write_bytes(gzip.compress(text)[:-4])
    assert "cut off" in refused(trace.main, path)


OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "f", "ts": 1, "dur": 1}
UNUSABLE = [
    ([], "none of them an operator"),
    ([OPERATOR | {"cat": "python_function"}], "none of them an operator"),
    ([{key: value for key, value in OPERATOR.items() if key != "ts"}], "has no ts"),
    ([OPERATOR | {"ts": "soon"}], "soon"),
    ([OPERATOR | {"ts": None}], "event 1"),
    ([OPERATOR | {"ts": float("nan")}], "no finite number"),
    ([OPERATOR | {"cat": "kernel", "args": {"device": "gpu"}}], "event 1"),
]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"   ", "is empty"),
        (b"hello", "is no JSON"),
        (b"\x1f\x8bhello", "damaged"),
        (b"\x89PNG\r\n\x00\x00", "is no JSON"),
        (b"{}", 'without "traceEvents"'),
        (b'{"comparison_version": 1, "groups": []}', 'without "traceEvents"'),
        (b'{"traceEvents": 7}', 'without "traceEvents"'),
        (b'{"traceEvents": [1, 2]}', "no object"),
        (b'{"traceEvents": []} {}', "behind the end"),
        (b'{"traceEvents" [}', "no valid JSON"),
        (b"{7: 8}", "no valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        *((json.dumps({"traceEvents": events}).encode(), said) for events, said in UNUSABLE),
    ],
)
def test_a_foreign_file_or_an_unusable_event_is_named_with_what_it_is(content, said, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    error = refused(trace.main, path)
    assert said in error and str(path) in error
