"""The files of docs/generated, tables between their marker comments, and the report of docs/examples/h200:
`python -m tests.support.documents` writes them.

settings.md has the settings map. Values are those of config.env on eight GPUs of one node; docs/examples/fair keeps a
CPU run of some frameworks, and the values that such a run read back from its built objects are shown beside them.
fit.md has the memory that jobs of mega and hf need by the estimate, and the devices that have it. result.schema.json
has the keys of a result and their types as a JSON Schema. docs/results/README.md lists the archives of the gallery.
The report compares the complete full-size results of the first GPU (tests/h200).
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluate import compare
from evaluate.bundle import check
from evaluate.metrics.steady import tokens_per_second_per_gpu
from train.job.job import Job
from train.preflight.fit import devices_of, fit_row
from train.settings_map import map as settings_map, row
from utils.frameworks import FRAMEWORKS, VENDOR_OF
from utils.memory.estimate import FRAMEWORKS as ESTIMATED
from utils.models import NAMES, get
from utils.results import schema
from utils.results.keys import IDENTITY_KEYS, KEYS
from utils.settings.config import ROOT, RunConfig, load
from utils.settings.keys import Number

FOLDER = ROOT / "docs" / "generated"
SCHEMA = FOLDER / "result.schema.json"
RESULTS = ROOT / "docs" / "results"
PAGES = (*sorted(FOLDER.glob("*.md")), RESULTS / "README.md")
RUNS = ROOT / "docs" / "examples" / "fair"
FIRST_GPU = ROOT / "tests" / "h200" / "results"
FIRST_REPORT = ROOT / "docs" / "examples" / "h200"
FIRST_PAIR = ("full_sl2048_hf", "full_local")
"""Jobs of equal work."""
FIRST_JOBS = (*FIRST_PAIR, "full_fp8", "full_te8192")
GPUS, MODEL = 8, "llama"
VENDORS = {"nvd": "NVIDIA", "amd": "AMD"}
OURS = tuple(name for name in FRAMEWORKS if name not in settings_map.COLUMNS)
"""Built by code of ours from no key of the map: what a run read back is all that is shown."""
COLUMNS = (*OURS, *(name for name in FRAMEWORKS if name not in OURS))
DOCUMENTED = (
    (8, ()),
    (8, ("SL=8192",)),
    (1, ()),
    (1, ("OPTIMIZER_STATE=bf16",)),
    (1, ("OPTIMIZER_STATE=bf16", "SL=8192")),
)
"""Numbers of GPUs and settings of the rows in fit.md."""
_WITH_PATH = "data set"
MapRowOrVariable = row.MapRow | settings_map.Variable


def values_table() -> str:
    """Return the table of values: a row for each setting, a column for the value asked and one for each framework.

    The values asked are the default settings on eight GPUs of each vendor, without the environment's.
    """
    configs = {platform: load(platform, GPUS, environ={}) for platform in VENDORS}
    ran = {path.stem: json.loads(path.read_text(encoding="utf8"))["resolved_config"] for path in RUNS.glob("*.json")}
    rows = [
        [
            one.name,
            _by_vendor(
                one, configs, {name: one.wanted(config, config.spec(MODEL)) for name, config in configs.items()}
            ),
            *(_cell(one, name, configs, ran.get(name)) for name in COLUMNS),
        ]
        for one in (*settings_map.ROWS, *settings_map.ENVIRONMENT)
    ]
    return _table(["what", "asked", *COLUMNS], rows)


def keys_table() -> str:
    """Return the table of keys: the keys of each setting in each framework, or the reason why it has none."""
    names = COLUMNS[len(OURS) :]
    rows = [
        [
            one.name,
            *(
                entry.reason if isinstance(entry, row.Fixed) else ", ".join(f"`{key}`" for key in entry.keys)
                for entry in (_entry(one, name) for name in names)
            ),
        ]
        for one in (*settings_map.ROWS, *settings_map.ENVIRONMENT)
    ]
    return _table(["what", *names], rows)


def _entry(one: MapRowOrVariable, framework: str) -> Any:
    return one.of(framework) if isinstance(one, settings_map.Variable) else settings_map.entry_of(one, framework)


def _cell(
    one: MapRowOrVariable, framework: str, configs: Mapping[str, RunConfig], ran: Mapping[str, Any] | None
) -> str:
    was = _read_back(one, ran)
    if framework in OURS and isinstance(one, row.MapRow):
        return "" if was is None else f"**{was}**"
    entry = _entry(one, framework)
    platforms = [VENDOR_OF[framework]] if framework in VENDOR_OF else VENDORS
    source = entry.of if isinstance(entry, row.Fixed) else one.wanted
    values = {platform: source(configs[platform], configs[platform].spec(MODEL)) for platform in platforms}
    value = _by_vendor(one, configs, values)
    asked, fixed = ("", " (fixed)") if isinstance(entry, row.Fixed) else ("asked: ", "")
    if was == value:
        return f"**{was}**{fixed}"
    return f"{asked}{value}{fixed}" + (f"; on a CPU **{was}**" if was is not None else "")


def _by_vendor(one: MapRowOrVariable, configs: Mapping[str, RunConfig], values: Mapping[str, Any]) -> str:
    """Return a value once where both vendors have the same, else each with its vendor before it."""
    if one.name == _WITH_PATH:  # the path differs between machines
        values = {platform: f"DATASET={configs[platform].dataset}" for platform in values}
    if len(set(map(repr, values.values()))) == 1:
        return _shown(next(iter(values.values())))
    return ", ".join(f"{VENDORS[platform]} {_shown(value)}" for platform, value in values.items())


def _read_back(one: MapRowOrVariable, ran: Mapping[str, Any] | None) -> str | None:
    """Return the value of the row that a run read back; None where it could not, or where there is no run."""
    if ran is None or isinstance(one, settings_map.Variable) or one.resolved is None:
        return None
    holder: Any = ran
    for name in one.resolved.split("."):
        if not isinstance(holder, dict) or name not in holder:
            return None
        holder = holder[name]
    return None if holder is None and one.resolved in ran.get("reasons", {}) else _shown(holder)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) and (abs(value) < 1e6) else str(value)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (heads, ["---"] * len(heads), *rows)
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in lines)


def fit_table() -> str:
    """Return the table of fit.md: mega and hf, every model, without the environment's settings."""
    devices, rows = devices_of("nvd", "amd"), []
    for gpus, settings in DOCUMENTED:
        for model, framework in itertools.product(NAMES, ESTIMATED):
            arguments = ["DATASET=synth", f"FRAMEWORK={framework}", f"MODEL={model}", *settings]
            config = load("nvd", gpus, arguments=arguments, environ={})
            if config.sequence_length <= get(model).max_position_embeddings:
                what = " ".join([f"`{framework}`", model, *(f"`{one}`" for one in settings)])
                rows.append([what, str(gpus), *fit_row(Job(config, framework, model), devices)])
    sizes = (f"{one.name} ({one.memory_gb:.1f})" for one in devices)
    return _table(["job (PRECISION=bf16, MBS=1)", "GPUs", "needs, GB", *sizes], rows)


