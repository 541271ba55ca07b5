"""The GPU hour: parts run once, in order, within their time; every command is one that the product accepts; the end
holds a verdict, a table and an archive. On a CPU, tiny.
"""

import json
import os
import re
import subprocess
import sys
import zipfile

import pytest

from benchmarks import gpu, hour_parts, hour_report
from benchmarks.hour_parts import Hour, Part, Task
from data import synth
from data.command_lines import PREPARE
from evaluate import compare
from tests.support.launching import ROOT, results
from train import launch, probe
from train.preflight import fit
from train.runner import plan
from utils.arguments import Parser
from utils.errors import ConfigError
from utils.hardware.devices import named
from utils.memory.estimate import device_capacity_gb, estimate
from utils.settings import combinations
from utils.settings.config import load


def hour_of_texts(monkeypatch, *codes, seconds=0.0):
    """Parts `one`, `two`, ... that end with the given exit codes and leave a line in a file."""

    def part(hour, name, code):
        write = f"print('{name}'); open('{hour.output}/ran', 'a').write('{name} '); raise SystemExit({code})"
        return Part(name, (Task(name, (sys.executable, "-c", write)),), seconds)

    named_codes = list(zip(("one", "two", "three"), codes, strict=False))
    of_parts(monkeypatch, lambda hour: [part(hour, *one) for one in named_codes])


def of_parts(monkeypatch, parts):
    """An hour of these parts, with no data, no facts and nothing to close."""
    monkeypatch.setattr(hour_parts, "parts", parts)
    monkeypatch.setattr(hour_parts, "prepare", lambda hour: Part("data", (Task("data", ("true",)),), 0.0))
    monkeypatch.setattr(gpu, "write_facts", lambda hour: None)
    monkeypatch.setattr(gpu, "close", lambda hour: None)


def run(tmp_path, *arguments, platform="cpu"):
    return gpu.main(["--platform", platform, f"OUTPUT_DIR={tmp_path}", f"DATA_DIR={tmp_path}_data", *arguments])


def record_of(tmp_path):
    return json.loads((tmp_path / "gpu_hour" / "parts.json").read_text())


def test_finished_part_is_skipped_and_a_failed_one_is_run_again(tmp_path, monkeypatch):
    hour_of_texts(monkeypatch, 0, 3, 0)
    assert run(tmp_path) == 1
    assert (tmp_path / "ran").read_text().split() == ["one", "two", "three"], "a failure does not end the hour"
    assert [record_of(tmp_path)[name]["outcome"] for name in ("one", "two", "three")] == ["ok", "failed", "ok"]
    assert run(tmp_path) == 1
    assert (tmp_path / "ran").read_text().split() == ["one", "two", "three", "two"]


def test_part_that_needs_more_than_the_time_left_is_not_started(tmp_path, monkeypatch, capsys):
    hour_of_texts(monkeypatch, 0, 0, seconds=600.0)
    assert run(tmp_path, "--minutes", "9") == 0
    assert not (tmp_path / "ran").exists()
    assert "no time for: one (600 s expected, 520 s left)" in capsys.readouterr().out


def test_part_that_does_not_end_is_stopped_at_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "CLOSING_SECONDS", 0)
    sleeping = Part("sleep", (Task("sleep", ("sleep", "600")),), 0.0)
    of_parts(monkeypatch, lambda hour: [sleeping])
    assert run(tmp_path, "--minutes", "0.02") == 1
    assert record_of(tmp_path)["sleep"]["tasks"]["sleep"][0] == "failed"


