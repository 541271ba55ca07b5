"""The state of the machine and the software behind a run, and what differs between two runs.

Only what both runs have on record is compared: a value that an earlier result lacks is unknown, and no change. A
package or an environment variable that a recorded list does not have is `none`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from utils.errors import shortened
from utils.provenance.origin import PACKAGES as KNOWN_PACKAGES
from utils.results.schema import SECTIONS, Result
from utils.settings.keys import in_results

CONDITIONS = {
    "power_cap_watts": "power cap (W)",
    "max_sm_clock_mhz": "largest clock (MHz)",
    "max_memory_clock_mhz": "largest memory clock (MHz)",
    "clock_limit_mhz": "clock limit (MHz)",
    "performance_level": "performance level",
    "persistence": "persistence mode",
    "compute_mode": "compute mode",
    "ecc": "ECC",
    "partition": "partition",
    "gpu_count": "GPUs of the machine",
    "numa_balancing": "NUMA balancing",
    "cpu_governor": "CPU governor",
}
"""Those conditions that stay as they are from run to run, unless somebody changes them."""
REPEATS = {
    "torch as the device reports it": "torch",
    "driver as the tool reports it": "driver",
    "image digest": "container image",
    "code": "code commit",
}
"""Properties that are left out where another one, which says the same, differs too."""
PACKAGES, VARIABLES = "framework_versions", "environment"
NONE = "none"
LONGEST = 60
_HASH = re.compile(r"(sha256:)?([0-9a-f]{12})[0-9a-f]{28,}")

State = Mapping[str, str]


@dataclass(frozen=True)
class Differing:
    """A property that differs between two runs, with both values in words."""

    name: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """`torch 2.7.0 -> 2.8.0`."""
        return f"{self.name} {self.before} -> {self.after}"


def state_of(result: Result) -> dict[str, str]:
    """Return the known properties of a run that may change its speed, by name, the software first."""
    found: dict[str, str] = {}
    for name, value in _properties(result):
        if value is not None:
            # a name may have two sources; the first counts
            found.setdefault(name, value if isinstance(value, str) else json.dumps(value, sort_keys=True))
    return found


def versions_of(result: Result) -> dict[str, str]:
    """Return the known versions of packages, driver, device software and container image, in short, by name."""
    versions = {name: _shown(str(value)) for name, value in _versions(result) if value is not None}
    repeated = [name for name in versions if REPEATS.get(name) in versions]
    for name in repeated:
        del versions[name]
    return versions


def differences(before: Result, after: Result) -> list[Differing]:
    """Return what differs between two runs, as far as both have it on record."""
    state_before, state_after = state_of(before), state_of(after)
    has_packages = _both_have(before, after, PACKAGES)
    has_variables = _both_have(before, after, VARIABLES)
    differing: list[Differing] = []
    for name in dict.fromkeys((*state_before, *state_after)):
        old, new = state_before.get(name), state_after.get(name)
        if old == new:
            continue
        if old is None or new is None:
            # a recorded list that lacks a name says that there was none; anything else is unknown
            is_variable = name.startswith("environment ")
            is_none = has_variables if is_variable else has_packages and name in KNOWN_PACKAGES
            if not is_none:
                continue
        if not any(difference.name == REPEATS.get(name) for difference in differing):
            differing.append(Differing(name, _shown(old), _shown(new)))
    return differing


def _both_have(before: Result, after: Result, key: str) -> bool:
    return before["provenance"][key] is not None and after["provenance"][key] is not None


def _properties(result: Result) -> list[tuple[str, Any]]:
    """Return name and value of each property; the first value of a name is used."""
    origin, conditions = result["provenance"], result.get("conditions") or {}
    properties = _versions(result)
    for name, value in sorted((origin[VARIABLES] or {}).items()):
        properties.append((f"environment {name}", str(value)))
    for key, name in CONDITIONS.items():
        properties.append((name, conditions.get(key)))
    return [
        *properties,
        *_settings(result),
        ("model configuration", result["fingerprint"]["model_config_sha256"]),
        ("tokenizer", result["fingerprint"]["tokenizer_sha256"]),
        ("host", ", ".join(origin.get("hosts") or [str(origin["host"])])),
        ("label", result["label"] or NONE),
        ("suite version", origin.get("suite_version")),
        ("code commit", origin["git_commit"]),
        ("uncommitted changes", origin["git_dirty"]),
        ("code", origin["code_sha256"]),
    ]


def _versions(result: Result) -> list[tuple[str, Any]]:
    info, origin = result["gpu_info"], result["provenance"]
    packages = [(package, str(version)) for package, version in sorted((origin[PACKAGES] or {}).items())]
    return [
        *packages,
        ("torch as the device reports it", info["pytorch_version"]),
        ("driver", info["driver_version"]),
        ("driver as the tool reports it", (result.get("conditions") or {}).get("driver_version")),
        (info["software_stack"] or "software stack", info["software_version"]),
        ("container image", origin["image"]),
        ("image digest", origin["image_digest"]),
    ]


def _settings(result: Result) -> list[tuple[str, Any]]:
    """Return what the framework has built, apart from the seed: first the keys of the schema, in its order."""
    names = {place.key: place.name for place in in_results().values() if place.name}
    ran = result["resolved_config"]
    settings = []
    for key in dict.fromkeys((*SECTIONS["resolved_config"], *sorted(ran))):
        if key in ran and key not in ("reasons", "seed"):
            settings.append((names.get(key, key.replace("_", " ")), ran[key]))
    return settings


def _shown(value: str | None) -> str:
    if value is None:
        return NONE
    return shortened(_HASH.sub(r"\2", value.strip('"')), LONGEST)
