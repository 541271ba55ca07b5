"""Results as pandas tables: all of them, each number as a number, and what is missing as missing."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
from pathlib import Path

import bundles
import numpy as np
import pandas
import pytest
from reports import refused, save
from sides import run, write

from evaluate import compare, frame


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


def test_every_result_is_a_row_and_says_whether_a_comparison_counts_it(folder, table, capsys):
    assert len(table) == 8
    left = table[~table.is_counted].set_index("platform")
    assert list(left.status) == ["oom", "ok"]
    assert left.why_not_counted["amd"] == "out of memory in step 3"
    assert "tokens_per_second_per_gpu" in left.why_not_counted["nvd"]
    assert table[table.is_counted].why_not_counted.isna().all()
    assert compare.main([str(folder), "--format", "json"]) == 0
    groups = json.loads((folder / "compare.json").read_text())["groups"]
    (folder / "compare.json").unlink()
    judged = {one["file"]: one["is_counted"] for g in groups for row in g["rows"] for one in row["results"]}
    assert dict(zip(table.file, table.is_counted, strict=True)) == judged


def test_numbers_are_numbers_and_times_are_times(table):
    assert table.run.dtype == table.global_batch_size.dtype == table.parameter_count.dtype == "Int64"
    assert table.tokens_per_second_per_gpu.dtype == table.lr.dtype == np.float64
    assert table.qkv_bias.dtype == table.is_counted.dtype == "boolean"
    assert str(table.started_utc.dt.tz) == "UTC"
    assert (table.finished_utc - table.started_utc).dt.total_seconds().between(50, 125).all()
    assert table.precision.dtype == "string" and (table.precision == "bf16").all()
    assert sorted(table[table.platform == "amd"].run) == [1, 2, 3, 4]


def test_what_is_missing_is_missing_and_never_0(table):
    for column in ("joules", "sliding_window", "driver_version", "repeats.target_percent", "image"):
        assert table[column].isna().all(), column
    assert list(table.gpu_cores.unique()) == [19456, 16896], "which is known"
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
    assert len(steps) == 8 * 100
    first = json.loads(Path(table.file[0]).read_text())
    mine = steps[steps.file == table.file[0]]
    assert list(mine.step) == first["steps"] and list(mine.step_time_seconds) == first["step_times"]
    assert list(mine.loss_nats_per_token) == first["loss_values"] and list(mine.grad_norm) == first["grad_norms"]
    keys = ["file", "platform", "framework", "model", "run"]
    both = steps.merge(table[[*keys, "precision"]], on=keys, validate="many_to_one")
    assert len(both) == len(steps) and both.precision.notna().all()
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
        assert list(other.columns) == list(table.columns)
        assert [Path(name).name for name in other.file] == [Path(name).name for name in table.file]
        pandas.testing.assert_frame_equal(other.drop(columns="file"), table.drop(columns="file"))


def test_a_copy_is_a_row_that_does_not_count(folder, tmp_path):
    (one,), (two,) = (save(tmp_path / name, run("nvd", 1)) for name in "ab")
    found = frame.load(tmp_path)
    assert list(found.is_counted) == [True, False]
    assert found.file[1] == str(two) and str(one) in found.why_not_counted[1]
    assert list(frame.load_steps(tmp_path).groupby("file").is_counted.first()) == [True, False]


def test_an_unreadable_file_is_a_warning_and_stays_in_the_attributes(tmp_path):
    save(tmp_path, run("nvd", 1))
    (tmp_path / "train_broken.json").write_text('{"schema_version": ')
    with pytest.warns(UserWarning, match="train_broken.json.*cannot be read"):
        found = frame.load(tmp_path)
    assert len(found) == 1
    assert [one["file"] for one in found.attrs["unreadable"]] == [str(tmp_path / "train_broken.json")]


@pytest.mark.parametrize("paths", [[], ["missing"], ["empty"]])
def test_nothing_to_load_is_an_error_of_one_line(tmp_path, monkeypatch, paths):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="wanted|no such") as caught:
        frame.load(*paths)
    assert "\n" not in str(caught.value)


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
        assert list(found.columns) == list(wanted.columns) and len(found) == len(wanted)
        rate = "step_time_seconds" if kind else "steady_tokens_per_second_per_gpu"
        assert list(found[rate].dropna()) == list(wanted[rate].dropna())
    assert frame.main([str(folder), "--output", str(path), *kind]) == 0, "our own file is replaced"


@pytest.mark.parametrize("start", "=+-@\t")
def test_no_name_in_csv_is_a_formula_of_a_spreadsheet(tmp_path, start):
    write(tmp_path, [run(label=f"{start}1+1"), run(number=2, label="1+1")])
    assert frame.main([str(tmp_path), "--output", str(tmp_path / "t.csv")]) == 0
    assert list(pandas.read_csv(tmp_path / "t.csv").label) == [f"'{start}1+1", "1+1"]


def test_without_output_csv_goes_to_stdout(folder, capsys):
    assert frame.main([str(folder)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("file,is_counted,") and printed.out.count("\n") >= 9 and printed.err == ""


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["missing"], "missing: no such file or folder"),
        (["{folder}", "--output", "t.xlsx"], "ends in .csv or .parquet"),
        (["{folder}", "--output", "t"], "ends in .csv or .parquet"),
        (["{folder}", "--output", "mine.csv"], "this suite has not written it"),
        (["{folder}", "--output", "mine.parquet"], "this suite has not written it"),
        (["train_x.json"], "cannot be read as JSON"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(folder, tmp_path, monkeypatch, capsys, arguments, wanted):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("file,size\na,1\n")
    pandas.DataFrame({"file": ["a"]}).to_parquet(tmp_path / "mine.parquet")
    (tmp_path / "train_x.json").write_text("{")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert wanted in refused(frame.main, *(argument.format(folder=folder) for argument in arguments))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_missing_package_is_named_before_any_work(folder, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "pyarrow" else found(name, *a))
    for main, options in ((frame.main, [tmp_path / "t.parquet"]), (compare.main, [tmp_path, "--format", "md,parquet"])):
        error = refused(main, folder, "--output", *options)
        assert error.startswith("error: parquet: needs pyarrow") and "pip install" in error
    assert not list(tmp_path.iterdir())


def test_compare_writes_the_table_of_load_only_where_it_is_asked_for(folder, table, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert compare.main([str(folder), "--output", out, "--format", "csv,parquet"]) == 0
    assert sorted(path.name for path in Path(out).iterdir()) == ["compare.csv", "compare.parquet"]
    pandas.testing.assert_frame_equal(pandas.read_parquet(f"{out}/compare.parquet"), table)
    assert frame.main([str(folder), "--output", str(tmp_path / "t.csv")]) == 0
    assert (tmp_path / "t.csv").read_bytes() == Path(out, "compare.csv").read_bytes()
    assert compare.main([str(folder), "--output", str(tmp_path / "usual")]) == 0
    assert sorted(path.suffix for path in (tmp_path / "usual").iterdir()) == [".html", ".json", ".md", ".png"]


def test_a_table_of_a_user_is_not_replaced_by_compare(folder, tmp_path, capsys):
    (tmp_path / "compare.csv").write_text("name,value\n")
    assert compare.main([str(folder), "--output", str(tmp_path), "--format", "csv,md"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["compare.csv"]


def test_a_secret_in_a_result_is_in_no_file(tmp_path, capsys):
    token = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
    save(tmp_path / "in", run("nvd", 1), run("nvd", 2, provenance__command=f"train --token {token}"))
    for ending in ("csv", "parquet"):
        assert frame.main([str(tmp_path / "in"), "--output", str(tmp_path / f"t.{ending}")]) == 0
        assert token.encode() not in (tmp_path / f"t.{ending}").read_bytes()
    assert pandas.read_parquet(tmp_path / "t.parquet")["command"].notna().all()
