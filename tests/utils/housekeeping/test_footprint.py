"""The suite knows its folders by a marker, its files by their names, and who is at work in a folder by a lock."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toydata import write_toy_data

from data.encoding import parts
from data.prepare import prepare
from train.job.job import Job, log_path, profile_folder
from utils.errors import ConfigError
from utils.files import temporary_beside
from utils.housekeeping import footprint, inventory
from utils.housekeeping.footprint import LOCK, MARKER, FootprintError, lock, locked, mark, read_marker
from utils.housekeeping.layout import DATA_LAYOUT, OUTPUT_LAYOUT
from utils.models import NAMES
from utils.provenance.digests import TOKENIZER_FILES
from utils.results import profile_file, store
from utils.settings.combinations import AVAILABLE_FRAMEWORKS
from utils.settings.config import ROOT, load

SHORT = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=6", "WARMUP_ITERS=2")
HOLDER = (
    "import sys, time; from pathlib import Path; from utils.housekeeping.footprint import lock\n"
    "with lock(Path(sys.argv[1])):\n    print('held', flush=True); {}\n"
)


def layout_at(path: str, layout=OUTPUT_LAYOUT):
    for part in path.split("/"):
        layout = layout.layout_of(part)
    return layout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "output").mkdir()
    return tmp_path / "output"


@pytest.fixture
def holder(folder):
    """Return a starter of another process that locks the folder; what it starts is ended afterwards."""
    started = []

    def start(then: str = "time.sleep(60)"):
        command = [sys.executable, "-c", HOLDER.format(then), str(folder)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def kind_of(folder: Path) -> str:
    directory = os.open(folder, os.O_RDONLY)
    try:
        return read_marker(directory, str(folder))
    finally:
        os.close(directory)


def test_a_marked_folder_says_whose_it_is_and_what_for(tmp_path):
    mark(tmp_path / "new" / "data", "data")
    content = json.loads((tmp_path / "new" / "data" / MARKER).read_text())
    assert content == {"tool": "tprimat", "kind": "data", "schema": 1}
    assert kind_of(tmp_path / "new" / "data") == "data"


def test_a_folder_is_marked_once_and_nothing_else_is_written(folder):
    mark(folder, "output")
    before = (folder / MARKER).stat().st_ino
    mark(folder, "data")
    assert (folder / MARKER).stat().st_ino == before and kind_of(folder) == "output"
    assert [path.name for path in folder.iterdir()] == [MARKER]


FOREIGN_MARKERS = {
    "no JSON": '{"tool": "tpri',
    "empty": "",
    "a list": "[]",
    "another tool": '{"tool": "other", "kind": "output", "schema": 1}',
    "another schema": '{"tool": "tprimat", "kind": "output", "schema": 2}',
    "another kind": '{"tool": "tprimat", "kind": "home", "schema": 1}',
    "nested without end": "[" * 100_000,
    "not UTF-8": "\xff",
}


@pytest.mark.parametrize("fault", FOREIGN_MARKERS)
def test_a_marker_that_is_not_ours_stays_and_the_folder_is_not_used(fault, folder):
    (folder / MARKER).write_text(FOREIGN_MARKERS[fault], encoding="latin1")
    before = (folder / MARKER).read_bytes()
    with pytest.raises(FootprintError, match=MARKER) as error:
        mark(folder, "output")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    assert (folder / MARKER).read_bytes() == before


def test_a_marker_that_is_a_link_a_pipe_or_a_folder_is_not_ours(folder, tmp_path):
    mark(tmp_path / "other", "output")
    (folder / MARKER).symlink_to(tmp_path / "other" / MARKER)
    with pytest.raises(FootprintError, match=MARKER):
        mark(folder, "output")
    (folder / MARKER).unlink()
    os.mkfifo(folder / MARKER)  # must not wait for a writer
    with pytest.raises(FootprintError, match="no regular file"):
        mark(folder, "output")
    (folder / MARKER).unlink()
    (folder / MARKER).mkdir()
    with pytest.raises(FootprintError, match="no regular file"):
        mark(folder, "output")


def test_a_folder_without_a_marker_is_not_ours(folder):
    with pytest.raises(FootprintError, match=r"has no \.tprimat"):
        kind_of(folder)


def test_a_folder_that_cannot_be_written_is_bad_input():
    with pytest.raises(ConfigError, match="/proc/nowhere: cannot be written"):
        mark(Path("/proc/nowhere"), "output")


@pytest.mark.parametrize("fault", ["deleted", "renamed", "replaced"])
def test_lock_is_lost_with_its_folder(tmp_path, fault):
    folder = tmp_path / "output"
    with lock(folder) as is_held:
        assert is_held()
        folder.rename(tmp_path / "renamed")
        if fault == "deleted":
            (tmp_path / "renamed" / LOCK).unlink()
        if fault == "replaced":
            with lock(folder):
                assert not is_held()
        assert not is_held()
    assert folder.exists() == (fault == "replaced")


def test_only_one_process_has_a_folder_and_the_other_is_told_who(folder, holder):
    process = holder()
    assert kind_of(folder) == "output", "who locks a folder marks it"
    with pytest.raises(ConfigError, match=f"process {process.pid} on .* is at work there"), lock(folder):
        pass


def test_a_lock_ends_with_its_block_and_with_its_process(folder, holder):
    with lock(folder):
        pass
    process = holder()
    process.kill()
    process.wait()
    with lock(folder):
        assert str(os.getpid()) in (folder / LOCK).read_text()


def test_a_program_that_is_started_under_the_lock_does_not_keep_it(folder, holder):
    process = holder("import subprocess; subprocess.Popen(['cat'], stdout=2); sys.exit()")
    process.wait()
    with lock(folder):  # while `cat` waits for the end of its input, which is this test's
        assert str(os.getpid()) in (folder / LOCK).read_text()


def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(folder, monkeypatch):
    """Purge removes the file: without asking again, two could hold a lock each, on different files."""
    taken = []

    def flock(descriptor, operation):
        if not taken:
            (folder / LOCK).unlink()
        taken.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(footprint.fcntl, "flock", flock)
    with lock(folder):
        assert (folder / LOCK).stat().st_ino == taken[-1]
    assert len(taken) == 2


def test_a_lock_on_a_full_disk_is_bad_input_and_is_given_back(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(FootprintError, match="No space left"), lock(folder):
        pass
    monkeypatch.undo()
    with lock(folder):
        pass


@pytest.mark.parametrize("sort", ["text of somebody", "link", "pipe", "folder"])
def test_a_lock_file_that_is_not_ours_is_left_as_it_is(sort, folder, tmp_path):
    if sort == "link":
        (tmp_path / "elsewhere").touch()
        (folder / LOCK).symlink_to(tmp_path / "elsewhere")
    elif sort == "pipe":
        os.mkfifo(folder / LOCK)
    elif sort == "folder":
        (folder / LOCK).mkdir()
    else:
        (folder / LOCK).write_text("of my editor\n")
    with pytest.raises(FootprintError, match=LOCK), lock(folder):
        pass
    assert sort != "text of somebody" or (folder / LOCK).read_text() == "of my editor\n"
    assert sort != "link" or (tmp_path / "elsewhere").read_bytes() == b""


def test_asking_for_a_lock_that_must_not_be_made_makes_none(folder):
    directory = os.open(folder, os.O_RDONLY)
    with locked(directory, "here", create=False) as descriptor:
        assert descriptor is None
    os.close(directory)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("framework", AVAILABLE_FRAMEWORKS)
@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("label", ["", "tp2", "_", "train_cpu"])
def test_results_and_logs_of_every_job_are_known(framework, model, label, tmp_path):
    job = Job(load("cpu", arguments=[f"OUTPUT_DIR={tmp_path}", f"LABEL={label}"], environ={}), framework, model, 12, 3)
    store.write_json({}, job.result_path)
    assert (layout_at(label) if label else OUTPUT_LAYOUT).kind_of(job.result_path.name) == "result"
    assert OUTPUT_LAYOUT.kind_of(temporary_beside(job.result_path).name) == "temporary"
    store.set_aside(job.result_path)
    (kept,) = (job.result_path.parent / store.SUPERSEDED).iterdir()
    assert layout_at(f"{label}/superseded".lstrip("/")).kind_of(kept.name) == "result"
    assert layout_at("logs").kind_of(log_path(job).name) == "log"
    assert layout_at(f"profiles/{profile_folder(job).name}").kind_of(profile_file.NAME) == "profile"


def test_a_trace_that_primus_left_is_known():
    job = "profiled_train_amd_prim_llama_run1_attempt1"
    place = layout_at(f"logs/{job}.primus/tprimat/tprimat/{job}/tensorboard")
    assert place.kind_of(f"primus-megatron-exp[{job}]-rank[0].1764.pt.trace.json.gz") == "profile"
    assert place.kind_of("events.out.tfevents.1764.host.1.0") == "log" and place.kind_of("notes.json") is None


@pytest.mark.parametrize("name", ["text.bin", "text.idx", "text.jsonl"])
def test_data_that_are_being_written_are_known(name, tmp_path):
    prefix = "synth_seed42_50documents"
    assert layout_at(prefix, DATA_LAYOUT).kind_of(temporary_beside(tmp_path / name).name) == "temporary"
    assert layout_at(f"{prefix}/{temporary_beside(tmp_path / 'tokenizer').name}", DATA_LAYOUT) is not None


@pytest.mark.parametrize("name", [*TOKENIZER_FILES, "source.json"])
def test_the_files_of_any_tokenizer_are_known(name):
    assert layout_at("corpus_llama_0123456789ab/tokenizer", DATA_LAYOUT).kind_of(name) == "data"


def test_parts_that_a_killed_encoder_leaves_are_known(tmp_path):
    layout = layout_at(f"synth_seed42_50documents/{parts.folder_of(tmp_path / 'text').name}", DATA_LAYOUT)
    for number in (0, 12, 1_234_567):
        for path in (parts.file_of(tmp_path, number, "bin"), parts.file_of(tmp_path, number, "lengths")):
            assert layout.kind_of(path.name) == "data"
            assert layout.kind_of(temporary_beside(path).name) == "temporary"


def test_all_that_preparing_and_reading_data_leaves_is_known(tmp_path):
    """Made by the real data.prepare and megatron-core's GPTDataset; also with a text whose name is odd."""
    from utils.dataset.gpt_dataset import build_train_dataset

    settings = (f"DATA_DIR={tmp_path / 'data'}", f"OUTPUT_DIR={tmp_path / 'output'}", *SHORT)
    config = load("cpu", arguments=settings, environ={})
    prefix, manifest = prepare(config, "llama")
    assert kind_of(tmp_path / "data") == "data", "marked by what makes the data, not only by what reads them"
    build_train_dataset(config, prefix, manifest)
    text = tmp_path / "my.-[own].jsonl"
    text.write_text("".join(json.dumps({"text": f"the {number} lines of mine " * 40}) + "\n" for number in range(60)))
    own = (f"DATASET={text}", f"TOKENIZER={prefix.parent / 'tokenizer'}", "ALLOW_REPEAT=true", "SAMPLES=50")
    prepare(load("cpu", arguments=[*settings, *own], environ={}), "llama")
    directory = os.open(tmp_path / "data", os.O_RDONLY)
    found = list(inventory.entries(directory, DATA_LAYOUT))
    os.close(directory)
    assert [entry.path for entry in found if entry.foreign] == []
    assert kind_of(tmp_path / "data") == "data"
    assert len([entry for entry in found if entry.kind == "data"]) == 7 + 3 + 4 + 1


