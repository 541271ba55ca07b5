"""Lines of real trainings, published with their logs: what stands in them, read by eye and written down here.

The files are not part of the repository; the tests look for them in `../shared/reference/logs` beside it, or in
TPRIMAT_REFERENCE_LOGS.
"""

import os
import re
from pathlib import Path

import pytest
from checkout import ROOT
from hypothesis import given, settings, strategies as st

from utils.logs import reader
from utils.logs.lines import value_of
from utils.logs.reader import read_log

FOLDER = Path(os.environ.get("TPRIMAT_REFERENCE_LOGS") or ROOT.parent / "shared" / "reference" / "logs")

reference = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no reference logs in {FOLDER}")

GIB = 1.073741824  # GB of 1e9 bytes
MIB = 0.001048576


MAIN = ("world_size", "global_batch_size", "sequence_length", "total_steps")
COLUMNS = {
    "all": ("step_time", "loss", "tokens", "tflops", "grad_norm", "learning_rate"),
    "without TFLOP": ("step_time", "loss", "tokens", "grad_norm"),
    "without tokens": ("step_time", "loss", "tflops", "grad_norm", "learning_rate"),
    "bridge": ("step_time", "loss", "grad_norm", "learning_rate"),
    "rate": ("step_time", "loss", "learning_rate"),
}
CORE = "Primus C: core runtime (v25.11 to v26.4)"
LOGS = {  # framework, format; columns, and of each step its number and values; MAIN facts; status, reason; memory
    "primus_v25.10_format.log": (
        "prim",
        "Primus A: trainer, GB (up to v25.10)",
        "all",
        [
            (1, 41.2345, 11.9, 3178.7, 184.1, 5.1, 1e-5),
            (2, 15.1023, 5.95, 8678.9, 502.6, 5.1, 1e-5),
            (3, 14.0102, 3.966667, 9355.5, 541.8, 5.1, 1e-5),
            (4, 13.9907, 2.975, 9368.5, 542.6, 5.1, 1e-5),
        ],
        (8, 128, 8192, 50),
        "failed",
        "the log stops at iteration 4 of 50",
        {"device used (hip)": 150.30 * GIB, "device total (rocm-smi)": 191.69 * GIB},
    ),
    "primus_v25.11_format.log": (  # its last loss is not printed
        "prim",
        "Primus B: trainer, GiB (v25.10 to v26.1)",
        "without TFLOP",
        [
            (1, 41.2345, 11.9, 3178.7, 5.1),
            (2, 15.1023, 5.95, 8678.9, 5.1),
            (3, 14.0102, 3.966667, 9355.5, 5.1),
            (4, 13.9907, 2.975, 9368.5, 5.1),
            (5, 14.0, None, 9362.0, None),
        ],
        (8, 128, 8192, 50),
        "nan",
        None,
        {"device used (rocm-smi, fullest rank)": 151.30 * GIB},
    ),
    "primus_core_runtime_2026-05.log": (  # prints twice, out of order, and a mean at iteration 2
        "prim",
        CORE,
        "all",
        [
            (1, 19.0139, 11.84797, None, 15.6, 0.814, 5e-6),
            (3, 0.664, 11.78471, 49349.4, 447.1, 3.811, 9.755283e-6),
            (4, 0.502, 11.5813, 65274.9, 591.5, 4.726, 9.045085e-6),
            (12, 0.4997, 10.71408, 65575.3, 594.1, 17.955, 0.0),
        ],
        (8, 32, 8192, 12),
        "failed",
        "the log has no iteration 5 to 11",  # 65575.3 x 0.4997 x 8 / 32 = 8192.0
        {
            "max allocated": 70833.32 * MIB,
            "max reserved": 86588.00 * MIB,
            "device used (hip)": 94.71 * GIB,
            "device used (rocm-smi, fullest rank)": 95.57 * GIB,
        },
    ),
    "primus_4node_2025-11_no_ansi.log": (
        "prim",
        None,
        "all",
        [(12125, 2.7013, 2.352391, 12130.4, 210.5, 0.132, 1.587349e-4)],
        (32, 256, 4096, 36000),
        "failed",  # 12130.4 x 2.7013 x 32 / 256 = 4096.0
        "the log stops at iteration 12125 of 36000; the log has no iteration 1 to 12124",
        {"device used (hip)": 227.35 * GIB},
    ),
    "megatron_2024-04.log": (  # with an extra loss
        "mega",
        "Megatron-LM, up to core 0.15",
        "without tokens",
        [(43, 5.4449, 1.825991, 239.8, 1.426, 8.6e-6), (44, 5.5338, 1.875063, 236.0, 1.327, 8.8e-6)],
        (None, 128, None, 100),
        "failed",
        None,
        {},
    ),
    "megatron_bridge_2025-12.log": (  # a line is glued to its only iteration
        "bridge",
        None,
        "bridge",
        [(1, 20.2891, 12.58695, 10.275, 3e-5)],
        (None, 128, None, 1),
        "ok",
        None,
        {"allocated": 51.072, "max allocated": 194.41, "reserved": 216.89, "max reserved": 216.89},
    ),
    "nemo_lightning.log": (  # with a prefix that was cut off
        "nemo",
        None,
        "rate",
        [
            (1, 10.31, 11.03, 1.499e-7),
            (2, 7.549, 11.03, 2.999e-7),
            (3, 7.556, 11.03, 4.498e-7),
            (4, 7.561, 11.03, 5.997e-7),
        ],
        (None, 512, None, 20),
        "failed",
        "the log stops at iteration 4 of 20",
        {},
    ),
    "torchtitan_2026-02.log": (  # with three ranks and thousands commas
        "torchtitan",
        None,
        "without TFLOP",
        [(4, None, 7.62585, 10049.0, 26.625), (20, None, 11.83506, 4376.0, 9.6669)],
        None,
        "failed",
        None,
        {"max reserved": 66.91 * GIB},
    ),
    "hf_trainer.log": ("hf", None, "rate", [(1, None, 1.1406, 2.2222222222222223e-05)], None, "failed", None, {}),
}
MORE_FACTS = {
    "primus_core_runtime_2026-05.log": {
        "parameter_count": 1510541312,
        "padded_vocab_size": 131200,
        "exit_code": 0,
        "host": "mi355-gpu-26",
    },
    "hf_trainer.log": {"train_runtime_seconds": 225.8005, "total_steps": 200},  # 225.8005 x 0.886 = 200.06
}