def test_tasks_of_a_part_run_side_by_side_as_far_as_memory_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    tried = "import sys, time; print(time.time(), flush=True); time.sleep(2); print(time.time())"

    def parts(hour):
        # two of 5 GB fit into 0.95 x 12 GB, and a third does not
        return [Part("all", tuple(Task(n, (sys.executable, "-c", tried), "", 5.0) for n in "abc"), 0.0)]

    of_parts(monkeypatch, parts)
    monkeypatch.setattr(gpu.gpus, "capacity_gb", lambda config: (12.0, "a small card"))
    assert run(tmp_path) == 0
    spans = []
    for name in "abc":
        begin, end = map(float, (tmp_path / "gpu_hour" / "logs" / f"{name}.log").read_text().split())
        spans.append((begin, end))
    for moment, _ in spans:
        assert sum(begin <= moment < end for begin, end in spans) <= 2
    assert min(end for _, end in spans) < max(begin for begin, _ in spans)


def test_what_passed_in_the_smoke_test_is_not_tried_again_and_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    flag = tmp_path / "flag"
    line = f"open('{tmp_path}/ran', 'a').write('a '); print('=== job: 0.1 s a step, loss 8.3 -> 7.1, peak 1 GB')"
    once = f"import os; print('error: it broke'); raise SystemExit(not os.path.exists('{flag}'))"
    tasks = (
        Task("a", (sys.executable, "-c", line)),
        Task("b", (sys.executable, "-c", once)),
        Task("c", ("false",), "no_such_package"),
        Task("d", ("false",), lacks="a card has no fp4"),
    )
    of_parts(monkeypatch, lambda hour: [Part("smoke", tasks, 0.0)])
    assert run(tmp_path) == 1
    rows = record_of(tmp_path)["smoke"]["tasks"]
    assert rows == {
        "a": ["ok", "loss 8.3 -> 7.1"],  # its times are no results
        "b": ["failed", "error: it broke"],
        "c": ["not run", "no_such_package is not installed"],
        "d": ["not run", "a card has no fp4"],
    }
    assert "not run: c: no_such_package is not installed" in capsys.readouterr().out
    flag.touch()
    assert run(tmp_path) == 0 and (tmp_path / "ran").read_text() == "a "


def test_nothing_is_installed_for_the_hour(monkeypatch):
    monkeypatch.delenv("TPRIMAT_IN_CONTAINER", raising=False)
    monkeypatch.setattr(hour_parts, "ROOT", ROOT / "tests")
    monkeypatch.setattr(hour_parts, "python_of", lambda *names: pytest.fail("its script makes an environment"))
    assert "setup_framework.sh titan makes it" in hour_parts.why_missing("titan", "nvd")
    assert "setup_framework.sh bridge makes it" in hour_parts.why_missing("bridge", "cpu")

    def no_python(name, platform):
        raise ConfigError(f"{name}: got no Python with megatron.bridge")

    monkeypatch.setattr(hour_parts, "python_of", no_python)
    # on NVIDIA's GPUs bridge is that of a container and is never made
    assert hour_parts.why_missing("bridge", "nvd") == "bridge: got no Python with megatron.bridge"


CARDS = [("nvd", "H100"), ("nvd", "H200"), ("amd", "MI300X")]


def hour_on(tmp_path, platform, short):
    device = named(short)
    return Hour(
        tmp_path / "output",
        tmp_path / "data",
        platform,
        device_capacity_gb(device, platform),
        0.0,
        device,
        tmp_path / "smoke",
    )


def planned(platform, memory_gb, command):
    """Plan one command as the module that it starts does, up to what only a device can tell; raise its refusal."""
    module, *arguments = command[2:]
    if module == "data.prepare":
        options = PREPARE.parse_args(arguments)
        load(options.platform, 1, arguments=options.settings, environ={})
    elif module == "train.launch":
        options = Parser(launch.OPTIONS).parse_args(arguments)
        job, *_ = launch.plan_job(options)
        if too_large := fit.refusal(job, memory_gb):
            raise ConfigError(too_large)
    elif module == "train.probe":
        options = Parser(probe.OPTIONS).parse_args(arguments)
        plan.resolve(options.platform, options.settings)
    else:
        assert (module, arguments) == ("benchmarks.numerics", ["--device", "cuda"])


