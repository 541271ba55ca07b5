"""An unchanged archive passes, and every change in one is reported."""

from __future__ import annotations

import json
import re
import shutil
import stat
import zipfile
from pathlib import Path

import pytest
from bundles import edited, faults, pack, packed_again, sides, write_run, written
from made_traces import write_profile
from reports import refused, write_probe
from sides import run, summarise

from evaluate import compare, validate

RESULT = "train_nvd_mega_llama_run1.json"
LOG = "logs/train_nvd_mega_llama_run1_attempt1.log"


@pytest.fixture(scope="session")
def honest(tmp_path_factory):
    """The archive of two platforms, of which one has a failed run."""
    failed = run("amd", 3, status="failed", reason="a rank was ended by SIGKILL")
    results = [*sides({"nvd": 1.0, "amd": 0.9}), failed]
    return pack(written(tmp_path_factory.mktemp("honest") / "output", results, is_compared=True))


@pytest.fixture
def archive(honest, tmp_path):
    return Path(shutil.copy(honest, tmp_path))


def test_an_unchanged_archive_has_no_faults_and_its_pages_are_no_evidence(archive, capsys):
    assert validate.main(["--bundle", str(archive)]) == 1, "one of its results has the status failed"
    printed = capsys.readouterr()
    assert "SIGKILL" in printed.out and "output.zip:" not in printed.out
    assert printed.err.count("note: ") == 1 and "no evidence" in printed.err
    assert "every figure follows from the raw logs" in printed.err


def faster(files):
    """Make every step a tenth shorter, with a matching summary."""
    with edited(files, RESULT) as result:
        result["step_times"] = [round(0.9 * time, 6) for time in result["step_times"]]
        summarise(result)


def change_json(name, *keys, value):
    def change(files):
        with edited(files, name) as content:
            for key in keys[:-1]:
                content = content[key]
            content[keys[-1]] = value(content[keys[-1]])

    return change


def replace(name, old, new):
    def change(files):
        assert old in files[name]
        files[name] = files[name].replace(old, new, 1)

    return change


def lacks(name):
    """Return a change to a log of a version that did not have this setting."""

    def change(files):
        assert b'"%b":' % name in files[LOG]
        files[LOG] = re.sub(rb'"%b":[^,}]*,?' % name, b"", files[LOG])

    return change


