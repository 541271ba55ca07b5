"""The parts of the GPU hour: models that fit into the card, the commands of each part, and its expected seconds.

The seconds follow from one H200 (Llama 3.1 8B, driver 580, 16 cores): from the command to the first step 63 s when its
files are read for the first time and 45 s later, 9 to 13 s in the first step for compilation, 3 to 5 s after the last
one. The other steps take their FLOPs at half of the dense bf16 peak of the card.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from train.job.rank_environment import python_of
from utils.errors import ConfigError
from utils.frameworks import FRAMEWORKS
from utils.hardware.devices import Device
from utils.memory.estimate import FRAMEWORKS as ESTIMATED, estimate, usable_gb
from utils.models import ModelSpec, get
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
RATE, CPU_RATE = "LR=3e-5", "LR=1e-3"
"""Peak of the learning rate after a warm-up of half of the steps; at every size the loss falls with it.

The first steps of Adam move every weight by about the rate, in one direction: n steps add to a matrix of width d a part
of norm n x LR x d, while the norm of its initial weights is about 2 x 0.02 x sqrt(d): 2.6 for Llama 3.1 8B, whose d is
4,096. With LR=3e-4 after two warm-up steps the first four rates sum to 9e-4, and the part is 3.7: on the H200 the loss
rose from 12.6 to 15.1 after the first (SL 8192) and to 30 after the fourth. Here the rates of the first five steps sum
to 4e-5, those of all steps to 3e-4, and the part stays at 1.3. The tiny models have d = 128, where 3e-5 would
change little."""
DOCUMENTS = 2000
"""Documents of the generated text, 50 to 500 words each: all jobs read the same data, prepared once. 20 steps of 16,384
tokens are 327,680."""
COLD_SECONDS, WARM_SECONDS = 63, 45
COMPILE_SECONDS, END_SECONDS = 13, 5
SHARE_OF_PEAK = 0.5
ASSUMED_TFLOPS = 312.0
"""Peak of a card without a row in the table of devices: that of an A100, so that its seconds are rather too long."""
SMOKE_SECONDS = 100
"""Of the smoke test where all of it fits into the card at once."""
CPU_SECONDS = 20
"""Of a job at tiny size on two cores, where two run side by side in the smoke test."""
SMOKE_STEPS = 4
PROBE_SECONDS = 30
NUMERICS_GB = 2
"""At most: the logits of 64 tokens in float64 with their gradients, and the context of CUDA or HIP."""
CONTEXT_GB = 1.0
"""Of each process: context of CUDA or HIP, workspaces of libraries, fragmentation."""
OWN_STATES_GB = 18 / 16
"""Bytes a parameter of a framework without an estimate over those of mega with float32 states: a float32 copy of the
weights in place of mega's 16-bit remainder."""
PYTHON = (sys.executable, "-m")
LAYERS_APART = 4
"""Layers that a model loses until it fits."""
ENGINE = "transformer_engine"
FP8 = "LAYERS=te PRECISION=fp8 FP8_RECIPE="
SMOKE = (
    # Mistral has the layers and widths of Llama and a quarter of its vocabulary: 9 GB a job instead of 18, so that all
    # jobs run at once. Its window is longer than 2,048 tokens.
    ("mega local", "mega", "mistral", 2048, "", "LAYERS=local"),
    ("mega TransformerEngine", "mega", "mistral", 2048, ENGINE, "LAYERS=te"),
    ("hf stock", "hf", "mistral", 2048, "", "HF_KERNELS=stock"),
    ("hf liger", "hf", "mistral", 2048, "liger_kernel", "HF_KERNELS=liger"),
    ("window", "mega", "mistral", 8192, "", "LAYERS=local"),
    ("experts", "mega", "qwen3moe", 2048, "", "LAYERS=auto"),
    ("bridge", "bridge", "mistral", 2048, "bridge", "LAYERS=auto"),
    ("titan", "titan", "mistral", 2048, "titan", "LAYERS=auto"),
    ("fp8 delayed", "mega", "mistral", 2048, ENGINE, f"{FP8}delayed"),
    ("fp8 current", "mega", "mistral", 2048, ENGINE, f"{FP8}current"),
    ("fp8 mxfp8", "mega", "mistral", 2048, ENGINE, f"{FP8}mxfp8"),
    ("fp8 nvfp4", "mega", "mistral", 2048, ENGINE, f"{FP8}nvfp4"),
)
"""Jobs of the smoke test: name, framework, model, sequence length, what must be installed, and settings."""
FORMATS = {"fp8 delayed": "dense_fp8_tflops", "fp8 current": "dense_fp8_tflops"}
FORMATS |= {"fp8 mxfp8": "dense_fp4_tflops", "fp8 nvfp4": "dense_fp4_tflops"}
"""Number of the datasheet without which a card lacks a format: scales for blocks came with fp4 (Blackwell, CDNA 4)."""
ELSEWHERE = {"amd": ("bridge", "fp8 nvfp4")}
"""Jobs that only the other vendor's platform has."""


