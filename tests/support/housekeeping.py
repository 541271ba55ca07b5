"""A folder as the suite leaves it, made with the suite's own writers where they can run, and what stands in a tree."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkout import copy_to, settings_of

from evaluate import wrap
from example import example_result
from train.job.job import Job, log_path, profile_folder, reserve, set_aside
from train.runner.state import lock
from utils.files import temporary_beside
from utils.housekeeping import footprint, purge
from utils.models import NAMES
from utils.own_files import note_trees
from utils.results import store

MARKER, LOCK, LIST = ".tprimat", ".lock", ".tprimat_files"
CHUNK_BYTES = wrap.CHUNK_BYTES
"""Size of the pieces in which the archive is searched for tokens."""
OF_A_PROFILE = (
    *("profile.json", "rank0.json.gz", "rank12.json.gz", "rank0_memory.pickle"),
    *("rocprofv3/rank0_kernel_trace.csv", "rocprofv3/rank0_results.pftrace"),
)
PARTS = ("000000.bin", "1234567.lengths", "tokenizer.json", ".000012.bin.0123456789ab.tmp")
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json"),
)
CACHE = "0123456789abcdef0123456789abcdef-GPTDataset-train"


def write_output(folder: Path) -> None:
    """Write every sort of file that the suite leaves in OUTPUT_DIR, also after crashes."""
    footprint.mark(folder, "output")
    for run in (1, 2):
        write_result(folder, example_result(run=run))
    set_aside(folder / "train_cpu_mega_llama_run2.json")
    write_result(folder, example_result(run=2, attempt=2))
    write_result(folder, example_result(framework="hf", model="qwen", status="failed", reason="ended by signal 9"))
    write_result(folder, example_result(label="tp2"))
    set_aside(folder / "tp2" / "train_cpu_mega_llama_run1.json")
    write_result(folder, example_result(label="tp2", attempt=2))
    for place in (folder, folder / "tp2"):
        store.write_json({"comparison_version": 1, "groups": []}, place / "compare.json")
        for name in ("compare.md", "compare.png", "compare.html", "why.png"):
            (place / name).write_bytes(b"\x89PNG tEXtSoftware\0tprimat")
    store.write_json({"history_version": 1, "series": []}, folder / "history.json")
    store.write_json({"schema_version": 1, "state": "finished", "jobs": []}, folder / "status.json")
    for name in (
        "logs/train_cpu_mega_llama_run1_attempt1.log",
        "logs/tp2_train_cpu_mega_llama_run1_attempt12.log",
        "logs/matrix.log",
        *("history.html", "status.html"),
        "profiles/train_cpu_mega_llama_run1_attempt1_rank0.json.gz",  # of an earlier version
        *(f"profiles/profiled_train_cpu_hf_llama_run1_attempt2/{name}" for name in OF_A_PROFILE),
        "profiles/train_nvd_mega_llama_run1/nsys_20261121T000000Z.nsys-rep",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a line\n")
    (folder / "logs" / "hf_trainer").mkdir()
    listed(folder)
    wrap.write(folder, {})
    reserve(folder / "train_cpu_hf_llama_run1.json")
    for name in ("train_cpu_hf_llama_run1.json", "status.json", "compare.png", "output.zip", footprint.MARKER):
        temporary_beside(folder / name).touch()
    with lock(folder):
        pass
    listed(folder)


def listed(folder: Path) -> None:
    """Put all that is in a folder on its list, as if the suite had written it: raw files, and those of a copy."""
    for made in folder.rglob(LIST):
        made.unlink()
    note_trees(*folder.iterdir())


def write_names_of_every_job(folder: Path) -> None:
    """Write result, earlier attempt, log and profile of every framework, model and odd label, by their own names."""
    pairs = [(framework, model) for framework in ("mega", "hf", "nemo", "bridge", "prim", "titan") for model in NAMES]
    for label in ("", "tp2", "_", "train_cpu"):
        asked = settings_of(f"OUTPUT_DIR={folder} LABEL={label}")
        for framework, model in pairs:
            job = Job(asked, framework, model, 12, 3)
            write_result(folder, example_result(framework=framework, model=model, run=12, label=label))
            set_aside(job.result_path)
            write_result(folder, example_result(framework=framework, model=model, run=12, label=label))
            profile = profile_folder(job) / "profile.json"
            for path in (log_path(job), profile, temporary_beside(job.result_path)):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
    traced = "profiled_train_amd_prim_llama_run1_attempt1"
    place = folder / "logs" / f"{traced}.primus" / "tprimat" / "tprimat" / traced / "tensorboard"
    place.mkdir(parents=True)
    (place / f"primus-megatron-exp[{traced}]-rank[0].1764.pt.trace.json.gz").touch()
    (place / "events.out.tfevents.1764.host.1.0").touch()
    listed(folder)


def write_data(folder: Path) -> None:
    """Write every sort of file that the suite leaves in DATA_DIR; only the names are those of real data."""
    footprint.mark(folder, "data")
    for name in (
        *(f"synth_seed42_245761tokens/text.{suffix}" for suffix in ("bin", "idx", "json", "jsonl")),
        *(f"synth_seed42_245761tokens/tokenizer/{name}" for name in (*TOKENIZER_FILES, "source.json")),
        *(f"synth_seed7_50documents/.text.{suffix}.0123456789ab.tmp" for suffix in ("bin", "idx", "jsonl")),
        "synth_seed7_50documents/.tokenizer.0123456789ab.tmp/tokenizer.json",
        "my.own-text_0123456789ab/text.bin",
        "c4_llama_65536001tokens_0123456789ab/text.source.json",
        *(f"c4_llama_65536001tokens_0123456789ab/.text.parts/{name}" for name in PARTS),
        "c4_llama_65536001tokens_0123456789ab/.text.parts/lock",
        ".tprimat_digests.json",
        f"index_cache/{CACHE}-description.txt",
        *(f"index_cache/{CACHE}-{part}_index.npy" for part in ("document", "sample", "shuffle")),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"data")
    listed(folder)


def packing(folder: Path) -> int:
    """Run the command that packs OUTPUT_DIR in this process and return its exit code."""
    return wrap.main(["--platform", "cpu", f"OUTPUT_DIR={folder}"])


def purging(*arguments: str) -> int:
    """Run the command that purges in this process and return its exit code."""
    return purge.main(["--platform", "cpu", *arguments])


def write_result(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write a result into a folder as a job does and return its file."""
    name = store.result_name(*(result[key] for key in ("platform", "framework", "model", "run")))
    store.write(result, path := folder / result["label"] / name)
    return path


