from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import sides

from evaluate.checks.entries import load_results
from evaluate.compare import as_json, main, write
from evaluate.report.comparison import compare
from evaluate.report.tables import markdown_table, text_table
from evaluate.report.text import markdown, terminal
from tests.support.agreeing import schedule
from tests.support.example import example_result
from utils.results import schema, store

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script> | `x` *y* $\\frac{1\nend"


def save(folder: Path, step: float = 0.5, **changes: Any) -> Path:
    """Write a result whose steady steps take `step` seconds each: 8192 / step tokens/s on one device."""
    seconds: dict[str, Any] = {f"performance_metrics__{key}_step_time_seconds": step for key in ("avg", "min", "max")}
    rates = {f"performance_metrics__tokens_per_second{end}": 8192 / step for end in ("", "_per_gpu")}
    times = [2.0, 0.6, 0.55, *[step] * 7]
    result = example_result(
        **{"step_times": times, "performance_metrics__steps_per_second": 1 / step} | seconds | rates | changes
    )
    path = folder / f"train_{len(list(folder.glob('*'))) if folder.exists() else 0:03}.json"
    store.write(result, path)
    return path


def save_both(folder: Path, key: str, value: Any, **changes: Any) -> Path:
    return save(folder, **{f"training_config__{key}": value, f"resolved_config__{key}": value} | changes)


def save_failed(folder: Path, **changes: Any) -> Path:
    """Write the result of a run that failed before it recorded its data, device and host."""
    nothing = {"reasons": {"*": "the run ended before"}}
    empty = {
        section: nothing | dict.fromkeys(schema.SECTIONS[section])
        for section in (
            "gpu_info",
            "performance_metrics",
            "memory_metrics",
            "resolved_config",
            "fingerprint",
            "provenance",
        )
    }
    samples: dict[str, Any] = {key: [] for key in schema.SAMPLES}
    return save(folder, **samples | empty | {"status": "oom", "reason": "out of memory | at step 1"} | changes)


def compared(*folders: Path) -> dict[str, Any]:
    return as_json(compare(load_results(folders), folders))


def as_text(*folders: Path) -> tuple[str, str]:
    comparison = compare(load_results(folders), folders)
    return markdown(comparison), terminal(comparison, 100)


@pytest.mark.parametrize(
    "other",
    [
        {"model": "qwen"},
        {"model_size": "proxy"},
        {"method": "best"},
        {"fingerprint__dataset_bin_sha256": "7" * 64},
        {"training_config__precision": "bf16", "resolved_config__precision": "bf16"},
        {"training_config__sequence_length": 256},
        {"training_config__global_batch_size": 32},
    ],
)
def test_unlike_results_never_share_a_group(tmp_path: Path, other: dict[str, Any]) -> None:
    save(tmp_path, framework="mega")
    save(tmp_path, framework="hf", **other)
    groups = compared(tmp_path)["groups"]
    assert [len(group["rows"]) for group in groups] == [1, 1]
    assert all(group["ratios"] == [] for group in groups)


def test_mean_and_spread_are_over_runs(tmp_path: Path) -> None:
    for run, step in enumerate((0.5, 0.25, 0.5), start=1):
        save(tmp_path, step, run=run)
    (row,) = compared(tmp_path)["groups"][0]["rows"]
    # 8192 / 0.5 = 16384 twice and 8192 / 0.25 = 32768 once
    expected = {"mean": 21845.3, "median": 16384, "min": 16384, "max": 32768, "runs": [16384, 32768, 16384]}
    found = row["tokens_per_second_per_gpu"]
    assert found | {"mean": round(found["mean"], 1)} == expected
    assert row["step_time_seconds"]["mean"] == pytest.approx(1.25 / 3)


def test_rejected_result_is_shown_and_not_averaged(tmp_path: Path) -> None:
    save(tmp_path)
    save(tmp_path, 0.25, run=2, resolved_config__tp=4)
    (row,) = compared(tmp_path)["groups"][0]["rows"]
    assert row["tokens_per_second_per_gpu"]["runs"] == [16384]
    assert (row["runs_counted"], row["runs_found"]) == (1, 2)
    assert row["results"][1]["rejections"] == ["tp: asked 1, ran 4"]
    for text in as_text(tmp_path):
        assert "1 of 2" in text
        assert "REJECTED" in text
        assert "tp: asked 1, ran 4" in text


def test_result_that_is_not_ok_is_shown_and_not_averaged(tmp_path: Path) -> None:
    save(tmp_path)
    save(tmp_path, 0.25, run=2, status="timeout", reason="stopped after 3600 s")
    (row,) = compared(tmp_path)["groups"][0]["rows"]
    assert row["tokens_per_second_per_gpu"]["runs"] == [16384]
    assert all("stopped after 3600 s" in text for text in as_text(tmp_path))


def test_run_that_failed_early_joins_the_only_row_that_matches(tmp_path: Path) -> None:
    save(tmp_path)
    save_failed(tmp_path, run=2)
    (group,) = compared(tmp_path)["groups"]
    (row,) = group["rows"]
    assert (row["runs_counted"], row["runs_found"]) == (1, 2)


def test_run_that_failed_early_forms_its_own_group_if_several_match(tmp_path: Path) -> None:
    save(tmp_path)
    save(tmp_path, fingerprint__dataset_bin_sha256="7" * 64)
    save_failed(tmp_path, run=2)
    assert [len(group["rows"]) for group in compared(tmp_path)["groups"]] == [1, 1, 1]


def test_unknown_data_equals_no_other_data(tmp_path: Path) -> None:
    for framework in ("mega", "hf"):
        result = example_result(framework=framework, fingerprint__dataset_bin_sha256=None)
        result["fingerprint"]["reasons"] = {"dataset_bin_sha256": "not computed"}
        store.write(result, tmp_path / f"train_{framework}.json")
    assert len(compared(tmp_path)["groups"]) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"provenance__host": "elsewhere"},
        {"gpu_info__device_name": "Other CPU"},
        {"platform": "nvd"},
        {"framework": "hf"},
        {"label": "sweep_mbs4"},
        {"training_config__micro_batch_size": 4, "training_config__gradient_accumulation": 16}
        | {"resolved_config__micro_batch_size": 4, "resolved_config__gradient_accumulation": 16},
    ],
)
def test_other_systems_are_rows_of_their_own(tmp_path: Path, other: dict[str, Any]) -> None:
    save(tmp_path / "one")
    save(tmp_path / "two", **other)
    (group,) = compared(tmp_path / "one", tmp_path / "two")["groups"]
    assert [row["runs_counted"] for row in group["rows"]] == [1, 1]
    names = re.findall(r"^\| ([AB] .*?\|.*?)\|", as_text(tmp_path)[0], re.MULTILINE)
    assert len({name[2:] for name in names}) == 2, "the table must distinguish the rows"


