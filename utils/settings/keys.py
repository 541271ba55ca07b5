"""The grammar of settings: what a file may say, what each key may be, and where each value came from.

A settings file holds `KEY=VALUE`, one a line, no quotes, spaces, `$` or `export`, comments on lines of their own, so
that bash, `docker --env-file` and Python read the same thing from it. What the values mean together is `configure`'s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils import models
from utils.errors import ConfigError


@dataclass(frozen=True)
class Value:
    """The text of one setting and where it stands: `config.env:12`, `environment` or `argument`."""

    text: str
    origin: str


@dataclass(frozen=True)
class Key:
    """One setting: the field of RunConfig it fills, how its text is read, what it may be, what it is for."""

    field: str
    parse: Callable[[str], Any]
    allowed: str
    meaning: str


def _integer(minimum: int) -> tuple[Callable[[str], int], str]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text) or int(text) < minimum:
            raise ValueError
        return int(text)

    return parse, f"a whole number from {minimum}"


def _number(minimum: float, *, above: bool = False, below: float = math.inf) -> tuple[Callable[[str], float], str]:
    def parse(text: str) -> float:
        number = float(text)
        if not minimum <= number < below or (above and number == minimum) or "_" in text:
            raise ValueError
        return number

    limit = "" if below == math.inf else f" and below {below:g}"
    return parse, f"a number {'above' if above else 'from'} {minimum:g}{limit}"


def _choice(*allowed: str) -> tuple[Callable[[str], str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return parse, ", ".join(allowed)


def _list_of(*allowed: str) -> tuple[Callable[[str], tuple[str, ...]], str]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if not set(names) <= set(allowed) or len(set(names)) != len(names) or ("all" in names and len(names) > 1):
            raise ValueError
        return names

    return parse, f"all, or a comma list of {', '.join(name for name in allowed if name != 'all')}"


def _flag() -> tuple[Callable[[str], bool], str]:
    def parse(text: str) -> bool:
        return {"true": True, "1": True, "false": False, "0": False}[text]

    return parse, "true, false, 1 or 0"


def _matching(pattern: str, allowed: str) -> tuple[Callable[[str], str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return parse, allowed


def _or_none(word: str, inner: tuple[Callable[[str], Any], str]) -> tuple[Callable[[str], Any], str]:
    def parse(text: str) -> Any:
        return None if text == word else inner[0](text)

    return parse, f"{word or 'empty'}, or {inner[1]}"


def _flags() -> tuple[Callable[[str], tuple[str, ...]], str]:
    def parse(text: str) -> tuple[str, ...]:
        flags = tuple(re.split(r",(?=--)", text)) if text else ()
        if not all(re.fullmatch(r"--[a-z][a-z-]*(=[^\s]+)?", flag) for flag in flags):
            raise ValueError
        return flags

    return parse, "empty, or a comma list of --flag and --flag=value"


_PATH = _matching(r"[^\s$'\"]+", "a path without spaces, quotes and $")
_REPO = _matching(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", "owner/name on the hub")
_HOST = _matching(r"[A-Za-z0-9:][A-Za-z0-9.:_-]*", "a host name or address")
_WORD = _matching(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*", "a name of Slurm")
_TIME = _matching(r"[0-9][0-9:-]*", "a time of Slurm, e.g. 04:00:00")
_NAME = _matching(r"[A-Za-z0-9_][\w./-]*", "letters, digits, . _ / -")

KEYS: dict[str, Key] = {
    "DATASET": Key(
        "dataset",
        *_PATH,
        "bc (BookCorpus), c4, hub (what DATASET_REPO names), synth (generated), text (a file, a folder, a glob of "
        ".jsonl, .jsonl.gz, .jsonl.zst, .parquet, .txt), or a Megatron .bin/.idx prefix",
    ),
    "DATASET_REPO": Key(
        "dataset_repo", *_or_none("auto", _REPO), "repository of a hub data set; auto = the first that can be had"
    ),
    "DATASET_CONFIG": Key(
        "dataset_config", *_or_none("auto", _NAME), "its configuration (subset); auto = the usual one"
    ),
    "DATASET_REVISION": Key("dataset_revision", *_or_none("auto", _NAME), "its branch, tag or commit; auto = main"),
    "TEXT_COLUMN": Key("text_column", *_or_none("auto", _NAME), "key or column of the text; auto = text"),
    "TOKENIZER": Key(
        "tokenizer",
        *_or_none("auto", _PATH),
        "folder of a Hugging Face tokenizer, or its hub id; auto = the model's own (synth: made with the text)",
    ),
    "FRAMEWORK": Key("frameworks", *_list_of("mega", "prim", "nemo", "hf", "all"), "frameworks to run"),
    "MODEL": Key("models", *_list_of(*models.NAMES, "all"), "models to train"),
    "MODEL_SIZE": Key("model_size", *_choice("full", "proxy", "tiny"), "published size, fewer layers, or CPU size"),
    "PROXY_LAYERS": Key("proxy_layers", *_integer(1), "layers of MODEL_SIZE=proxy"),
    "MBS": Key("micro_batch_size", *_integer(1), "sequences a GPU works on at once"),
    "SL": Key("sequence_length", *_integer(2), "tokens of one sequence"),
    "GBS": Key("global_batch_size", *_integer(1), "sequences of one optimizer step over all GPUs"),
    "TP": Key("tensor_parallel_size", *_integer(1), "GPUs that share each layer"),
    "PP": Key("pipeline_parallel_size", *_integer(1), "GPUs that share the layers between them"),
    "CP": Key("context_parallel_size", *_integer(1), "GPUs that share a sequence (needs TransformerEngine)"),
    "DP": Key("data_parallel_size", *_or_none("auto", _integer(1)), "GPUs / (TP PP CP)"),
    "GA": Key("gradient_accumulation", *_or_none("auto", _integer(1)), "micro batches of one step: GBS / (MBS DP)"),
    "CPU_RANKS": Key("cpu_ranks", *_integer(1), "gloo ranks on a machine without a GPU"),
    "GPUS_PER_NODE": Key("gpus_per_node", *_or_none("auto", _integer(1)), "GPUs to use; auto = all that are visible"),
    "LR": Key("learning_rate", *_number(0, above=True), "peak learning rate"),
    "MIN_LR": Key("min_learning_rate", *_number(0), "learning rate that the cosine ends at"),
    "WARMUP_ITERS": Key("warmup_iterations", *_integer(0), "steps of linear warm-up: LR n / (W + 1) at step n"),
    "TRAIN_ITERS": Key("train_iterations", *_integer(1), "optimizer steps"),
    "INIT": Key("init", *_choice("equal", "native"), "equal = the same weights in every framework"),
    "WEIGHT_DECAY": Key("weight_decay", *_number(0), "AdamW weight decay of matrices (not of norms and biases)"),
    "BETA1": Key("beta1", *_number(0, below=1), "Adam beta 1"),
    "BETA2": Key("beta2", *_number(0, below=1), "Adam beta 2"),
    "ADAM_EPS": Key("adam_epsilon", *_number(0, above=True), "Adam epsilon"),
    "CLIP_GRAD": Key("clip_grad", *_number(0, above=True), "L2 norm that gradients are clipped to"),
    "INIT_STD": Key("init_std", *_number(0, above=True), "standard deviation of initial weights"),
    "SEED": Key("seed", *_integer(0), "seed of weights and of the order of samples"),
    "PRECISION": Key("precision", *_choice("bf16", "fp8", "fp32"), "precision of the matrix multiplies"),
    "SAMPLES": Key(
        "samples", *_or_none("auto", _integer(1)), "documents taken; auto = enough for one epoch of TRAIN_ITERS GBS SL"
    ),
    "ENCODER": Key(
        "encoder", *_choice("auto", "hf", "gigatoken"), "what makes tokens of text; auto = gigatoken where proven"
    ),
    "ALLOW_REPEAT": Key("allow_repeat", *_flag(), "allow more than 4 epochs of the data"),
    "TEXT_UNIT": Key("text_unit", *_choice("file", "paragraph", "line"), "what is one document in a .txt"),
    "ON_BAD_RECORD": Key("on_bad_record", *_choice("error", "skip"), "a record that cannot be read: stop, or count it"),
    "CLEAN": Key("clean", *_choice("light", "none", "full"), "how text is cleaned, docs/cleaning.md; none = as it is"),
    "GROUP_ROWS": Key("group_rows", *_integer(1), "rows joined to one document (BookCorpus: one sentence a row)"),
    "MIN_CHARS": Key(
        "min_characters", *_or_none("auto", _integer(0)), "shortest document that is kept; auto = 1, with CLEAN=none 0"
    ),
    "MAX_CHARS": Key("max_characters", *_or_none("none", _integer(1)), "longest document that is kept"),
    "RUNS": Key("runs", *_integer(1), "process restarts per job"),
    "COOLDOWN_SECONDS": Key("cooldown_seconds", *_number(0), "pause before each job"),
    "METHOD": Key("method", *_choice("equal", "best", "both"), "equal settings, or each platform's best overlay"),
    "LABEL": Key(
        "label",
        *_matching(
            r"(?!(\.+|data|logs|profiles|superseded)$)[A-Za-z0-9._-]*",
            "letters, digits, . _ -, and no other folder of OUTPUT_DIR",
        ),
        "subfolder of OUTPUT_DIR",
    ),
    "ORDER": Key("order", *_choice("interleaved", "grouped"), "run 1 of every job first, or all runs of a job"),
    "START_TIMEOUT_SECONDS": Key(
        "start_timeout_seconds", *_number(0, above=True), "longest time to a job's first finished step"
    ),
    "STEP_TIMEOUT_SECONDS": Key(
        "step_timeout_seconds", *_number(0, above=True), "longest time from one finished step to the next"
    ),
    "FORCE": Key("force", *_flag(), "run jobs again whose result is already there"),
    "STRICT": Key("strict", *_flag(), "refuse a job that the pre-flight warns of, instead of noting it in the result"),
    "DATA_DIR": Key("data_dir", *_PATH, "folder of prepared data"),
    "OUTPUT_DIR": Key("output_dir", *_PATH, "folder of results, logs and plots"),
    "RUNTIME": Key(
        "runtime", *_choice("auto", "docker", "podman", "apptainer", "enroot", "native"), "how jobs are contained"
    ),
    "NNODES": Key("nodes", *_integer(1), "machines of one job"),
    "LAUNCHER": Key("launcher", *_choice("torchrun", "slurm"), "what starts the ranks; docs/hpc.md"),
    "NODE_RANK": Key("node_rank", *_integer(0), "number of this machine in a job of several, from 0"),
    "MASTER_ADDR": Key("master_addr", *_or_none("", _HOST), "machine 0 of a job of several, as the others reach it"),
    "MASTER_PORT": Key("master_port", *_integer(1), "port on machine 0 where the machines of a job meet"),
    "SLURM_ACCOUNT": Key("slurm_account", *_or_none("", _WORD), "account of Slurm jobs"),
    "SLURM_PARTITION": Key("slurm_partition", *_or_none("", _WORD), "partition of Slurm jobs"),
    "SLURM_TIME": Key("slurm_time", *_TIME, "time limit of each Slurm job"),
    "SLURM_GPUS": Key("slurm_gpus", *_choice("gpus-per-node", "gres", "none"), "how Slurm is asked for GPUs"),
    "SLURM_EXTRA": Key("slurm_extra", *_flags(), "more options of sbatch for each job"),
    "SLURM_IMAGE": Key("slurm_image", *_or_none("", _PATH), "image for enroot: a .sqsh file, or [registry#]name:tag"),
    "PROFILING": Key("profiling", *_flag(), "write a profile of some steps"),
    "PROFILE_STEP_START": Key("profile_step_start", *_integer(1), "first profiled step"),
    "PROFILE_STEP_END": Key("profile_step_end", *_integer(1), "last profiled step"),
    "TARGET_LOSS": Key("target_loss", *_or_none("", _number(0, above=True)), "report the time to this loss"),
}
_LINE = re.compile(r"([A-Z][A-Z0-9_]*)=(\S*)")


def read_file(path: Path, name: str) -> dict[str, Value]:
    """Return the values of a settings file; `name` stands for it in messages.

    Raises ConfigError for a line outside the grammar, an unknown key, a key said twice and an unreadable file.
    """
    try:
        lines = path.read_text(encoding="utf8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    values: dict[str, Value] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, value = parse_assignment(line, f"{name}:{number}")
        if key in values:
            raise ConfigError(f"{name}:{number}: {key} stands already in {values[key].origin}; keep one of the two")
        values[key] = value
    return values


def parse_assignment(text: str, origin: str) -> tuple[str, Value]:
    """Return key and value of one `KEY=VALUE`; raise ConfigError where it is none or the key is unknown."""
    match = _LINE.fullmatch(text)
    if match is None or re.search(r"[$'\"`\\]", text):
        raise ConfigError(
            f"{origin}: got {text!r}, wanted KEY=VALUE without quotes, spaces, $ or export, comments on their own line"
        )
    key, value = match.groups()
    if key not in KEYS:
        raise ConfigError(f"{origin}: unknown key {key}={value}; allowed: {', '.join(KEYS)}")
    return key, Value(value, origin)


def from_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings that the environment overrides."""
    return {key: Value(environ[key], "environment") for key in KEYS if key in environ}


def from_arguments(arguments: Iterable[str]) -> dict[str, Value]:
    """Return the settings given as KEY=VALUE arguments; a later one replaces an earlier one."""
    return dict(parse_assignment(argument, "argument") for argument in arguments)


def parse_values(values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the typed values by field name; raise ConfigError for a bad value or a key that no layer sets."""
    typed: dict[str, Any] = {}
    for key, rule in KEYS.items():
        if key not in values:
            raise ConfigError(f"config.env: {key} is missing; wanted {rule.allowed}; add the line {key}=...")
        value = values[key]
        try:
            typed[rule.field] = rule.parse(value.text)
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{value.origin}: {key}={value.text}: wanted {rule.allowed}") from error
    return typed