def test_a_data_folder_is_marked_where_only_the_index_cache_is_ours(tmp_path):
    from utils.dataset.gpt_dataset import build_train_dataset, describe

    prefix = write_toy_data(tmp_path / "theirs" / "text")
    settings = (f"DATA_DIR={tmp_path / 'data'}", f"OUTPUT_DIR={tmp_path / 'output'}", f"DATASET={prefix}", *SHORT)
    build_train_dataset(load("cpu", arguments=settings, environ={}), prefix, describe(prefix))
    assert kind_of(tmp_path / "data") == "data"
    assert not (prefix.parent / MARKER).exists()


NEARLY = [
    "train_cpu_mega_llama_run1.json.bak",
    "train_cpu_mega_llama_run1.json\n",
    "train_cpu_mega_llama_run1.json ",
    " train_cpu_mega_llama_run1.json",
    "my_train_cpu_mega_llama_run1.json",
    "train_cpu_mega_llama_run01.json",
    "train_cpu_mega_llama_run\u0661.json",
    "train_cpu_mega_llama_run.json",
    "train_cpu_mega_llama_run-1.json",
    "train_cpu_mega_llama_run1_attempt1.json",
    "train_cpu_mega_llama.json",
    "train_tpu_mega_llama_run1.json",
    "train_cpu_ours_llama_run1.json",
    "train_cpu_mega_gpt_run1.json",
    "TRAIN_CPU_MEGA_LLAMA_RUN1.JSON",
    ".train_cpu_mega_llama_run1.json.swp",
    ".train_cpu_mega_llama_run1.json.reserves2",
    ".train_cpu_mega_llama_run1.json",
    "compare.pdf",
    "compare.json.old",
    "comparexjson",
    ".compare.json.swp",
    "status.json~",
    "output.zip.1",
    "output2.zip",
    ".gitkeep",
    ".tprimat.old",
    ".lock.mine",
    "matrix.log",
    "",
]