def test_copy_of_a_result_is_not_another_run(tmp_path: Path) -> None:
    save(tmp_path / "here")
    save(tmp_path / "there")
    found = compared(tmp_path / "here", tmp_path / "there")
    assert found["groups"][0]["rows"][0]["runs_found"] == 1
    assert found["copies"][0]["file"].endswith("there/train_000.json")
    assert "same content as" in as_text(tmp_path)[0]


def test_ratio_of_a_group_has_the_spread_of_its_runs(tmp_path: Path) -> None:
    for run, (mega, hf) in enumerate([(0.5, 0.25), (0.4, 0.32)], start=1):
        save(tmp_path, mega, run=run, framework="mega")
        save(tmp_path, hf, run=run, framework="hf")
    (ratio,) = compared(tmp_path)["groups"][0]["ratios"]
    # hf 32768 and 25600, mega 16384 and 20480 tokens/s: the root of 1/2 x 4/5
    assert (ratio["mean"], ratio["min"], ratio["max"]) == pytest.approx((0.4**0.5, 16384 / 32768, 20480 / 25600))
    for text in as_text(tmp_path):
        assert "B cpu/mega over A cpu/hf: 0.632x, min to max 0.500 to 0.800" in text


def test_without_two_sides_the_report_begins_with_no_verdict(tmp_path: Path) -> None:
    save(tmp_path)
    found = compared(tmp_path)
    assert (found["verdicts"], found["by"], found["band"]) == ([], "framework", 0.03)
    page, screen = as_text(tmp_path)
    assert page.splitlines()[2].startswith("No verdict: there are no two sides to compare by framework, differences up")
    assert screen.startswith("No verdict: there are no two sides to compare by framework")


def save_pair(folder: Path, **changes: Any) -> None:
    for platform, seconds in (("nvd", 1.0), ("amd", 0.9)):
        for number in range(1, 4):
            result = sides.run(platform, number, seconds, **(changes if platform == "amd" else {}))
            store.write(result, folder / f"train_{platform}_{number}.json")


