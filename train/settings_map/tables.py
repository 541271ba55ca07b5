"""The settings map as the tables of docs/generated/settings.md: values of each framework, its keys and reasons.

    python -m train.settings_map.tables --write docs/generated/settings.md

Values are those of config.env on eight GPUs of one node. docs/examples/fair keeps a CPU run of some frameworks; the
values that such a run read back from its built objects are shown beside them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train.settings_map.environment_rows import ENVIRONMENT
from train.settings_map.map import ALL_FRAMEWORKS, ROWS, entry_of
from train.settings_map.row import Fixed, MapRow
from utils.arguments import Parser, report, run
from utils.errors import ConfigError, ForeignFileError
from utils.files import write_whole
from utils.settings.config import ROOT, RunConfig, load

GPUS, MODEL = 8, "llama"
RUNS = ROOT / "docs" / "examples" / "fair"
VENDORS = {"nvd": "NVIDIA", "amd": "AMD"}
PLATFORMS_OF = dict.fromkeys(("mega", "hf", "titan"), ("nvd", "amd")) | {
    "nemo": ("nvd",),
    "bridge": ("nvd",),
    "prim": ("amd",),
}
VALUES, KEYS = "values of the settings map", "keys of the settings map"
"""Names of the tables in the marker comments around them."""
_WITH_PATH = "data set"


def values_table(configs: Mapping[str, RunConfig], ran: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of values: a row for each setting, a column for the value asked and one for each framework."""
    lines = [_line(["what", "asked", *ALL_FRAMEWORKS]), _line(["---"] * (2 + len(ALL_FRAMEWORKS)))]
    for row in (*ROWS, *ENVIRONMENT):
        asked = _by_vendor(row, configs, {platform: _wanted(row, config) for platform, config in configs.items()})
        lines.append(_line([row.name, asked, *(_cell(row, name, configs, ran.get(name)) for name in ALL_FRAMEWORKS)]))
    return "\n".join(lines)


def keys_table() -> str:
    """Return the table of keys: the keys of each setting in each framework, or the reason why it has none."""
    lines = [_line(["what", *ALL_FRAMEWORKS]), _line(["---"] * (1 + len(ALL_FRAMEWORKS)))]
    for row in (*ROWS, *ENVIRONMENT):
        entries = [entry_of(row, framework) for framework in ALL_FRAMEWORKS]
        cells = [
            entry.reason if isinstance(entry, Fixed) else ", ".join(f"`{key}`" for key in entry.keys)
            for entry in entries
        ]
        lines.append(_line([row.name, *cells]))
    return "\n".join(lines)


def read_runs(folder: Path = RUNS) -> dict[str, dict[str, Any]]:
    """Return the `resolved_config` of each kept run by framework; the folder has one file for each."""
    return {path.stem: json.loads(path.read_text(encoding="utf8"))["resolved_config"] for path in folder.glob("*.json")}


def default_configs() -> dict[str, RunConfig]:
    """Return the default settings on eight GPUs of each vendor, without the environment's."""
    return {platform: load(platform, GPUS, environ={}) for platform in VENDORS}


def rendered(text: str, tables: Mapping[str, str]) -> str:
    """Return `text` with each table between its marker comments; raise ConfigError where it has no markers."""
    found = False
    for name, table in tables.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        head, opened, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if opened and closed:
            text, found = f"{head}{begin}\n\n{table}\n\n{end}{tail}", True
    if not found:
        wanted = ", ".join(f"<!-- begin: {name} -->" for name in tables)
        raise ConfigError(f"no marker comments, wanted one of: {wanted}, each with its end")
    return text


def _rendered_file(path: Path, tables: Mapping[str, str]) -> str:
    try:
        return rendered(path.read_text(encoding="utf8"), tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _has_markers(path: Path) -> bool:
    return any(f"<!-- begin: {name} -->".encode() in path.read_bytes() for name in (VALUES, KEYS))


def _cell(row: MapRow, framework: str, configs: Mapping[str, RunConfig], ran: Mapping[str, Any] | None) -> str:
    entry = entry_of(row, framework)
    values = {platform: _value(row, framework, configs[platform]) for platform in PLATFORMS_OF[framework]}
    value = _by_vendor(row, configs, values)
    asked, fixed = ("", " (fixed)") if isinstance(entry, Fixed) else ("asked: ", "")
    was = _read_back(row, ran)
    if was == value:
        return f"**{was}**{fixed}"
    return f"{asked}{value}{fixed}" + (f"; on a CPU **{was}**" if was is not None else "")


def _value(row: MapRow, framework: str, config: RunConfig) -> Any:
    entry = entry_of(row, framework)
    return entry.of(config, config.spec(MODEL)) if isinstance(entry, Fixed) else _wanted(row, config)


def _wanted(row: MapRow, config: RunConfig) -> Any:
    return row.wanted(config, config.spec(MODEL))


def _by_vendor(row: MapRow, configs: Mapping[str, RunConfig], values: Mapping[str, Any]) -> str:
    """Return a value once where both vendors have the same, else each with its vendor before it."""
    if row.name == _WITH_PATH:  # the path differs between machines
        values = {platform: f"DATASET={configs[platform].dataset}" for platform in values}
    if len(set(map(repr, values.values()))) == 1:
        return _shown(next(iter(values.values())))
    return ", ".join(f"{VENDORS[platform]} {_shown(value)}" for platform, value in values.items())


def _read_back(row: MapRow, ran: Mapping[str, Any] | None) -> str | None:
    """Return the value of the row that a run read back; None where it could not, or where there is no run."""
    if ran is None or row.resolved is None:
        return None
    holder: Any = ran
    for name in row.resolved.split("."):
        if not isinstance(holder, dict) or name not in holder:
            return None
        holder = holder[name]
    return None if holder is None and row.resolved in ran.get("reasons", {}) else _shown(holder)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) and (abs(value) < 1e6) else str(value)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into files between their marker comments."""
    parser = Parser(prog="python -m train.settings_map.tables", description="Show the settings map.")
    parser.add_argument(
        "--write", nargs="+", type=Path, metavar="FILE", help="files in which to replace the marked tables"
    )
    options = parser.parse_args(argv)
    try:
        tables = {VALUES: values_table(default_configs(), read_runs()), KEYS: keys_table()}
        texts = {path: _rendered_file(path, tables) for path in options.write or ()}
        for path, text in texts.items():
            write_whole(path, text, is_ours=_has_markers)
    except (ConfigError, ForeignFileError, UnicodeDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        report(error)
        return 2
    if not options.write:
        print("\n\n".join(tables.values()))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
