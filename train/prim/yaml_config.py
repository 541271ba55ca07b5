"""The plan of a Primus job: one complete YAML, AMD's own for the model overridden by the settings map.

AMD's file comes first, so that AMD's tuning is kept except where the map sets a key. The command line of Primus stays
empty, because Primus evaluates its values as Python. The preset files of the installed version define the known keys
(`train/prim/install.py`).

Our equal weights are a checkpoint that Primus's Megatron loads before the first step, as in fine-tuning. The format is
Megatron-LM's older one, `torch`: a file for each tensor, pipeline and expert rank below `release/`, and a text file
that names this folder (megatron/training/checkpointing.py, `get_checkpoint_name`, `read_metadata`). `finetune` takes
the weights alone: step, samples, optimizer and random state are those of a new training. If some names are missing,
Megatron goes on without them and prints `load_return`, which `unloaded` reads. The names are those of local layers,
which Primus has on a CPU. With TransformerEngine's layers this is not tried.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.job.job import Job
from train.prim.environment import CPU_OVERRIDES, check_visible
from train.prim.install import ENVIRONMENT_FILES, MODULE_PRESET, Primus, find
from train.settings_map.map import ROWS, entry_of, overrides
from utils.errors import ConfigError
from utils.models import MODELS, ModelSpec
from utils.settings.config import RunConfig

_RENAMED = {
    "use_turbo_grouped_mlp": "use_turbo_grouped_gemm",  # v26.3 has both, v26.4 the second
    "use_turbo_parallel_linear": "use_turbo_gemm",  # v26.4
}
OTHER_NAME = _RENAMED | {new: old for old, new in _RENAMED.items()}
"""Other name of a key that later releases renamed; either may be the known one."""
MEGATRON_NAMES = {"norm_epsilon": "layernorm_epsilon"}
"""Keys that Megatron-LM renamed while the presets of Primus kept the old name, which Megatron then never reads. Seen in
Primus fd1eeab with Megatron-LM d3528a2: Qwen's 1e-6 of the preset has no effect, and 1e-5 is trained."""
ARGUMENT_BUILDER = Path("primus", "backends", "megatron", "argument_builder.py")
"""Part of Primus v26.2 and later, which builds Megatron's arguments itself and passes over unknown keys."""
AS_SHIPPED = {"gradient_accumulation_fusion": False}
"""Keys that are as AMD's configurations have them, also where a file does not name them."""
DATA_CACHE = "data_cache_path"
HARMLESS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (
        ("disable_tensorboard", "disable_wandb", "disable_mlflow"),
        lambda value: value is True,
        "this version has no such logger",
    ),
    (("torch_profiler_",), lambda value: True, "this version decides itself what a trace contains"),
    (
        ("use_turbo_", "enable_turbo_", "use_sink_", "moe_"),
        lambda value: not value,
        "this version does not have what it would switch off",
    ),
)
"""Beginnings of keys that can be left out where a version lacks them and the value fulfils the condition, and why."""


