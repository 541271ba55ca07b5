"""Rules of consistency: a result's numbers follow from its raw samples, and the requested settings are those that ran.

Each rule takes a result that satisfies the schema and yields its findings as lines of text. Most rules also check
results that are not ok, as far as those have values.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from evaluate.checks.recorded import longest_equal
from evaluate.metrics.steady import SHORTEST_STEP_SECONDS
from utils import frameworks
from utils.results.keys import KEYS
from utils.results.performance import DATA_WAIT, data_wait_fraction, data_wait_warning, summary_of, warmup_steps
from utils.results.schema import Result
from utils.results.store import SAMPLE_ROUNDING, SHARE_ROUNDING, SUMMARY_ROUNDING

FLOAT32_RELATIVE = 1e-6
"""Tolerance for a setting that its framework keeps as float32 (2**-24 = 6e-8 relative)."""
WARN_EPOCHS, MAX_EPOCHS = 1, 4
"""Above the first the loss is no longer that of unseen data; above the second a small corpus is being memorised."""
REPEATS_IN_A_ROW = 3
SHARE_OF_EXPERT = 1e-5
"""Rounding of an expert's share of the tokens."""


def steps_are_complete(result: Result) -> Iterator[str]:
    """An ok result has each step from 1 to max_steps, except those of `excluded_steps`: profiled, or without a time in
    the log."""
    if result["status"] != "ok":
        return
    # a trainer that died and whose exit code was lost in a pipe says ok and stops early
    wanted = result["training_config"]["max_steps"]
    steps = {*result["steps"], *map(int, result.get("excluded_steps", {}))}
    if len(steps) != wanted or min(steps) != 1 or max(steps) != wanted:
        yield f"steps: got {len(result['steps'])} steps, wanted each of 1 to {wanted}"


def samples_are_positive(result: Result) -> Iterator[str]:
    """Every step takes time, a cross entropy over a vocabulary is above zero, and no wait for samples is below zero."""
    for key, least, wanted in (
        ("step_times", SHORTEST_STEP_SECONDS, "s, wanted more than 0"),
        ("loss_values", math.ulp(0.0), "nats per token, wanted more than 0"),
        ("data_wait_seconds", 0.0, "s, wanted 0 or more"),
    ):
        wrong = [value for value in result[key] if value is not None and value < least]
        if wrong:
            yield f"{key}: got {wrong[0]} {wanted}"


def warmup_is_excluded(result: Result) -> Iterator[str]:
    """The summary excludes at least the steps of `utils.results.performance.warmup_steps`, but not all steps."""
    excluded, count = result["performance_metrics"]["warmup_steps_excluded"], len(result["steps"])
    if excluded is None:
        if result["status"] == "ok":
            yield "warmup_steps_excluded: missing in a result that says ok"
    elif count and not warmup_steps(count) <= excluded < count:
        yield f"warmup_steps_excluded: got {excluded} of {count} steps, wanted {warmup_steps(count)}"


def summary_follows_from_the_samples(result: Result) -> Iterator[str]:
    """Average, extremes and standard deviation are those of the raw step times, tokens/s = global batch x sequence
    length / average, and the share of waiting is that of the raw waits; it is None if a wait is unknown."""
    times, config, stored = result["step_times"], result["training_config"], result["performance_metrics"]
    excluded = stored["warmup_steps_excluded"]
    if excluded is None or not 0 <= excluded < len(times) or min(times) < SHORTEST_STEP_SECONDS:
        return  # other rules reject such a number
    times = times[excluded:]  # of this summary alone; every figure of a report has those of evaluate/metrics/steady.py
    tokens_per_step = config["global_batch_size"] * config["sequence_length"]
    expected = summary_of(times, tokens_per_step, config["num_gpus"])
    for key, value in expected.items():
        if value is None:  # the deviation of a single step
            continue
        # a deviation is rounded as the samples are
        size = max(times) if key == "std_step_time_seconds" else value
        # both roundings; that of the samples counts twice, as a standard deviation can move that far
        if _is_apart(stored[key], value, SUMMARY_ROUNDING + 2 * SAMPLE_ROUNDING * size):
            yield f"{key}: stored {stored[key]:.7g}, the raw samples give {value:.7g}"
    yield from _data_wait_follows(stored["data_wait_fraction"], times, result["data_wait_seconds"][excluded:])


def _data_wait_follows(stored: float | None, times: Sequence[float], waits: Sequence[float | None]) -> Iterator[str]:
    known = data_wait_fraction(times, waits)
    tolerance = (SHARE_ROUNDING + 2 * SAMPLE_ROUNDING) * (known or 0.0)
    if (known is None) != (stored is None) or _is_apart(stored, known, tolerance):
        yield f"data_wait_fraction: stored {stored}, the raw samples give {known}"


