"""Our equal weights as a checkpoint that Primus's Megatron loads before the first step, as in fine-tuning.

The format is Megatron-LM's older one, `torch`: a file for each tensor and pipeline rank below `release/`, and a text
file that names this folder (megatron/training/checkpointing.py, `get_checkpoint_name`, `read_metadata`). `finetune`
takes the weights alone: step, samples, optimizer and random state are those of a new training. If some names are
missing, Megatron goes on without them and prints `load_return`, which `unloaded` reads.

The names are those of local layers, which Primus has on a CPU. With TransformerEngine's layers this is not tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from utils.models import ModelSpec

FOLDER = "equal_weights"
"""Last part of the checkpoint's path, by which a run that loaded it is recognised in Primus's own arguments."""
VERSION = 3.0
"""`checkpoint_version` from which Megatron no longer reorders query, key and value."""
_LAYER = (
    *("input_layernorm.weight", "self_attention.linear_qkv.weight", "self_attention.linear_proj.weight"),
    *("pre_mlp_layernorm.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"),
)
_LOAD_RETURN = re.compile(r"load_return: (?P<what>.*)")


def overrides(folder: Path) -> dict[str, Any]:
    """Return the keys of the YAML by which Primus loads the checkpoint in `folder`, and its weights alone."""
    return {
        "load": str(folder),
        "finetune": True,
        "no_load_optim": True,
        "no_load_rng": True,
        "ckpt_format": "torch",
        "exit_on_missing_checkpoint": True,
    }


def write(folder: Path, spec: ModelSpec, seed: int, std: float, tensor: int, pipeline: int) -> str:
    """Write the checkpoint for `tensor` x `pipeline` ranks; return the digest of all weights, as `mega` records it.

    Takes float32 weights of four bytes a parameter on the disk.
    """
    import torch

    from train.common.weights import EqualWeights, combined_digest
    from train.mega.weights import part_of

    source = EqualWeights(spec, seed, std)
    for stage in range(pipeline):
        for rank in range(tensor):
            weights = {here: part_of(name, spec, source, rank, tensor) for here, name in _names(spec, stage, pipeline)}
            of_stage = f"_{stage:03d}" if pipeline > 1 else ""
            path = folder / "release" / f"mp_rank_{rank:02d}{of_stage}" / "model_optim_rng.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"model": weights, "checkpoint_version": VERSION, "iteration": 0}, path)
    (folder / "latest_checkpointed_iteration.txt").write_text("release", encoding="ascii")
    return combined_digest(source.digests)


def unloaded(line: str) -> str | None:
    """Return the names that Megatron could not load, as it prints them; None for other lines."""
    match = _LOAD_RETURN.search(line)
    return match["what"].strip() if match else None


def was_loaded(arguments: dict[str, Any]) -> bool:
    """Return whether Primus's own arguments show that it started from this checkpoint."""
    return Path(str(arguments.get("load"))).name == FOLDER and arguments.get("finetune") is True


def _names(spec: ModelSpec, stage: int, stages: int) -> Iterator[tuple[str, str]]:
    """Yield the names of a stage's parameters: in the stage, which counts its layers from 0, and in the whole model."""
    is_first, is_last, layers = stage == 0, stage == stages - 1, spec.num_layers // stages
    if is_first:
        yield (name := "embedding.word_embeddings.weight"), name
    in_layer = (
        *_LAYER,
        *(["self_attention.linear_qkv.bias"] if spec.qkv_bias else []),
        *([f"self_attention.{letter}_layernorm.weight" for letter in "qk"] if spec.query_key_norm else []),
    )
    for layer in range(layers):
        for inside in in_layer:
            yield f"decoder.layers.{layer}.{inside}", f"decoder.layers.{stage * layers + layer}.{inside}"
    if is_last:
        yield (name := "decoder.final_layernorm.weight"), name
        if not spec.tie_word_embeddings or not is_first:
            yield (name := "output_layer.weight"), name
