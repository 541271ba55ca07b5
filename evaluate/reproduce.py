"""Run the jobs of an archive of run_wrap.sh again on this machine, and test its claim: the answer to a doubted result.

The settings, the seed and the data are those of the results of this platform in the archive; what differs here (device,
image, code) is printed first. Each job ends in PASS, FAIL or UNKNOWN. After an interrupt, the same command continues
where it stopped.

Usage:   ./shell/run_reproduce.sh ARCHIVE.zip [--at-least PERCENT] [--dry-run] [KEY=VALUE ...]
         --at-least is the least share of the archive's tokens/s/GPU that passes (default 95); --dry-run starts no job
Reads:   as run_train.sh; the archive
Writes:  as run_train.sh, with LABEL=reproduced-ARCHIVE
Exits:   0 every job passes; 1 one fails; 3 none fails and one is unknown; 2 bad input; 128 + signal interrupted
Example: ./shell/run_reproduce.sh nvd.zip --at-least 97 DATA_DIR=/data

This module is the two steps around the training:

    python -m evaluate.reproduce plan ARCHIVE.zip --platform P
    python -m evaluate.reproduce judge ARCHIVE.zip --platform P --results DIR [--at-least 95]

`plan` checks the archive and prints a line of settings, parted by tabs, for each job of this platform; on standard
error it says what differs here. `judge` prints PASS, FAIL or UNKNOWN for each of these jobs, as `evaluate.compare
--against` does. A job whose runs in the archive do not count has no claim that could hold: FAIL. An archive that
contradicts itself exits 1.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from evaluate.command_lines import REPRODUCE

if __name__ == "__main__":
    REPRODUCE.parse_first()

from evaluate.acceptance import command
from evaluate.acceptance.command import FAILED
from evaluate.acceptance.deciding import FAIL
from evaluate.bundle import as_input
from evaluate.bundle.archive import BundleError
from evaluate.bundle.check import check
from evaluate.checks.entries import Loaded
from evaluate.checks.recorded import grouped
from evaluate.report.tables import plain
from evaluate.verdict.side_names import device_name
from utils.arguments import refusing, run
from utils.provenance import origin
from utils.provenance.digests import sha256_code
from utils.results.schema import Result
from utils.results.store import ResultError
from utils.settings.config import ROOT
from utils.settings.keys import KEYS, NO_RECIPE

NOT_ASKED = ("profile", "dp", "gradient_accumulation")
"""Keys of `training_config` that follow from the others and from the number of GPUs."""
OF_DATA = (
    "DATASET_REPO",
    "DATASET_CONFIG",
    "DATASET_REVISION",
    "TEXT_COLUMN",
    "TOKENIZER",
    "TEXT_UNIT",
    "ON_BAD_RECORD",
    "CLEAN",
    "GROUP_ROWS",
    "MIN_CHARS",
    "MAX_CHARS",
    "PROXY_LAYERS",
    "FIT",
)
"""Settings that no result holds, and that are taken from the command on record where it has them."""


@refusing((ResultError, BundleError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = REPRODUCE.parse_args(arguments)
    if options.step == "judge" and options.results is None:
        REPRODUCE.error("--results: missing, wanted the folder of the results of this machine")
    faults = check(options.archive).faults
    if faults:
        print(plain(f"FAIL     {options.archive} contradicts itself: {len(faults)} faults, first: {faults[0]}"))
        return FAILED
    if options.step == "judge":
        return _judge(options)
    for line in plan(options.archive, options.platform):
        print("\t".join(line))
    return 0


def plan(archive: Path, platform: str) -> list[list[str]]:
    """Return the settings of each job of a platform in an archive, and print what differs here to standard error.

    Raises ResultError for a file that is no archive of shell/wrap.sh, one with a fault, and one without such a job.
    """
    jobs = grouped(_results(archive, platform), lambda result: tuple(settings(result)))
    code = sha256_code(ROOT)
    for arguments, results in jobs.items():
        print(plain(f"job: {' '.join(arguments)}"), file=sys.stderr)
        # each line once, in order
        lines: dict[str, None] = {}
        for result in results:
            lines.update(dict.fromkeys(_differences(result, code)))
        for line in lines:
            print(plain(f"  {line}"), file=sys.stderr)
    return list(map(list, jobs))


def settings(result: Result) -> list[str]:
    """Return the settings, as KEY=VALUE, that make the job of a result again; RUNS is that of its `repeats`."""
    asked = result["training_config"]
    made = {
        "FRAMEWORK": result["framework"],
        "MODEL": result["model"],
        "MODEL_SIZE": result["model_size"],
        "METHOD": result["method"],
        "RUNS": (result.get("repeats") or {}).get("runs") or "3",
    }
    for name, key in KEYS.items():
        if key.in_results is None or key.in_results.key in NOT_ASKED:
            continue
        value = asked.get(key.in_results.key)
        # the default of the suite then holds, as it did there
        if value in (None, NO_RECIPE):
            continue
        made[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if result["platform"] == "cpu":
        made["CPU_RANKS"] = str(asked["num_gpus"])
    # the result has the hash of the data only; the command says where they came from
    for word in shlex.split(str(result["provenance"]["command"] or "")):
        name, equals, value = word.partition("=")
        if equals and name in OF_DATA:
            made[name] = value
    return [f"{name}={value}" for name, value in made.items()]


def _results(archive: Path, platform: str) -> list[Result]:
    results: list[Result] = [entry.result for entry in as_input.read([archive], Loaded()).entries]
    ours = [result for result in results if result["platform"] == platform]
    if not ours:
        there = ", ".join(sorted({str(result["platform"]) for result in results})) or "no result"
        raise ResultError(f"{archive}: has {there}, and this machine is {platform}; run it on one of that platform")
    return ours


def _differences(result: Result, code: str) -> Iterator[str]:
    """Yield what is not the same here as where a result was measured, as far as it is known before the run."""
    there = result["provenance"]
    yield f"measured on {device_name(result)}, image {there['image_digest'] or 'none'}; compare with what runs here"
    for name, ours in (("git_commit", origin.commit(ROOT)[0]), ("code_sha256", code)):
        if there[name] != ours:
            yield f"{name} differs: there {there[name] or 'unknown'}, here {ours or 'unknown'}"


def _judge(options: argparse.Namespace) -> int:
    _results(options.archive, options.platform)
    measured, unreadable = command.read_jobs([options.results])
    claimed, _ = command.read_jobs([options.archive], by_machine=False)
    claims = [job for job in claimed if job.key.platform == options.platform]
    # a claim of runs that do not count cannot hold
    decisions = list(command.against_jobs(measured, claims, options.archive, options.at_least, empty=FAIL))
    return command.shown(decisions, str(options.archive), options.at_least, unreadable)


if __name__ == "__main__":
    sys.exit(run(main))