def tables() -> dict[str, str]:
    """Return every table by the name in the marker comments around it."""
    return {
        "values of the settings map": values_table(),
        "keys of the settings map": keys_table(),
        "fit table": fit_table(),
        "results": gallery(),
    }


def renewed(text: str, found: Mapping[str, str]) -> str:
    """Return a document with each table in the place of the one between its markers."""
    for name, table in found.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        head, opened, rest = text.partition(begin)
        if opened:
            text = f"{head}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    return text


def gallery(folder: Path = RESULTS) -> str:
    """Return the table of the archives in a folder, a row a job; raise ValueError for one that was changed."""
    checked = {path: check.check(path) for path in sorted(folder.glob("*.zip"))}
    if wrong := [f"{path.name}: {line}" for path, one in checked.items() for line in one.faults]:
        raise ValueError("; ".join(wrong))
    heads = ("archive", "device", "framework", "model", "method", "tokens/s/GPU", "runs", "day", "suite", "reproduced")
    of = {entry.result["label"]: path for path, one in checked.items() for entry in one.loaded.entries}
    rows = []
    for path, one in checked.items():
        jobs: dict[tuple[str, ...], list[float]] = {}
        for result in (entry.result for entry in one.loaded.entries if entry.is_counted):
            config, origin = result["training_config"], result["provenance"]
            model = f"{result['model']} {result['model_size']}, {config['precision']}, SL {config['sequence_length']}"
            suite = f"{origin.get('suite_version')}, {str(origin['git_commit'])[:8]}"
            device = f"{config['num_gpus']} x {result['gpu_info']['device_name']}"
            job = (device, result["framework"], model, result["method"], origin["started_utc"][:10], suite)
            jobs.setdefault(job, []).append(tokens_per_second_per_gpu(result))
        again = of.get(f"reproduced-{path.stem}")
        mark = f"[by another]({again.name})" if again else "not yet"
        for (*what, day, suite), rates in jobs.items():
            speed = f"{statistics.geometric_mean(rates):,.0f}"
            rows.append([f"[{path.stem}]({path.name})", *what, speed, str(len(rates)), day, suite, mark])
    return _table(heads, rows)