def test_verdicts_come_first_in_every_format_and_set_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_pair(tmp_path)
    assert main([str(tmp_path)]) == 0
    sentence = "AMD Instinct MI300X is 1.11"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("faster: AMD Instinct MI300X is 1.1")
    assert sentence in " ".join(" ".join(lines).split())
    (found,) = json.loads((tmp_path / "compare.json").read_text())["verdicts"]
    assert found["verdict"] == "faster" and found["sentence"].startswith(sentence)
    assert {"model", "framework", "track", "a", "b", "ratio", "interval", "runs", "machines", "reasons"} <= set(found)
    assert sentence in (tmp_path / "compare.md").read_text()


def test_if_nothing_is_comparable_the_exit_code_is_3_and_the_reason_comes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_pair(tmp_path, resolved_config__qkv_bias=True)
    assert main([str(tmp_path)]) == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "NOT COMPARABLE: NVIDIA H100 80GB HBM3 and AMD Instinct MI300X: QKV bias differs: false against true" in printed
    )


def test_the_user_chooses_baseline_and_band(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_pair(tmp_path)
    assert main([str(tmp_path), "--baseline", "amd", "--band", "0.2"]) == 0
    (found,) = json.loads((tmp_path / "compare.json").read_text())["verdicts"]
    assert (found["verdict"], found["a"]) == ("tie", "AMD Instinct MI300X")
    assert main([str(tmp_path), "--baseline", "intel"]) == 2
    assert "--baseline: got intel, wanted one of amd, nvd" in capsys.readouterr().err


@pytest.mark.parametrize(("runs", "is_noted"), [(4, True), (5, False)])
def test_fewer_than_five_runs_are_noted(tmp_path: Path, runs: int, is_noted: bool) -> None:
    for run in range(1, runs + 1):
        save(tmp_path, run=run)
    assert all(("fewer than five runs" in text) == is_noted for text in as_text(tmp_path))


@pytest.mark.parametrize(("first_loss", "is_noted"), [(8.3 * 1.0005, False), (8.3 * 1.0015, True)])
def test_initial_losses_a_thousandth_apart_are_noted(tmp_path: Path, first_loss: float, is_noted: bool) -> None:
    save(tmp_path, framework="mega")
    save(tmp_path, framework="hf", loss_values=[first_loss, 8.2, 8.0, 7.8, 7.6, 7.4, 7.2, 7.1, 7.0, 6.9])
    assert any("initial losses differ" in note for note in compared(tmp_path)["groups"][0]["notes"]) == is_noted


@pytest.mark.parametrize(("last_loss", "is_noted"), [(6.9 * 1.01, False), (0.004, True)])
def test_final_losses_far_apart_are_noted(tmp_path: Path, last_loss: float, is_noted: bool) -> None:
    save(tmp_path, framework="mega")
    save(tmp_path, framework="hf", loss_values=[8.3, 8.2, 8.0, 7.8, 7.6, 7.4, 7.2, 7.1, 7.0, last_loss])
    assert any("final losses differ" in note for note in compared(tmp_path)["groups"][0]["notes"]) == is_noted


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("fingerprint__initial_weights_sha256", "7" * 64, "777777777777 (A cpu/hf)"),
        ("resolved_config__qkv_bias", True, "true (A cpu/hf); false (B cpu/mega)"),
        ("memory_metrics__source", "allocator", "allocator (A cpu/hf)"),
    ],
)
def test_unlike_work_is_noted(tmp_path: Path, key: str, value: Any, shown: str) -> None:
    save(tmp_path, framework="mega")
    save(tmp_path, framework="hf", **{key: value})
    notes = compared(tmp_path)["groups"][0]["notes"]
    assert any(note.startswith(f"{key.replace('__', '.')} differs: {shown}") for note in notes)


def test_other_seeds_may_have_other_weights(tmp_path: Path) -> None:
    save(tmp_path)
    save_both(tmp_path, "seed", 43, run=2, fingerprint__initial_weights_sha256="7" * 64)
    assert not any("differs" in note for note in compared(tmp_path)["groups"][0]["notes"])


