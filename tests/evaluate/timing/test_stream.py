"""A file that is cut off, foreign or damaged is one clear error; a whole one is read in any form and piece size."""

import gzip
import json

import pytest
from reports import refused

from evaluate import trace
from evaluate.timing import stream

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
    packed = gzip.compress(text)
    for length in (3, 12, len(packed) // 2, len(packed) - 4):
        path.write_bytes(packed[:length])
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
