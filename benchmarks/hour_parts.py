"""The parts of the GPU hour: models that fit into the card, the commands of each part, and its expected seconds.

The seconds follow from one H200 (Llama 3.1 8B, driver 580, 16 cores): from the command to the first step 63 s when its
files are read for the first time and 45 s later, 9 to 13 s in the first step for compilation, 3 to 5 s after the last
one. The other steps take their FLOPs at half of the dense bf16 peak of the card.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from train.job.rank_environment import python_of
from utils.errors import ConfigError
from utils.frameworks import FRAMEWORKS
from utils.hardware.devices import Device
from utils.memory.estimate import FRAMEWORKS as ESTIMATED, estimate, usable_gb
from utils.models import ModelSpec, get
from utils.settings.combinations import VENDOR_RECIPES
from utils.settings.config import ROOT, load

FOLDER = "gpu_hour"
VERDICT = "verdict"
"""Label of the jobs that are compared, after `hour_`."""
PROFILED = "profiled"
"""Label of the jobs whose steps are profiled: their times are no results."""
RUNS, MOST_RUNS = 3, 5
TOKENS_PER_STEP = 16_384
"""Tokens of one optimizer step on one GPU: the same at every sequence length."""
STEPS = 20
WARMUP_STEPS = 10
RATES = {"cpu": "1e-3"}
RATE = "3e-5"
"""LR, on a CPU that of RATES. Early steps of Adam move every weight by about the rate, all in one direction: after n
steps a matrix of width d has gained a part of norm n x LR x d, beside initial weights of norm 2 x 0.02 x sqrt(d), which
is 2.6 for Llama 3.1 8B (d = 4096). With LR 3e-4 after 2 warm-up steps the sum of the first four rates is 9e-4 and that
part 3.7: on the H200 the loss rose from 12.6 to 15.1 in the first of them (SL 8192) and to 30 after the fourth. Here all
20 rates together are 3e-4, so the part stays at 1.2. The tiny models have d = 128, where 3e-5 would change nothing."""
DOCUMENTS = 2000
"""Documents of the generated text, 50 to 500 words each: all jobs read the same data, prepared once. 20 steps of 16,384
tokens are 327,680."""
COLD_SECONDS, WARM_SECONDS = 63, 45
COMPILE_SECONDS, END_SECONDS = 13, 5
SHARE_OF_PEAK = 0.5
ASSUMED_TFLOPS = 312.0
"""Peak of a card without a row in the table of devices: that of an A100, so that expected seconds are rather too long."""
SMOKE_SECONDS = 100
CPU_SECONDS = 20
"""Of a job at tiny size on two cores, of which two run side by side in the smoke test."""
SMOKE_STEPS = 4
NUMERICS_GB = 12
"""At most: attention of 2 x 32 heads over 1,024 tokens in float64, with its gradients."""
OWN_STATES_GB = 18 / 16
"""Bytes a parameter of a framework without an estimate over those of mega with float32 states: a float32 copy of the
weights in place of mega's 16-bit remainder."""
PYTHON = (sys.executable, "-m")
LAYERS_APART = 4
"""Layers that a model loses until it fits."""
ENGINE = "transformer_engine"
ONE_STEP = {"PROFILING": "true", "PROFILE_STEP_START": 8, "PROFILE_STEP_END": 8}
"""Settings of a job that profiles one step."""
SMOKE = (
    # Mistral has the layers and widths of Llama and a quarter of its vocabulary: 9 GB a job instead of 20, so that all
    # run at once. Its window is longer than 2,048 tokens.
    ("mega local", "mega", "mistral", 2048, "", "LAYERS=local"),
    ("mega TransformerEngine", "mega", "mistral", 2048, ENGINE, "LAYERS=te"),
    ("hf stock", "hf", "mistral", 2048, "", "HF_KERNELS=stock"),
    ("hf liger", "hf", "mistral", 2048, "liger_kernel", "HF_KERNELS=liger"),
    ("window", "mega", "mistral", 8192, "", "LAYERS=local"),
    ("experts", "mega", "qwen3moe", 2048, "", "LAYERS=auto"),
    ("bridge", "bridge", "mistral", 2048, "bridge", "LAYERS=auto"),
    ("titan", "titan", "mistral", 2048, "titan", "LAYERS=auto"),
)
"""Jobs of the smoke test: name, framework, model, sequence length, what must be installed, and a setting."""


@dataclass(frozen=True)
class Size:
    """The model of a part: its settings, its shape, its layers in words, and the most memory that a job of it needs."""

    settings: tuple[str, ...]
    spec: ModelSpec
    layers: str
    needs_gb: float


@dataclass(frozen=True)
class Task:
    """One process of a part."""

    name: str
    command: tuple[str, ...]
    needs: str = ""
    """Package or framework that must be installed."""
    needs_gb: float = 0.0
    """Memory of the device, for tasks that run side by side."""
    lacks: str = ""
    """Reason why this device cannot run it."""


