"""Ranks get variables of known names and no secret, in a real job as well, and the result names what they got."""

from __future__ import annotations

import json
import os
import re

import pytest
from checkout import ROOT

from tests.support.launching import Launcher
from utils.results import schema

ENV_NAMES = "TPRIMAT_ENV_NAMES"
TOKEN = "hf_" + "".join(chr(ord("a") + (5 * place) % 26) for place in range(34))
WORD = "open" + "-sesame-" * 2
PLANTED = {
    "HF_TOKEN": TOKEN,
    "WANDB_API_KEY": WORD,
    "PIP_INDEX_URL": f"https://ann:{WORD}@index.example/simple",
    "HTTPS_PROXY": f"http://ann:{WORD}@proxy.example:3128",
    "CONTAINER_ARGS": f"--env X={TOKEN}",
    "MY_NOTE": TOKEN,
    "NCCL_FOO": TOKEN,
    "UCX_PROXY": f"http://ann:{WORD}@proxy.example:3128",
    "NCCL_PW": WORD,
    "MY_OWN": TOKEN,
}
WITHHELD = ["MY_OWN", "NCCL_FOO", "NCCL_PW", "UCX_PROXY"]
"""Those of a name that is passed, so that only their value, or what the name means, keeps them out."""
CHOSEN = {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1", "PYTORCH_CUDA_ALLOC_CONF": "backend:native", "MY_NUMBER": "7"}


@pytest.fixture
def ranks_get(tmp_path, monkeypatch):
    """Returns a function that starts stand-in ranks with more variables; it returns what they got, and their end."""
    job = Launcher(tmp_path, monkeypatch)

    def run(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        ended = job.run(framework="hf", ranks="import json; print('got', json.dumps(dict(os.environ)))")
        got = [line.removeprefix("got ") for line in ended.out.splitlines() if line.startswith("got ")]
        return json.loads(got[0]) if got else {}, ended

    return run


def test_ranks_get_what_is_known_or_asked_for_and_no_secret_which_is_written_nowhere(ranks_get):
    seen, ended = ranks_get(PLANTED | CHOSEN | {ENV_NAMES: "MY_OWN,MY_NUMBER"})
    assert not seen.keys() & PLANTED.keys()
    assert not [name for name, value in seen.items() if TOKEN in value or WORD in value]
    assert {name: seen.get(name) for name in CHOSEN} == CHOSEN
    result = ended.result
    passed = result["provenance"]["environment_passed"]
    assert {*CHOSEN, "PATH", "TPRIMAT_SETTINGS"} <= set(passed) <= seen.keys() and passed == sorted(passed)
    assert result["provenance"]["environment_withheld"] == WITHHELD
    (warning,) = (line for line in result["warnings"] if line.startswith("environment: "))
    assert warning.endswith(": " + ", ".join(WITHHELD)) and f"warning: {warning}\n" in ended.err
    texts = [path.read_text() for path in ended.output.rglob("*") if path.is_file()]
    assert not [text for text in [ended.out, ended.err, *texts] if TOKEN in text or WORD in text]


@pytest.mark.parametrize("bad", [f"A={TOKEN}", "A B", "A,$B"])
def test_list_of_names_that_holds_something_else_is_refused_without_repeating_it(bad, ranks_get):
    _, ended = ranks_get({ENV_NAMES: bad})
    assert ended.code == 2 and f"{ENV_NAMES}: wanted names of variables" in ended.err
    assert TOKEN not in ended.err


SECRET_NAMES = ("NCCL_PW", "NCCL_API_KEY", "SLURM_JWT", "HIP_ACCESS_KEY", "OMPI_DB_PWD", "UCX_SECRET")
HONEST = {
    **dict.fromkeys(("TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY", "TRITON_KEYED_CACHE"), "X"),
    "TPRIMAT_GIT_COMMIT": "3bceea6f" * 5,
    "TPRIMAT_IMAGE": "localhost/tprimat:nvd",
    "TPRIMAT_IMAGE_DIGEST": "sha256:" + "0123456789abcdef" * 4,
    "NVIDIA_PATHS": "/opt/rocm/lib:/usr/lib/x86_64-linux-gnu",
    "CUDA_VISIBLE_DEVICES": "GPU-5c1a8f3e-2f0e-4c39-9b41-0d5f6a7b8c9d,GPU-6c1a8f3e-2f0e-4c39-9b41-0d5f6a7b8c9d",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512",
    "SLURM_JOB_NODELIST": "n[1-2],gpu-017.cluster.example",
}
"""Names and values that only look similar to those of secrets."""


def test_name_that_means_a_secret_is_withheld_under_any_prefix_and_a_similar_one_is_passed(ranks_get):
    hidden = f"NCCL_{TOKEN}"
    asked = ",".join(SECRET_NAMES[:3])
    seen, ended = ranks_get(dict.fromkeys(SECRET_NAMES, "x") | HONEST | {hidden: "1", ENV_NAMES: asked})
    assert not seen.keys() & {*SECRET_NAMES, hidden}, "also those that were asked for by name"
    assert TOKEN not in ended.out + ended.err and "environment: not passed to the ranks" in ended.err
    assert {name: seen.get(name) for name in HONEST} == HONEST


def read_from_environment(text):
    """Return the variables that a source reads: `environ[...]`, `environ.get(...)`, `... in environ`, getenv."""
    known = dict(re.findall(r'^(\w+) = "(\w+)"$', text, re.MULTILINE))
    keys = re.findall(r'(?:environ\[|environ\.get\(|getenv\()("?\w+"?)|("?[A-Z_]+"?) in [\w.]*environ\b', text)
    found = [first or second for first, second in keys]
    return {key.strip('"') if key.startswith('"') else known[key] for key in found if key[0] == '"' or key in known}


def test_every_variable_that_our_code_or_amds_benchmark_uses_is_one_that_ranks_get(ranks_get):
    names = {
        name
        for room in ("train", "utils")
        for path in (ROOT / room).rglob("*.py")
        for name in read_from_environment(path.read_text(encoding="utf8"))
    }
    assert {"RANK", "LOCAL_RANK", "TPRIMAT_IMAGE", "PRIMUS_PATH", "TPRIMAT_SETTINGS"} <= names
    names |= {f"{start}V3_ATOMIC_FP32" for start in ("PRIMUS_TURBO_ATTN_", "NVTE_CK_IS_")}  # ROCm/MAD's scripts
    names |= {"HSA_NO_SCRATCH_RECLAIM", "NVTE_CK_USES_BWD_V3", "GPU_MAX_HW_QUEUES", "NCCL_NVLS_ENABLE"}
    seen, ended = ranks_get({name: "1" for name in names - set(os.environ) - {ENV_NAMES, "TPRIMAT_SETTINGS"}})
    assert sorted(names - seen.keys() - {ENV_NAMES}) == [], ended


def test_result_without_the_names_stays_valid_and_a_wrong_list_is_not(ranks_get):
    result = ranks_get({})[1].result
    for wrong in ([], "PATH", [1], [""]):
        changed = result | {"provenance": result["provenance"] | {"environment_passed": wrong}}
        assert "environment_passed" in schema.problems(changed)[0]
    del result["provenance"]["environment_passed"]
    assert schema.problems(result) == []