def long_data_wait_has_warning(result: Result) -> Iterator[str]:
    """A result whose steps waited for samples longer than the limit has the warning."""
    waiting = result["performance_metrics"]["data_wait_fraction"]
    is_told = any(text.startswith(DATA_WAIT) for text in result["warnings"])
    if data_wait_warning(waiting) is not None and not is_told:
        yield f"warnings: a data_wait_fraction of {waiting:g} is above the limit and none says so"


def batch_adds_up(result: Result) -> Iterator[str]:
    """GBS = MBS x DP x GA and GPUs = DP x TP x PP x CP; not checked if a log leaves one unknown."""
    config = result["training_config"]
    products = {
        "global_batch_size": ("MBS x DP x GA", ("micro_batch_size", "dp", "gradient_accumulation")),
        "num_gpus": ("DP x TP x PP x CP", ("dp", "tp", "pp", "cp")),
    }
    factors = {key: [config[name] for name in names] for key, (_, names) in products.items()}
    # both products or none: a log that leaves one factor out proves neither
    if any(None in known for known in factors.values()):
        return
    for key, (formula, _) in products.items():
        product = math.prod(factors[key])
        if config[key] != product:
            shown = " x ".join(map(str, factors[key]))
            yield f"{key}: got {config[key]}, wanted {formula} = {shown} = {product}"


def tokens_of_experts_add_up(result: Result) -> Iterator[str]:
    """Each layer sends each token of a step to as many experts as the model says; the fullest expert of a step has at
    least the mean, at most each token once, and over all steps at least the share of the one with the most tokens."""
    section, ran, config = result.get("experts") or {}, result["resolved_config"], result["training_config"]
    tokens, shares = section.get("tokens"), section.get("fullest_share")
    experts, chosen, layers = ran.get("num_experts"), ran.get("experts_per_token"), ran["num_layers"]
    if result["status"] != "ok" or tokens is None or shares is None:
        return
    if not experts or not chosen or not layers or None in tokens or None in shares:
        yield "experts: a number is missing, or the model that ran has none"
        return
    # the counters run in profiled steps too
    steps = len(result["steps"]) + len(result.get("excluded_steps", {}))
    wanted = steps * config["global_batch_size"] * config["sequence_length"] * layers * chosen
    least, most = 1 / experts, 1 / chosen
    if len(tokens) != experts or len(shares) != steps:
        yield f"experts: got {len(tokens)} experts and {len(shares)} steps, wanted {experts} and {steps}"
    elif abs(sum(tokens) - wanted) > experts:  # each count is rounded
        yield f"experts: got {sum(tokens):,} tokens, wanted steps x GBS x SL x layers x experts of a token = {wanted:,}"
    elif min(shares) < least - SHARE_OF_EXPERT or max(shares) > most + SHARE_OF_EXPERT:
        yield f"experts: fullest shares of {min(shares):g} to {max(shares):g}, wanted {least:g} to {most:g}"
    elif statistics.fmean(shares) + SHARE_OF_EXPERT < max(tokens) / wanted:
        largest, mean = max(tokens) / wanted, statistics.fmean(shares)
        yield f"experts: one has {largest:g} of all tokens, and the fullest of a step {mean:g}"


def requested_settings_ran(result: Result) -> Iterator[str]:
    """Every setting that was read back from the framework has the requested value."""
    asked, ran = result["training_config"], result["resolved_config"]
    for key in asked:
        # what a framework did not read back proves nothing; settings_were_read_back marks it
        if key == "reasons" or (key == "init" and frameworks.of(result["framework"]).ignores_init):
            continue
        if ran.get(key) is not None and not _is_same(asked[key], ran[key]):
            yield f"{key}: asked {asked[key]!r}, ran {ran[key]!r}"


def data_is_not_memorised(result: Result) -> Iterator[str]:
    """A training passes over its data MAX_EPOCHS times at most, unless allow_repeat is set."""
    epochs = result["fingerprint"]["epochs"]
    if epochs is not None and epochs > MAX_EPOCHS and result["training_config"].get("allow_repeat") is not True:
        yield f"epochs: got {epochs:g}, wanted at most {MAX_EPOCHS}; the data is being memorised"


def data_is_seen_once(result: Result) -> Iterator[str]:
    """A training passes over its data once; more passes, or an unknown number, give a warning."""
    epochs = result["fingerprint"]["epochs"]
    if epochs is None and result["status"] == "ok":
        yield "epochs: unknown; repeated data cannot be ruled out"
    elif epochs is not None and epochs > WARN_EPOCHS:
        yield f"epochs: {epochs:g} passes over the data; the loss is not one of unseen data"


def summary_leaves_out_the_first_steps_alone(result: Result) -> Iterator[str]:
    """The summary leaves out as many first steps as the rule; figures here follow the rule whatever a file claims."""
    excluded, count = result["performance_metrics"]["warmup_steps_excluded"], len(result["steps"])
    if excluded and excluded > warmup_steps(count):
        yield (
            f"warmup_steps_excluded: the stored summary leaves out {excluded} of {count} steps, the rule is "
            f"{warmup_steps(count)}; the figures here follow the rule and the raw step times"
        )