def test_hostile_names_remain_text_inside_their_cell(tmp_path: Path) -> None:
    save(tmp_path, gpu_info__device_name=HOSTILE)
    save_failed(tmp_path, framework="hf")
    page, screen = as_text(tmp_path)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "\\`x\\` \\*y\\* \\$\\\\frac{1\\\\nend" in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {9, 5, 6}, "a pipe in a name must not open a column"
    assert HOSTILE.replace("\n", "\\n").split()[-1] in screen


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_the_width_of_the_terminal(tmp_path: Path, width: int) -> None:
    for run in (1, 2):
        save(tmp_path, 0.25 * run, run=run, gpu_info__device_name="A device with quite a long name " * 3)
        save(tmp_path, 0.25 * run, run=run, framework="hf", resolved_config__tp=4)
    comparison = compare(load_results([tmp_path]), [tmp_path])
    assert max(map(len, terminal(comparison, width).splitlines())) <= width


@pytest.mark.parametrize("no_color", ["", "1"])
def test_output_fits_a_terminal_of_80_columns_and_has_colour_unless_no_color_is_set(
    tmp_path: Path, no_color: str
) -> None:
    save_pair(tmp_path, gpu_info__device_name="A device with quite a long name that no table has room for")
    ours, terminal_end = pty.openpty()
    fcntl.ioctl(terminal_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    environment |= {"TERM": "xterm"} | ({"NO_COLOR": no_color} if no_color else {})
    command = [sys.executable, "-m", "evaluate.compare", str(tmp_path), "--format", "json"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=terminal_end, stderr=subprocess.DEVNULL)
    os.close(terminal_end)
    output = b""
    with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
        while part := os.read(ours, 65536):
            output += part
    os.close(ours)
    assert process.wait() == 0
    text = output.decode()
    assert ("\x1b[1mfaster\x1b[0m" in text) != bool(no_color)
    plain_text = re.sub(r"\x1b\[\d*m", "", text)
    assert plain_text.startswith("faster: A device with")
    assert max(map(len, plain_text.splitlines())) <= 80


def test_numbers_are_not_broken_to_fit() -> None:
    table = text_table(("name", "tokens/s"), [("word " * 30, "18,036 (18,009-18,062)")], 30)
    assert "(18,009-18,062)" in table


def test_markdown_table_of_text_only_cells() -> None:
    assert markdown_table(("a", "b"), [("x|y", "a_b _c_")]).splitlines()[2] == "| x&#124;y | a_b \\_c\\_ |"


def test_command_writes_whole_files_and_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path)
    assert main([str(tmp_path)]) == 3
    output = capsys.readouterr()
    assert "16,384" in output.out
    assert "\x1b" not in output.out
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"train_000.json", "compare.html", "compare.json", "compare.md", "compare.png"}
    assert json.loads((tmp_path / "compare.json").read_text())["groups"]
    assert main([str(tmp_path)]) == 3, "the files of an earlier comparison are no results"


@pytest.mark.parametrize("names", ["json", "md", "html", "png", "png,md", "html,json"])
def test_only_the_wanted_files_are_written(tmp_path: Path, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "in")
    assert main([str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--format", names]) == 3
    wanted = {f"compare.{name}" for name in names.split(",")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == wanted
    printed = capsys.readouterr().err
    assert {word.rstrip(",").split("/")[-1] for word in printed.split()[1:]} == wanted


def test_a_format_imports_only_what_it_needs(tmp_path: Path) -> None:
    save(tmp_path)
    program = (
        "import sys; from evaluate.compare import main; main([sys.argv[1], '--format', sys.argv[2]]); "
        "print({'matplotlib', 'evaluate.page.page'} & set(sys.modules), file=sys.stderr)"
    )
    for names, imported in (("json,md", "set()"), ("html", "{'evaluate.page.page'}")):
        command = [sys.executable, "-c", program, str(tmp_path), names]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stderr.splitlines()[-1] == imported


@pytest.mark.parametrize("is_broken", [False, True])
def test_with_many_runs_a_second_process_draws_the_picture_and_its_failure_is_reported(
    tmp_path: Path, is_broken: bool
) -> None:
    save(tmp_path / "in")
    program = (
        "import sys; from evaluate import compare; from evaluate.comparing import writing; writing.MANY_RUNS = 1; "
    )
    if is_broken:
        program += "from evaluate.report import plots; plots.png = lambda _: open('/dev/full/compare.png'); "
    program += "sys.exit(compare.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if is_broken else 3), done.stderr
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == (set() if is_broken else {f"compare.{end}" for end in ("html", "json", "md", "png")})
    if is_broken:
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and "compare.png" in done.stderr
    else:
        assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--format", "md,pdf", "got 'pdf', wanted any of md,html,json,png"),
        ("--format", "", "wanted any of md,html,json,png"),
        ("--band", "1", "got 1, wanted a share"),
        ("--target-loss", "-1", "got -1, wanted nats per token above 0"),
        ("--target-loss", "inf", "got inf, wanted nats per token above 0"),
        ("--by", "colour", "invalid choice: 'colour'"),
    ],
)
def test_a_bad_option_is_one_line_and_2(
    tmp_path: Path, option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), f"{option}={value}"])
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ") and line.count("\n") == 1 and message in line
    assert not list(tmp_path.glob("compare.*"))