CHANGES = {
    "a figure of a result": (
        change_json(RESULT, "performance_metrics", "tokens_per_second_per_gpu", value=lambda x: x + 1),
        "compare.json: groups[0].rows[0].last_loss.runs: has 2 entries, the results give 1",  # the other is rejected
    ),
    "its memory": (
        change_json(RESULT, "memory_metrics", "peak_memory_allocated_gb", value=lambda x: x / 2),
        f"{RESULT}: memory_metrics.peak_memory_allocated_gb",
    ),
    "a loss": (change_json(RESULT, "loss_values", 50, value=lambda x: x * 1.001), f"{RESULT}: loss_values: step 51"),
    "a setting": (
        change_json(RESULT, "training_config", "seed", value=lambda x: x + 1),
        f"{RESULT}: training_config.seed: the result has 43, the log 42",
    ),
    "faster steps with their summary": (faster, f"{RESULT}: step_times: step 1"),
    "a sample line twice": (
        lambda files: files.update({LOG: files[LOG] + files[LOG].splitlines()[-1] + b"\n"}),
        f"{RESULT}: steps: the result has 100, the log 101",
    ),
    "the samples removed from a log": (
        lambda files: files.update({LOG: files[LOG].partition(b"raw: ")[0]}),
        f"{RESULT}: {LOG}: no complete raw samples of this run",
    ),
    "a log removed": (lambda files: files.pop(LOG) and None, f"{RESULT}: {LOG}: is missing"),
    "a ratio of the comparison": (
        change_json("compare.json", "verdicts", 0, "ratio", value=lambda x: x * 1.01),
        "compare.json: verdicts[0].ratio: has",
    ),
    "a verdict": (
        change_json("compare.json", "verdicts", 0, "verdict", value=lambda x: "slower"),
        'compare.json: verdicts[0].verdict: has "slower", the results give',
    ),
    "a figure of a table": (
        change_json("compare.json", "groups", 0, "rows", 0, "peak_memory_allocated_gb", "mean", value=lambda x: x / 2),
        "compare.json: groups[0].rows[0].peak_memory_allocated_gb.mean: has",
    ),
    "a key removed from the comparison": (
        change_json("compare.json", "groups", 0, value=lambda x: {k: v for k, v in x.items() if k != "notes"}),
        "compare.json: groups[0].notes: is missing",
    ),
    "compare.json is not a comparison": (
        lambda files: files.update({"compare.json": b"[]"}),
        "compare.json: is not a comparison of the suite",
    ),
    "a result added": (
        lambda files: files.update({"train_nvd_hf_llama_run9.json": files[RESULT]}),
        "compare.json: ",
    ),
    "a result removed": (lambda files: files.pop(RESULT) and None, "compare.json: groups[0].rows"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found_even_with_an_adapted_manifest(what, archive):
    change, wanted = CHANGES[what]
    found = faults(packed_again(archive, change, is_listed=True))
    assert any(line.startswith(wanted) for line in found), found
    assert not any("it was changed" in line or "was added" in line for line in found), "the manifest fits"


@pytest.mark.parametrize("name", [RESULT, LOG, "compare.md", "compare.html", "compare.png"])
def test_a_change_that_is_not_in_the_manifest_is_reported_for_the_file(name, archive):
    def change(files):
        files[name] += b" "

    found = faults(packed_again(archive, change, is_listed=False))
    assert any(line.startswith(f"{name}: has ") and line.endswith("it was changed") for line in found), found
    if name.startswith("compare"):
        assert (len(found), faults(packed_again(archive, change, is_listed=True))) == (1, []), "no evidence"


def test_added_and_removed_files_and_swapped_hashes_are_reported(archive):
    def change(files):
        files["manifest.json"] = zipfile.ZipFile(archive).read("manifest.json")
        files["train_cpu_hf_llama_run1.json"] = files.pop(RESULT)
        with edited(files, "manifest.json") as manifest:
            listed = manifest["files"]
            listed[RESULT], listed[LOG] = listed[LOG], listed[RESULT]

    found = faults(packed_again(archive, change, is_listed=False))
    assert "train_cpu_hf_llama_run1.json: is not in manifest.json: it was added" in found
    assert f"{RESULT}: is in manifest.json but not in the archive: it was removed" in found
    assert {line.partition(":")[0] for line in found} >= {RESULT, LOG, "SHA256SUMS"}


def member(name, mode=0o100644, **fields):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    for key, value in fields.items():
        setattr(info, key, value)
    return info


UNSAFE = {
    "up": member("../evil.json"),
    "up in the middle": member("logs/../../evil.json"),
    "absolute": member("/etc/evil.json"),
    "of Windows": member("logs\\evil.log"),
    "a drive": member("C:evil.log"),
    "empty part": member("logs//evil.log"),
    "a folder": member("logs/evil/"),
    "a link": member("logs/evil.log", stat.S_IFLNK | 0o777),
    "a pipe": member("logs/evil.log", stat.S_IFIFO | 0o644),
    "control characters": member("logs/\x1b[31mevil.log"),
    "the same name": member("compare.json"),
    "the same name to some file systems": member("COMPARE.json"),
}


@pytest.mark.parametrize("what", UNSAFE)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_unsafe_name_is_refused_and_nothing_is_read(what, archive, monkeypatch):
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr(UNSAFE[what], b"{}")
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    (fault,) = faults(archive)
    assert ": refused: " in fault and fault.isprintable()


def test_a_zip_bomb_is_refused(archive, monkeypatch):
    monkeypatch.setattr("evaluate.bundle.archive.SMALL_BYTES", 1 << 20)
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("logs/train_nvd_mega_llama_run8_attempt1.log", bytes(1 << 28))
    (fault,) = faults(archive)
    assert "refused: more than 100 times" in fault


BAD = {
    "not a zip file": lambda path: path.write_bytes(b"PK"),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:2000]),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "no manifest": lambda path: zipfile.ZipFile(path, "w").close(),
    "a manifest of another version": lambda path: packed_again(
        path, lambda files: files.update({"manifest.json": b'{"manifest_version": 2, "files": {}}'}), is_listed=False
    ),
    "a malformed manifest": lambda path: packed_again(
        path, lambda files: files.update({"manifest.json": b'{"manifest_version": 1, "files": {"a": {}}}'}),
        is_listed=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_file_that_is_not_an_archive_of_the_suite_is_bad_input(what, archive):
    BAD[what](archive)
    refused(validate.main, "--bundle", archive)
    refused(compare.main, archive)


def test_damaged_bytes_are_reported(archive):
    content = bytearray(archive.read_bytes())
    content[zipfile.ZipFile(archive).getinfo(LOG).header_offset + 30 + len(LOG) + 50] ^= 0xFF
    archive.write_bytes(content)
    found = faults(archive)
    assert any(line.startswith(f"{LOG}: cannot be read") for line in found), found


@pytest.mark.full("five archives of comparisons with all pages, about 25 s")
def test_methods_labels_baselines_prices_and_single_files_are_compared_again(tmp_path, capsys):
    """METHOD=both compares two folders at once; a user may name files, a baseline, and a price table."""
    own, folder, elsewhere = tmp_path / "own.json", tmp_path / "output", tmp_path / "elsewhere"
    price = {"price": 77, "date": "2026-01-01", "source": "x"}
    own.write_text(json.dumps({"currency": "EUR", "prices": {"NVIDIA H100 SXM 80GB": price}}))
    best = sides({"nvd": 0.8, "amd": 0.7}, label="best", method="best")
    written(folder, sides({"nvd": 1.0, "amd": 0.9}) + best)
    names = sorted(str(path) for path in folder.glob("train_*.json"))
    for arguments in (
        [str(folder), str(folder / "best")],
        [str(folder), "--baseline", "amd", "--band", "0"],
        [str(folder), "--prices", str(own)],
        names,
        [str(folder / "best"), str(folder), "--output", str(folder / "best")],
    ):
        assert compare.main(arguments) == 0
        assert faults(pack(folder)) == [], arguments
    write_run(elsewhere, run("nvd", 7))
    assert compare.main([str(folder), str(elsewhere), "--output", str(folder)]) == 0
    assert f"compare.json: compares {elsewhere}, which is not in the archive: cannot be recalculated" in faults(
        pack(folder)
    )


@pytest.mark.parametrize("has_profile", [True, False])
def test_why_rests_on_profiles_and_is_not_made_again(has_profile, tmp_path):
    results = sides({"nvd": 1.0, "amd": 0.9})
    folder = written(tmp_path / "output", results)
    if has_profile:
        write_profile(folder, results[0])
    assert compare.main([str(folder)]) == 0
    change = change_json("compare.json", "verdicts", 0, "why", value=lambda x: {} if has_profile else None)
    assert faults(pack(folder)) == faults(packed_again(folder / "output.zip", change, is_listed=True)) == []


def test_a_comparison_of_another_version_is_not_made_again_and_a_note_says_so(archive, monkeypatch, capsys):
    def change(files):
        with edited(files, "compare.json") as content:
            del content["ranking"]

    packed_again(archive, change, is_listed=True)
    assert "compare.json: ranking: is missing" in faults(archive)
    monkeypatch.setattr("utils.provenance.origin.sha256_report_code", lambda root: "0" * 64)
    packed_again(archive, lambda files: None, is_listed=True)
    assert faults(archive) == [] and "which another version of the suite made" in capsys.readouterr().err


def test_with_several_nodes_the_samples_are_in_one_of_the_logs(tmp_path):
    folder = written(tmp_path / "output", [])
    log = write_run(folder, sides({"nvd": 1.0}, runs=1)[0])
    text = log.rename(log.with_name(f"{log.stem}_node1.log")).read_text()
    for other, is_whole in (("=== this node prints no step\n", True), (text, False)):  # not the samples twice
        log.write_text(other)
        assert (faults(pack(folder)) == []) is is_whole


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.update({"status.html": b"x"}),  # of an earlier version
        lacks(b"fp8_recipe"),  # a log that is older than a setting
        lacks(b"optimizer_state"),
        # output of another rank on the same line
        replace(LOG, b"raw: ", b"rank 3: warning raw: "),
        replace(LOG, b"[GPU]", b"50%|##   [GPU]"),
    ],
    ids=["status page", "older log", "another older log", "samples", "progress"],
)
def test_a_change_of_no_evidence_is_no_fault(change, archive):
    assert faults(packed_again(archive, change, is_listed=True)) == []


def test_a_measured_rate_counts_in_the_comparison_and_a_changed_one_is_reported(tmp_path):
    results = sides({"nvd": 1.0, "amd": 0.9})
    rate = dict.fromkeys(("best_tflops", "sustained_tflops", "spread_percent"), 800.0)
    path = write_probe(tmp_path / "output", rates={"bf16": rate}, started_utc=results[0]["provenance"]["started_utc"])
    archive = pack(written(path.parent, results, is_compared=True))
    assert path.name in (path.parent / "compare.json").read_text(), "the comparison used it"
    assert faults(archive) == []
    found = faults(packed_again(archive, replace(path.name, b"800.0", b"700.0"), is_listed=True))
    assert any(line.startswith("compare.json: groups[0].rows") for line in found), found
