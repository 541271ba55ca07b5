"""RunConfig: all settings of a matrix, typed, checked and frozen.

Precedence: KEY=VALUE arguments, then the environment, then with METHOD=best `config.<platform>-best-<device>.env` and
`config.<platform>-best.env`, then `config.<platform>.env`, then `config.env`. `python -m utils.configure --help` lists
every key with its allowed values.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from utils.errors import ConfigError, did_you_mean
from utils.frameworks import can_train
from utils.models import NAMES as MODEL_NAMES, ModelSpec, UnknownModelError, get as get_model
from utils.settings import profiling as profiles
from utils.settings.combinations import (
    Rules,
    check_combinations,
    check_layout,
    fp8_recipe,
    frameworks,
    num_gpus,
    profile,
)
from utils.settings.keys import KEYS, in_results
from utils.settings.layers import AUTO, Value, from_arguments, overlays, parse_values, read_file, received

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = ("amd", "nvd", "cpu")

PLATFORM_OPTION = {"required": True, "choices": PLATFORMS, "help": "read config.<platform>.env of this platform"}
"""The option --platform of a command that reads settings and no machine (utils/arguments.py)."""


@dataclass(frozen=True)
class RunConfig:
    """Every setting of a matrix, typed and checked, with DP and GA filled in (meanings: utils/settings/keys.py)."""

    platform: str
    num_gpus: int
    """GPUs of one job over all nodes; on a machine without a GPU the number of gloo ranks."""
    dataset: str
    dataset_repo: str | None
    dataset_config: str | None
    dataset_revision: str | None
    text_column: str | None
    tokenizer: str | None
    frameworks: tuple[str, ...]
    models: tuple[str, ...]
    model_size: str
    proxy_layers: int
    micro_batch_size: int
    sequence_length: int
    global_batch_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    context_parallel_size: int
    expert_parallel_size: int
    routing: str
    data_parallel_size: int
    gradient_accumulation: int
    cpu_ranks: int
    gpus_per_node: int | None
    learning_rate: float
    min_learning_rate: float
    warmup_iterations: int
    train_iterations: int
    init: str
    weight_decay: float
    beta1: float
    beta2: float
    adam_epsilon: float
    clip_grad: float
    init_std: float
    seed: int
    precision: str
    fp8_recipe: str
    """FP8_RECIPE with PRECISION=fp8, else `none`."""
    optimizer_state: str
    gradient_dtype: str
    recompute: str
    layers: str
    hf_kernels: str
    fit: str
    samples: int | None
    allow_repeat: bool
    text_unit: str
    on_bad_record: str
    clean: str
    group_rows: int
    min_characters: int | None
    max_characters: int | None
    runs: int | None
    cooldown_seconds: float
    order: str
    start_timeout_seconds: float
    step_timeout_seconds: float
    method: str
    best_device: str | None
    label: str
    force: bool
    strict: bool
    data_dir: Path
    output_dir: Path
    runtime: str
    nodes: int
    launcher: str
    node_rank: int
    master_addr: str | None
    master_port: int
    slurm_account: str | None
    slurm_partition: str | None
    slurm_time: str
    slurm_gpus: str
    slurm_extra: tuple[str, ...]
    slurm_image: str | None
    profile: str
    """The profile as results hold it (utils/settings/profiling.py); `none` with PROFILING=false."""
    profile_step_start: int
    profile_step_end: int
    profile_ranks: tuple[int, ...] | None
    profile_memory: bool
    target_loss: float | None

    @property
    def ranks_per_node(self) -> int:
        """GPUs of one machine; on a machine without a GPU its gloo ranks."""
        return self.num_gpus // self.nodes

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all GPUs."""
        return self.global_batch_size * self.sequence_length

    @property
    def training_samples(self) -> int:
        """Sequences of the whole training."""
        return self.train_iterations * self.global_batch_size

    @property
    def profiled(self) -> profiles.Profile | None:
        """Steps and ranks that are profiled; None with PROFILING=false."""
        return profiles.parse(self.profile)

    @property
    def results_dir(self) -> Path:
        """Folder of this configuration's results: OUTPUT_DIR, or the label's folder in it."""
        return self.output_dir / self.label if self.label else self.output_dir

    def jobs(self, count: int) -> list[tuple[str, str, int]]:
        """Return framework, model and run of `count` runs of every job that can train, in the order in which they run.

        ORDER=interleaved runs every job once, then every job again, so that a drift of the machine affects all jobs
        alike.
        """
        pairs = []
        for model in self.models:
            pairs += [(framework, model) for framework in self.frameworks if can_train(framework, model)]
        runs = range(1, count + 1)
        if self.order == "interleaved":
            return [(framework, model, run) for run in runs for framework, model in pairs]
        return [(framework, model, run) for framework, model in pairs for run in runs]

    def spec(self, model: str) -> ModelSpec:
        """Return the spec of a model in this configuration's size."""
        return get_model(model, self.model_size, proxy_layers=self.proxy_layers)

    def asked(self) -> dict[str, int | float | str | bool | None]:
        """Return the settings of one training as `training_config` of the result holds them."""
        settings: dict[str, int | float | str | bool | None] = {"num_gpus": self.num_gpus}
        for field, place in in_results().items():
            settings[place.key] = getattr(self, field)
        return settings


