"""Results as pandas tables: all of them, each number as a number, and what is missing as missing."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
from pathlib import Path

import bundles
import pandas
import pytest
from checkout import ROOT
from reports import refused
from sides import compared, run, write

from evaluate import compare, frame
from example import example_result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs on each of two machines, a failed one and a rejected one."""
    counted = [run(platform, number, s) for platform, s in (("nvd", 1.0), ("amd", 0.5)) for number in (1, 2, 3)]
    failed, impossible = run("amd", 4, 0.5, status="oom", reason="out of memory in step 3"), run("nvd", 4, 1.0)
    impossible["performance_metrics"]["tokens_per_second_per_gpu"] = 9999.0
    return bundles.written(tmp_path_factory.mktemp("results") / "output", [*counted, failed, impossible])


@pytest.fixture(scope="module")
def table(folder):
    return frame.load(folder)


def test_every_result_is_a_row_and_says_whether_a_comparison_counts_it(folder, table):
    left = table[~table.is_counted]
    assert len(table) == 8 and list(left.status) == ["oom", "ok"]
    assert left.why_not_counted.str.contains("out of memory in step 3|tokens_per_second_per_gpu").all()
    assert table[table.is_counted].why_not_counted.isna().all()
    groups = compared(folder, code=0)["groups"]
    (folder / "compare.json").unlink()
    judged = {one["file"]: one["is_counted"] for g in groups for row in g["rows"] for one in row["results"]}
    assert dict(zip(table.file, table.is_counted, strict=True)) == judged


def test_what_is_missing_is_missing_and_never_0(table):
    assert (
        table[["joules", "sliding_window", "driver_version", "repeats.target_percent", "image"]].isna().all(axis=None)
    )
    failed = table[table.status == "oom"].iloc[0]
    assert math.isnan(failed.steady_tokens_per_second_per_gpu) and failed.steady_steps is pandas.NA


def test_the_steady_figures_follow_from_the_raw_samples(folder, table):
    for row in table[table.is_counted].itertuples():
        times = json.loads(Path(row.file).read_text())["step_times"][-row.steady_steps :]
        rate = 64 * 128 / 8 * len(times) / sum(times)  # GBS x SL / GPUs
        assert row.steady_tokens_per_second_per_gpu == pytest.approx(rate, rel=1e-12)
        assert row.steady_step_time_seconds == pytest.approx(sum(times) / len(times), rel=1e-12)


def test_a_row_a_step_joins_to_its_run(folder, table):
    steps = frame.load_steps(folder)
    first = json.loads(Path(table.file[0]).read_text())
    mine = steps[steps.file == table.file[0]]
    columns = {"step": "steps", "step_time_seconds": "step_times", "loss_nats_per_token": "loss_values"}
    for column, key in (columns | {"grad_norm": "grad_norms"}).items():
        assert list(mine[column]) == first[key]
    keys = ["file", "platform", "framework", "model", "run"]
    both = steps.merge(table[[*keys, "precision"]], on=keys, validate="many_to_one")
    assert len(both) == len(steps) == 8 * 100 and both.precision.notna().all()
    counts = steps[steps.is_counted].groupby("file").is_steady.sum()
    assert dict(counts) == dict(table[table.is_counted].set_index("file").steady_steps)
    assert steps[~steps.is_counted].is_steady.isna().all()