@dataclass(frozen=True)
class Size:
    """The model of a part: its settings, its shape, and the most memory that a job of it needs."""

    settings: tuple[str, ...]
    spec: ModelSpec
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
    """OUTPUT_DIR of the jobs of the smoke test, which is removed at the end: their results are no measurements."""
    record: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def own(self) -> Path:
        """The folder of what only the hour writes."""
        return self.output / FOLDER

    @property
    def peak_tflops(self) -> float:
        """Dense bf16 peak of the card, ASSUMED_TFLOPS where it is unknown."""
        return self.device.dense_bf16_tflops if self.device else ASSUMED_TFLOPS

    def settings(self, length: int, label: str, steps: int = STEPS) -> list[str]:
        """Return the settings of a job at one sequence length, without those of its size."""
        rate = CPU_RATE if self.platform == "cpu" else RATE
        places = [f"OUTPUT_DIR={self.output}", f"DATA_DIR={self.data}", f"LABEL=hour_{label}"]
        work = ["DATASET=synth", f"SAMPLES={DOCUMENTS}", f"TRAIN_ITERS={steps}", f"WARMUP_ITERS={steps // 2}", rate]
        if self.platform == "cpu":
            shape = ["CPU_RANKS=1", "GBS=4", "MBS=2", f"SL={length // 64}"]
        else:
            shape = ["GPUS_PER_NODE=1", f"GBS={TOKENS_PER_STEP // length}", "MBS=1", f"SL={length}"]
        return places + work + shape

    def needs_gb(self, framework: str, model: str, length: int, settings: Sequence[str], **more: Any) -> float:
        """Return the memory of a job by the estimate, GB (1e9 bytes).

        `more` are fields of RunConfig that change the estimate alone: some settings need an installed package.
        """
        names = [f"FRAMEWORK={framework}", f"MODEL={model}"]
        arguments = [*self.settings(length, "estimate"), *settings, *names]
        config = replace(load(self.platform, 1, arguments=arguments, environ={}), **more)
        return estimate(config, framework, config.spec(model)).total_gb

    def size(self, length: int, frameworks: Sequence[str] = ESTIMATED, factor: float = 1.0, **more: Any) -> Size:
        """Return the largest Llama with which all `frameworks` fit into the card, else the smallest there is.

        `factor` multiplies the estimate of a framework that has none of its own and keeps float32 states.
        """
        state = "OPTIMIZER_STATE=bf16" if factor == 1 else "OPTIMIZER_STATE=fp32"
        whole = get("llama", "tiny" if self.platform == "cpu" else "full")
        # the widths stay those of the full model, which decide the speed of its products
        for layers in range(whole.num_layers, 0, -LAYERS_APART):
            shape = ["MODEL_SIZE=proxy", f"PROXY_LAYERS={layers}"]
            if layers == whole.num_layers:
                shape = [f"MODEL_SIZE={whole.size}"]
            settings = (*shape, state)
            needs = factor * max(self.needs_gb(name, "llama", length, settings, **more) for name in frameworks)
            size = Size(settings, replace(whole, num_layers=layers), needs)
            if self.fits(size):
                break
        return size

    def fits(self, size: Size) -> bool:
        """Check that a size fits into the card by the estimate."""
        return size.needs_gb <= usable_gb(self.memory_gb, self.platform)

    def launch(self, framework: str, model: str, run: int, settings: Sequence[str]) -> tuple[str, ...]:
        """Return the command of a job."""
        names = f"--platform {self.platform} --framework {framework} --model {model} --run {run}".split()
        return (*PYTHON, "train.launch", *names, *settings)

    def job(
        self,
        name: str,
        length: int,
        size: Size,
        label: str,
        *more: str,
        run: int = 1,
        needs: str = "",
        steps: int = STEPS,
    ) -> Part:
        """Return the part that trains one job of Llama; the second word of its name is the framework."""
        framework = name.split()[1]
        settings = [*self.settings(length, label, steps), *size.settings, *more]
        task = Task(name, self.launch(framework, "llama", run, settings), needs)
        if self.platform == "cpu":
            return Part(name, (task,), CPU_SECONDS, size)
        flops = steps * TOKENS_PER_STEP * size.spec.flops_per_token(length)
        # the first job reads its files from the disk, all later ones from memory
        start = COLD_SECONDS if label == VERDICT and run == 1 else WARM_SECONDS
        seconds = start + COMPILE_SECONDS + END_SECONDS + flops / (SHARE_OF_PEAK * self.peak_tflops * 1e12)
        return Part(name, (task,), seconds, size)


