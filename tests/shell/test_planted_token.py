"""A token in secrets.env and secrets in 14 other places are there in a whole run, from the data to the archive, and are
found nowhere afterwards.

The ranks print them in every way that a library does, and one fails with the token in the reason. A token in a name is
refused: tests/test_bad_input.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import zipfile
from types import SimpleNamespace

import psutil
import pytest
from toydata import write_toy_data

from evaluate import validate
from tests.support.checkout import copy_to
from tests.support.launching import ROOT, results

pytestmark = pytest.mark.full("two real jobs of mega and their archive, about 40 s")
TOKEN = "hf_" + "".join(chr(ord("A") + (7 * place) % 26) for place in range(34))
"""Shaped like a token of the hub, but invalid; no file of this checkout contains it."""


def secret(number: int) -> str:
    """Return a password of a place, which no form gives away."""
    return f"Corr3ct{number}Horse{number}Staple"


OTHER = "hf_" + TOKEN[:2:-1]
PLACES = {
    # a name that means a secret
    "NCCL_PW": secret(1),
    "WANDB_API_KEY": "0123456789abcdef0123" * 2,
    # a token under an innocent name, of a published variable and of others
    "MY_NOTE": f"see {OTHER}",
    "NCCL_DEBUG_FILE": f"/tmp/nccl.{OTHER}.%h",
    "CONTAINER_ARGS": f"--env NOTE={OTHER} --env DB_PASSWORD={secret(2)}",
    # addresses: without a scheme, with a lone token, with @ and / in the password, IPv6, percent-encoded
    "UCX_PROXY": f"ann:{secret(3)}@proxy.example:3128",
    "TRITON_CACHE_MANAGER_URL": f"https://{secret(4)}@cache.example",
    "NCCL_NOTE_1": f"http://ann:{secret(5)}@{secret(6)}@h/",
    "NCCL_NOTE_2": f"http://ann:{secret(7)}/{secret(8)}@proxy.example:3128",
    "PIP_INDEX_URL": f"https://:{secret(9)}@[::1]:8080/simple",
    "TORCH_NOTE": f"http%3A%2F%2Fann%3A{secret(10)}%40proxy.example%3A3128",
    "HTTPS_PROXY": f"http://ann:{secret(11)}%2F{secret(12)}@proxy.example:3128",
    "ALL_PROXY": f"ann%3A{secret(13)}%40proxy.example:3128",
}
"""Variables of the environment with secrets; secrets.env and the remote of git are two more places."""
REMOTE = f"https://oauth2:{secret(14)}@git.example/o/r.git"
SECRETS = (TOKEN[:20], OTHER[:20], PLACES["WANDB_API_KEY"], *(secret(number) for number in range(1, 15)))
SETTINGS = [
    "FRAMEWORK=mega",
    "MODEL=llama",
    "RUNS=2",
    "TRAIN_ITERS=2",
    "WARMUP_ITERS=0",
    "CPU_RANKS=1",
    "GBS=2",
    "MBS=2",
    "SL=64",
    "RUNTIME=native",
]
PLANT = """
import os, sys, time
if "train.train_mega" in " ".join(sys.orig_argv) and "RANK" in os.environ:
    token = os.environ["TPRIMAT_TEST_BACKWARDS"][::-1]
    print(bytes.fromhex(os.environ["PYTHON_TEST_PLACES"]).decode(), flush=True)
    names = [name for name, value in os.environ.items() if token in value]
    print("variables with it:", names, flush=True)
    print("login with", token, "at https://ann:" + token + "@hub.example/api?token=" + token, flush=True)
    print({"headers": {"authorization": "Bearer " + token}}, file=sys.stderr, flush=True)
    for part in (token[:9], token[9:], "\\n"):
        sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.2)
    if "2" == sys.argv[sys.argv.index("--run-number") + 1]:
        sys.path.insert(0, os.getcwd())
        import train.job.recorder
        del sys.path[0]
        def fail(self):
            raise RuntimeError(f"cannot fetch https://ann:{token}@hub.example/x with {token}")
        train.job.recorder.StepRecorder.start = fail
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy of the checkout for its own secrets.env; the environment is shared."""
    parts = ("shell", "utils", "evaluate", "train", "data", "config*.env", "*requirements.txt")
    root = copy_to(tmp_path_factory.mktemp("planted") / "checkout", *parts)
    (root / ".venv").symlink_to(ROOT / ".venv")
    (root / "secrets.env").write_text(f"HF_TOKEN={TOKEN}\n")
    (root / "secrets.env").chmod(0o600)
    for command in (["init", "--quiet"], ["remote", "add", "origin", REMOTE]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    return root


@pytest.fixture(scope="module")
def ran(checkout):
    """Run all; return the exit code, the output, the logs of the ranks, and the command lines of all processes."""
    folder = checkout.parent
    output, prefix, said = folder / "output", write_toy_data(folder / "data" / "text"), folder / "said.txt"
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(PLANT)
    taken = ("HF_TOKEN", "TPRIMAT_SECRETS_TAKEN")
    inherited = {name: value for name, value in os.environ.items() if name not in taken} | {"PLATFORM": "cpu"}
    lines = (*(f"{name}={value}" for name, value in PLACES.items()), *PLACES.values(), REMOTE, json.dumps(PLACES))
    planted = {
        "PYTHONPATH": str(folder / "site"),
        "TPRIMAT_TEST_BACKWARDS": TOKEN[::-1],
        "TPRIMAT_ENV_NAMES": "TPRIMAT_TEST_BACKWARDS,PYTHON_TEST_PLACES",
        "PYTHON_TEST_PLACES": "\n".join(lines).encode().hex(),
    }
    where = (f"OUTPUT_DIR={output}", f"DATA_DIR={folder / 'cache'}", f"DATASET={prefix}")
    seen = set()
    with said.open("w") as file:
        process = subprocess.Popen(
            [checkout / "shell" / "run_train.sh", *SETTINGS, *where],
            env=inherited | PLACES | planted,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < deadline:
            seen |= {"\0".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])}
            time.sleep(0.05)
    logs = [path.read_text() for path in sorted((output / "logs").glob("train_*.log"))]
    found = {"exit_code": process.wait(1), "said": said.read_text(), "logs": logs, "seen": seen}
    return SimpleNamespace(output=output, inherited=inherited, **found)


def test_it_stands_in_no_command_line_and_the_ranks_do_not_get_it(ran):
    assert any("train.train_mega" in line for line in ran.seen) and any("train.launch" in line for line in ran.seen)
    assert not [line for line in ran.seen if TOKEN in line]
    assert len(ran.logs) == 2 and all("variables with it: []" in log for log in ran.logs), ran.said


def test_what_was_measured_is_kept_with_stars_in_the_place_of_secrets(ran):
    assert ran.exit_code == 1, ran.said
    first, second = results(ran.output).values()
    assert (first["status"], second["status"]) == ("ok", "failed")
    assert "cannot fetch https://***@hub.example/x with ***" in second["reason"]
    log, _ = ran.logs
    assert "login with *** at https://***@hub.example/api?token=***\n" in log
    assert "'Bearer ***'" in log and "\n***\n" in log, "also where it came in two parts"
    assert "\nUCX_PROXY=***@proxy.example:3128\n" in log, "the ranks have printed all"


@pytest.mark.parametrize("planted", [{}, PLACES], ids=["as a rule", "with the secrets in the environment"])
def test_secrets_of_all_places_are_found_nowhere_and_the_archive_is_accepted(ran, checkout, planted, capsys):
    command = [checkout / "shell" / "wrap.sh", f"OUTPUT_DIR={ran.output}"]
    wrapped = subprocess.run(command, env=ran.inherited | planted, capture_output=True, text=True, timeout=600)
    assert wrapped.returncode == 0, wrapped.stderr
    assert validate.main(["--bundle", str(ran.output / "output.zip")]) == 1, "one of the two jobs failed"
    assert "every figure follows from the raw logs" in capsys.readouterr().err, "redacted alike in both"
    files = [path for folder in (ran.output, ran.output.parent / "cache") for path in folder.rglob("*")]
    told = {str(path): str(path).encode() + (path.read_bytes() if path.is_file() else b"") for path in files}
    with zipfile.ZipFile(ran.output / "output.zip") as opened:
        told |= {f"in the archive: {name}": name.encode() + opened.read(name) for name in opened.namelist()}
    told |= {"terminal": ran.said.encode(), "terminal of wrap": (wrapped.stdout + wrapped.stderr).encode()}
    found = {(where, one) for where, content in told.items() for one in SECRETS if one.encode() in content}
    assert len(told) > 30 and found == set()
    names = {path.name for path in files}
    assert names >= {"status.json", "matrix.log", "compare.json", "compare.md", "compare.html", "compare.png"}