def load(
    platform: str,
    visible_gpus: int | None = None,
    *,
    arguments: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    root: Path = ROOT,
    device: str | None = None,
) -> RunConfig:
    """Read all layers of settings and return the checked RunConfig.

    `visible_gpus` is the number of GPUs of this machine; a job uses all of them, or GPUS_PER_NODE where that is set.
    On a CPU a job has CPU_RANKS ranks. `environ` defaults to that of this process. `device` is the short name of this
    machine's GPU, which selects the recipe of METHOD=best.
    Raises ConfigError, whose message names the origin of the bad value.
    """
    if platform not in PLATFORMS:
        raise ConfigError(
            f"platform: got {platform!r}, allowed: {', '.join(PLATFORMS)}{did_you_mean(platform, PLATFORMS)}"
        )
    values = values_of(platform, arguments, environ, root, device)
    typed = parse_values(values)
    rules = Rules(values)
    if typed["models"] == ("all",):
        typed["models"] = MODEL_NAMES
    # the order matters: each of these needs what those before it have filled in
    typed["frameworks"] = frameworks(rules, typed["frameworks"], platform, typed["models"])
    typed["num_gpus"] = num_gpus(rules, typed, platform, visible_gpus)
    check_combinations(rules, typed, platform)
    typed["fp8_recipe"] = fp8_recipe(rules, typed, platform)
    check_layout(rules, typed)
    typed["profile"] = profile(rules, typed, platform)
    typed["label"] = typed["label"] or _derived_label(typed, platform)
    typed["data_dir"] = _path(typed["data_dir"], root)
    typed["output_dir"] = _path(typed["output_dir"], root)
    # whether a model fits the layout needs the size of the model, which RunConfig knows
    config = RunConfig(platform=platform, **typed)
    _check_models(rules, config)
    return config


def values_of(
    platform: str,
    arguments: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    root: Path = ROOT,
    device: str | None = None,
) -> dict[str, Value]:
    """Return text and origin of every setting after all layers, unchecked; raise ConfigError for bad grammar.

    Settings that the parent process handed on replace the files and the environment (utils/settings/layers.py).
    """
    environ = os.environ if environ is None else environ
    # a settings file that is edited while a matrix runs changes none of its jobs
    inherited = received(environ)
    if inherited is not None:
        return inherited | from_arguments(arguments)
    environment = {key: Value(environ[key], "environment") for key in KEYS if key in environ}
    return _layers(platform, environment, arguments, root, device)


def folders(
    platform: str, *, arguments: Sequence[str] = (), environ: Mapping[str, str] | None = None, root: Path = ROOT
) -> tuple[Path, Path]:
    """Return OUTPUT_DIR and DATA_DIR, for work on existing files.

    Every value is checked by itself. The rules between values are not checked, because they need the number of GPUs.
    Raises ConfigError as `load` does.
    """
    typed = parse_values(values_of(platform, arguments=arguments, environ=environ, root=root))
    return _path(typed["output_dir"], root), _path(typed["data_dir"], root)