def test_the_users_own_prices_are_used_and_cited(tmp_path: Path) -> None:
    table = tmp_path / "prices.json"
    entry = {"price": 3.6, "date": "2026-11-20", "source": "our contract"}
    table.write_text(json.dumps({"currency": "EUR", "prices": {"NVIDIA H100 SXM 80GB": entry}}))
    save_pair(tmp_path / "results")
    assert main([str(tmp_path / "results"), "--prices", str(table), "--format", "json,md"]) == 0
    found = json.loads((tmp_path / "results" / "compare.json").read_text())
    rows = {row["platform"]: row for row in found["groups"][0]["rows"]}
    metric = rows["nvd"]["metrics"]["tokens_per_dollar"]
    # 8 GPUs at 3.60 an hour are 0.008 a second; 64 x 128 tokens a step of about 1 s
    assert metric["value"] == pytest.approx(64 * 128 / 0.008, rel=0.02)
    assert metric["unit"] == "tokens/EUR" and "our contract, 2026-11-20" in metric["how"]
    assert rows["amd"]["metrics"]["tokens_per_dollar"]["value"] is None
    assert "our contract" in (tmp_path / "results" / "compare.md").read_text()


@pytest.mark.parametrize("content", [None, "{", '{"currency": "EUR", "prices": {"X": {"price": -1}}}'])
def test_a_bad_price_table_is_one_line_and_2(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path)
    table = tmp_path / "prices.json"
    if content is not None:
        table.write_text(content)
    assert main([str(tmp_path), "--prices", str(table)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {table}: ") and printed.count("\n") == 1


def test_time_to_a_target_loss_comes_from_the_curve_of_each_run(tmp_path: Path) -> None:
    losses = [9.0] * 5 + [4.0, 3.75, 4.25, *[4.0, 3.5, 4.5] * 4]
    times = {"step_times": [1.0] * 20, "grad_norms": [2 - 0.05 * step for step in range(20)]}
    config = {"lr": 1e-3, "min_lr": 0.0, "warmup_iters": 2, "max_steps": 20}
    times |= {
        "learning_rates": [schedule(step, config) for step in range(1, 21)],
        "provenance__finished_utc": "2026-11-21T00:00:21+00:00",
    }
    summary = {f"performance_metrics__{name}_step_time_seconds": 1.0 for name in ("avg", "min", "max")}
    rates = {f"performance_metrics__tokens_per_second{end}": 8192.0 for end in ("", "_per_gpu")}
    changes = times | summary | rates | {"performance_metrics__steps_per_second": 1.0, "loss_values": losses}
    changes |= {"steps": list(range(1, 21)), "data_wait_seconds": [0.0] * 20}
    changes |= {f"{section}__max_steps": 20 for section in ("training_config", "resolved_config")}
    save(tmp_path, **changes)
    assert main([str(tmp_path), "--target-loss", "4.5", "--format", "json,md,html"]) == 3
    found = json.loads((tmp_path / "compare.json").read_text())
    metric = found["groups"][0]["rows"][0]["metrics"]["time_to_target_loss"]
    # a window of 10 steps with one of 9.0 and nine of 4.0 has a mean of exactly 4.5: steps 5 to 14
    assert (found["target_loss"], metric["value"], metric["unit"]) == (4.5, 14.0, "s")
    for name in ("md", "html"):
        assert "until the mean loss of 10 steps is 4.5, at step 14" in (tmp_path / f"compare.{name}").read_text()


def test_every_number_of_the_json_has_its_inputs(tmp_path: Path) -> None:
    save_pair(tmp_path)
    assert main([str(tmp_path), "--format", "json"]) == 0
    found = json.loads((tmp_path / "compare.json").read_text())
    (verdict,) = found["verdicts"]
    rates = [[run["tokens_per_second_per_gpu"] for run in side] for side in verdict["inputs"]]
    a, b = (math.prod(side) ** (1 / len(side)) for side in rates)
    assert verdict["ratio"] == pytest.approx(b / a)
    assert [[run["file"] for run in side] for side in verdict["inputs"]] == verdict["files"]
    assert (verdict["published"], verdict["is_decided"], verdict["machines"]) == (None, True, [1, 1])
    for row in found["groups"][0]["rows"]:
        assert row["metrics"] and all(metric["how"] for metric in row["metrics"].values())
        assert {len(metric["runs"]) for metric in row["metrics"].values()} == {row["runs_counted"]}
        keys = {key for key, value in row.items() if isinstance(value, dict) and key != "metrics"}
        assert {f"groups.rows.{key}" for key in keys} <= set(found["definitions"])


@pytest.mark.parametrize(
    ("by", "changes", "names"),
    [
        ("platform", {"platform": "amd", "gpu_info__device_name": "AMD Instinct MI300X"}, ["Example CPU", "AMD"]),
        ("framework", {"framework": "hf"}, ["hf on Example CPU", "mega on Example CPU"]),
        ("machine", {"provenance__host": "other"}, ["example on Example CPU", "other on Example CPU"]),
        ("label", {"label": "sweep_mbs4"}, ["no label on Example CPU", "sweep_mbs4 on Example CPU"]),
    ],
)
def test_sides_differ_in_the_requested_property(
    tmp_path: Path, by: str, changes: dict[str, Any], names: list[str]
) -> None:
    save(tmp_path)
    save(tmp_path, **changes)
    main([str(tmp_path), "--by", by, "--format", "json"])
    (verdict,) = json.loads((tmp_path / "compare.json").read_text())["verdicts"]
    found = sorted((verdict["a"], verdict["b"]))
    assert all(name.startswith(wanted) for name, wanted in zip(found, sorted(names), strict=True))


def test_output_goes_to_the_requested_folder(tmp_path: Path) -> None:
    save(tmp_path / "in")
    assert main([str(tmp_path / "in"), "--output", str(tmp_path / "deep" / "out")]) == 3
    assert (tmp_path / "deep" / "out" / "compare.md").exists()
    assert not (tmp_path / "in" / "compare.md").exists()


def test_no_single_ok_result_exits_1_and_still_shows_the_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_failed(tmp_path)
    assert main([str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "out of memory" in output.out
    assert output.err.splitlines()[-1].startswith("error: ")
    assert "out of memory" in (tmp_path / "compare.md").read_text()


def test_only_unreadable_files_exit_1_and_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train_x.json").write_text("[]")
    assert main([str(tmp_path)]) == 1
    printed = " ".join(capsys.readouterr().out.split())  # the line breaks depend on the length of the path
    assert "wanted an object" in printed
    assert "train_x.json" in (tmp_path / "compare.md").read_text()


@pytest.mark.parametrize("arguments", [["missing"], ["empty"], ["good", "missing"], ["good", "--output", "file"]])
def test_bad_input_exits_2_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1


def test_unchanged_results_give_unchanged_files(tmp_path: Path) -> None:
    save(tmp_path)
    comparison = compare(load_results([tmp_path]), [tmp_path])
    contents = []
    for name in ("first", "second"):
        write(comparison, tmp_path / name)
        contents.append([(tmp_path / name / f"compare.{end}").read_bytes() for end in ("html", "json", "md", "png")])
    assert contents[0] == contents[1]


def test_evaluation_needs_no_torch() -> None:
    program = "import sys, evaluate.compare, evaluate.report.plots; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_shell_entry_finds_the_suite_from_anywhere_and_keeps_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    (tmp_path / "empty").mkdir()
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    command = [str(ROOT / "evaluate" / "compare.sh"), "empty"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: empty: got no result")


def test_a_warning_of_a_trainer_is_a_note_with_its_run(tmp_path: Path) -> None:
    save(tmp_path, run=1)
    save(tmp_path, run=2, warnings=["data: waiting for samples took 2 % of a step"])
    wanted = "A cpu/mega, run 2: data: waiting for samples took 2 % of a step"
    assert wanted in compared(tmp_path)["groups"][0]["notes"]
    assert all("took 2 % of a step" in " ".join(text.split()) for text in as_text(tmp_path))
