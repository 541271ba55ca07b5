"""Rules of physical limits and of identity: what the device can do, and what the name of the result promises.

No result has more arithmetic and memory than its device, and its energy agrees with itself. A utilisation that it
claims for itself has to follow from the formula and the peak that are used here. The layers that ran, the shape of the
model and the loss fit the name of the result: the name of a framework names the code that trained. A job named Megatron
that trained a transformers model measures transformers, whichever launcher started it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from evaluate.checks.consistency import FLOAT32_RELATIVE
from evaluate.inputs.earlier_names import MFU_CLAIMS, TFLOPS_CLAIMS
from evaluate.metrics.figures import Figure
from evaluate.metrics.metrics import MEMORISED_NATS, device_of, flops_per_token, last_loss, metrics
from utils.models import UnknownModelError, get
from utils.results.schema import ENERGY_RELATIVE, LEAST_HERTZ, Result

FULL_PERCENT = 100.0
ENERGY_ROUNDING = 0.01
"""Relative: a summary keeps three digits, and an energy below 1 J no more."""
CLAIM_RELATIVE = 0.02
"""A utilisation over other steps of the same run differs by less; one by another formula by more (attention counted in
full, Llama 3.1 8B: 3.5 % at 2,048 tokens, 12.5 % at 8,192)."""
MEGATRON = ("mega", "nemo", "bridge", "prim")
"""Frameworks whose layers are megatron-core's, its own or TransformerEngine's."""
_OF_TRANSFORMERS = ("forcausallm", "transformers", "huggingface", "hf_")
_OF_MEGATRON = ("megatron", "mcore", "transformer_engine")
_SHAPE = {
    "qkv_bias": "qkv_bias",
    "norm_eps": "norm_epsilon",
    "rope_base": "rope_base",
    "query_key_norm": "query_key_norm",
}
"""Properties that are the same in every size of a model: key of `resolved_config` and field of ModelSpec."""


def utilisation_is_possible(result: Result) -> list[str]:
    """Return a line if model FLOP/s, with causal attention, exceed the dense peak or the measured rate."""
    if result["status"] != "ok":
        return []
    found = metrics(result)
    lines = []
    for name, what in (("mfu_causal", "the dense peak"), ("share_of_measured_matmul", "the measured rate")):
        figure = found.get(name)
        if figure is not None and figure.value is not None and figure.value > FULL_PERCENT:
            lines.append(f"model FLOP/s: {figure.value:.0f} % of {what}, which cannot be: {figure.how}")
    return lines


def claimed_utilisation_agrees(result: Result) -> list[str]:
    """Return a line for each utilisation that a result claims and that does not follow from its samples."""
    stored = result["performance_metrics"]
    claims = [key for key in (*MFU_CLAIMS, *TFLOPS_CLAIMS) if isinstance(stored.get(key), (int, float))]
    if not claims or result["status"] != "ok":
        return []
    found = metrics(result)
    return [line for key in claims if (line := _claim(key, float(stored[key]), found, result))]


def _claim(key: str, value: float, found: Mapping[str, Figure], result: Result) -> str:
    kind, unit = ("mfu", "%") if key in MFU_CLAIMS else ("model_tflops", "TFLOP/s")
    right = found.get(f"{kind}_causal")
    if right is None or right.value is None:
        return f"{key}: says {value:g}, which nothing stands behind: {right.how if right else 'no steady step'}"
    claimed = value * FULL_PERCENT if kind == "mfu" and _is_near(value * FULL_PERCENT, right.value) else value
    if _is_near(claimed, right.value):
        return ""
    full, text = found[f"{kind}_full"], f"{key}: says {value:g}, attention counted causally makes it {right.value:.1f}"
    if full.value is not None and (_is_near(value, full.value) or _is_near(value * FULL_PERCENT, full.value)):
        return f"{text} {unit}; it is by the full-attention formula"
    if kind == "mfu" and _is_over_another_peak(value, result, found):
        return f"{text} {unit}; it is over the bf16 peak, and this ran in {result['training_config']['precision']}"
    return f"{text} {unit}; the FLOP count or the peak behind it is wrong"


def _is_over_another_peak(value: float, result: Result, found: Mapping[str, Figure]) -> bool:
    """Return whether the rate of an 8-bit run was divided by the 16-bit peak, by either formula."""
    device, rate = device_of(result), found["tokens_per_second_per_gpu"].value
    if device is None or rate is None or result["training_config"]["precision"] == "bf16":
        return False
    for causal in (True, False):
        flops = flops_per_token(result, causal=causal).value
        share = FULL_PERCENT * rate * (flops or 0.0) * 1e-12 / device.dense_bf16_tflops
        if _is_near(value, share) or _is_near(value * FULL_PERCENT, share):
            return True
    return False


def memory_fits(result: Result) -> list[str]:
    """Return a line if the peak memory of a rank exceeds the memory of its device."""
    peak, total = result["memory_metrics"]["peak_memory_allocated_gb"], result["gpu_info"]["total_memory_gb"]
    if peak is None or total is None or peak <= total:
        return []
    return [f"peak_memory_allocated_gb: got {peak} GB on a device of {total} GB"]


def energy_agrees(result: Result) -> list[str]:
    """Return a line if joules are not watts times the seconds of the measured steps, or do not fit joules per token.

    The measured steps are the last ones, as many as hold joules / joules_per_token tokens; without joules_per_token,
    all steps or the steady ones. `avg_watts` is the sum over all GPUs or the average of one GPU; both are accepted.
    """
    energy, times = result["energy_metrics"], result["step_times"]
    joules, watts = energy["joules"], energy["avg_watts"]
    known = [value for value in (joules, watts, energy["joules_per_token"]) if value is not None]
    if known and min(known) <= 0:
        return [f"energy: got {joules} J, {watts} W and {energy['joules_per_token']} J a token, wanted more than 0"]
    if joules is None or not times or min(times) <= 0:
        return []
    if energy["joules_per_token"] is not None:
        config = result["training_config"]
        tokens, of_a_step = joules / energy["joules_per_token"], config["global_batch_size"] * config["sequence_length"]
        if tokens > len(times) * of_a_step * (1 + ENERGY_RELATIVE):
            trained = f"{len(times) * of_a_step:,} were trained"
            return [f"energy: {energy['joules_per_token']} J a token make {tokens:,.0f} tokens, {trained}"]
        measured = [max(1, round(tokens / of_a_step))]
    else:
        measured = [len(times), len(times) - (result["performance_metrics"]["warmup_steps_excluded"] or 0)]
    if watts is None:
        return []
    seconds = [math.fsum(times[-count:]) for count in measured]
    gpus = {1, result["training_config"]["num_gpus"]}
    if any(_is_near(joules, watts * count * one, ENERGY_RELATIVE) for one in seconds for count in gpus):
        return []
    power = " or ".join(f"{watts * one:,.0f} J" for one in dict.fromkeys(seconds))
    return [
        f"energy: the counter says {joules:,.0f} J, {watts:g} W over the steps make {power}: they are not of one thing"
    ]


def energy_follows_from_its_sources(result: Result) -> list[str]:
    """Return a line if the energy is neither that of the counters nor that of the power, if these two differ, or if it
    was sampled too rarely. Results of earlier versions have neither source on record."""
    energy = result["energy_metrics"]
    joules, hertz = energy["joules"], energy.get("sample_hz")
    counter, power = energy.get("counter_joules"), energy.get("integrated_joules")
    if joules is None:
        return []
    if counter is not None and power is not None and not _is_near(counter, power, ENERGY_RELATIVE):
        return [
            f"energy: the counters make {counter:,.0f} J, power over time {power:,.0f} J: they are not of one thing"
        ]
    known = [value for value in (counter, power) if value is not None]
    if known and not any(_is_near(joules, value, ENERGY_ROUNDING) for value in known):
        return [f"energy: got {joules:,.0f} J, wanted {known[0]:,.0f} J, as its source has it"]
    if hertz is not None and hertz < LEAST_HERTZ:
        return [f"energy: sampled {hertz:g} times a second, wanted {LEAST_HERTZ:g} or more"]
    return []


def energy_has_two_sources(result: Result) -> list[str]:
    """Return a line if energy comes from a counter alone or from power alone, so that no second source confirms it."""
    energy = result["energy_metrics"]
    joules, watts = energy["joules"], energy["avg_watts"]
    sources = [energy[key] for key in ("counter_joules", "integrated_joules") if key in energy]
    if joules is not None and sources and None in sources:
        return ["energy: joules from one source, which no other confirms"]
    if (joules is None) == (watts is None):
        return []
    return [f"energy: {'power' if joules is None else 'joules'} from one source, which no other confirms"]


def _is_near(a: float, b: float, relative: float = CLAIM_RELATIVE) -> bool:
    return abs(a - b) <= relative * abs(b)


def framework_matches_layers(result: Result) -> list[str]:
    """Return a line if the layers that trained belong to another framework than the result names."""
    framework, layers = result["framework"], result["resolved_config"]["layer_implementation"]
    if layers is None:
        return []
    others = _OF_TRANSFORMERS if framework in MEGATRON else _OF_MEGATRON if framework == "hf" else ()
    if not any(word in layers.casefold() for word in others):
        return []
    return [f"framework: says {framework}, and the layers that ran are {layers}; it is another framework's result"]


def model_matches_name(result: Result) -> list[str]:
    """Return a line for each property in which the model that ran differs from every size of the named model."""
    try:
        spec = get(result["model"])
    except UnknownModelError:
        return []
    ran = dict(result["resolved_config"])
    # recorded only where it is true; a framework that tells of biases tells of it too
    ran["query_key_norm"] = None if ran["qkv_bias"] is None else bool(ran.get("query_key_norm"))
    return [
        f"model: {result['model']} has {key} {getattr(spec, field)}, ran {ran[key]}; it is another model"
        for key, field in _SHAPE.items()
        if ran[key] is not None and not math.isclose(ran[key], getattr(spec, field), rel_tol=FLOAT32_RELATIVE)
    ]


def loss_is_of_unseen_data(result: Result) -> list[str]:
    """Return a line if the last losses are so small that the data must have been seen before."""
    if result["status"] != "ok" or not result["loss_values"] or None in result["loss_values"]:
        return []
    last = last_loss(result)
    if last > MEMORISED_NATS:
        return []
    return [f"loss: {last:.3g} nats a token at the end, under {MEMORISED_NATS}, is that of memorised data"]


LIMITS = (
    utilisation_is_possible,
    claimed_utilisation_agrees,
    memory_fits,
    energy_agrees,
    energy_follows_from_its_sources,
    framework_matches_layers,
)
