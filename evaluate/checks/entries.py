"""Results of every known format, read and checked: each becomes an entry with the findings of all rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluate.checks import board, clock, consistency, course, energy, limits
from evaluate.checks.board import Line, copied_runs, overlapping_runs
from evaluate.checks.limits import out_of_range
from evaluate.inputs import discover, earlier, mlperf_logs
from evaluate.metrics import profile_file
from evaluate.metrics.measured_rate import Dated, Probes, Profiles, attach
from evaluate.metrics.profile_file import ProfileError
from utils.housekeeping.inventory import OUTPUT_LAYOUT
from utils.results import probe_file, store
from utils.results.probe_file import ProbeError
from utils.results.schema import Result
from utils.settings import profiling

# Reasons stand in reports in the order of these rules.
REJECTING = (
    consistency.steps_are_complete,
    consistency.samples_are_positive,
    consistency.warmup_is_excluded,
    consistency.summary_follows_from_the_samples,
    consistency.long_data_wait_has_warning,
    consistency.batch_adds_up,
    consistency.tokens_of_experts_add_up,
    consistency.requested_settings_ran,
    consistency.data_is_not_memorised,
    limits.utilisation_is_possible,
    limits.claimed_utilisation_agrees,
    energy.energy_agrees,
    energy.energy_follows_from_its_sources,
    limits.framework_matches_layers,
    earlier.summary_agrees,
    clock.run_ends_after_its_start,
    clock.steps_fit_into_the_run,
    clock.steps_fill_the_loop,
    clock.steps_fill_the_run,
    course.learning_rates_follow_the_schedule,
    course.learning_rate_is_on,
    course.losses_change,
    course.gradients_are_of_real_batches,
    limits.size_matches_name,
    board.device_is_of_the_platform,
    board.devices_are_counted,
    board.memory_fits,
    energy.energy_covers_the_boards,
    energy.power_fits_the_boards,
    consistency.extra_settings_agree,
)
WARNING = (
    consistency.data_is_seen_once,
    consistency.settings_were_read_back,
    consistency.step_times_vary,
    consistency.summary_leaves_out_the_first_steps_alone,
    clock.little_of_the_run_is_steps,
    course.learning_rates_follow_some_schedule,
    course.gradients_fit_the_limit,
    board.hosts_are_different,
    board.average_is_below_peak,
    limits.model_matches_name,
    limits.loss_is_of_unseen_data,
    energy.energy_has_two_sources,
)

PROBES = "probe_*.json"


@dataclass(frozen=True)
class Findings:
    """Findings of the rules in one result; a rejection excludes it from comparisons, a warning does not."""

    rejections: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_usable: bool = True
    """False if the result has a number with which no rule and no metric can calculate."""

    def with_rejections(self, more: Sequence[str], warnings: Sequence[str] = ()) -> Findings:
        """Return these findings with more rejections and warnings."""
        return replace(self, rejections=(*self.rejections, *more), warnings=(*self.warnings, *warnings))


@dataclass(frozen=True)
class Entry:
    """A readable result with its file, the path under which reports name it, and its findings."""

    path: Path
    result: Result
    findings: Findings = Findings()
    """Empty until `checked`."""

    @property
    def is_counted(self) -> bool:
        """True if the result enters averages: its status is ok and no rule rejects it."""
        return self.result["status"] == "ok" and not self.findings.rejections

    @property
    def why_not_counted(self) -> str:
        """The reasons given by the trainer and the rules; empty for a counted result."""
        reason = self.result["reason"]
        reasons = self.findings.rejections if reason is None else (reason, *self.findings.rejections)
        return "; ".join(reasons)


@dataclass(frozen=True)
class Loaded:
    """Everything found in the folders; `unreadable` holds the files that could not be read, with their errors."""

    entries: tuple[Entry, ...] = ()
    unreadable: tuple[tuple[Path, str], ...] = ()
    probes: Probes = Probes()
    profiles: Profiles = Profiles()


def check_result(result: Result) -> Findings:
    """Return the findings of all rules in `result`, which must satisfy the schema (`utils.results.store.read`)."""
    unusable = tuple(out_of_range(result))
    if unusable:  # the other rules cannot calculate with such a number
        return Findings(unusable, is_usable=False)
    rejections: list[str] = []
    warnings = list(result["warnings"])
    for rule in REJECTING:
        rejections += rule(result)
    for rule in WARNING:
        warnings += rule(result)
    return Findings(tuple(rejections), tuple(warnings))


def checked(results: Sequence[tuple[Path, Result]]) -> tuple[Entry, ...]:
    """Return the entries of results with the findings of the rules on each of them and on all of them together."""
    findings = [check_result(result) for _, result in results]
    usable = [place for place, finding in enumerate(findings) if finding.is_usable]
    copies = _add_lines(findings, usable, copied_runs([results[place] for place in usable]))
    # a copy is no run of its own, and so overlaps none
    runs = [place for place in usable if place not in copies]
    _add_lines(findings, runs, overlapping_runs([results[place] for place in runs]))
    return tuple(Entry(path, result, finding) for (path, result), finding in zip(results, findings, strict=True))


def _add_lines(findings: list[Findings], places: Sequence[int], lines: Iterable[Line]) -> set[int]:
    """Add to the findings of each result its first rejection and its first warning; return the rejected places.

    `places` has the place of each result in `findings` by its place in the lines.
    """
    added = set()
    for line in lines:
        place = places[line.place]
        if (place, line.is_certain) in added:
            continue
        added.add((place, line.is_certain))
        if line.is_certain:
            findings[place] = findings[place].with_rejections([line.text])
        else:
            findings[place] = findings[place].with_rejections([], [line.text])
    return {place for place, is_certain in added if is_certain}


def load_results(paths: Sequence[Path]) -> Loaded:
    """Read and check every result below `paths`, including earlier formats and MLPerf logs.

    Raises ResultError if a path is missing or nothing was found.
    """
    return loaded(read_results(paths), paths)


def loaded(found: Loaded, paths: Sequence[Path]) -> Loaded:
    """Check what was read; raise ResultError, which names `paths`, if it is nothing."""
    if not found.entries and not found.unreadable:
        raise store.ResultError(
            f"{', '.join(map(str, paths))}: got no result, wanted train_*.json or benchmark_*.json files; "
            "train first, or name the folder that holds them"
        )
    return replace(found, entries=checked([(entry.path, entry.result) for entry in found.entries]))


def read_results(paths: Sequence[Path]) -> Loaded:
    """Read every result below `paths`, without any rule; raise ResultError if a path is missing."""
    unreadable: list[tuple[Path, str]] = []
    for path in paths:
        discover.require_place(path)
        if path.is_dir():
            # a named pipe or a device in a folder is no result, and is reported
            unreadable += discover.files_below(path, discover.PATTERN)[1]
        elif path.suffix != ".json":
            advice = f"check an archive with --bundle {path}" if path.suffix == ".zip" else "name a folder or a result"
            raise store.ResultError(f"{path}: is no result, wanted a folder or train_*.json; {advice}")
    folders = [path for path in paths if path.is_dir()]
    results: list[tuple[Path, dict[str, Any]]] = []
    for path in (*discover.find(paths), *discover.find(folders, earlier.PATTERN), *discover.find_extracted(folders)):
        read = earlier.read if earlier.is_named(path) else store.read
        try:
            results.append((path, read(path)))
        except store.ResultError as error:
            unreadable.append((path, str(error)))
    of_mlperf, unbelievable = mlperf_logs.results_of(paths)
    results += of_mlperf
    unreadable += unbelievable
    # files of earlier formats may have no number of a run
    earlier.number_runs([(path, result) for path, result in results if earlier.is_named(path)])
    probes = load_probes(paths)
    # the rule of utilisation holds a result against the rate that was measured on its device
    for _, result in results:
        attach(result, probes)
    entries = tuple(Entry(path, result) for path, result in results)
    return Loaded(entries, tuple(unreadable), probes, load_profiles(paths))


# Files beside results: probes, and the profiles of jobs, `profiles/<job>/profile.json`.


def load_probes(paths: Iterable[Path]) -> Probes:
    """Return the probes below these folders and directly in their parents, which may be the OUTPUT_DIR."""
    files = files_around(paths, PROBES, PROBES)
    ours = [file for file in files if OUTPUT_LAYOUT.kind_of(file.name) == "probe"]
    return Probes(*_read_each(ours, probe_file.read, ProbeError))


def load_profiles(paths: Iterable[Path]) -> Profiles:
    """Return the profiles below these folders and in `profiles/` beside them, which may be that of OUTPUT_DIR.

    Traces are not read.
    """
    files = files_around(paths, profiling.NAME, f"{profiling.FOLDER}/*/{profiling.NAME}")
    ours = [file for file in files if file.parent.parent.name == profiling.FOLDER]
    return Profiles(*_read_each(ours, profile_file.read, ProfileError))


def _read_each(
    paths: Iterable[Path], read: Callable[[Path], Dated], unusable: type[Exception]
) -> tuple[tuple[Dated, ...], tuple[str, ...]]:
    """Return what distinct files hold, and the errors of those that `read` refuses by raising `unusable`."""
    contents, errors = [], []
    for path in discover.distinct(paths):
        try:
            contents.append(read(path))
        except unusable as error:
            errors.append(str(error))
    return tuple(contents), tuple(errors)


def files_around(paths: Iterable[Path], name: str, beside: str) -> Iterator[Path]:
    """Yield the files of a name below these folders, and those that fit `beside` in their parents, by folder."""
    for path in paths:
        folder = path if path.is_dir() else path.parent
        files = set(discover.files_below(folder, name)[0])
        files.update(file for file in folder.parent.glob(beside) if file.is_file())
        yield from sorted(files)


def job_name(result: Result, *, with_host: bool = False) -> str:
    """Return `platform/framework model size method [label] [@ host]`, the name of a job in tables."""
    name = f"{result['platform']}/{result['framework']} {result['model']} {result['model_size']} {result['method']}"
    if result["label"]:
        name += f" [{result['label']}]"
    if with_host:
        name += f" @ {result['provenance']['host'] or 'unknown host'}"
    return name
