"""Rules between settings: the frameworks of a platform, the GBS contract, and settings that exclude one another."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from typing import Any

from utils.errors import ConfigError
from utils.frameworks import (
    CONTEXT,
    EXPERT,
    FRAMEWORKS,
    PIPELINE,
    TENSOR,
    Framework,
    can_train,
    counterpart,
    in_all,
)
from utils.models import NAMES
from utils.settings.keys import KEYS, NO_RECIPE
from utils.settings.layers import Value
from utils.settings.profiling import LEAST_UNPROFILED, LOST_BY_PRIMUS, NO_PROFILE, TOOLS, Profile

DEFAULT_RECIPE = "delayed"
VENDOR_RECIPES = {"nvfp4": "nvd", "mxfp4": "amd"}
"""Recipes of one vendor's devices."""


class Rules:
    """Maker of errors for broken rules; each error names the keys with their origins and texts."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def broken(self, keys: str, why: str) -> ConfigError:
        """Return the error that the settings in `keys` (space separated) break a rule."""
        settings = " ".join(f"{key}={self._values[key].text}" for key in keys.split())
        origins = ", ".join(dict.fromkeys(self._values[key].origin for key in keys.split()))
        return ConfigError(f"{origins}: {settings}: {why}")


def frameworks(rules: Rules, asked: tuple[str, ...], platform: str, models: tuple[str, ...]) -> tuple[str, ...]:
    """Return the frameworks to run; a vendor's own framework replaces that of the other vendor.

    `all`, of frameworks or of models, leaves out a framework that has no recipe of any of the models, and each job
    without a recipe (`RunConfig.jobs`). Raises ConfigError where both are named and one job has none.
    """
    is_every = asked == ("all",)
    meant = in_all(platform) if is_every else [counterpart(name, platform) or name for name in asked]
    # nobody named a pair that cannot train, so it is left out in silence
    if is_every or models == NAMES:
        return tuple(name for name in dict.fromkeys(meant) if any(can_train(name, model) for model in models))
    for name in meant:
        for model in models:
            if not can_train(name, model):
                raise rules.broken("FRAMEWORK MODEL", f"{name} has no recipe of {model}; use mega or hf")
    return tuple(dict.fromkeys(meant))


def num_gpus(rules: Rules, typed: Mapping[str, Any], platform: str, visible: int | None) -> int:
    """Return the GPUs of one job: NNODES times CPU_RANKS, GPUS_PER_NODE, or all that are visible.

    With LAUNCHER=slurm the job runs on another machine, so the number of GPUs visible here does not matter.
    """
    nodes = int(typed["nodes"])
    if platform == "cpu":
        return nodes * int(typed["cpu_ranks"])
    asked = typed["gpus_per_node"]
    if typed["launcher"] == "slurm":
        if asked is None:
            raise rules.broken("GPUS_PER_NODE LAUNCHER", "set the number of GPUs of a node, e.g. GPUS_PER_NODE=8")
        return nodes * int(asked)
    if asked is None and not visible:
        raise rules.broken(
            "GPUS_PER_NODE", f"no GPU is visible on platform {platform}; check the driver, or set the number"
        )
    if visible is not None and asked is not None and asked > visible:
        raise rules.broken("GPUS_PER_NODE", f"this machine shows {visible} GPUs; use GPUS_PER_NODE={visible}, or auto")
    return nodes * int(asked or visible or 0)


def check_layout(rules: Rules, typed: dict[str, Any]) -> None:
    """Fill in DP and GA, so that num_gpus = TP * PP * CP * DP and GBS = MBS * DP * GA (the GBS contract).

    Raises ConfigError where a number does not divide, or where DP or GA is set to another value.
    """
    if typed["micro_batch_size"] is None and typed["method"] != "best":
        raise rules.broken("MBS METHOD", "MBS=auto gives each side its own micro batch, which METHOD=best allows")
    if typed["micro_batch_size"] is None:  # auto: each job gets its own (train/runner/plan.py)
        typed["micro_batch_size"] = 1
    mbs, gbs, gpus = typed["micro_batch_size"], typed["global_batch_size"], typed["num_gpus"]
    tp, pp, cp = typed["tensor_parallel_size"], typed["pipeline_parallel_size"], typed["context_parallel_size"]
    of_one_replica = tp * pp * cp
    if gpus % of_one_replica:
        raise rules.broken("TP PP CP", f"{gpus} GPUs do not divide by TP*PP*CP = {of_one_replica}; use fewer")
    dp = gpus // of_one_replica
    if typed["data_parallel_size"] not in (None, dp):
        raise rules.broken(
            "DP", f"{gpus} GPUs / (TP {tp} * PP {pp} * CP {cp}) is DP={dp}; set DP={dp} or leave DP=auto"
        )
    at_once = mbs * dp
    if gbs % at_once:
        next_batch = math.ceil(gbs / at_once) * at_once
        raise rules.broken("GBS MBS", f"GBS must divide by MBS*DP = {mbs}*{dp} = {at_once}; use GBS={next_batch}")
    ga = gbs // at_once
    # a number that somebody set and that does not follow is a mistake about another number
    if typed["gradient_accumulation"] not in (None, ga):
        raise rules.broken("GA", f"GBS {gbs} / (MBS {mbs} * DP {dp}) is GA={ga}; set GA={ga} or leave GA=auto")
    if dp * cp % typed["expert_parallel_size"]:
        raise rules.broken(
            "EP", f"the experts are divided between the DP*CP = {dp * cp} GPUs, which do not divide by it; use EP=1"
        )
    typed["data_parallel_size"], typed["gradient_accumulation"] = dp, ga


def check_combinations(rules: Rules, typed: Mapping[str, Any], platform: str) -> None:
    """Raise ConfigError for settings that exclude one another, or that this version does not support."""
    is_fp8 = typed["precision"] == "fp8"
    is_here = typed["launcher"] != "slurm"  # Slurm sets rank and address of each job
    if typed["context_parallel_size"] != 1 and not _is_installed("transformer_engine"):
        raise rules.broken("CP", "context parallelism without TransformerEngine would be silently wrong; use CP=1")
    for name in typed["frameworks"]:
        _check_framework(rules, typed, platform, FRAMEWORKS[name])
    if typed["warmup_iterations"] >= typed["train_iterations"]:
        raise rules.broken("WARMUP_ITERS TRAIN_ITERS", "warm-up must be shorter than the training; use less")
    if typed["min_learning_rate"] > typed["learning_rate"]:
        raise rules.broken("MIN_LR LR", "the minimum is above the peak; use a smaller MIN_LR")
    if is_fp8 and not _is_installed("transformer_engine"):
        raise rules.broken("PRECISION", "fp8 needs TransformerEngine and a GPU; use bf16 or fp32")
    if is_fp8 and typed["layers"] == "local":
        raise rules.broken("LAYERS PRECISION", "fp8 needs the layers of TransformerEngine; use LAYERS=auto or te")
    if typed["gradient_dtype"] == "bf16" and typed["precision"] == "fp32":
        raise rules.broken("GRADIENT_DTYPE PRECISION", "gradients of fp32 weights are fp32; use GRADIENT_DTYPE=fp32")
    if typed["method"] == "both":
        raise rules.broken("METHOD", "means two trainings, which run_train.sh starts; set equal or best here")
    if is_here and typed["runtime"] not in ("auto", "native"):
        raise rules.broken("RUNTIME", "run_data.sh, run_train.sh and entry.sh start containers; here use native")
    if is_here and typed["node_rank"] >= typed["nodes"]:
        raise rules.broken("NODE_RANK NNODES", "machines are numbered from 0, so NODE_RANK must be below NNODES")
    if is_here and typed["nodes"] > 1 and typed["master_addr"] is None:
        raise rules.broken(
            "NNODES MASTER_ADDR",
            "set the address of machine 0 on every machine, MASTER_ADDR=<host>, or use LAUNCHER=slurm",
        )


def _check_framework(rules: Rules, typed: Mapping[str, Any], platform: str, framework: Framework) -> None:
    """Raise ConfigError for a setting that a framework of the training cannot take."""
    name = framework.name
    divided = [key for key in (TENSOR, PIPELINE, CONTEXT, EXPERT) if typed[KEYS[key].field] != 1]
    lacking = [key for key in divided if key not in framework.parallelism]
    if lacking:
        able = [other.name for other in FRAMEWORKS.values() if set(lacking) <= set(other.parallelism)]
        raise rules.broken(
            " ".join([*lacking, "FRAMEWORK"]),
            f"{name} cannot divide a training like this in this version; use 1, or one of {', '.join(able)}",
        )
    if typed["routing"] == "balanced" and not framework.has_forced_balancing:
        raise rules.broken("ROUTING FRAMEWORK", f"{name} has no forced balancing; use mega, or ROUTING=learned")
    if typed["precision"] == "fp8" and not framework.fp8_recipes:
        raise rules.broken("PRECISION FRAMEWORK", f"{name} runs bf16 or fp32; use FRAMEWORK=mega for fp8")
    if framework.has_fixed_layers:
        own, layers = "te", "the layers of TransformerEngine"
        if platform == "cpu":
            own, layers = "local", "megatron-core's own layers"
        if typed["layers"] not in ("auto", own):
            why = f"{name} trains on {layers} on platform {platform}; use LAYERS=auto"
            raise rules.broken("LAYERS FRAMEWORK", why)
    if typed["optimizer_state"] not in framework.optimizer_states:
        states = " or ".join(framework.optimizer_states)
        why = f"{name} keeps {states} states in this version; use FRAMEWORK=mega,hf"
        raise rules.broken("OPTIMIZER_STATE FRAMEWORK", why)
    if typed["gradient_dtype"] not in framework.gradient_dtypes:
        dtypes = " or ".join(framework.gradient_dtypes)
        why = f"{name} reduces gradients in {dtypes}; use GRADIENT_DTYPE=fp32"
        raise rules.broken("GRADIENT_DTYPE FRAMEWORK", why)
    # not where it does not run: one config.env serves all frameworks
    is_liger = typed["hf_kernels"] == "liger" and "hf_kernels" in framework.own_settings
    if is_liger and not _is_installed("liger_kernel"):
        raise rules.broken(
            "HF_KERNELS",
            "liger-kernel is not installed; install it (pip install liger-kernel), or use HF_KERNELS=stock",
        )


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def fp8_recipe(rules: Rules, typed: Mapping[str, Any], platform: str) -> str:
    """Return the recipe of a training; `none` where its precision is not fp8.

    Raises ConfigError for a recipe that nothing uses, and for one that the platform or a framework does not have.
    """
    recipe: str = typed["fp8_recipe"]
    if typed["precision"] != "fp8":
        if recipe != DEFAULT_RECIPE:
            raise rules.broken("FP8_RECIPE PRECISION", "a recipe scales fp8; set PRECISION=fp8 with it")
        return NO_RECIPE
    vendor = VENDOR_RECIPES.get(recipe, platform)
    if vendor != platform:
        raise rules.broken("FP8_RECIPE", f"{recipe} is a format of platform {vendor}; use delayed, current or mxfp8")
    for name in typed["frameworks"]:
        recipes = FRAMEWORKS[name].fp8_recipes
        if recipe not in recipes:
            known = [other for other in recipes if VENDOR_RECIPES.get(other, platform) == platform]
            raise rules.broken("FP8_RECIPE FRAMEWORK", f"{name} has {', '.join(known)} and no {recipe}")
    return recipe


def profile(rules: Rules, typed: Mapping[str, Any], platform: str) -> str:
    """Return the profile of a training as results hold it; `none` without one.

    Raises ConfigError for steps or ranks that the training does not have, and for a training that leaves too few steps
    to measure.
    """
    tool: str = typed["profile"]
    if tool == NO_PROFILE:
        return NO_PROFILE
    first, last, steps = typed["profile_step_start"], typed["profile_step_end"], typed["train_iterations"]
    ranks, count = typed["profile_ranks"], typed["num_gpus"]
    is_prim = any(FRAMEWORKS[name].starts_its_ranks for name in typed["frameworks"])
    of_platform = TOOLS.get(tool, platform)
    profiled = last - first + 1
    wanted = LEAST_UNPROFILED + LOST_BY_PRIMUS if is_prim else LEAST_UNPROFILED
    if of_platform != platform:
        raise rules.broken("PROFILING", f"{tool} is a tool of platform {of_platform}; use true here (torch.profiler)")
    if tool in TOOLS and is_prim:
        raise rules.broken("PROFILING FRAMEWORK", "Primus profiles by its own keys, with torch.profiler; use true")
    if tool in TOOLS and typed["profile_memory"]:
        raise rules.broken("PROFILE_MEMORY PROFILING", f"{tool} writes no snapshot of the memory; use PROFILING=true")
    if first > last:
        raise rules.broken("PROFILE_STEP_START PROFILE_STEP_END", "the first profiled step is after the last one")
    if last > steps:
        raise rules.broken("PROFILE_STEP_END TRAIN_ITERS", f"the training has {steps} steps; profile some of them")
    if steps - profiled < wanted:
        raise rules.broken(
            "PROFILE_STEP_START PROFILE_STEP_END TRAIN_ITERS",
            f"{steps - profiled} steps are left to measure, wanted {wanted}; profile fewer, or use "
            f"TRAIN_ITERS={profiled + wanted} or more",
        )
    if last == steps and is_prim:
        raise rules.broken(
            "PROFILE_STEP_END TRAIN_ITERS FRAMEWORK",
            f"Primus writes the trace in the step after the profiled ones; use PROFILE_STEP_END={steps - 1} or less",
        )
    if ranks is not None and ranks[-1] >= count:
        raise rules.broken("PROFILE_RANKS", f"the training has ranks 0 to {count - 1}; use all, or some of them")
    return Profile(first, last, ranks, typed["profile_memory"], tool).text