@dataclass(frozen=True)
class Part:
    """One part of the hour: tasks that run side by side, most often one."""

    name: str
    tasks: tuple[Task, ...]
    seconds: float
    size: Size | None = None
    """None for a part with no model, or with small ones."""


@dataclass
class Hour:
    """Folders, platform, memory of the card (GB), deadline and device of one call, with the record of the parts."""

    output: Path
    data: Path
    platform: str
    memory_gb: float
    deadline: float
    device: Device | None = None
    """None for a card that is not in the table of devices, and for a CPU."""
    scratch: Path = Path("scratch")
    """OUTPUT_DIR of the jobs of the smoke test, which goes at the end: their results are no measurements."""
    record: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def own(self) -> Path:
        """The folder of what only the hour writes."""
        return self.output / FOLDER

    def settings(self, length: int, label: str, steps: int = STEPS) -> tuple[str, ...]:
        """Return the settings of a job at one sequence length, without those of its size."""
        work = (
            *(f"OUTPUT_DIR={self.output}", f"DATA_DIR={self.data}", f"LABEL=hour_{label}"),
            *("DATASET=synth", f"SAMPLES={DOCUMENTS}", f"LR={RATES.get(self.platform, RATE)}"),
            *(f"TRAIN_ITERS={steps}", f"WARMUP_ITERS={min(WARMUP_STEPS, steps // 2)}"),
        )
        if self.platform == "cpu":
            return (*work, "CPU_RANKS=1", "GBS=4", "MBS=2", f"SL={length // 64}")
        return (*work, "GPUS_PER_NODE=1", f"GBS={TOKENS_PER_STEP // length}", "MBS=1", f"SL={length}")

    def size(
        self, length: int, frameworks: Sequence[str] = ESTIMATED, states: str = "bf16", factor: float = 1.0, **more: Any
    ) -> Size:
        """Return the largest Llama with which all `frameworks` fit into the card, else the smallest there is.

        `factor` and `more`, fields of RunConfig, change the estimate alone: some settings need an installed package.
        """
        for settings, spec, layers in self._sizes():
            of_all = (*settings, f"OPTIMIZER_STATE={states}")
            needs = factor * max(self.needs_gb(one, "llama", length, of_all, **more) for one in frameworks)
            size = Size(of_all, spec, layers, needs)
            if self.fits(size):
                break
        return size

    def fits(self, size: Size) -> bool:
        """Check that a size fits into the card by the estimate."""
        return size.needs_gb <= usable_gb(self.memory_gb, self.platform)

    def _sizes(self) -> Iterator[tuple[tuple[str, ...], ModelSpec, str]]:
        if self.platform == "cpu":
            yield ("MODEL_SIZE=tiny",), get("llama", "tiny"), "tiny"
            return
        whole = get("llama")
        yield ("MODEL_SIZE=full",), whole, f"{whole.num_layers} layers"
        for layers in range(whole.num_layers - LAYERS_APART, 0, -LAYERS_APART):
            settings = ("MODEL_SIZE=proxy", f"PROXY_LAYERS={layers}")
            yield settings, replace(whole, num_layers=layers), f"{layers} of {whole.num_layers} layers"

    def needs_gb(self, framework: str, model: str, length: int, settings: Sequence[str], **more: Any) -> float:
        """Return the memory of a job by the estimate, GB (1e9 bytes)."""
        arguments = [*self.settings(length, "estimate"), *settings, f"FRAMEWORK={framework}", f"MODEL={model}"]
        config = replace(load(self.platform, 1, arguments=arguments, environ={}), **more)
        return estimate(config, framework, config.spec(model)).total_gb

    def seconds(self, spec: ModelSpec, length: int, steps: int, *, is_first: bool = False) -> float:
        """Return the expected seconds of a job, of which the first one of a framework has a cold start."""
        if self.platform == "cpu":
            return CPU_SECONDS
        peak = ASSUMED_TFLOPS if self.device is None else self.device.dense_bf16_tflops
        step = spec.flops_per_token(length) * TOKENS_PER_STEP / (SHARE_OF_PEAK * peak * 1e12)
        start = COLD_SECONDS if is_first else WARM_SECONDS
        return start + COMPILE_SECONDS + steps * step + END_SECONDS

    def launch(self, framework: str, model: str, run: int, settings: Sequence[str]) -> tuple[str, ...]:
        """Return the command of a job."""
        names = ("--framework", framework, "--model", model, "--run", str(run))
        return (*PYTHON, "train.launch", "--platform", self.platform, *names, *settings)

    def job(
        self,
        name: str,
        framework: str,
        length: int,
        size: Size,
        label: str,
        *more: str,
        run: int = 1,
        steps: int = STEPS,
        needs: str = "",
    ) -> Part:
        """Return the part that trains one job of Llama; `more` are other settings."""
        command = self.launch(framework, "llama", run, (*self.settings(length, label, steps), *size.settings, *more))
        is_first = label == VERDICT and run == 1
        seconds = self.seconds(size.spec, length, steps, is_first=is_first)
        return Part(name, (Task(name, command, needs),), seconds, size)


