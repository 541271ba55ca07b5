"""Every setting, declared once: its name, the values it may take, its meaning, and its place in results.

A new setting is an entry here, its default in config.env, and a field of RunConfig (utils/settings/config.py). The
schema of results, the certificate of a comparison and the digest of prepared text take what they need from this table.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from utils.frameworks import FRAMEWORKS
from utils.models import NAMES
from utils.settings.parsers import (
    HOST,
    NAME,
    PATH,
    REPO,
    TIME,
    WORD,
    choice,
    flag,
    flag_or,
    flags,
    integer,
    list_of,
    matching,
    number,
    numbers,
    or_none,
)
from utils.settings.profiling import NO_PROFILE, TOOLS, TORCH

Number = (int, float)
Range = tuple[float, float]
"""Least and largest number that a result may hold. The limits are far from anything that exists, so that no honest
result comes near them; they keep sizes of 0 out of divisions, and numbers out of arithmetic that would overflow."""
ANY: Range = (-1e18, 1e18)
COUNT: Range = (1, 1e9)
SPLIT: Range = (1, 4096)
"""Tensor, pipeline, context and expert parallel sizes: no model has as many layers, heads or experts."""
SHARE: Range = (0, 1)
LEARNING_RATE: Range = (0, 1e3)
TEXT_UNITS = ("file", "paragraph", "line")
"""Documents of a .txt file."""
ON_BAD = ("error", "skip")
"""What a bad record does."""
NO_RECIPE = "none"
"""`fp8_recipe` of a training whose precision is not fp8."""
Part = Literal["work", "seed", "layout", "means", "model"]
"""Part of a certificate (evaluate/fairness/certificate.py) in which a setting is compared."""


@dataclass(frozen=True)
class InResults:
    """The place of a setting in results. A setting that is there changes the identity of a result."""

    key: str
    """Key in `training_config`, and in `resolved_config` where a trainer reads the setting back."""
    kind: type | tuple[type, ...] | None = None
    """Type of the value that a trainer reads back; None for a setting that it cannot read back."""
    name: str = ""
    """Name in the certificate of a comparison."""
    part: Part | None = None
    """Part of the certificate in which both sides are compared; None for a setting that is not in it."""
    before: Any = None
    """Value that ran in results written before the setting existed, or a function of the section that returns it; None
    where the setting has always existed."""
    limits: Range = ANY
    """Range of its numbers in a result."""


@dataclass(frozen=True)
class Key:
    """One setting."""

    field: str
    """Field of RunConfig."""
    parse: Callable[[str], Any]
    """Function from the text of the setting to its value; it raises ValueError or KeyError for a bad text."""
    allowed: str
    """Allowed values, as text for messages."""
    meaning: str
    in_results: InResults | None = None
    decides_text: bool = False
    """Whether the setting changes what a text becomes, so that text prepared with another value is other data."""


def _recipe_before(section: Mapping[str, Any]) -> str:
    """Return the recipe of a result that is older than the setting: fp8 had one recipe then."""
    return "delayed" if section.get("precision") == "fp8" else NO_RECIPE


KEYS: dict[str, Key] = {
    "DATASET": Key(
        "dataset",
        *PATH,
        "c4, bc (BookCorpus, whose licence is unknown), hub (the repository DATASET_REPO), synth (generated), text (a "
        "file, a folder, a glob of .jsonl, .jsonl.gz, .jsonl.zst, .parquet, .txt), or a Megatron .bin/.idx prefix",
        InResults("dataset"),
    ),
    "DATASET_REPO": Key(
        "dataset_repo", *or_none("auto", REPO), "repository of a hub data set; auto = the first that can be downloaded"
    ),
    "DATASET_CONFIG": Key("dataset_config", *or_none("auto", NAME), "its configuration (subset); auto = the usual one"),
    "DATASET_REVISION": Key(
        "dataset_revision", *or_none("auto", NAME), "its branch, tag or commit; auto = main", decides_text=True
    ),
    "TEXT_COLUMN": Key(
        "text_column", *or_none("auto", NAME), "key or column of the text; auto = text", decides_text=True
    ),
    "TOKENIZER": Key(
        "tokenizer",
        *or_none("auto", PATH),
        "folder of a Hugging Face tokenizer, or its hub id; auto = the model's own (synth: made with the text)",
        decides_text=True,
    ),
    "FRAMEWORK": Key("frameworks", *list_of(*FRAMEWORKS, "all"), "frameworks to run"),
    "MODEL": Key("models", *list_of(*NAMES, "all"), "models to train"),
    "MODEL_SIZE": Key("model_size", *choice("full", "proxy", "tiny"), "published size, fewer layers, or CPU size"),
    "PROXY_LAYERS": Key("proxy_layers", *integer(1), "layers of MODEL_SIZE=proxy"),
    "PRECISION": Key(
        "precision",
        *choice("bf16", "fp8", "fp32"),
        "precision of the matrix multiplies",
        InResults("precision", str, "precision", "work"),
    ),
    "FP8_RECIPE": Key(
        "fp8_recipe",
        *choice("delayed", "current", "mxfp8", "nvfp4", "mxfp4"),
        "scaling of PRECISION=fp8: by earlier steps, by the tensor itself, or by blocks of 32 numbers; nvfp4 (NVIDIA) "
        "and mxfp4 (AMD) multiply in 4 bits",
        InResults("fp8_recipe", str, "fp8 recipe", "work", before=_recipe_before),
    ),
    "SL": Key(
        "sequence_length",
        *integer(2),
        "tokens of one sequence",
        InResults("sequence_length", int, "sequence length", "work", limits=COUNT),
    ),
    "GBS": Key(
        "global_batch_size",
        *integer(1),
        "sequences of one optimizer step over all GPUs",
        InResults("global_batch_size", int, "global batch", "work", limits=COUNT),
    ),
    "TRAIN_ITERS": Key(
        "train_iterations",
        *integer(1),
        "optimizer steps",
        InResults("max_steps", int, "number of steps", "work", limits=COUNT),
    ),
    "LR": Key(
        "learning_rate",
        *number(0, above=True),
        "peak learning rate",
        InResults("lr", Number, "learning rate", "work", limits=LEARNING_RATE),
    ),
    "MIN_LR": Key(
        "min_learning_rate",
        *number(0),
        "learning rate at the end of the cosine",
        InResults("min_lr", Number, "last learning rate", "work", limits=LEARNING_RATE),
    ),
    "WARMUP_ITERS": Key(
        "warmup_iterations",
        *integer(0),
        "steps of linear warm-up: LR n / (W + 1) at step n",
        InResults("warmup_iters", int, "warm-up steps", "work", limits=(0, 1e9)),
    ),
    "WEIGHT_DECAY": Key(
        "weight_decay",
        *number(0),
        "AdamW weight decay of matrices (not of norms and biases)",
        InResults("weight_decay", Number, "weight decay", "work"),
    ),
    "BETA1": Key(
        "beta1", *number(0, below=1), "Adam beta 1", InResults("beta1", Number, "Adam beta 1", "work", limits=SHARE)
    ),
    "BETA2": Key(
        "beta2", *number(0, below=1), "Adam beta 2", InResults("beta2", Number, "Adam beta 2", "work", limits=SHARE)
    ),
    "ADAM_EPS": Key(
        "adam_epsilon",
        *number(0, above=True),
        "Adam epsilon",
        InResults("adam_eps", Number, "Adam epsilon", "work", limits=LEARNING_RATE),
    ),
    "CLIP_GRAD": Key(
        "clip_grad",
        *number(0, above=True),
        "L2 norm that gradients are clipped to",
        InResults("clip_grad", Number, "gradient clipping", "work", limits=(-1, 1e18)),
    ),
    "OPTIMIZER_STATE": Key(
        "optimizer_state",
        *choice("fp32", "bf16"),
        "precision of Adam's two moments; bf16 needs 12 bytes a parameter or fewer (mega, hf)",
        InResults("optimizer_state", str, "precision of optimizer states", "work", before="fp32"),
    ),
    "GRADIENT_DTYPE": Key(
        "gradient_dtype",
        *choice("fp32", "bf16"),
        "precision in which gradients are accumulated and reduced",
        InResults("gradient_dtype", str, "precision of gradients", "work", before="fp32"),
    ),
    "RECOMPUTE": Key(
        "recompute",
        *choice("none", "selective", "full"),
        "activations that are computed again in the backward pass: none, cheap operations, or whole layers",
        InResults("recompute", str, "recomputed activations", "layout", before="none"),
    ),
    "LAYERS": Key(
        "layers",
        *choice("auto", "te", "local"),
        "layers of mega: TransformerEngine's, or torch's (local); auto = TransformerEngine's where it can be used",
        InResults("layers"),
    ),
    "HF_KERNELS": Key(
        "hf_kernels",
        *choice("stock", "liger"),
        "functions of hf's models: transformers' own, or those of liger-kernel (transformers' use_liger_kernel)",
        InResults("hf_kernels"),
    ),
    "FIT": Key(
        "fit",
        *choice("check", "ignore"),
        "check = a job that cannot fit into the memory of its device is not started",
    ),
    "SEED": Key(
        "seed", *integer(0), "seed of weights and of the order of samples", InResults("seed", int, "seed", "seed")
    ),
    "INIT": Key(
        "init",
        *choice("equal", "native"),
        "equal = the same weights in every framework",
        InResults("init", str, "source of initial weights", "means"),
    ),
    "INIT_STD": Key(
        "init_std",
        *number(0, above=True),
        "standard deviation of initial weights",
        InResults("init_std", Number, "standard deviation of initial weights", "model", limits=LEARNING_RATE),
    ),
    "TP": Key(
        "tensor_parallel_size",
        *integer(1),
        "GPUs that share each layer",
        InResults("tp", int, "tensor parallel size", "layout", limits=SPLIT),
    ),
    "PP": Key(
        "pipeline_parallel_size",
        *integer(1),
        "GPUs that divide the layers between them",
        InResults("pp", int, "pipeline parallel size", "layout", limits=SPLIT),
    ),
    "CP": Key(
        "context_parallel_size",
        *integer(1),
        "GPUs that share a sequence (needs TransformerEngine)",
        InResults("cp", int, "context parallel size", "layout", limits=SPLIT),
    ),
    "EP": Key(
        "expert_parallel_size",
        *integer(1),
        "GPUs of the DP*CP ones that divide the experts of a layer between them (only for mixtures of experts)",
        InResults("ep", int, "expert parallel size", "layout", before=1, limits=SPLIT),
    ),
    "ROUTING": Key(
        "routing",
        *choice("learned", "balanced"),
        "learned = the router decides; balanced = the framework's own forced balancing, as in vendors' figures",
        InResults("routing", before="learned"),
    ),
    "DP": Key(
        "data_parallel_size",
        *or_none("auto", integer(1)),
        "GPUs / (TP PP CP)",
        InResults("dp", int, "data parallel size", "layout", limits=COUNT),
    ),
    "MBS": Key(
        "micro_batch_size",
        *or_none("auto", integer(1)),
        "sequences of one micro batch on each GPU; auto (METHOD=best) = the largest that fits by the estimate",
        InResults("micro_batch_size", int, "micro batch", "layout", limits=COUNT),
    ),
    "GA": Key(
        "gradient_accumulation",
        *or_none("auto", integer(1)),
        "micro batches of one step: GBS / (MBS DP)",
        InResults("gradient_accumulation", int, "gradient accumulation", "layout", limits=COUNT),
    ),
    "CPU_RANKS": Key("cpu_ranks", *integer(1), "gloo ranks on a machine without a GPU"),
    "GPUS_PER_NODE": Key("gpus_per_node", *or_none("auto", integer(1)), "GPUs to use; auto = all that are visible"),
    "SAMPLES": Key(
        "samples",
        *or_none("auto", integer(1)),
        "documents taken; auto = enough for one epoch of TRAIN_ITERS GBS SL",
        InResults("samples"),
    ),
    "ALLOW_REPEAT": Key("allow_repeat", *flag(), "allow more than 4 epochs of the data", InResults("allow_repeat")),
    "TEXT_UNIT": Key("text_unit", *choice(*TEXT_UNITS), "unit of a .txt file that is one document", decides_text=True),
    "ON_BAD_RECORD": Key(
        "on_bad_record", *choice(*ON_BAD), "a record that cannot be read: stop, or count it", decides_text=True
    ),
    "CLEAN": Key(
        "clean",
        *choice("light", "none", "full"),
        "cleaning of text, docs/data.md; none = unchanged",
        decides_text=True,
    ),
    "GROUP_ROWS": Key(
        "group_rows", *integer(1), "rows joined to one document (BookCorpus: one sentence a row)", decides_text=True
    ),
    "MIN_CHARS": Key(
        "min_characters",
        *or_none("auto", integer(0)),
        "shortest document that is kept; auto = 1, with CLEAN=none 0",
        decides_text=True,
    ),
    "MAX_CHARS": Key(
        "max_characters", *or_none("none", integer(1)), "longest document that is kept", decides_text=True
    ),
    "RUNS": Key(
        "runs",
        *or_none("auto", integer(1, 1000)),
        "process restarts of each job; auto = 3 to 10, until its mean tokens/s/GPU is known within 1 %",
    ),
    "COOLDOWN_SECONDS": Key("cooldown_seconds", *number(0), "pause in seconds before each job"),
    "METHOD": Key("method", *choice("equal", "best", "both"), "equal settings, or each platform's best overlay"),
    "BEST_DEVICE": Key(
        "best_device",
        *or_none("auto", matching(r"[A-Z0-9]+", "a GPU such as B200 or MI355X")),
        "GPU whose published recipe METHOD=best takes; auto = this machine's",
    ),
    "LABEL": Key(
        "label",
        *matching(
            r"(?!(\.+|data|logs|profiles|superseded|sweeps)$)[A-Za-z0-9._-]*",
            "letters, digits, . _ -, and no other folder of OUTPUT_DIR",
        ),
        "subfolder of OUTPUT_DIR",
    ),
    "ORDER": Key("order", *choice("interleaved", "grouped"), "run 1 of every job first, or all runs of a job"),
    "START_TIMEOUT_SECONDS": Key(
        "start_timeout_seconds", *number(0, above=True), "longest time in seconds to the first finished step of a job"
    ),
    "STEP_TIMEOUT_SECONDS": Key(
        "step_timeout_seconds", *number(0, above=True), "longest time in seconds between two finished steps"
    ),
    "FORCE": Key("force", *flag(), "run jobs again that already have a result"),
    "STRICT": Key(
        "strict",
        *flag(),
        "refuse a job after a warning of the pre-flight check, instead of recording the warning in the result",
    ),
    "DATA_DIR": Key("data_dir", *PATH, "folder of prepared data"),
    "OUTPUT_DIR": Key("output_dir", *PATH, "folder of results, logs and plots"),
    "RUNTIME": Key(
        "runtime",
        *choice("auto", "docker", "podman", "apptainer", "enroot", "native"),
        "container engine of jobs; native = none",
    ),
    "NNODES": Key("nodes", *integer(1), "machines of one job"),
    "LAUNCHER": Key("launcher", *choice("torchrun", "slurm"), "launcher of the ranks; docs/clusters.md"),
    "NODE_RANK": Key("node_rank", *integer(0), "number of this machine in a job of several machines, from 0"),
    "MASTER_ADDR": Key("master_addr", *or_none("", HOST), "address of machine 0 in a job of several machines"),
    "MASTER_PORT": Key("master_port", *integer(1), "port on machine 0 for the rendezvous of a job"),
    "SLURM_ACCOUNT": Key("slurm_account", *or_none("", WORD), "account of Slurm jobs"),
    "SLURM_PARTITION": Key("slurm_partition", *or_none("", WORD), "partition of Slurm jobs"),
    "SLURM_TIME": Key("slurm_time", *TIME, "time limit of each Slurm job"),
    "SLURM_GPUS": Key("slurm_gpus", *choice("gpus-per-node", "gres", "none"), "option of sbatch that requests GPUs"),
    "SLURM_EXTRA": Key("slurm_extra", *flags(), "more options of sbatch for each job"),
    "SLURM_IMAGE": Key("slurm_image", *or_none("", PATH), "image for enroot: a .sqsh file, or [registry#]name:tag"),
    "PROFILING": Key(
        "profile",
        *flag_or(TORCH, NO_PROFILE, *TOOLS),
        "record some steps with torch.profiler, or by a tool of shell/profile.sh; their times do not count",
        InResults("profile", before=NO_PROFILE),
    ),
    "PROFILE_STEP_START": Key("profile_step_start", *integer(1), "first profiled step"),
    "PROFILE_STEP_END": Key("profile_step_end", *integer(1), "last profiled step"),
    "PROFILE_RANKS": Key("profile_ranks", *or_none("all", numbers()), "ranks that record, from 0"),
    "PROFILE_MEMORY": Key("profile_memory", *flag(), "record the memory of the profiled steps too"),
    "TARGET_LOSS": Key(
        "target_loss", *or_none("", number(0, above=True)), "loss in nats per token; results report the time to it"
    ),
}


def in_results() -> dict[str, InResults]:
    """Return the settings that results hold, by field of RunConfig, in the order of the table."""
    # by field, because RunConfig.asked reads each setting from there
    return {key.field: key.in_results for key in KEYS.values() if key.in_results is not None}
