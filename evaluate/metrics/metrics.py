"""All metrics of a result, each with its formula: speed, utilisation, memory, energy, cost, time to a goal.

They need the result alone and no torch. A metric that cannot be known is None with a reason, never a default. Numbers
of cores are never compared, because the vendors count different things.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

from evaluate.metrics.capacity import capacity, micro_batch_that_would_fit, spec_of
from evaluate.metrics.figures import Figure, quotient, unknown
from evaluate.metrics.measured_rate import measured_rate
from evaluate.metrics.partition import dense_peak
from evaluate.metrics.prices import HOUR_SECONDS, Price, cost, time_to_loss, time_to_mlperf_target
from evaluate.metrics.steady import step_times, tokens_per_second, tokens_per_second_per_gpu
from utils.hardware.devices import Device, find_device
from utils.models import UnknownModelError
from utils.results.schema import Result

JOULES_IN_A_MWH = 3.6e9
NOT_THE_WALL = "not the wall"
"""Words of the source of an energy: it is not what the power supplies draw."""
LAST_PART = 10
"""The last loss is the mean over the last 1/LAST_PART of the steps: a single loss is mostly noise of its batch."""
MEMORISED_NATS = 0.5
"""Nats per token. No text of a usable size is predicted this well unless the model has seen it before: a model of 8e9
parameters reaches about 2."""
FORMULA_CAUSAL = "6N+causal_attention/v1"
"""6 x matrix-multiply parameters + attention over the tokens that a causal (and windowed) mask lets through.