@pytest.fixture
def gpu_machine(monkeypatch):
    """Stand-ins: one GPU, packages and frameworks that are all installed, and data that exist."""
    for name in os.environ.keys() & {"OUTPUT_DIR", "DATA_DIR", "LABEL"}:
        monkeypatch.delenv(name)
    monkeypatch.setattr(plan, "visible_gpus", lambda platform: 1)
    monkeypatch.setattr(combinations, "_is_installed", lambda package: True)
    monkeypatch.setattr(launch, "python_of", lambda name, platform: sys.executable)
    monkeypatch.setattr(launch.ready, "require", lambda config, framework: None)
    monkeypatch.setattr(launch, "describe", lambda *_, **__: {"tokens": 400_000, "bin_sha256": "0" * 64})


@pytest.mark.parametrize(("platform", "short"), CARDS)
def test_every_command_of_the_hour_is_one_that_the_product_accepts(tmp_path, gpu_machine, platform, short):
    hour = hour_on(tmp_path, platform, short)
    parts = [hour_parts.prepare(hour), *hour_parts.parts(hour)]
    for part in parts:
        for task in part.tasks:
            planned(platform, hour.memory_gb, task.command)
    started = sum(task.command[2] == "train.launch" for part in parts for task in part.tasks)
    # nvd: 12 jobs of the smoke test, 10 of the verdict, 2 at SL 8192, fp8, titan, bridge, 2 profiles
    assert started == (29 if platform == "nvd" else 26)


@pytest.mark.parametrize(("platform", "short"), CARDS)
def test_verdict_comes_after_the_smoke_test_in_turn_and_all_its_jobs_are_of_equal_work(tmp_path, platform, short):
    hour = hour_on(tmp_path, platform, short)
    parts = hour_parts.parts(hour)
    names = [part.name for part in parts]
    assert names[:4] == ["smoke", "verdict mega run 1", "verdict hf run 1", "verdict mega run 2"]
    assert names[7:9] == ["speed mega SL 8192", "speed hf SL 8192"] and names[-1] == "verdict hf run 5"
    assert len(set(names)) == len(names)
    works, folders, data = {}, set(), set()
    for part in parts:
        for task in part.tasks:
            asked = dict(word.split("=", 1) for word in task.command if "=" in word)
            if task.command[2] != "train.launch":
                continue
            data.add((asked["DATASET"], asked["SAMPLES"], asked["DATA_DIR"]))
            if part.name == "smoke":
                folders.add(asked["OUTPUT_DIR"])
                continue
            assert int(asked["GBS"]) * int(asked["SL"]) == 16_384, "the same tokens a step at every length"
            works.setdefault(asked["LABEL"], set()).add(tuple(sorted(asked.items())))
            if "titan" not in part.name and "bridge" not in part.name and "fp8" not in part.name:
                framework = part.name.split()[1]
                words = [word for word in task.command if "=" in word]
                config = load(platform, 1, arguments=[*words, f"FRAMEWORK={framework}", "MODEL=llama"], environ={})
                assert estimate(config, framework, config.spec("llama")).total_gb <= 0.95 * hour.memory_gb
    assert len(data) == 1 and folders == {str(tmp_path / "smoke")}
    assert set(works) == {f"hour_{label}" for label in ("verdict", "sl8192", "fp8", "fp32_states", "profiled")}
    works.pop("hour_sl8192")  # not compared: each framework has as many layers as it can hold
    assert all(len(work) == 1 for work in works.values()), "a group has one set of settings"


def test_a_format_that_a_card_lacks_is_not_tried(tmp_path):
    # an A100 has no fp8, an H200 fp8 and no scales for blocks, a B200 all of them (NVIDIA's datasheets)
    for short, lacked in {"A100": 4, "H200": 2, "B200": 0}.items():
        smoke, *others = hour_parts.parts(hour_on(tmp_path, "nvd", short))
        assert [task.lacks != "" for task in smoke.tasks[-4:]] == [False] * (4 - lacked) + [True] * lacked
        assert ("speed mega fp8" in [part.name for part in others]) == (short != "A100")