def prepare(hour: Hour) -> Part:
    """Return the part that makes the data of all jobs, or finds them made."""
    # the data are the same for every framework; with FRAMEWORK=all a setting that one of them lacks would be refused
    names = f"--platform {hour.platform} FRAMEWORK=mega MODEL=llama".split()
    command = (*PYTHON, "data.prepare", *names, *hour.settings(2048, VERDICT))
    return Part("data", (Task("data", command),), CPU_SECONDS)


def smoke(hour: Hour) -> Part:
    """Return the part that tries everything that is installed, side by side and in a folder that is removed."""
    is_cpu = hour.platform == "cpu"
    numerics = (*PYTHON, "benchmarks.numerics", "--device", "cpu" if is_cpu else "cuda")
    tasks = [Task("numerics", numerics, "", NUMERICS_GB)]
    shape = ["MODEL_SIZE=tiny"] if is_cpu else ["MODEL_SIZE=proxy", "PROXY_LAYERS=2", "GBS=2"]
    for name, framework, model, length, needs, more in SMOKE:
        if name in ELSEWHERE.get(hour.platform, ()):
            continue
        state, factor = ("bf16", 1.0) if framework in ESTIMATED else ("fp32", OWN_STATES_GB)
        size = [*shape, f"OPTIMIZER_STATE={state}"]
        memory = CONTEXT_GB + factor * hour.needs_gb("mega", model, length, size)
        places = [f"OUTPUT_DIR={hour.scratch}", f"LABEL={name.replace(' ', '_')}"]
        # of a setting that is given twice, the last counts
        settings = [*hour.settings(length, "smoke", SMOKE_STEPS), *size, *places, *more.split()]
        tasks.append(Task(name, hour.launch(framework, model, 1, settings), needs, memory, lacking(hour, name)))
    if is_cpu:
        return Part("smoke", tuple(tasks), 3 * CPU_SECONDS)
    # a task waits until another one has left its memory
    rounds = sum(task.needs_gb for task in tasks if not task.lacks) / usable_gb(hour.memory_gb, hour.platform)
    return Part("smoke", tuple(tasks), math.ceil(rounds) * SMOKE_SECONDS)


def lacking(hour: Hour, name: str) -> str:
    """Return why the card cannot run a job of the smoke test; empty where it can, or where nobody knows."""
    if hour.device and name in FORMATS and getattr(hour.device, FORMATS[name]) is None:
        return f"{hour.device.name} does not have this format"
    return ""


def parts(hour: Hour) -> list[Part]:
    """Return all parts but the data, the most valuable first."""
    size = hour.size(2048)
    fp8 = hour.size(2048, ["mega"], precision="fp8", fp8_recipe="delayed")
    whole = hour.size(2048, ["mega"], OWN_STATES_GB)
    quick = ["--seconds", "0.5"] if hour.platform == "cpu" else ["--quick"]
    probe = (*PYTHON, "train.probe", "--platform", hour.platform, *quick, *hour.settings(2048, VERDICT))
    pairs = [(run, framework) for run in range(1, MOST_RUNS + 1) for framework in ESTIMATED]
    verdict = [hour.job(f"{VERDICT} {name} run {run}", 2048, size, VERDICT, run=run) for run, name in pairs]
    first = len(ESTIMATED) * RUNS
    parts_in_order = [smoke(hour), *verdict[:first]]
    for name in ESTIMATED:  # each with as many layers as it can hold: of mega all of Llama 3.1 8B fits an H200
        parts_in_order.append(hour.job(f"speed {name} SL 8192", 8192, hour.size(8192, [name]), "sl8192"))
    if not lacking(hour, "fp8 delayed"):
        low = ["PRECISION=fp8", "FP8_RECIPE=delayed"]
        parts_in_order.append(hour.job("speed mega fp8", 2048, fp8, "fp8", *low, needs=ENGINE))
    for name in ("titan", "bridge"):
        if name not in ELSEWHERE.get(hour.platform, ()):
            parts_in_order.append(hour.job(f"speed {name}", 2048, whole, "fp32_states", needs=name))
    one_step = ["PROFILING=true", "PROFILE_STEP_START=8", "PROFILE_STEP_END=8"]
    for name in ESTIMATED:
        parts_in_order.append(hour.job(f"profile {name}", 2048, size, PROFILED, *one_step, steps=10))
    return [*parts_in_order, Part("probe", (Task("probe", probe),), PROBE_SECONDS), *verdict[first:]]


def why_missing(name: str, platform: str) -> str:
    """Return why a package or framework is not there, empty where it is. It is not installed, which takes minutes."""
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
