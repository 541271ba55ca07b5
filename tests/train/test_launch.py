"""However a job ends, it leaves one result, the exit code that belongs to it, and earlier results as they were."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys

import pytest
from toydata import write_toy_data

from example import example_result
from tests.support.launching import GRAD_NORM_BOUND, LOSS_BOUND, Launcher, launch, run
from utils.results import store


@pytest.fixture(scope="module")
def finished(prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    run("hf", "llama", folder, prefix)
    return folder


def only_result(folder):
    (path,) = store.find([folder])
    return path


def test_finished_job_is_skipped_and_said_to_be(finished, prefix):
    before = only_result(finished).read_bytes()
    again = launch("hf", "llama", finished, prefix)
    assert again.returncode == 0
    assert "has an ok result" in again.stdout and "Step 1/6" not in again.stdout
    assert only_result(finished).read_bytes() == before


@pytest.mark.full("a real training of hf, about 15 s")
def test_changed_setting_trains_again_and_keeps_the_earlier_attempt(finished, prefix):
    before = only_result(finished).read_bytes()
    assert launch("hf", "llama", finished, prefix, "BETA2=0.9").returncode == 0
    assert json.loads(only_result(finished).read_text())["attempt"] == 2
    (kept,) = (finished / store.SUPERSEDED).iterdir()
    assert kept.read_bytes() == before
    # recorded among the variables that change speed, where two runs must not differ by the job's own folder
    results = [store.read(path) for path in (only_result(finished), kept)]
    assert len({one["provenance"]["environment"]["TORCHINDUCTOR_CACHE_DIR"] for one in results}) == 1


@pytest.mark.full("a real training of mega, about 10 s")
def test_the_variables_of_amds_image_stop_no_job_of_megatron_core_and_stand_in_the_result(
    prefix, tmp_path, monkeypatch
):
    """megatron-core 0.16.1 asserts that NVTE_FLASH_ATTN is 1 or unset for the attention backend `auto`."""
    given = {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "1", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    for name, value in {**given, "NVTE_CK_USES_BWD_V3": "1"}.items():
        monkeypatch.setenv(name, value)
    ran = launch("mega", "llama", tmp_path, prefix)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "NVTE_FLASH_ATTN=0 is not passed to mega" in ran.stderr
    provenance = store.read(only_result(tmp_path))["provenance"]
    assert provenance["environment_removed"] == given
    assert provenance["environment"]["NVTE_CK_USES_BWD_V3"] == "1"
    assert provenance["environment"]["NVTE_FLASH_ATTN"] == "1", "megatron-core's own"
    assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" not in provenance["environment"]


def test_log_holds_every_step_and_the_result_is_complete(finished):
    log = next((finished / "logs").glob("*_attempt1.log")).read_text()
    assert [f"Step {step}/6" in log for step in range(1, 7)] == [True] * 6
    result = store.read(only_result(finished))
    assert result["steps"] == [1, 2, 3, 4, 5, 6]
    assert result["status"] == "ok" and result["fingerprint"]["epochs"] < 1
    assert not [name for name in result["provenance"]["environment"] if "TOKEN" in name and "TOKENIZERS" not in name]


@pytest.mark.full("a real training of each framework, about 20 s")
@pytest.mark.parametrize("framework", ["mega", "hf"])
def test_loss_that_is_not_a_number_ends_as_nan_with_the_steps_so_far(framework, prefix, tmp_path):
    ran = launch(framework, "llama", tmp_path, prefix, "LR=1e30", "CLIP_GRAD=1e30", "MIN_LR=1e30", "WARMUP_ITERS=0")
    result = store.read(only_result(tmp_path))
    assert ran.returncode not in (0, 2)
    assert result["status"] == "nan" and "step" in result["reason"]
    assert 1 <= len(result["steps"]) < 6
    assert result["loss_values"][-1] is None or result["grad_norms"][-1] is None


BAD_INPUT = {
    "unknown key": (["NONSENSE=1"], "unknown key NONSENSE=1"),
    "micro batch of 0": (["MBS=0"], "MBS=0"),
    "global batch that does not divide": (["GBS=7"], "GBS=7"),
    "gradient accumulation that disagrees": (["GA=9"], "GA=9"),
    "data set that is not there": (["DATASET={missing}/text"], "{missing}/text"),
    "text that is not there": (["DATASET={missing}/text.jsonl"], "{missing}/text.jsonl"),
    "hub data set, not fetched yet": (["DATASET=c4"], "c4_llama_"),
    "context parallelism without TE": (["CP=2", "CPU_RANKS=2"], "CP=2"),
    "hf with tensor parallelism": (["TP=2", "CPU_RANKS=2"], "TP=2"),
    "output folder that cannot be written": (["OUTPUT_DIR=/proc/nowhere"], "OUTPUT_DIR=/proc/nowhere"),
    "data set read over and over": (["TRAIN_ITERS=4000"], "epochs"),
}


@pytest.fixture
def job(tmp_path, monkeypatch):
    return Launcher(tmp_path, monkeypatch)


def refused(job, *settings, **options):
    """Run a job that must end with 2 and one line before anything is written, and return the line."""
    job.run(ranks="result()")
    before = {path: path.read_bytes() for path in job.output.rglob("*") if path.is_file()}
    ended = job.run(*settings, ranks="print('started')", **options)
    assert (ended.code, ended.out) == (2, "")
    assert {path: path.read_bytes() for path in job.output.rglob("*") if path.is_file()} == before
    (line,) = ended.err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("fault", BAD_INPUT)
def test_bad_input_ends_with_2_and_one_line_and_writes_nothing(fault, job, tmp_path):
    settings, named = BAD_INPUT[fault]
    missing = tmp_path / "missing"
    said = refused(
        job, *(setting.format(missing=missing) for setting in settings), framework=FRAMEWORK.get(fault, "hf")
    )
    assert named.format(missing=missing) in said


FRAMEWORK = {"context parallelism without TE": "mega"}


def test_data_shorter_than_its_index_is_refused(job):
    damaged = job.prefix.with_name("damaged")
    for suffix in (".bin", ".idx"):
        content = job.prefix.with_suffix(suffix).read_bytes()
        damaged.with_suffix(suffix).write_bytes(content[:-100] if suffix == ".bin" else content)
    said = refused(job, f"DATASET={damaged}")
    assert "damaged.bin" in said and "shorter" in said


@pytest.mark.parametrize("model", ["gpt", "all"])
def test_unknown_model_is_refused(model, job):
    assert "llama, qwen, mistral" in refused(job, model=model)


# Whole jobs as a user starts them: mega and hf do the same work, on one rank and on two, and a seed decides it.

BOTH = ("mega", "hf")


@pytest.fixture(scope="module")
def one_rank(prefix, tmp_path_factory):
    return {framework: run(framework, "llama", tmp_path_factory.mktemp(framework), prefix) for framework in BOTH}


@pytest.mark.full("jobs of one rank through the launcher, about 20 s")
def test_mega_and_hf_have_the_same_curve_data_and_weights(one_rank):
    mega, hf = (one_rank[framework] for framework in BOTH)
    assert mega["loss_values"] == pytest.approx(hf["loss_values"], rel=LOSS_BOUND)
    assert mega["grad_norms"] == pytest.approx(hf["grad_norms"], rel=GRAD_NORM_BOUND)
    assert mega["learning_rates"] == pytest.approx(hf["learning_rates"], abs=1e-9)
    assert mega["fingerprint"] == hf["fingerprint"] and mega["fingerprint"]["initial_weights_sha256"]
    assert {one["resolved_config"]["float32_matmul_precision"] for one in (mega, hf)} == {"highest"}


@pytest.mark.full("jobs of two ranks, about 20 s")
@pytest.mark.parametrize("framework", BOTH)
def test_two_ranks_give_the_loss_curve_of_one(one_rank, prefix, tmp_path, framework):
    one, two = one_rank[framework], run(framework, "llama", tmp_path, prefix, "CPU_RANKS=2")
    assert two["loss_values"] == pytest.approx(one["loss_values"], rel=1e-5)
    assert two["grad_norms"] == pytest.approx(one["grad_norms"], rel=GRAD_NORM_BOUND)
    assert two["training_config"]["num_gpus"] == two["resolved_config"]["num_gpus"] == 2
    assert two["fingerprint"] == one["fingerprint"]


@pytest.mark.full("two more jobs of mega, about 15 s")
def test_same_seed_gives_the_same_curve_and_another_seed_another(one_rank, prefix, tmp_path):
    first = one_rank["mega"]
    again = run("mega", "llama", tmp_path / "again", prefix)
    other = run("mega", "llama", tmp_path / "other", prefix, "SEED=43")
    assert again["loss_values"] == first["loss_values"] != other["loss_values"]
    for key in ("initial_weights_sha256", "token_stream_sha256"):
        assert other["fingerprint"][key] != again["fingerprint"][key] == first["fingerprint"][key]


# A job is the same job, and is skipped, only if settings, data, code and machine are the same.

RANKS = ("CPU_RANKS=2", "PRECISION=fp32")
REFUSED = "error: STRICT=1: environment: "


@pytest.fixture
def done(tmp_path, monkeypatch):
    """A job with an ok result; another job is refused before anything starts, as its environment holds a secret."""
    made = Launcher(tmp_path, monkeypatch)
    identity = made.run(*RANKS).result["identity_sha256"]
    (path,) = made.output.glob("*.json")
    path.write_text(json.dumps(example_result(identity_sha256=identity)))
    monkeypatch.setenv("NCCL_PW", "x")
    return made


def is_same(done, *settings, **options):
    ended = done.run(*RANKS, "STRICT=1", *settings, **options)
    assert ended.err.startswith(REFUSED) if ended.code else "has an ok result" in ended.out, ended
    return ended.code == 0


def test_what_does_not_change_the_work_is_the_same_job(done, tmp_path):
    shutil.copytree(done.output, tmp_path / "elsewhere")
    shutil.copytree(done.output, done.output / "night")
    for setting in ("RUNS=5", "COOLDOWN_SECONDS=5", "FIT=ignore", "LABEL=night", f"OUTPUT_DIR={tmp_path}/elsewhere"):
        assert is_same(done, setting), setting
    assert is_same(done, f"DATA_DIR={tmp_path}/other"), "the same data"
    assert not is_same(done, "FORCE=1")


OTHERS = (
    *("TRAIN_ITERS=7", "GBS=16", "MBS=1", "SL=64", "CPU_RANKS=1", "TP=2", "PP=2", "PRECISION=bf16", "SEED=43"),
    *("LR=2e-3", "MIN_LR=1e-5", "WARMUP_ITERS=1", "WEIGHT_DECAY=0.2", "BETA1=0.8", "BETA2=0.9", "ADAM_EPS=1e-7"),
    *("CLIP_GRAD=0.5", "INIT=native", "INIT_STD=0.03", "SAMPLES=90", "ALLOW_REPEAT=true", "RECOMPUTE=full"),
    *("OPTIMIZER_STATE=bf16", "LAYERS=local"),
)


def test_another_setting_is_another_job(done):
    assert [setting for setting in OTHERS if is_same(done, setting)] == []


def test_cuts_of_one_degree_are_told_apart(done, monkeypatch):
    monkeypatch.delenv("NCCL_PW")
    found = {done.run(*RANKS, "FORCE=1", cut).result["identity_sha256"] for cut in ("TP=2", "PP=2")}
    assert len(found) == 2


def test_other_framework_model_run_data_or_machine_is_another_job(done, monkeypatch):
    (path,) = done.output.glob("*.json")
    for name in ("hf_llama_run1", "mega_qwen_run1", "mega_llama_run2"):
        result = json.loads(path.read_text()) | dict(zip(("framework", "model"), name.split("_")[:2], strict=True))
        path.with_name(f"train_cpu_{name}.json").write_text(json.dumps(result | {"run": int(name[-1])}))
    assert not is_same(done, framework="hf") and not is_same(done, model="qwen") and not is_same(done, "--run=2")
    assert is_same(done)
    with monkeypatch.context() as patch:
        patch.setattr(platform, "node", lambda: "another-machine")
        assert not is_same(done)
    write_toy_data(done.prefix, documents=100, seed=1)
    assert not is_same(done)


def test_other_code_is_another_job(done, checkout):
    def said():
        command = [sys.executable, "-m", "train.launch", *done.command(*RANKS, "STRICT=1")]
        ran = subprocess.run(
            command, cwd=checkout, capture_output=True, text=True, env={"NCCL_PW": "x", "PATH": "/usr/bin"}
        )
        return ran.stdout + ran.stderr

    assert "has an ok result" in said()
    with (checkout / "train" / "launch.py").open("a") as file:
        file.write("# changed\n")
    assert said().startswith(REFUSED)