def require_writable(folder: Path, key: str) -> None:
    """Create `folder` and check that a file can be written in it; raise ConfigError that names the setting `key`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(
            f"{key}={folder}: cannot be written ({error.strerror}); use another folder, e.g. {key}=output"
        ) from error


def _layers(
    platform: str, environment: dict[str, Value], arguments: Sequence[str], root: Path, device: str | None
) -> dict[str, Value]:
    """Return the settings of all layers, each of which replaces settings of those before it."""
    from_files = read_file(root / "config.env", "config.env")
    overlay = f"config.{platform}.env"
    if (root / overlay).exists():
        from_files |= read_file(root / overlay, overlay)
    given = environment | from_arguments(arguments)
    values = from_files | given
    if "METHOD" in values and values["METHOD"].text == "best":
        # which recipe it is may be given in the layers above it
        values = from_files | _recipe(platform, values, root, device) | given
    return values


def _recipe(platform: str, values: Mapping[str, Value], root: Path, device: str | None) -> dict[str, Value]:
    """Return the settings of METHOD=best; raise ConfigError where there are none."""
    asked = values["BEST_DEVICE"].text if "BEST_DEVICE" in values else AUTO
    is_asked = asked != AUTO
    names = overlays(platform, asked if is_asked else device, root, is_asked=is_asked)
    if not names:
        raise ConfigError(
            f"{values['METHOD'].origin}: METHOD=best: there is no config.{platform}-best.env; "
            "use METHOD=equal or write the overlay"
        )
    recipe: dict[str, Value] = {}
    for name in names:
        recipe |= read_file(root / name, name)
    if not is_asked and device is not None:
        recipe["BEST_DEVICE"] = Value(device, "GPU of this machine")
    return recipe


def _path(text: str, root: Path) -> Path:
    return root / Path(text).expanduser()


def _check_models(rules: Rules, config: RunConfig) -> None:
    tp, pp = config.tensor_parallel_size, config.pipeline_parallel_size
    for name in config.models:
        try:
            spec = config.spec(name)
        except UnknownModelError as error:
            raise rules.broken("MODEL MODEL_SIZE PROXY_LAYERS", str(error)) from error
        heads, groups = spec.num_attention_heads, spec.num_query_groups
        if heads % tp or groups % tp:
            raise rules.broken(
                "TP MODEL", f"{name} has {heads} heads in {groups} groups, which do not divide by it; use TP=1"
            )
        if spec.num_layers % pp:
            raise rules.broken("PP MODEL", f"{name} has {spec.num_layers} layers, which do not divide by it; use PP=1")
        if config.sequence_length > spec.max_position_embeddings:
            raise rules.broken(
                "SL MODEL", f"{name} has {spec.max_position_embeddings} positions at most; use as many or fewer"
            )
        if not spec.num_experts and (config.expert_parallel_size > 1 or config.routing != "learned"):
            raise rules.broken(
                "EP ROUTING MODEL", f"{name} has one MLP a layer and no experts; use EP=1 ROUTING=learned"
            )
        # MoELayer.forward of megatron-core 0.16.1 and 0.19.2
        if spec.num_experts and tp > 1:
            raise rules.broken(
                "TP MODEL",
                "megatron-core trains experts with TP only if it splits sequences as well, which is off here; use EP",
            )
        if spec.num_experts % config.expert_parallel_size:
            raise rules.broken(
                "EP MODEL", f"{name} has {spec.num_experts} experts, which do not divide by it; use EP=1"
            )
        window = spec.sliding_window
        if "titan" in config.frameworks and window and config.sequence_length > window:
            raise rules.broken(
                "FRAMEWORK MODEL SL",
                f"torchtitan's models have no attention window, and {name} has one of {window} tokens; use "
                f"mega or hf, or SL={window} or less",
            )


def _derived_label(typed: Mapping[str, object], platform: str) -> str:
    """Return the name of the results folder for any but the default kind of run; empty for the default."""
    parts = []
    if typed["method"] != "equal":
        parts.append(str(typed["method"]))
    # the usual size is the one of config.cpu.env on a CPU
    if typed["model_size"] != ("tiny" if platform == "cpu" else "full"):
        parts.append(str(typed["model_size"]))
    if typed["nodes"] != 1:
        parts.append(f"nodes{typed['nodes']}")
    if typed["profile"] != profiles.NO_PROFILE:
        parts.append(profiles.PROFILED)
    return "_".join(parts)