def test_documents_are_enough_for_the_longest_job():
    words = 0
    for number, (_, count) in enumerate(synth.generate(42), 1):
        words += count  # each is at least one token
        if number == hour_parts.DOCUMENTS:
            break
    assert words > hour_parts.STEPS * hour_parts.TOKENS_PER_STEP


@pytest.mark.parametrize(
    ("memory_gb", "layers", "fp32_layers"),
    [
        (80.0, 16, 12),
        (192.0, 32, 32),
    ],
)
def test_a_card_gets_as_many_layers_as_fit(tmp_path, memory_gb, layers, fp32_layers):
    # by hand: 12 bytes a parameter (OPTIMIZER_STATE=bf16), 1,050,673,152 parameters without layers and 218,112,000 in
    # each: 54.5 GB with 16 and 65.0 GB with 20; transformers' own functions keep 13.2 GB for 32 layers and 3.2 GB for
    # the loss (docs/memory.md): 64.3 and 76.5 GB, and 0.95 x 80 GB is 76.0 GB. With 18 bytes for float32 states 12
    # layers are 66.0 GB before activations, and 16 are 81.7 GB.
    hour = Hour(tmp_path, tmp_path, "nvd", memory_gb, 0.0)
    size = hour.size(2048)
    assert size.spec.num_layers == layers and size.needs_gb <= 0.95 * memory_gb
    assert hour.size(2048, ["mega"], hour_parts.OWN_STATES_GB).spec.num_layers == fp32_layers


def test_seconds_are_start_compilation_and_flops_at_half_of_the_peak(tmp_path):
    hour = hour_on(tmp_path, "nvd", "H200")
    seconds = {part.name: part.seconds for part in hour_parts.parts(hour)}
    # by hand: 46.639 GFLOP a token (Llama 3.1 8B, SL 2048) x 16,384 tokens x 20 steps / (989.5 / 2 TFLOP/s) = 30.9 s
    assert seconds["verdict mega run 1"] == pytest.approx(63 + 13 + 30.9 + 5, abs=0.1)
    assert seconds["verdict mega run 2"] == pytest.approx(45 + 13 + 30.9 + 5, abs=0.1)
    assert seconds["smoke"] <= 100


def test_part_that_does_not_fit_is_named_with_its_estimate_and_not_started(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "write_facts", lambda hour: None)
    monkeypatch.setattr(gpu, "close", lambda hour: None)
    monkeypatch.setattr(gpu.gpus, "capacity_gb", lambda config: (16.0, "a small card"))
    monkeypatch.setattr(gpu.gpus, "device", lambda platform: None)
    monkeypatch.setattr(gpu, "run_part", lambda hour, part: part.name == "data" or pytest.fail(f"started {part.name}"))
    assert run(tmp_path, "--only", "verdict mega run 1", platform="nvd") == 0
    # by hand: 4 of 32 layers, 12 bytes for each of 1,923,121,152 parameters, is 23.1 GB before activations
    said = capsys.readouterr()
    first = said.out.splitlines()[0]
    assert re.fullmatch(r"does not fit: verdict mega run 1: 4 layers, about 2[3-9]\.\d GB of 16\.0 GB", first)
    assert "this card is unknown: the seconds assume a peak of 312 TFLOP/s" in said.err


def test_unknown_memory_of_the_card_is_one_line_and_another_card_can_be_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu.gpus, "capacity_gb", lambda config: (None, "nvidia-smi is not installed"))
    assert run(tmp_path, platform="nvd") == 2
    assert "unknown (nvidia-smi is not installed); name the card" in capsys.readouterr().err
    assert run(tmp_path, "--device", "H100", "--dry-run", "--only", "verdict hf", platform="nvd") == 0
    assert capsys.readouterr().out.count("20 layers") == 5 and not list(tmp_path.iterdir())