def settings_were_read_back(result: Result) -> Iterator[str]:
    """Every setting was read back from the framework; one that was not may differ from the one that ran."""
    ran = result["resolved_config"]
    if result["status"] != "ok":
        return
    readable = [key for key in result["training_config"] if key in ran and key != "reasons"]
    unknown = [key for key in readable if ran[key] is None]
    if unknown == readable:
        yield "no setting was read back from the framework: what ran may be something else"
    elif unknown:
        yield f"not read back from the framework: {', '.join(unknown)}"


def step_times_vary(result: Result) -> Iterator[str]:
    """Step times do not repeat to the last digit, as copied or averaged times do and measured ones hardly ever."""
    longest = longest_equal(result["step_times"])
    if longest >= REPEATS_IN_A_ROW:
        yield f"step times repeat exactly, {longest} in a row"


def _is_apart(stored: float | None, expected: float | None, tolerance: float) -> bool:
    return stored is not None and expected is not None and abs(stored - expected) > tolerance


def _is_same(asked: Any, ran: Any) -> bool:
    if isinstance(asked, float) and isinstance(ran, (int, float)) and not isinstance(ran, bool):
        return math.isclose(asked, ran, rel_tol=FLOAT32_RELATIVE)
    return bool(asked == ran)


# Rule of settings beyond the schema: what a framework reports under other names agrees with what was asked.

OFF = (None, False, 0, 0.0, "", "0", "none", "None", "false", "no", "off", "disabled")
SUBJECTS = {
    "dropout": ("dropout",),
    "recompute": ("recompute", "activation_checkpoint", "gradient_checkpoint", "checkpoint_activations", "remat"),
    "precision": ("precision", "fp8", "fp4", "int8", "int4", "autocast", "quant", "_dtype", "dtype_", "bf16", "fp16"),
}
"""Words in the name of a setting, by the subject that they show."""
NOT_ABOUT = ("fusion", "shape", "memory", "recompute_modules")
"""Words of switches that change how a step is computed, not what; not with a word of LOW beside them."""
BITS = {"fp32": 32, "bf16": 16}
"""Least number of bits of weights and reduced gradients, by the precision of a training without fp8."""
LOW = ("fp8", "fp4", "int8", "int4", "mxfp", "nvfp", "e4m3", "e5m2", "float8", "float4")
"""Words that name a precision below 16 bits."""


def extra_settings(result: Result) -> dict[str, tuple[str, Any]]:
    """Return every setting beyond the schema that is on and may change the work: its subject, empty if the name does
    not show it, and its value, by name."""
    found = {}
    for key, value in result["resolved_config"].items():
        if key in KEYS["resolved_config"] or key == "reasons" or _is_off(value):
            continue
        # frameworks spell their switches in any case
        name = str(key).lower()
        if _is_low(name, value):
            found[str(key)] = ("precision", value)
        elif not _has_word(name, NOT_ABOUT):
            found[str(key)] = (_subject_of(name), value)
    return found


def _subject_of(name: str) -> str:
    """Return the first subject whose words are in the name of a setting; empty if none is."""
    for subject, words in SUBJECTS.items():
        if _has_word(name, words):
            return subject
    return ""


def extra_settings_agree(result: Result) -> Iterator[str]:
    """Yield a line for each setting beyond the schema that contradicts the recomputation or precision asked for."""
    asked = result["training_config"]
    precision = asked.get("precision")
    for key in ("parameter_dtype", "gradient_reduce_dtype"):
        dtype = result["resolved_config"][key]
        if dtype and _bits(dtype) < BITS.get(str(precision), 0):
            yield f"{key}: ran {dtype}, and precision was asked to be {precision}"
    for key, (subject, value) in extra_settings(result).items():
        if subject == "recompute" and asked.get("recompute") == "none":
            yield f"{key}: ran {value!r}, and recompute was asked to be none"
        if subject == "precision" and precision in BITS and _is_low(key, value):
            yield f"{key}: ran {value!r}, and precision was asked to be {precision}"


def _is_off(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_off, value.values()))
    if isinstance(value, list):
        return all(map(_is_off, value))
    # by type too, because 0 == False, and 1 layer is not off where False is
    return any(type(value) is type(off) and value == off for off in OFF)


def _bits(dtype: str) -> int:
    """Return the bits of a number of a type: 16 of `torch.bfloat16`, 8 of `float8_e4m3fn`; 32 if the name has none."""
    # a type without a number, such as `float`, is that of C: 32 bits or more
    match = re.search(r"(?:float|fp|bf|int)(\d+)", dtype.lower())
    return int(match[1]) if match else 32


def _is_low(key: str, value: Any) -> bool:
    return _has_word(f"{key} {value}".lower(), LOW)


def _has_word(text: str, words: Iterable[str]) -> bool:
    return any(word in text for word in words)