Of a mixture of experts it is 6N_active: the parameters that multiply one token."""
FORMULA_FULL = "6N+full_attention/v1"
"""6 x matrix-multiply parameters + attention as if every token saw the whole sequence."""


def metrics(
    result: Result, prices: Mapping[str, Price] | None = None, target_loss: float | None = None
) -> dict[str, Figure]:
    """Return all metrics of a result by name; `prices` has the device names of utils/hardware/devices.py as keys."""
    times, rate, per_gpu = step_times(result), tokens_per_second(result), tokens_per_second_per_gpu(result)
    if not times or rate is None or per_gpu is None:
        return {"step_time": unknown("s", f"the run is {result['status']}: {result['reason'] or 'no steady step'}")}
    how = "GBS x SL / mean steady step time"
    device = device_of(result)
    found = {
        **_step_time_figures(times, statistics.fmean(times)),
        "tokens_per_second": Figure(rate, "tokens/s", how),
        "tokens_per_second_per_gpu": Figure(per_gpu, "tokens/s/GPU", f"{how} / GPUs"),
        **utilisation(result),
        **fullest_expert(result),
        **_memory(result, device),
        **_energy(result, per_gpu, device),
        **cost(rate, result["training_config"]["num_gpus"], device, prices or {}),
        "time_to_target_loss": time_to_loss(result, target_loss),
        "time_to_mlperf_target": time_to_mlperf_target(result, rate),
    }
    return {name: figure.finite() for name, figure in found.items()}


def device_of(result: Result) -> Device | None:
    """Return the known device that a result names; None if it cannot be identified for certain."""
    gpu = result["gpu_info"]
    if not gpu["device_name"]:
        return None
    return find_device(gpu["device_name"], gpu["total_memory_gb"], gpu["gpu_cores"])


def last_loss(result: Result) -> float:
    """Return the mean loss over the last tenth of the steps, nats per token."""
    losses = result["loss_values"]
    count = max(1, len(losses) // LAST_PART)
    return statistics.fmean(losses[-count:])


def flops_per_token(result: Result, *, causal: bool) -> Figure:
    """Return the floating-point operations of the model for one token, forward and backward, in FLOP."""
    resolved = result["resolved_config"]
    formula = FORMULA_CAUSAL if causal else FORMULA_FULL
    try:
        spec = spec_of(result)
    except UnknownModelError as error:
        return unknown("FLOP", str(error))
    if resolved.get("vocab_size") is not None:
        # frameworks pad the vocabulary, and the padding is multiplied too
        spec = replace(spec, vocab_size=resolved["vocab_size"])
    if spec.num_experts:
        # a token passes through its own experts only
        formula = formula.replace("6N", "6N_active")
    return Figure(spec.flops_per_token(result["training_config"]["sequence_length"], causal), "FLOP", formula)


def _step_time_figures(times: list[float], mean: float) -> dict[str, Figure]:
    values = {"mean": mean, "median": statistics.median(times), "min": min(times), "max": max(times)}
    why = "one steady step has no spread"
    spread, variation = unknown("s", why), unknown("%", why)
    values["p5"] = values["p95"] = mean
    if len(times) > 1:
        twentieths = statistics.quantiles(times, n=20, method="inclusive")
        values["p5"], values["p95"] = twentieths[0], twentieths[-1]
        deviation = math.dist(times, [mean] * len(times)) / math.sqrt(len(times) - 1)
        how = "standard deviation (n - 1)"
        spread = Figure(deviation, "s", f"{how} between steps")
        variation = Figure(100 * deviation / mean, "%", f"{how} / mean, between steps")
    found = {}
    for name, value in values.items():
        found[f"step_time_{name}"] = Figure(value, "s", f"{name} of {len(times)} steady steps")
    return found | {
        "step_time": found["step_time_mean"],
        "steps_per_second": Figure(1 / mean, "steps/s", "1 / mean steady step time"),
        "step_time_std": spread,
        "step_time_cv": variation,
    }


def utilisation(result: Result) -> dict[str, Figure]:
    """Return the rates of the model's arithmetic and their shares of the peak and of the measured rate.

    Empty without a steady step.
    """
    per_gpu = tokens_per_second_per_gpu(result)
    if per_gpu is None:
        return {}
    peak = dense_peak(result, device_of(result))
    found: dict[str, Figure] = {}
    for name, causal in (("causal", True), ("full", False)):
        flops = flops_per_token(result, causal=causal)
        how = f"tokens/s/GPU x FLOP a token ({flops.how})"
        rate = flops.map(lambda flop: per_gpu * flop * 1e-12, "TFLOP/s", how)
        found[f"model_tflops_{name}"] = rate
        found[f"mfu_{name}"] = quotient(rate, peak, "%", f"model TFLOP/s ({flops.how}) / {peak.how}", 100)
    measured = measured_rate(result)
    how = f"model TFLOP/s / measured matrix-multiply rate ({measured.how})"
    found["share_of_measured_matmul"] = quotient(found["model_tflops_causal"], measured, "%", how, 100)
    return {name: figure.finite() for name, figure in found.items()}


def fullest_expert(result: Result) -> dict[str, Figure]:
    """Return the mean share of a step's tokens in its fullest expert; empty if the routers were not watched.

    The GPU of the fullest expert is the last to finish a layer, so this share bounds the speed.
    """
    found = result.get("experts") or {}
    shares = [share for share in found.get("fullest_share") or () if share is not None]
    if not shares or not found.get("tokens"):
        return {}
    count = len(found["tokens"])
    how = f"tokens of the fullest expert of a step / of all {count} ({100 / count:.3g} % if even), mean over the steps"
    return {"fullest_expert": Figure(100 * statistics.fmean(shares), "%", how)}


def _memory(result: Result, device: Device | None) -> dict[str, Figure]:
    memory, total = result["memory_metrics"], result["gpu_info"]["total_memory_gb"]
    why = "peak or total memory is not in the result"
    how = f"peak allocated ({memory['source']}) / memory that the device reports"
    peak = Figure(memory["peak_memory_allocated_gb"], "GB", why)
    found = {
        "memory_used": quotient(peak, Figure(total or None, "GB", why), "%", how, 100),
        "micro_batch_that_would_fit": micro_batch_that_would_fit(result),
    }
    for use, figure in capacity(device, result["gpu_info"]["device_name"]).items():
        found[f"capacity_{use.replace(' ', '_')}"] = figure
    return found


def _energy(result: Result, per_gpu: float, device: Device | None) -> dict[str, Figure]:
    energy = result["energy_metrics"]
    joules = energy["joules_per_token"]
    if joules:
        source = str(energy["source"])
        if NOT_THE_WALL not in source:
            source += f" ({NOT_THE_WALL})"
        measured = Figure(joules, "J", f"measured: {source}, {energy['interval']}")
    else:
        why = energy.get("reasons", {}).get("joules_per_token", "no energy")
        measured = unknown("J", f"not measured: {why}")
    tokens = measured.map(lambda value: 1 / value, "tokens/J", measured.how)
    whole = f"joules a token x 1e12 tokens / {JOULES_IN_A_MWH:g} J in a MWh; {measured.how}"
    at_least = unknown("tokens/J", "the board power of this device is not known")
    if device is not None:
        how = f"board power {device.board_power_watts:g} W, which is a limit and no measurement"
        at_least = Figure(per_gpu / device.board_power_watts, "tokens/J", f"at least: tokens/s/GPU / {how}")
    return {
        "tokens_per_joule": tokens,
        "tokens_per_watt_hour": tokens.map(lambda value: value * HOUR_SECONDS, "tokens/Wh", tokens.how),
        "energy_of_1T_tokens": measured.map(lambda value: value * 1e12 / JOULES_IN_A_MWH, "MWh", whole),
        "tokens_per_joule_at_board_power": at_least,
    }