def test_dry_run_prints_the_parts_and_neither_makes_nor_changes_an_environment(tmp_path):
    environment = os.environ | {"PLATFORM": "nvd", "RUNTIME": "native", "TPRIMAT_VENV": str(tmp_path / "venv")}
    command = [ROOT / "tprimat", "gpu-hour", "--dry-run", "--device", "H200", f"OUTPUT_DIR={tmp_path / 'output'}"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0 and len(ran.stdout.splitlines()) == 19, ran.stderr
    assert all(line.endswith(" s expected") for line in ran.stdout.splitlines())
    assert list(tmp_path.iterdir()) == []


def test_archive_names_what_is_too_large_for_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hour_report, "MOST_BYTES", 10_000)
    hour = Hour(tmp_path, tmp_path, "nvd", 80.0, 0.0)
    for name, size in {"gpu_hour/summary.md": 10, "gpu_hour/facts/torch.txt": 20, "output.zip": 900}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    for name, size in {"a": 9_500, "b": 2_000}.items():
        (tmp_path / "profiles" / name).mkdir(parents=True)
        (tmp_path / "profiles" / name / "rank0.json.gz").write_bytes(os.urandom(size))
    hour_report.archive(hour)
    packed = zipfile.ZipFile(hour.own / "gpu_hour.zip").namelist()
    assert sorted(packed) == [
        *("gpu_hour/facts/torch.txt", "gpu_hour/summary.md", "output.zip", "profiles/b/rank0.json.gz"),
    ]
    assert "left out for its size: profiles/a/rank0.json.gz" in capsys.readouterr().out
    assert (hour.own / "gpu_hour.zip").stat().st_size <= 10_000


@pytest.mark.full("seven real jobs on the CPU, about 100 s")
def test_the_hour_runs_on_a_cpu_to_a_verdict_a_table_and_an_archive(tmp_path):
    output = tmp_path / "output"
    chosen = [word for name in ("smoke", "run 1", "profile mega") for word in ("--only", name)]
    assert run(output, "--minutes", "20", *chosen) == 0
    rows = record_of(output)["smoke"]["tasks"]
    assert {rows[name][0] for name in ("numerics", "mega local", "hf stock", "window", "experts")} == {"ok"}
    found = results(output / "hour_verdict")
    assert len(found) == 2
    for result in found.values():
        assert result["status"] == "ok" and result["model_size"] == "tiny"
        assert result["loss_values"][-1] < 0.95 * result["loss_values"][0], "the schedule lets the loss fall"
    (verdict,) = json.loads((output / "gpu_hour" / "report" / "compare.json").read_text())["verdicts"]
    summary = (output / "gpu_hour" / "summary.md").read_text()
    assert verdict["headline"] in summary and summary.count("\n| verdict: ") == 2
    assert "profiled" not in summary and "smoke" not in summary.replace("Smoke", ""), "they are no measurements"
    assert not [path for path in output.rglob("train_*.json") if "smoke" in str(path)]
    cells = next(line for line in summary.splitlines() if line.startswith("| verdict: mega")).split(" | ")
    assert float(cells[8].rstrip(" |")) == pytest.approx(float(cells[6]) / float(cells[7]), abs=0.2)
    packed = zipfile.ZipFile(output / "gpu_hour" / "gpu_hour.zip").namelist()
    assert {"output.zip", "gpu_hour/summary.md", "gpu_hour/facts/torch.txt"} <= set(packed)
    assert any(name.startswith("profiles/") for name in packed)
    assert "gpu_hour/report/compare.html" in packed
    assert "gpu_hour/logs/numerics.log" in zipfile.ZipFile(output / "output.zip").namelist()
    assert compare.main([str(output / "output.zip"), "--output", str(tmp_path / "again")]) == 0, "it has no fault"
    purge = [sys.executable, "-m", "utils.housekeeping.purge", "--platform", "cpu", f"OUTPUT_DIR={output}"]
    subprocess.run(purge, cwd=ROOT, capture_output=True, check=True)
    assert not [path for path in output.rglob("*") if path.is_file() and path.name != ".tprimat"]