def result_schema() -> str:
    """Return result.schema.json, which has what JSON Schema can say: rules between keys are in utils/results/schema.py.

    The description of a key is its unit. A value of a section may be null, with its reason in `reasons`, or absent in a
    result of an earlier version.
    """
    reasons = {"type": "object", "additionalProperties": {"type": "string"}}
    objects = {}
    for section, rows in KEYS.items():
        properties = {"reasons": reasons}
        for key, declared in rows.items():
            properties[key] = {"type": [*_json_types(declared.kind), "null"]}
            if declared.unit:
                properties[key]["description"] = declared.unit
        objects[section] = {"type": "object", "properties": properties}
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Result of one run",
        "description": "Made from utils/results/keys.py; `./tprimat validate` also checks the rules between keys.",
        "type": "object",
        "required": ["schema_version", "status", *IDENTITY_KEYS, *schema.SECTIONS, *schema.SAMPLES],
        "properties": {
            "schema_version": {"const": schema.SCHEMA_VERSION},
            "status": {"enum": [*schema.STATUSES]},
            "reason": {"type": ["string", "null"]},
            "warnings": {"type": "array", "items": {"type": "string"}},
            "source": {"enum": [*schema.SOURCES]},
            "excluded_steps": reasons,
            **{key: {"type": _json_types(declared.kind)} for key, declared in IDENTITY_KEYS.items()},
            "steps": {"type": "array", "items": {"type": "integer", "minimum": 1}},
            **{key: {"type": "array", "items": {"type": ["number", "null"]}} for key in schema.SAMPLE_DIGITS},
            **objects,
        },
    }
    return json.dumps(found, indent=1) + "\n"


def _json_types(kind: type | tuple[type, ...]) -> list[str]:
    names = {str: "string", bool: "boolean", dict: "object", list: "array", int: "integer", float: "number"}
    return ["number"] if kind == Number else [names[one] for one in (kind if isinstance(kind, tuple) else (kind,))]


def write_first_report(folder: Path, *options: str, jobs: Sequence[str] = FIRST_JOBS) -> None:
    """Write the report on the first GPU: Llama 3.1 8B in mega (local layers, TransformerEngine, fp8) and hf.

    The working directory must be ROOT: the report names its files, and no path of one machine belongs in it.
    """
    results = [str(path.relative_to(ROOT)) for job in jobs for path in FIRST_GPU.glob(f"{job}__*.json")]
    compare.main([*results, "--output", str(folder), *options])


if __name__ == "__main__":
    write_first_report(FIRST_REPORT)
    write_first_report(FIRST_REPORT / "pair", "--format", "png", jobs=FIRST_PAIR)
    SCHEMA.write_text(result_schema(), encoding="utf8")
    for document in PAGES:
        document.write_text(renewed(document.read_text(encoding="utf8"), tables()), encoding="utf8")