def prepare(hour: Hour) -> Part:
    """Return the part that makes the data of all jobs, or finds them made."""
    # the data are the same for every framework; with FRAMEWORK=all a setting that one of them lacks would be refused
    settings = ("FRAMEWORK=mega", "MODEL=llama", *hour.settings(2048, VERDICT))
    command = (*PYTHON, "data.prepare", "--platform", hour.platform, *settings)
    return Part("data", (Task("data", command),), CPU_SECONDS)


def smoke(hour: Hour) -> Part:
    """Return the part that tries everything that is installed, side by side and in a folder that is removed."""
    device = "cpu" if hour.platform == "cpu" else "cuda"
    tasks = [Task("numerics", (*PYTHON, "benchmarks.numerics", "--device", device), "", NUMERICS_GB)]
    size = ("MODEL_SIZE=tiny",) if hour.platform == "cpu" else ("MODEL_SIZE=proxy", "PROXY_LAYERS=2", "GBS=2")
    for name, framework, model, length, needs, setting in SMOKE:
        if framework == "bridge" and hour.platform == "amd":
            continue
        label = f"smoke_{name.replace(' ', '_')}"
        # the last setting of a name counts
        settings = (*hour.settings(length, label, SMOKE_STEPS), *size, f"OUTPUT_DIR={hour.scratch}", setting)
        memory = OWN_STATES_GB * hour.needs_gb("mega", model, length, size)
        tasks.append(Task(name, hour.launch(framework, model, 1, settings), needs, memory))
    local = tasks[1]
    for recipe in FRAMEWORKS["mega"].fp8_recipes:
        if VENDOR_RECIPES.get(recipe, hour.platform) != hour.platform:
            continue
        # scales for blocks came with fp4: in Blackwell and CDNA 4
        peak = "dense_fp8_tflops" if recipe in ("delayed", "current") else "dense_fp4_tflops"
        is_lacking = hour.device is not None and getattr(hour.device, peak) is None
        lacks = f"{hour.device.name} does not have {recipe}" if hour.device is not None and is_lacking else ""
        settings = (f"LABEL=hour_smoke_{recipe}", "LAYERS=te", "PRECISION=fp8", f"FP8_RECIPE={recipe}")
        tasks.append(Task(f"fp8 {recipe}", (*local.command, *settings), ENGINE, local.needs_gb, lacks))
    return Part("smoke", tuple(tasks), SMOKE_SECONDS if hour.platform != "cpu" else CPU_SECONDS * len(tasks) / 2)


def parts(hour: Hour) -> list[Part]:
    """Return all parts but the data, the most valuable first."""
    quick = ("--seconds", "0.5") if hour.platform == "cpu" else ("--quick",)
    probe = (*PYTHON, "train.probe", "--platform", hour.platform, *quick, *hour.settings(2048, VERDICT))
    size, long = hour.size(2048), hour.size(8192)
    fp8 = hour.size(2048, ("mega",), precision="fp8", fp8_recipe="delayed")
    # these frameworks keep float32 states and have no estimate
    whole = hour.size(2048, ("mega",), "fp32", OWN_STATES_GB)

    def runs(first: int, last: int) -> list[Part]:
        return [
            hour.job(f"{VERDICT} {framework} run {run}", framework, 2048, size, VERDICT, run=run)
            for run in range(first, last + 1)
            for framework in ESTIMATED
        ]

    found = [smoke(hour), *runs(1, RUNS)]
    for framework in ESTIMATED:
        found.append(hour.job(f"speed {framework} SL 8192", framework, 8192, long, "sl8192"))
    low = ("PRECISION=fp8", "FP8_RECIPE=delayed")
    found.append(hour.job("speed mega fp8", "mega", 2048, fp8, "fp8", *low, needs=ENGINE))
    for framework in ("titan", "bridge"):
        if (framework, hour.platform) != ("bridge", "amd"):
            found.append(hour.job(f"speed {framework}", framework, 2048, whole, "fp32_states", needs=framework))
    one = tuple(f"{key}={value}" for key, value in ONE_STEP.items())
    for framework in ESTIMATED:
        found.append(hour.job(f"profile {framework}", framework, 2048, size, PROFILED, *one, steps=10))
    return [*found, Part("probe", (Task("probe", probe),), 30), *runs(RUNS + 1, MOST_RUNS)]


def why_missing(name: str, platform: str) -> str:
    """Return why a package or a framework is not there, empty where it is. Nothing is installed, which takes minutes."""
    if name not in FRAMEWORKS:
        return "" if not name or importlib.util.find_spec(name) else f"{name} is not installed"
    is_of_image = "TPRIMAT_IN_CONTAINER" in os.environ or (name, platform) == ("bridge", "nvd")
    if not is_of_image and not (ROOT / f".venv-{name}" / ".stamp").exists():
        return f"no .venv-{name} here; ./shell/inside/setup_framework.sh {name} makes it"
    try:
        python_of(name, platform)
    except ConfigError as error:
        return str(error)
    return ""
