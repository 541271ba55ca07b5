"""Rules of energy: joules, watts, boards and tokens of a run are of one thing, and no board draws what it cannot."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from evaluate.checks.recorded import is_complete
from evaluate.metrics.figures import unknown
from evaluate.metrics.metrics import device_of, utilisation
from utils.results.schema import ENERGY_RELATIVE, LEAST_HERTZ, Result

ROUNDING = 0.01
"""Relative: a summary keeps three digits, and an energy below 1 J no more."""
MOST_POWER, IDLE_POWER = 1.15, 0.15
"""Shares of the board's power: above the first no board is supplied, below the second none computes (an idle H100
draws 70 W of 700 W)."""
LEAST_POWER_OF_MFU = 0.9
"""Share of the utilisation that the power must reach: no board yields more per watt than its peak at full power."""
BOARDS = ("boards", "board_count", "device_count", "num_gpus", "gpus", "gpu_count")
"""Keys under which `energy_metrics` may count the boards that it covers."""
_SOME_OF_ALL = re.compile(r"\b(\d{1,6}) of (\d{1,6}) (?:boards|gpus|devices|dies)\b", re.IGNORECASE)


def energy_agrees(result: Result) -> Iterator[str]:
    """Yield a line if joules are not watts times the seconds of the measured steps, or are of more tokens than were
    trained. `avg_watts` is the sum over all GPUs or the average of one GPU; both are accepted."""
    energy, config, times = result["energy_metrics"], result["training_config"], result["step_times"]
    joules, watts, of_a_token = energy["joules"], energy["avg_watts"], energy["joules_per_token"]
    trained = len(times) * config["global_batch_size"] * config["sequence_length"]
    if any(value is not None and value <= 0 for value in (joules, watts, of_a_token)):
        yield f"energy: got {joules} J, {watts} W and {of_a_token} J a token, wanted more than 0"
    elif joules is None or not times or min(times) <= 0:
        return
    elif of_a_token is not None and joules / of_a_token > trained * (1 + ENERGY_RELATIVE):
        yield f"energy: {of_a_token} J a token make {joules / of_a_token:,.0f} tokens, {trained:,} were trained"
    elif watts is not None:
        made = dict.fromkeys(watts * seconds for seconds in _measured_seconds(result))
        if not any(
            _is_near(joules, one * boards, ENERGY_RELATIVE) for one in made for boards in (1, config["num_gpus"])
        ):
            yield (
                f"energy: the counter says {joules:,.0f} J, {watts:g} W over the steps make "
                f"{' or '.join(f'{one:,.0f} J' for one in made)}: they are not of one thing"
            )


def energy_follows_from_its_sources(result: Result) -> Iterator[str]:
    """Yield a line if the energy is neither that of the counters nor that of the power, if these two differ, or if it
    was sampled too rarely. Results of earlier versions have neither source on record."""
    energy = result["energy_metrics"]
    joules, hertz = energy["joules"], energy.get("sample_hz")
    counter, power = energy.get("counter_joules"), energy.get("integrated_joules")
    known = [value for value in (counter, power) if value is not None]
    if joules is None:
        return
    if counter is not None and power is not None and not _is_near(counter, power, ENERGY_RELATIVE):
        yield f"energy: the counters make {counter:,.0f} J, power over time {power:,.0f} J: they are not of one thing"
    elif known and not any(_is_near(joules, value, ROUNDING) for value in known):
        yield f"energy: got {joules:,.0f} J, wanted {known[0]:,.0f} J, as its source has it"
    elif hertz is not None and hertz < LEAST_HERTZ:
        yield f"energy: sampled {hertz:g} times a second, wanted {LEAST_HERTZ:g} or more"


def energy_has_two_sources(result: Result) -> Iterator[str]:
    """Yield a line if energy comes from a counter alone or from power alone, so that no second source confirms it."""
    energy = result["energy_metrics"]
    joules, watts = energy["joules"], energy["avg_watts"]
    sources = [energy[key] for key in ("counter_joules", "integrated_joules") if key in energy]
    if (joules is not None and sources and None in sources) or (joules is None) != (watts is None):
        yield f"energy: {'power' if joules is None else 'joules'} from one source, which no other confirms"


def energy_covers_the_boards(result: Result) -> Iterator[str]:
    """Yield a line if there is energy or power of other boards than those that trained."""
    energy, gpus = result["energy_metrics"], result["training_config"]["num_gpus"]
    known = [(int(energy[key]), gpus) for key in BOARDS if type(energy.get(key)) is int]
    known += [(int(a), int(b)) for a, b in _SOME_OF_ALL.findall(str(energy["source"]))]
    other = [(count, trained) for count, trained in known if count != trained]
    if other and (energy["joules"], energy["avg_watts"]) != (None, None):
        yield f"energy: of {other[0][0]} boards, and {other[0][1]} trained"


def power_fits_the_boards(result: Result) -> Iterator[str]:
    """Yield a line if the mean power of a board is beyond what it can draw, or below what its work needs.

    The power is that of the joules over the measured steps, else the stored one (of all boards, or of one on average).
    """
    energy, device, gpus = result["energy_metrics"], device_of(result), result["training_config"]["num_gpus"]
    joules, power, times = energy["joules"], energy["avg_watts"], result["step_times"]
    watts = [power, power / gpus] if power else []
    if joules and times and min(times) > 0:
        watts = [joules / seconds / gpus for seconds in _measured_seconds(result)]
    if device is None or not is_complete(result) or not watts:
        return
    limit = max(device.board_power_watts, (result.get("conditions") or {}).get("max_power_cap_watts") or 0.0)
    mfu = utilisation(result).get("mfu_causal", unknown("%", "")).value or 0.0
    least = max(IDLE_POWER, LEAST_POWER_OF_MFU * min(1.0, mfu / 100)) * device.board_power_watts
    if min(watts) > MOST_POWER * limit:
        yield f"energy: {min(watts):,.0f} W a board; {device.name} draws {limit:g} W at the most"
    elif max(watts) < least:
        yield (
            f"energy: {max(watts):,.0f} W a board; {device.name} needs {least:,.0f} W or more for this work: "
            "it is of fewer boards than trained, or of a part of the time"
        )


def _measured_seconds(result: Result) -> list[float]:
    """Return the seconds of the steps that the joules may be of: the last ones, as many as hold joules /
    joules_per_token tokens; without joules_per_token, all steps or the steady ones."""
    energy, config, times = result["energy_metrics"], result["training_config"], result["step_times"]
    counts = [len(times), len(times) - (result["performance_metrics"]["warmup_steps_excluded"] or 0)]
    if energy["joules_per_token"]:
        tokens = energy["joules"] / energy["joules_per_token"]
        counts = [max(1, round(tokens / config["global_batch_size"] / config["sequence_length"]))]
    return [math.fsum(times[-count:]) for count in counts if count > 0]


def _is_near(a: float, b: float, relative: float) -> bool:
    return abs(a - b) <= relative * abs(b)
