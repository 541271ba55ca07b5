"""A probe of version 2 is read with all parts, one of version 1 with its rates; nonsense is one line that names it."""

import copy
import json
from pathlib import Path

import pytest

from utils.results import probe_file
from utils.results.probe_file import Bandwidth, CollectiveTime, OperatorTime, ProbeError

RATES_ONLY = {
    "probe_version": 1,
    "platform": "cpu",
    "host": "example",
    "device_name": "Example",
    "started_utc": "2026-11-22T00:00:00+00:00",
    "pytorch_version": "2.13.0",
    "total_memory_gb": 80.0,
    "rates": {"fp32": {"best_tflops": 2.0, "sustained_tflops": 1.0, "spread_percent": 0.1}},
    "reasons": {"fp8": "none"},
}
OPERATOR = {
    **{"name": "aten::mm", "shapes": "[[6, 10], [10, 4]]", "dtypes": '["float32", "float32"]', "phase": "forward"},
    **{"kind": "matmul", "flops": 480, "bytes": 496, "seconds": 2e-6, "warm_seconds": 1e-6, "spread_percent": 1.5},
    **{"method": "replayed", "reason": "", "variants": {"operator": 2e-6, "linear": 3e-6}, "rounds": 7},
}
JOB = {
    **{"framework": "mega", "model": "llama", "model_size": "tiny", "settings": {"micro_batch_size": 8}},
    **{"calls": [[0, 96]], "collectives": [{"name": "all_reduce", "bytes": 8, "ranks": 2, "count": 3}]},
    **{"ranks": 2, "threads": 1},
}
WHOLE = RATES_ONLY | {
    "probe_version": 2,
    "operators": [OPERATOR],
    "jobs": [JOB],
    "collectives": [
        {
            **{"name": "all_reduce", "bytes": 1048576, "ranks": 2, "nodes": 1, "seconds": 1e-3},
            **{"spread_percent": 2.0, "bus_gb_per_second": 1.05},
        }
    ],
    "bandwidth": {"copy": {"gb_per_second": 20.0, "spread_percent": 0.5, "gb": 0.27}},
    "loader_samples_per_second": 9000.0,
    "findings": ["F.linear is slow"],
    "machine": {"pytorch_version": "2.13.0", "threads": 2},
}


def parsed(content):
    return probe_file.parse(content, Path("probe_cpu_example.json"))


def test_every_part_of_version_2_is_read(tmp_path):
    path = tmp_path / "probe_cpu_example.json"
    path.write_text(json.dumps(WHOLE))
    found = probe_file.read(path)
    (operator,), (job,), (sent,) = found.operators, found.jobs, found.collectives
    assert isinstance(operator, OperatorTime) and isinstance(sent, CollectiveTime)
    assert (operator.seconds, operator.warm_seconds, operator.least_seconds) == (2e-6, 1e-6, 1e-6)
    assert json.loads(operator.shapes) == [[6, 10], [10, 4]] and operator.variants["linear"] == 3e-6
    assert job.calls == ((0, 96.0),) and job.settings == {"micro_batch_size": 8} and (job.ranks, job.threads) == (2, 1)
    assert sent.bus_gb_per_second == 1.05
    assert found.bandwidth == {"copy": Bandwidth(20.0, 0.5, 0.27)}
    assert (found.loader_samples_per_second, found.findings) == (9000.0, ("F.linear is slow",))
    assert found.machine["threads"] == 2 and found.rates["fp32"].best_tflops == 2.0


def test_version_1_has_rates_and_no_other_part():
    found = parsed(RATES_ONLY)
    assert found.rates["fp32"].best_tflops == 2.0
    assert (found.operators, found.jobs, found.collectives, found.bandwidth) == ((), (), (), {})
    assert found.loader_samples_per_second is None


def test_what_was_not_measured_may_be_empty():
    empty = {"operators": [], "jobs": [], "collectives": [], "bandwidth": {}, "loader_samples_per_second": None}
    found = parsed(WHOLE | empty | {"findings": []})
    assert found.operators == () and found.loader_samples_per_second is None