@reference
@pytest.mark.parametrize("name", LOGS)
def test_a_published_log_gives_what_stands_in_it(name):
    framework, format_name, columns, rows, main, status, reason, memory = LOGS[name]
    run = read_log([FOLDER / name])
    assert (run.framework, run.format) == (framework, format_name or run.format)
    names = COLUMNS[columns]
    assert [(step.number, *(value_of(getattr(step, name)) for name in names)) for step in run.steps] == rows
    assert main is None or tuple(run.fact(name) for name in MAIN) == main
    facts = MORE_FACTS.get(name, {})
    assert {fact: run.fact(fact) for fact in facts} == facts
    assert (run.status, run.reason) == (status, reason or run.reason) and (run.problems == ()) == (status == "ok")
    assert {one: run.memory[one].gb for one in memory} == pytest.approx(memory)


@reference
def test_what_is_left_out_or_contradicts_itself_is_said():
    assert list(read_log([FOLDER / "primus_core_runtime_2026-05.log"]).excluded) == [2]
    # 128 x 8192 / 14.0 / 8 = 9362.29, which would be printed as 9362.3
    line = "iteration 5 (primus_v25.11_format.log:5)"
    problems = [problem.partition(": ")[0] for problem in read_log([FOLDER / "primus_v25.11_format.log"]).problems]
    assert problems == [line, "the log stops at iteration 5 of 50", line]


# Whatever happens to a log on its way, reading it never crashes and never gives a number that is not in it.

TEXTS = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parent / "samples").glob("*.log"))}
NUMBER = re.compile(r"\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?")
ANSI = re.compile(r"\x1b?\[[0-9;]*m")
NAMES = st.sampled_from(sorted(TEXTS))
EXAMPLES = settings(max_examples=150, deadline=None)
VALUES = ("step_time", "loss", "grad_norm", "learning_rate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def read_fuzzed(folder, data):
    """Read a log; every value of every step is a number of the text; times may stand there in milliseconds."""
    path = folder / "fuzzed.log"
    path.write_bytes(data)
    try:
        run = reader.read_log([path])
    except reader.LogFormatError:
        return None
    text = ANSI.sub("", data.decode("utf8", "replace"))
    printed = {float(match[0].replace(",", "")) for match in NUMBER.finditer(text)}
    close = {float(f"{value / unit:.9g}") for value in printed for unit in (1, 1000)}
    is_derived = any("worked out" in note for note in run.notes)
    for step in run.steps:
        for name in (*VALUES[is_derived:], "tokens", "tflops"):
            value = value_of(getattr(step, name))
            assert value is None or float(f"{abs(value):.9g}") in close, (name, value)
    assert [step.number for step in run.steps] == sorted({step.number for step in run.steps})
    assert (run.status == "ok") == (not run.problems)
    return run


@EXAMPLES
@given(name=NAMES, data=st.data())
def test_a_truncated_log_gives_what_the_whole_one_gives_or_less(folder, name, data):
    text = TEXTS[name]
    whole = {step.number: step for step in read_fuzzed(folder, text).steps}
    run = read_fuzzed(folder, text[: data.draw(st.integers(0, len(text)))])
    for step in run.steps if run else ():
        for field in VALUES:
            assert value_of(getattr(step, field)) in (None, value_of(getattr(whole[step.number], field))), field
    assert not run or run.status != "ok" or len(run.steps) == len(whole)


@EXAMPLES
@given(one=NAMES, two=NAMES, data=st.data())
def test_interleaved_logs_give_no_number_that_is_in_neither(folder, one, two, data):
    parts = []
    for text in (TEXTS[one], TEXTS[two]):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
        parts.append([text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    read_fuzzed(folder, b"".join(piece for index in range(5) for part in parts for piece in part[index : index + 1]))


@EXAMPLES
@given(name=NAMES, data=st.data())
def test_a_log_with_broken_bytes_gives_no_number_that_is_not_in_it(folder, name, data):
    text = bytearray(TEXTS[name])
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    read_fuzzed(folder, bytes(text))


@EXAMPLES
@given(data=st.binary(max_size=400) | st.text(alphabet="iteration /|:0123456789.eE+-nalms g{}'\n\r", max_size=400))
def test_any_file_can_be_read(folder, data):
    read_fuzzed(folder, data if isinstance(data, bytes) else data.encode())