@pytest.mark.parametrize("name", NEARLY)
def test_a_name_that_is_nearly_ours_is_not_ours(name):
    assert OUTPUT_LAYOUT.kind_of(name) is None


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("logs", "matrix.log.1"),
        ("logs", "train_cpu_mega_llama_run1.log"),
        ("logs", "train_cpu_mega_llama_run1_attempt1.log.gz"),
        ("logs", "a b_train_cpu_mega_llama_run1_attempt1.log"),
        ("logs", "train_cpu_mega_llama_run1.json"),
        ("logs/hf_trainer", "training_args.bin"),
        ("superseded", "train_cpu_mega_llama_run1.json"),
        ("superseded", "train_cpu_mega_llama_run1_attempt0.json"),
        ("profiles", "notes.txt"),
        ("profiles/train_cpu_mega_llama_run1_attempt1", "notes.json"),
        ("profiles/train_cpu_mega_llama_run1_attempt1", "rank00.json.gz"),
        ("profiles/train_cpu_mega_llama_run1_attempt1/rocprofv3", "profile.json"),
        ("tp2", "output.zip"),
        ("tp2", "status.json"),
        ("tp2", "status.html"),
        ("tp2", ".tprimat"),
    ],
)
def test_a_name_belongs_to_its_place(place, name):
    assert layout_at(place).kind_of(name) is None


@pytest.mark.parametrize("name", ["data.bin", "text.txt", ".text.bin.tmp", ".text.bin.0123456789AB.tmp", "text.bin.1"])
def test_a_name_in_a_data_set_that_is_not_ours(name):
    assert layout_at("synth_seed42_50documents", DATA_LAYOUT).kind_of(name) is None


@pytest.mark.parametrize(
    "name", ["synth", "synth_seed42", "corpus_0123456789abc", "_0123456789ab", "corpus_0123456789AB"]
)
def test_a_folder_in_data_that_is_not_ours(name):
    assert DATA_LAYOUT.layout_of(name) is None
