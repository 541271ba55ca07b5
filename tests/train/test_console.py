"""What a job on a GPU shows: nothing of what libraries printed on the first H200 and no user needs.

The messages are those of the real logs (tests/h200/logs). A message is dropped by its beginning, or its cause is gone.
"""

import logging
import re
from types import SimpleNamespace

import pytest
import torch
from checkout import ROOT, settings_of

from train import launch, train_hf
from train.common import trainer
from train.profiling import tools
from train.settings_map import map as settings_map
from utils.frameworks import FRAMEWORKS

LOGS = sorted((ROOT / "tests" / "h200" / "logs").glob("*.log"))
WARNING = re.compile(r"^\S+\.py:\d+: \w*Warning: (.*)$", re.MULTILINE)
CAUSE_IS_GONE = {
    "barrier(): using the device under current context": "init_process_group gets the device",
    "Warning: Profiler clears events at the end of each cycle": "the profiler is told to keep them",
}


def test_every_warning_of_python_on_the_h200_is_dropped_or_has_no_cause_any_more():
    shown = {text for log in LOGS for text in WARNING.findall(log.read_text())}
    assert len(shown) >= 6, "the logs have them"
    known = (*launch.KNOWN_WARNINGS, *CAUSE_IS_GONE)
    assert [text for text in shown if not text.startswith(known)] == []


def test_the_process_group_and_the_profiler_are_started_without_what_the_warnings_ask_for(monkeypatch):
    started = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *given, **named: started.append((given, named)))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    trainer.init_process_group(SimpleNamespace(platform="nvd"))
    trainer.init_process_group(SimpleNamespace(platform="cpu"))
    assert started == [(("nccl",), {"device_id": torch.device("cuda", 5)}), (("gloo",), {})]
    assert tools._profiler(with_memory=False).acc_events


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_variable_is_set_that_torch_calls_deprecated(framework):
    config = settings_of("FRAMEWORK=hf GPUS_PER_NODE=8", platform="nvd", gpus=8)
    assert "TORCH_NCCL_AVOID_RECORD_STREAMS" not in settings_map.environment(framework, config, config.spec("llama"))


def test_messages_of_loggers_are_dropped_by_their_beginning_and_no_others(caplog):
    text = next(log for log in LOGS if "liger" in log.name).read_text()
    lines = [line for line in text.splitlines() if line.startswith(("Backend impl", "[transformers]"))]
    assert len(lines) == 3
    trainer.silence(train_hf.OF_LIGER)
    for line in lines:
        name = "transformers.configuration_utils" if line.startswith("[") else "liger_kernel.backends.registry"
        logging.getLogger(name).warning(line.removeprefix("[transformers] "))
    logging.getLogger("liger_kernel.backends.registry").warning("Backend impl 'liger_kernel.ops.rope' could not")
    assert [record.getMessage() for record in caplog.records] == ["Backend impl 'liger_kernel.ops.rope' could not"]
