"""However a job ends, it leaves one result, the exit code that belongs to it, and earlier results as they were."""

import json

import pytest

from tests.support.launching import Launcher, launch, run
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
