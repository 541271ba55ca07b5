"""Each job is rehearsed with its own settings; threads are those of a rank; a failed rehearsal is a reason."""

import json
import subprocess
from pathlib import Path

import pytest

from train.probing import jobs
from utils.errors import ConfigError
from utils.settings.config import load

SETTINGS = ("MODEL_SIZE=tiny", "SL=64", "GBS=8", "MBS=2", "CPU_RANKS=2")


def config(*more):
    return load("cpu", arguments=[*SETTINGS, *more], environ={})


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ((None, None), [("mega", "llama"), ("hf", "llama"), ("mega", "qwen"), ("hf", "qwen")]),
        ((("hf",), None), [("hf", "llama"), ("hf", "qwen")]),
        ((("mega", "hf"), ("mistral",)), [("mega", "mistral"), ("hf", "mistral")]),
    ],
)
def test_jobs_are_those_that_were_named_else_those_of_the_settings(named, wanted):
    assert jobs.pairs_of(config("FRAMEWORK=mega,hf", "MODEL=llama,qwen"), *named) == wanted


def test_a_framework_without_a_rehearsal_is_left_out():
    assert jobs.pairs_of(config("FRAMEWORK=titan,hf", "MODEL=llama"), None, None) == [("hf", "llama")]
    assert jobs.pairs_of(config("FRAMEWORK=titan", "MODEL=llama"), None, None) == []


@pytest.mark.parametrize(
    ("asked", "cores", "wanted"), [("", 8, 4), ("3", 8, 3), ("", 1, 1), ("many", 2, 1), ("0", 8, 4)]
)
def test_the_threads_of_a_rank_are_those_that_the_launcher_gives_it(monkeypatch, asked, cores, wanted):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert jobs.threads_of(config(), cores) == wanted


def rehearsing(monkeypatch, code, said="", content=None):
    """Let the command of a rehearsal end with a code; return the commands."""
    commands = []

    def run(command, **_):
        commands.append(command)
        if content is not None:
            Path(command[command.index("--output") + 1]).write_text(json.dumps(content))
        return subprocess.CompletedProcess(command, code, "", said)

    monkeypatch.setattr(jobs.subprocess, "run", run)
    return commands


CONTENT = {"model_size": "tiny", "settings": {"sl": 64}, "operators": [{"name": "aten::mm"}], "collectives": []}


def test_the_settings_reach_the_rehearsal_without_those_that_it_takes_as_options(monkeypatch):
    commands = rehearsing(monkeypatch, 0, content=CONTENT)
    given = (*SETTINGS, "FRAMEWORK=mega", "MODEL=llama", "LR=0.1")
    (found,), reasons = jobs.rehearse([(config(), "mega", "llama")], given)
    (command,) = commands
    assert (
        reasons == {} and found.operators == [{"name": "aten::mm"}] and (found.ranks, found.model_size) == (2, "tiny")
    )
    assert command[command.index("--gpus") + 1] == "2" and command[command.index("--framework") + 1] == "mega"
    passed = [word for word in command if "=" in word]
    assert set(passed) == {"MODEL_SIZE=tiny", "SL=64", "GBS=8", "LR=0.1", "MBS=2"}


def test_a_rehearsal_that_fails_leaves_its_last_line_as_the_reason(monkeypatch):
    rehearsing(monkeypatch, 1, "Traceback\nerror: stage 0: the stand-in failed\n")
    found, reasons = jobs.rehearse([(config(), "mega", "llama")], ())
    assert found == [] and reasons == {"mega llama": "not rehearsed: stage 0: the stand-in failed"}


def test_settings_that_a_rehearsal_refuses_are_bad_input(monkeypatch):
    rehearsing(monkeypatch, 2, "error: --model: got 'x'\n")
    with pytest.raises(ConfigError, match="--model: got 'x'"):
        jobs.rehearse([(config(), "mega", "x")], ())