def render(
    primus: Primus, config: RunConfig, model: str, shipped: Path, workspace: Path, name: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the document for Primus, and one line for each key that its version lacks and that can be left out.

    It is that of one training of `model`, made from AMD's file `shipped`; `name` is the experiment's. Primus writes its
    own files below `workspace`. Raises ConfigError where the installed version lacks a key that
    changes the work, and for a sequence longer than the window of the model.
    """
    spec = config.spec(model)
    if spec.sliding_window is not None and config.sequence_length > spec.sliding_window:
        raise ConfigError(  # no release up to v26.6 has a key for the window
            f"MODEL={spec.name} SL={config.sequence_length}: Primus has no key for the window of {spec.sliding_window} "
            f"tokens and would train another model; use SL={spec.sliding_window} at most, or FRAMEWORK=mega"
        )
    wanted = primus.shipped(shipped) | AS_SHIPPED | overrides("prim", config, spec)
    wanted[DATA_CACHE] = str(workspace / "index_cache")
    if config.platform == "cpu":
        wanted |= CPU_OVERRIDES
    weights = weights_folder(config, workspace)
    if weights is not None:
        wanted |= CHECKPOINT | {"load": str(weights)}
    fitted, dropped = _fitted(wanted, primus.defaults(model), primus.root)
    if (primus.root / ARGUMENT_BUILDER).is_file():
        for old, new in MEGATRON_NAMES.items():
            if old in fitted:
                fitted[new] = fitted[old]
    trainer = {
        "framework": "megatron",
        "config": MODULE_PRESET,
        "model": f"{MODELS[model].primus_preset}.yaml",
        "overrides": fitted,
    }
    document = {
        "work_group": "tprimat",
        "user_name": "tprimat",
        "exp_name": name,
        "workspace": str(workspace),
        "modules": {"pre_trainer": trainer},
    }
    return document, dropped


@dataclass(frozen=True)
class Plan:
    """One training by Primus, not started yet."""

    primus: Primus
    gpu: str
    gpu_model: str
    """The model for which the launcher sets its environment: PRIMUS_GPU_MODEL, else `gpu`."""
    shipped: Path
    """AMD's YAML from which ours is made."""
    document: dict[str, Any]
    """Content of our YAML."""
    dropped: list[str]
    """One line for each key that the installed version lacks and that can be left out."""
    experiment: Path
    """Our YAML, beside the log."""
    train_log: Path
    """File of Primus's own output."""
    workspace: Path
    """Folder of Primus's files."""
    checkpoint: Path | None
    """Folder of the equal weights that Primus loads; None where it draws its own."""


def plan_of(job: Job, gpu: str, log: Path) -> Plan:
    """Return the plan of a job; `gpu` is a name like MI300X, `log` the job's log.

    Raises ConfigError where Primus is missing, lacks a key or the environment of the GPU, would take other GPUs, or
    would divide a path.
    """
    primus = find()
    gpu_model = os.environ.get("PRIMUS_GPU_MODEL") or gpu
    if job.config.platform != "cpu":
        check_visible(job.config.ranks_per_node)
        _check_gpu(primus, gpu_model)
    shipped = primus.shipped_path(job.model, job.config.precision, gpu)
    name = log.stem.removesuffix(f"_node{job.config.node_rank}")  # the same YAML on all nodes: they share the files
    workspace = log.with_name(f"{name}.primus")
    for key, path in (("OUTPUT_DIR", workspace), ("PRIMUS_PATH", primus.root)):
        if " " in str(path) and not primus.is_cli:
            raise ConfigError(f"{key}: {path} has a space, at which {primus.launcher} divides it; move it")
    document, dropped = render(primus, job.config, job.model, shipped, workspace, name)
    return Plan(
        primus=primus,
        gpu=gpu,
        gpu_model=gpu_model,
        shipped=shipped,
        document=document,
        dropped=dropped,
        experiment=log.with_suffix(".yaml"),
        train_log=log.with_suffix(".primus.log"),
        workspace=workspace,
        checkpoint=weights_folder(job.config, workspace),
    )


def weights_folder(config: RunConfig, workspace: Path) -> Path | None:
    """Return the folder for the equal weights; None with INIT=native, and on GPUs, whose layers have other names."""
    if config.init == "equal" and config.platform == "cpu":
        return workspace / WEIGHTS
    return None


def reasons() -> dict[str, str]:
    """Return the reason for each key: the names of its rows in the settings map."""
    why = {DATA_CACHE: "an index cache of this run alone shows the order of its samples"}
    for row in ROWS:
        for key in getattr(entry_of(row, "prim"), "keys", ()):
            # several rows may set one key
            why[key] = f"{why[key]}; {row.name}" if key in why else row.name
    return why


def _check_gpu(primus: Primus, gpu: str) -> None:
    """Raise ConfigError where the launcher would start without the settings of this GPU model.

    Without the file `primus-cli direct` only warns, and on gfx950 the training becomes NaN (AMD-AGI/Primus issue 1178).
    """
    missing = primus.root / ENVIRONMENT_FILES / f"{gpu}.sh"
    if primus.is_cli and not missing.is_file():
        known = sorted(path.stem for path in missing.parent.glob("MI*.sh"))
        raise ConfigError(
            f"PRIMUS_PATH={primus.root}: no {missing.relative_to(primus.root)}, without which training can become NaN "
            f"in silence (AMD-AGI/Primus issue 1178); it has {', '.join(known) or 'none'}: take a release that knows "
            f"{gpu}, or name a GPU of the same architecture, e.g. PRIMUS_GPU_MODEL={known[-1] if known else gpu}"
        )


def _fitted(wanted: Mapping[str, Any], known: Mapping[str, Any], root: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the keys that this version knows, and a line for each other one; Primus stops at an unknown key."""
    fitted, dropped = {}, []
    for key, value in wanted.items():
        if key in known:
            fitted[key] = value
            continue
        other = OTHER_NAME.get(key)
        if other is not None and other in known:
            # a key that a release renamed
            fitted[other] = value
            continue
        harmless = [why for names, is_harmless, why in HARMLESS if key.startswith(names) and is_harmless(value)]
        if harmless:
            dropped.append(f"{key}={value}: {harmless[0]}")
        else:
            raise ConfigError(
                f"PRIMUS_PATH={root}: this Primus has no key {key}, wanted {value!r}; without it the work would be "
                "another; take a later release"
            )
    return fitted, dropped


# The equal weights as a checkpoint

WEIGHTS = "equal_weights"
"""Last part of the checkpoint's path, by which a run that loaded it is recognised in Primus's own arguments."""
CHECKPOINT_VERSION = 3.0
"""`checkpoint_version` from which Megatron no longer reorders query, key and value."""
_LAYER = (
    "input_layernorm.weight",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_proj.weight",
    "pre_mlp_layernorm.weight",
)
CHECKPOINT: dict[str, Any] = {
    "finetune": True,
    "no_load_optim": True,
    "no_load_rng": True,
    "ckpt_format": "torch",
    "exit_on_missing_checkpoint": True,
}
"""Keys of the YAML by which Primus loads the weights of a checkpoint alone, beside `load`."""
_LOAD_RETURN = re.compile(r"load_return: (?P<what>.*)")


def write_weights(
    folder: Path, spec: ModelSpec, seed: int, std: float, tensor: int = 1, pipeline: int = 1, expert: int = 1
) -> str:
    """Write the checkpoint for ranks in these three directions; return the digest of all weights, as `mega` records it.

    Takes float32 weights of four bytes a parameter on the disk.
    """
    import torch

    from train.common.weights import EqualWeights, combined_digest
    from train.mega.weights import names_of, part_of

    source = EqualWeights(spec, seed, std)
    for stage, rank, group in itertools.product(range(pipeline), range(tensor), range(expert)):
        share = spec.num_experts // expert
        names = list(_names(spec, stage, pipeline, range(group * share, (group + 1) * share)))
        source.announce(wanted for _, name in names for wanted in names_of(name, spec))
        weights = {here: part_of(name, spec, source, rank, tensor) for here, name in names}
        of_stage = f"_{stage:03d}" if pipeline > 1 else ""
        of_group = f"_{group:03d}" if expert > 1 else ""
        path = folder / "release" / f"mp_rank_{rank:02d}{of_stage}{of_group}" / "model_optim_rng.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": weights, "checkpoint_version": CHECKPOINT_VERSION, "iteration": 0}, path)
    (folder / "latest_checkpointed_iteration.txt").write_text("release", encoding="ascii")
    return combined_digest(source.digests)


def unloaded(line: str) -> str | None:
    """Return the names that Megatron could not load, as it prints them; None for other lines."""
    match = _LOAD_RETURN.search(line)
    return match["what"].strip() if match else None


def was_loaded(arguments: dict[str, Any]) -> bool:
    """Return whether Primus's own arguments show that it started from this checkpoint."""
    return Path(str(arguments.get("load"))).name == WEIGHTS and arguments.get("finetune") is True


def _names(spec: ModelSpec, stage: int, stages: int, experts: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yield the names of a rank's parameters: in the rank, which counts its layers and its share of the experts from 0,
    and in the whole model.
    """
    is_first, is_last, layers = stage == 0, stage == stages - 1, spec.num_layers // stages
    if is_first:
        yield "embedding.word_embeddings.weight", "embedding.word_embeddings.weight"
    plain = list(_LAYER)
    if experts:
        plain.append("mlp.router.weight")
    else:
        plain += ["mlp.linear_fc1.weight", "mlp.linear_fc2.weight"]
    if spec.qkv_bias:
        plain.append("self_attention.linear_qkv.bias")
    if spec.query_key_norm:
        plain += ["self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"]
    names = [(name, name) for name in plain]
    for number, expert in enumerate(experts):
        for linear in ("linear_fc1.weight", "linear_fc2.weight"):
            place = "mlp.experts.local_experts"
            names.append((f"{place}.{number}.{linear}", f"{place}.{expert}.{linear}"))
    for layer in range(layers):
        for name, whole in names:
            yield f"decoder.layers.{layer}.{name}", f"decoder.layers.{stage * layers + layer}.{whole}"
    if is_last:
        yield "decoder.final_layernorm.weight", "decoder.final_layernorm.weight"
        # a tied model has one where the last stage does not hold the embedding: a copy of it
        if not spec.tie_word_embeddings or not is_first:
            yield "output_layer.weight", "output_layer.weight"