def tree(folder: Path) -> dict[str, str]:
    """Return every path below a folder and what it is: bytes of a file, target of a link, or its sort."""
    found = {}
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            try:
                mode = path.lstat().st_mode
            except PermissionError:
                continue  # below a folder that cannot be searched
            if stat.S_ISLNK(mode):
                content = f"link to {path.readlink()}"
            elif stat.S_ISREG(mode):
                content = f"file of {path.read_bytes()!r}"
            else:
                content = f"sort {stat.S_IFMT(mode):o}"
            found[str(path.relative_to(folder))] = content
    return found


# A neighbourhood for purge: a checkout, a home, other people's files, and an OUTPUT_DIR of ours among them.

COMMAND = (sys.executable, "-B", "-S", "-m", "utils.housekeeping.purge", "--platform", "nvd")
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24  # <linux/capability.h>, <linux/prctl.h>


def drop_rights() -> None:
    """Root may write anywhere; without these capabilities it may not. For any other user this does nothing."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@dataclass
class Place:
    """A neighbourhood: a checkout, a home, other people's files, and an OUTPUT_DIR of ours among them."""

    root: Path
    checkout: Path

    @property
    def output(self) -> Path:
        return self.root / "site" / "output"

    def run(self, *arguments: str, command: tuple[str, ...] = COMMAND, **environ: str):
        """Run the checkout's purge as a user with no rights beyond those of the files."""
        return subprocess.run(
            [*command, *arguments],
            cwd=self.checkout,
            env={"HOME": str(self.root / "homes" / "me"), "PATH": os.environ["PATH"], **environ},
            preexec_fn=drop_rights,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def purge(self, *arguments: str):
        return self.run(f"OUTPUT_DIR={self.output}", *arguments)


def write_checkout(folder: Path) -> None:
    copy_to(folder, "utils", "config*.env")


def write_place(root: Path) -> None:
    """Write a whole OUTPUT_DIR and DATA_DIR, an output of others with a file of theirs, and a home behind a link."""
    for name in ("site/output", "outside"):
        write_output(root / name)
    write_data(root / "data")
    (root / "outside" / "thesis.txt").write_text("years of work")
    (root / "people" / "home").mkdir(parents=True)
    (root / "people" / "home" / "letters").write_text("dear")
    (root / "homes").mkdir()
    (root / "homes" / "me").symlink_to("../people/home")


def make(root: Path, path: Path, what: str, detail: object) -> None:
    """Put a file, a link, a pipe, a folder, a copy, a hard link or another mode at a path, whatever was there."""
    if what == "mode":
        path.chmod(detail)
        return
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    makers = {
        "file": lambda: path.write_bytes(detail),
        "link": lambda: path.symlink_to(root / detail),
        "pipe": lambda: os.mkfifo(path),
        "copy": lambda: shutil.copytree(root / detail, path),
        "folder": path.mkdir,
    }
    makers[what]()
