"""Rules of energy: joules, watts, boards and tokens of a run are of one thing, and no board draws what it cannot."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from evaluate.checks.recorded import is_complete
from evaluate.metrics.metrics import device_of, utilisation
from utils.results.schema import ENERGY_RELATIVE, LEAST_HERTZ, Result

ROUNDING = 0.01
"""Relative: a summary keeps three digits, and an energy below 1 J no more."""
MOST_POWER, IDLE_POWER = 1.15, 0.15
"""Shares of the board's power: above the first no board is supplied, below the second none computes (an idle H100
draws 70 W of 700 W)."""
LEAST_POWER_OF_MFU = 0.9
"""Share of the utilisation that the power must reach: no board yields more per watt than its peak at full power."""
_SOME_OF_ALL = re.compile(r"\b(\d{1,6}) of (\d{1,6}) (?:boards|gpus|devices|dies)\b", re.IGNORECASE)
"""Words by which train/energy/section.py says in `source` how many GPUs an energy is of."""


def energy_agrees(result: Result) -> Iterator[str]:
    """Yield a line if joules are not watts times the seconds of the measured steps, or are of more tokens than were
    trained. `avg_watts` is the sum over all GPUs or the average of one GPU; both are accepted."""
    energy, config, times = result["energy_metrics"], result["training_config"], result["step_times"]
    joules, watts, of_a_token = energy["joules"], energy["avg_watts"], energy["joules_per_token"]
    if any(value is not None and value <= 0 for value in (joules, watts, of_a_token)):
        yield f"energy: got {joules} J, {watts} W and {of_a_token} J a token, wanted more than 0"
        return
    if joules is None or not times or min(times) <= 0:  # another rule rejects such times
        return
    trained = len(times) * config["global_batch_size"] * config["sequence_length"]
    if of_a_token is not None and joules / of_a_token > trained * (1 + ENERGY_RELATIVE):
        yield f"energy: {of_a_token} J a token make {joules / of_a_token:,.0f} tokens, {trained:,} were trained"
    elif watts is not None:
        # some tools report the power of all GPUs, others the mean of one
        possible = [watts * seconds for seconds in _measured_seconds(result)]
        of_all = [one * config["num_gpus"] for one in possible]
        if not any(_is_near(joules, one, ENERGY_RELATIVE) for one in possible + of_all):
            made = " or ".join(f"{one:,.0f} J" for one in dict.fromkeys(possible))
            yield (
                f"energy: the counter says {joules:,.0f} J, {watts:g} W over the steps make {made}: they are not of "
                "one thing"
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
    if len(known) == 2 and not _is_near(counter, power, ENERGY_RELATIVE):
        yield f"energy: the counters make {counter:,.0f} J, power over time {power:,.0f} J: they are not of one thing"
    elif known and not any(_is_near(joules, value, ROUNDING) for value in known):
        yield f"energy: got {joules:,.0f} J, wanted {known[0]:,.0f} J, as its source has it"
    elif hertz is not None and hertz < LEAST_HERTZ:
        yield f"energy: sampled {hertz:g} times a second, wanted {LEAST_HERTZ:g} or more"


def energy_has_two_sources(result: Result) -> Iterator[str]:
    """Yield a line if energy comes from a counter alone or from power alone, so that no second source confirms it."""
    energy = result["energy_metrics"]
    joules, watts = energy["joules"], energy["avg_watts"]
    if joules is None and watts is not None:
        yield "energy: power from one source, which no other confirms"
    elif joules is not None:
        sources = [energy[key] for key in ("counter_joules", "integrated_joules") if key in energy]
        if watts is None or None in sources:
            yield "energy: joules from one source, which no other confirms"


def energy_covers_the_boards(result: Result) -> Iterator[str]:
    """Yield a line if there is energy or power of other boards than those that trained."""
    energy, trained = result["energy_metrics"], result["training_config"]["num_gpus"]
    if energy["joules"] is None and energy["avg_watts"] is None:
        return
    covered = energy.get("gpu_count")
    if covered is not None and covered != trained:
        yield f"energy: of {covered} boards, and {trained} trained"
        return
    # the source in words, of results that do not count the boards
    for some, all_boards in _SOME_OF_ALL.findall(str(energy["source"])):
        if int(some) != int(all_boards):
            yield f"energy: of {int(some)} boards, and {int(all_boards)} trained"
            return


def power_fits_the_boards(result: Result) -> Iterator[str]:
    """Yield a line if the mean power of a board is beyond what it can draw, or below what its work needs."""
    device, watts = device_of(result), _watts_of_a_board(result)
    if device is None or not is_complete(result) or not watts:
        return
    # a board that may be set above its datasheet's power draws more
    cap = (result.get("conditions") or {}).get("max_power_cap_watts") or 0.0
    most = max(device.board_power_watts, cap)
    figure = utilisation(result).get("mfu_causal")
    share = 0.0 if figure is None or figure.value is None else min(1.0, figure.value / 100)
    least = max(IDLE_POWER, LEAST_POWER_OF_MFU * share) * device.board_power_watts
    if min(watts) > MOST_POWER * most:
        yield f"energy: {min(watts):,.0f} W a board; {device.name} draws {most:g} W at the most"
    elif max(watts) < least:
        yield (
            f"energy: {max(watts):,.0f} W a board; {device.name} needs {least:,.0f} W or more for this work: "
            "it is of fewer boards than trained, or of a part of the time"
        )


def _watts_of_a_board(result: Result) -> list[float]:
    """Return what the mean power of a board may be; empty if it is unknown.

    It is that of the joules over the measured steps, else the stored one (of all boards, or of one on average).
    """
    energy, gpus, times = result["energy_metrics"], result["training_config"]["num_gpus"], result["step_times"]
    if energy["joules"] and times and min(times) > 0:
        return [energy["joules"] / seconds / gpus for seconds in _measured_seconds(result)]
    power = energy["avg_watts"]
    return [power, power / gpus] if power else []


def _measured_seconds(result: Result) -> list[float]:
    """Return the seconds of the steps that the joules may be of.

    They are the last steps, as many as hold joules / joules_per_token tokens; without joules_per_token all steps, or
    the steady ones.
    """
    energy, config, times = result["energy_metrics"], result["training_config"], result["step_times"]
    if energy["joules_per_token"]:
        tokens = energy["joules"] / energy["joules_per_token"]
        steps = max(1, round(tokens / config["global_batch_size"] / config["sequence_length"]))
        return [math.fsum(times[-steps:])]
    # a sampler may have measured the whole training, or the steps of the summary
    seconds = [math.fsum(times)]
    skipped = result["performance_metrics"]["warmup_steps_excluded"] or 0
    if skipped < len(times):
        seconds.append(math.fsum(times[skipped:]))
    return seconds


def _is_near(a: float, b: float, relative: float) -> bool:
    return abs(a - b) <= relative * abs(b)