def test_a_folder_its_archive_and_its_files_one_by_one_give_the_same_runs(folder, table, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for path in copy.rglob("train_nvd_mega_llama_run4*"):
        path.unlink()  # an archive with a result that its log contradicts is refused
    table = table[table.why_not_counted.isna() | (table.status == "oom")].reset_index(drop=True)
    zipped = frame.load(bundles.pack(copy))
    single = frame.load(*sorted(copy.glob("train_*.json")))
    for other in (zipped, single):
        assert [Path(name).name for name in other.file] == [Path(name).name for name in table.file]
        pandas.testing.assert_frame_equal(other.drop(columns="file"), table.drop(columns="file"))


def test_an_unreadable_file_is_a_warning_and_stays_in_the_attributes(tmp_path):
    write(tmp_path, [run("nvd", 1)])
    (tmp_path / "train_broken.json").write_text('{"schema_version": ')
    with pytest.warns(UserWarning, match="train_broken.json.*cannot be read"):
        found = frame.load(tmp_path)
    assert len(found) == 1
    assert [one["file"] for one in found.attrs["unreadable"]] == [str(tmp_path / "train_broken.json")]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("kind", [[], ["--steps"]])
def test_the_command_writes_a_file_that_pandas_reads_back(folder, tmp_path, ending, kind, capsys):
    path = tmp_path / f"table.{ending}"
    assert frame.main([str(folder), "--output", str(path), *kind]) == 0
    wanted = (frame.load_steps if kind else frame.load)(folder)
    if ending == "parquet":
        pandas.testing.assert_frame_equal(pandas.read_parquet(path), wanted)
    else:
        found = pandas.read_csv(path, dtype_backend="numpy_nullable", float_precision="round_trip")
        assert list(found.columns) == list(wanted.columns)
        rate = "step_time_seconds" if kind else "steady_tokens_per_second_per_gpu"
        assert list(found[rate].dropna()) == list(wanted[rate].dropna())


@pytest.mark.parametrize("start", "=+-@\t")
def test_no_name_in_csv_is_a_formula_of_a_spreadsheet(tmp_path, start):
    write(tmp_path, [run(label=f"{start}1+1"), run(number=2, label="1+1")])
    assert frame.main([str(tmp_path), "--output", str(tmp_path / "t.csv")]) == 0
    assert list(pandas.read_csv(tmp_path / "t.csv").label) == [f"'{start}1+1", "1+1"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["missing"], "missing: no such file or folder"),
        (["empty"], "wanted"),
        (["{folder}", "--output", "t.xlsx"], "ends in .csv or .parquet"),
        (["{folder}", "--output", "t"], "ends in .csv or .parquet"),
        (["{folder}", "--output", "mine.csv"], "this suite has not written it"),
        (["{folder}", "--output", "mine.parquet"], "this suite has not written it"),
        (["train_x.json"], "cannot be read as JSON"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(folder, tmp_path, monkeypatch, arguments, wanted):
    monkeypatch.chdir(tmp_path)
    files = {"mine.csv": b"file,size\na,1\n", "train_x.json": b"{"}
    files["mine.parquet"] = pandas.DataFrame({"file": ["a"]}).to_parquet()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty").mkdir()
    assert wanted in refused(frame.main, *(argument.format(folder=folder) for argument in arguments))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == files


def test_a_missing_package_is_named_before_any_work(folder, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "pyarrow" else found(name, *a))
    for main, options in ((frame.main, [tmp_path / "t.parquet"]), (compare.main, [tmp_path, "--format", "md,parquet"])):
        error = refused(main, folder, "--output", *options)
        assert error.startswith("error: parquet: needs pyarrow") and "pip install" in error
    assert not list(tmp_path.iterdir())


def test_compare_writes_the_table_of_load_where_it_is_asked_for(folder, table, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert compare.main([str(folder), "--output", out, "--format", "csv,parquet"]) == 0
    assert sorted(path.name for path in Path(out).iterdir()) == ["compare.csv", "compare.parquet"]
    pandas.testing.assert_frame_equal(pandas.read_parquet(f"{out}/compare.parquet"), table)


def test_a_table_of_a_user_is_not_replaced_by_compare(folder, tmp_path, capsys):
    (tmp_path / "compare.csv").write_text("name,value\n")
    assert compare.main([str(folder), "--output", str(tmp_path), "--format", "csv,md"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["compare.csv"]


def test_csv_goes_to_stdout_without_a_secret(tmp_path, capsys):
    token = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
    write(tmp_path, [run("nvd", 1), run("nvd", 2, provenance__command=f"train --token {token}")])
    assert frame.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "train --token ***" in printed and token not in printed


# Columns: one name for each key of a result, and no value under a name that is not its own.


def loaded(folder, **changes):
    """Return the table of one result."""
    write(folder, [example_result(**changes)])
    return frame.load(folder)


@pytest.mark.parametrize(
    ("section", "key", "column", "dtype"),
    [
        ("performance_metrics", "tokens_per_second_per_gpu", "tokens_per_second_per_gpu", "float64"),
        ("training_config", "precision", "precision", "string"),
        ("resolved_config", "precision", "resolved_config.precision", "string"),
        ("resolved_config", "parameter_count", "parameter_count", "Int64"),
        ("resolved_config", "qkv_bias", "qkv_bias", "boolean"),
        ("memory_metrics", "source", "memory_metrics.source", "string"),
    ],
)
def test_a_column_has_the_key_as_its_name_and_the_section_before_it_only_where_another_has_the_key(
    tmp_path, section, key, column, dtype
):
    found = loaded(tmp_path)[column]
    assert str(found.dtype) == dtype and found[0] == example_result()[section][key]


def test_nested_objects_lists_and_unknown_keys_are_named_by_their_place(tmp_path):
    found = loaded(
        tmp_path,
        resolved_config__fused_ops={"rms_norm": True},
        resolved_config__of_a_later_version=7,
        provenance__hosts=["a", "b"],
        performance_metrics__loop_seconds=4.5,
    )
    wanted = {
        "resolved_config.fused_ops.rms_norm": True,
        "resolved_config.rope_scaling.factor": 8.0,
        "resolved_config.of_a_later_version": 7,
        "provenance.framework_versions.torch": "2.13.0",
        "provenance.hosts": "a; b",
        "performance_metrics.loop_seconds": 4.5,
    }
    assert {key: found[key][0] for key in wanted} == wanted


def test_reasons_of_missing_values_are_kept_by_column(tmp_path):
    found = loaded(tmp_path)
    reasons = json.loads(found.reasons[0])
    assert math.isnan(found.joules[0]) and reasons["joules"] == reasons["energy_metrics.source"] == "not measured"
    assert reasons["sliding_window"] == "this model attends to every earlier token"


# The Python of docs/analysis.md runs as it stands, block after block.

PAGE = (ROOT / "docs" / "analysis.md").read_text(encoding="utf8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_block_runs_and_is_ten_lines_at_most(tmp_path, monkeypatch, capsys):
    """The blocks print tables over two frameworks with two runs each."""
    monkeypatch.chdir(tmp_path)
    for framework, seconds, layers in (("mega", 1.0, "local"), ("hf", 0.5, "transformers LlamaForCausalLM")):
        known = {"framework": framework, "resolved_config__layer_implementation": layers}
        write(tmp_path / "output", [run("nvd", number, seconds, **known) for number in (1, 2)])
    assert len(BLOCKS) == 4 and all(len(block.splitlines()) <= 10 for block in BLOCKS)
    names: dict[str, object] = {}
    printed = []
    for block in BLOCKS:
        exec(compile(block, "docs/analysis.md", "exec"), names)
        printed.append([line.split() for line in capsys.readouterr().out.splitlines()[2:]])
    _, rates, times, tokens = printed
    assert [(row[-6], row[-5]) for row in rates] == [("hf", "2"), ("mega", "2")]
    # GBS 64 x SL 128 / 8 GPUs in 0.5 s and in 1 s, with the 0.3 % of noise of a run
    assert [float(row[-4]) for row in (*rates, *times)] == pytest.approx([2048, 1024, 0.5, 1.0], rel=0.01)
    # 3 + 5 x 0.95^2 is 7.51 in the third step, 3 + 5 x 0.95^3 is 7.29 in the fourth: 4 x 64 x 128 tokens
    assert [row[-2:] for row in tokens] == [["32768", "32768"]] * 2


def test_every_column_that_the_page_names_exists(tmp_path):
    text = PAGE.partition("## Columns of a run")[2]
    write(tmp_path, [run("nvd", 1)])
    known = {*frame.load(tmp_path).columns, *frame.load_steps(tmp_path).columns}
    named = {name for name in re.findall(r"`([a-z_]+)`", text) if "_" in name and not name.endswith("_")}
    assert named <= known | {"resolved_config"}, named - known