WRONG = {
    "another version": ((), {"probe_version": 3}, "version 2 or 1"),
    "a version that is no number": ((), {"probe_version": True}, "version 2 or 1"),
    "no operators": ((), {"operators": None}, "operators: got None, wanted a list"),
    "an operator that is a text": ((), {"operators": ["mm"]}, "operators[0]"),
    "a time of nothing": (("operators", 0), {"seconds": 0}, "seconds: got 0, wanted a number above 0"),
    "a time below nothing": (("operators", 0), {"warm_seconds": -1e-6}, "warm_seconds"),
    "a time that is a truth": (("operators", 0), {"seconds": True}, "seconds: got True"),
    "a time that is a text": (("operators", 0), {"seconds": "fast"}, "seconds: got 'fast'"),
    "work below nothing": (("operators", 0), {"flops": -1}, "flops"),
    "a kind of no time": (("operators", 0), {"kind": "magic"}, "kind: got 'magic'"),
    "a method that is unknown": (("operators", 0), {"method": "guessed"}, "method: got 'guessed'"),
    "no name": (("operators", 0), {"name": ""}, "name: got ''"),
    "shapes that are no JSON": (("operators", 0), {"shapes": "[[6, 10"}, "shapes"),
    "shapes that are no list": (("operators", 0), {"shapes": "6"}, "shapes"),
    "variants that are a list": (("operators", 0), {"variants": []}, "variants"),
    "a variant of no time": (("operators", 0), {"variants": {"linear": None}}, "linear: got None"),
    "a call of an operator beyond": (("jobs", 0), {"calls": [[1, 5]]}, "jobs[0]: calls"),
    "a call of an operator before": (("jobs", 0), {"calls": [[-1, 5]]}, "jobs[0]: calls"),
    "a call never made": (("jobs", 0), {"calls": [[0, 0]]}, "jobs[0]: calls"),
    "a call without its count": (("jobs", 0), {"calls": [[0]]}, "jobs[0]: calls"),
    "a place that is a truth": (("jobs", 0), {"calls": [[False, 5]]}, "jobs[0]: calls"),
    "settings that are a list": (("jobs", 0), {"settings": []}, "settings"),
    "no ranks": (("jobs", 0), {"ranks": 0}, "ranks: got 0, wanted a whole number from 1"),
    "half a thread": (("jobs", 0), {"threads": 0.5}, "threads"),
    "a collective of a job without bytes": (("jobs", 0, "collectives", 0), {"bytes": None}, "bytes"),
    "a collective of no time": (("collectives", 0), {"seconds": 0}, "collectives[0]: seconds"),
    "bandwidths in a list": ((), {"bandwidth": []}, "bandwidth: got [], wanted an object"),
    "a bandwidth of nothing": (("bandwidth", "copy"), {"gb_per_second": 0}, "gb_per_second"),
    "a loader of no samples": ((), {"loader_samples_per_second": 0}, "loader_samples_per_second"),
    "findings that are numbers": ((), {"findings": [1]}, "findings"),
    "a machine that is a text": ((), {"machine": "x"}, "machine"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_nonsense_is_one_line_that_names_file_and_place(fault):
    place, changes, named = WRONG[fault]
    content = copy.deepcopy(WHOLE)
    inner = content
    for step in place:
        inner = inner[step]
    inner.update(changes)
    with pytest.raises(ProbeError) as raised:
        parsed(content)
    message = str(raised.value)
    assert message.startswith("probe_cpu_example.json: ") and named in message and "\n" not in message


@pytest.mark.parametrize("part", ["operators", "jobs", "collectives", "bandwidth", "findings", "machine"])
def test_a_part_of_version_2_that_is_missing_is_named(part):
    with pytest.raises(ProbeError, match=part):
        parsed({key: value for key, value in WHOLE.items() if key != part})
