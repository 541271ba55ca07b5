"""Every format gives the numbers in its lines: fixtures of ours, whose values are worked out by hand here."""

from contextlib import suppress
from pathlib import Path

import pytest

from utils.logs import reader
from utils.logs.events import EventFileError
from utils.logs.lines import value_of

LOGS = Path(__file__).parent / "samples"
# 4096 tokens x 64 sequences / 8 GPUs = 32768 tokens a step and GPU, which over these times are the tokens/s/GPU.
TIMES = {1: 20.0, 2: 4.096, 3: 4.0, 4: 2.0, 5: 3.2, 6: 2.56}
TOKENS = {1: 1638.4, 2: 8000.0, 3: 8192.0, 4: 16384.0, 5: 10240.0, 6: 12800.0}
LOSSES = {1: 11.75, 2: 11.5, 3: 11.25, 4: 11.0, 5: 10.75, 6: 10.5}
NORMS = {1: 8.5, 2: 7.25, 3: 6.125, 4: 5.5, 5: 4.75, 6: 4.0}
RATES = {1: 1.5e-4, 2: 3.0e-4, 3: 2.7e-4, 4: 1.5e-4, 5: 4.0e-5, 6: 0.0}
TFLOPS = {number: 59.0 + number for number in TIMES}
USUAL = {"step_time": TIMES, "loss": LOSSES, "grad_norm": NORMS, "learning_rate": RATES, "tflops": TFLOPS}
OF_PRIMUS = USUAL | {"tokens": TOKENS}
OF_CORE = USUAL | {"tokens": TOKENS | {1: None}}
# 4096 tokens x 16 sequences / 4 GPUs = 16384; of two ranks the slower one, which prints fewer tokens/s
TITAN = {
    "step_time": {1: 16.384, 2: 1.024, 3: 1.0, 4: 2.0, 5: 0.5, 6: 0.8},
    "tokens": {1: 1000, 2: 16000, 3: 16384, 4: 8192, 5: 32768, 6: 20480},
    "loss": LOSSES,
    "grad_norm": NORMS,
}
# TensorBoard 2.21 wrote the event files (EventFileWriter, with these numbers)
EVENTS = USUAL | {"step_time": TIMES | {2: 12.048}, "loss": LOSSES | {2: 11.625}, "tflops": None}
OUR_TIMES = {"step_time": TIMES, "loss": LOSSES}
BATCH = {"global_batch_size": 64, "total_steps": 6}
RANKS = {"world_size": 8, "sequence_length": 4096}
GIB, MIB = 1024**3 / 1e9, 1024**2 / 1e9
USED = {"device used (hip)": 150.5 * GIB, "device total (hip)": 192 * GIB}
ALLOCATOR = {
    "allocated": 30000 * MIB,
    "max allocated": 75000 * MIB,
    "reserved": 70000 * MIB,
    "max reserved": 80000 * MIB,
}
STATED = {
    "world_size": 8,
    "sequence_length": 4096,
    "micro_batch_size": 2,
    "tp": 2,
    "pp": 1,
    "cp": 1,
    "ep": 1,
    "dp": 4,
    "seed": 1234,
    "lr": 3e-4,
    "beta1": 0.9,
    "precision": "bf16",
    "total_steps": 6,
}
CORE = "Primus C: core runtime (v25.11 to v26.4)"
FORMATS = {  # file: framework, format, status, iterations left out, columns, facts, memory in GB (None: not looked at)
    "primus_a.log": ("prim", "Primus A: trainer, GB (up to v25.10)", "ok", [], OF_PRIMUS, BATCH | RANKS, USED),
    "primus_b.log": (
        "prim",
        "Primus B: trainer, GiB (v25.10 to v26.1)",
        "ok",
        [],
        OF_PRIMUS,
        BATCH | RANKS,
        USED | {"device used (rocm-smi, fullest rank)": 151.5 * GIB},
    ),
    "primus_c.log": ("prim", CORE, "ok", [2], OF_CORE, BATCH | RANKS, USED | ALLOCATOR),
    "primus_cd.log": (
        "prim",
        f"{CORE} + Primus D: core runtime, harmonic mean (v26.5 and later)",
        "ok",
        [2],
        OF_CORE,
        BATCH | RANKS | {"padded_vocab_size": 128256, "parameter_count": 8030261248, "exit_code": 0, "host": "node-c"},
        None,
    ),
    "megatron_old.log": ("mega", "Megatron-LM, up to core 0.15", "ok", [], USUAL, BATCH | STATED, None),
    "megatron_new.log": (
        "mega",
        "Megatron-LM, core 0.16 and later",
        "ok",
        [2],
        USUAL,
        BATCH | {"world_size": 8, "dp": 8, "tp": 1, "pp": 1, "cp": 1},
        None,
    ),
    "bridge.log": (
        "bridge",
        "Megatron Bridge, up to core 0.15",
        "ok",
        [],
        USUAL,
        BATCH | {"sequence_length": None},
        {"allocated": 50.5, "max allocated": 121.5, "reserved": 130.5, "max reserved": 131.75},
    ),
    "nemo.log": (  # counts from 0 and prints 4 digits
        "nemo",
        None,
        "ok",
        [],
        {
            "step_time": {1: 10.25, 2: 2.5, 3: 2.506, 4: 2.494, 5: 2.512, 6: 2.488},
            "loss": LOSSES,
            "learning_rate": RATES,
            "grad_norm": dict.fromkeys(TIMES),
        },
        {},
        {"max reserved (rank 0)": 70.0, "allocated (rank 0)": 44.0},
    ),
    "torchtitan.log": (
        "torchtitan",
        None,
        "ok",
        [],
        TITAN,
        {"world_size": 4, "sequence_length": 4096, "micro_batch_size": 2},
        {"max reserved": 50.5 * GIB},
    ),
    "primus_torchtitan.log": (  # its twin, which prints no number of ranks
        "prim",
        None,
        "ok",
        [],
        TITAN,
        {"world_size": 4, "sequence_length": 4096},
        {"max reserved": 50.5 * GIB},
    ),
    "hugging_face.log": (  # prints no time of a step
        "hf",
        None,
        "failed",
        [],
        {"loss": {1: 11.75, 2: 11.5, 3: 11.25}, "step_time": dict.fromkeys((1, 2, 3))},
        {"total_steps": 3},
        None,
    ),
    "ours.log": ("ours", None, "ok", [], OUR_TIMES, {"platform": "nvd"}, None),
    "events.out.tfevents.megatron": ("mega", None, "ok", [2], EVENTS, {}, None),
    "events.out.tfevents.nemo": ("nemo", None, "ok", [], EVENTS, {}, None),
}
KNOWN = {
    "primus_torchtitan.log": {"world_size": 4},
    **dict.fromkeys(("events.out.tfevents.megatron", "events.out.tfevents.nemo"), {"total_steps": 6}),
}


def read(*names, **options):
    return reader.read_log([LOGS / name for name in names], **options)


def column(run, name):
    return {step.number: value_of(getattr(step, name)) for step in run.steps}


@pytest.mark.parametrize("name", FORMATS)
def test_a_log_gives_its_instantaneous_values_facts_and_memory_in_its_real_unit(name):
    framework, format_name, status, left_out, columns, facts, memory = FORMATS[name]
    run = read(name, known=KNOWN.get(name))
    assert (run.framework, run.format, run.status) == (framework, format_name or run.format, status)
    assert (run.problems == ()) == (status == "ok") and list(run.excluded) == left_out
    for field, values in columns.items():
        if values is not None:
            wanted = {number: value for number, value in values.items() if number not in left_out}
            assert column(run, field) == pytest.approx(wanted), field
    assert {fact: run.fact(fact) for fact in facts} == facts
    if memory is not None:
        assert {one: value.gb for one, value in run.memory.items()} == pytest.approx(memory)


def test_a_value_keeps_its_line_and_its_rounding():
    assert read("primus_cd.log").facts["padded_vocab_size"].where == "primus_cd.log:1"
    run = read("nemo.log")
    assert any("4 significant digits" in note for note in run.notes)
    assert run.steps[1].step_time.half_unit == pytest.approx(0.0005)  # "2.5" stands for 2.500
    assert read("hugging_face.log").problems[0].startswith("the Hugging Face Trainer prints no time of a step")


@pytest.fixture
def log(tmp_path):
    """Return a reader of a log with this text."""

    def write(text, name="made.log", **options):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(data)
        return reader.read_log([tmp_path / name], **options)

    return write


def text_of(name, *replacements):
    text = (LOGS / f"{name}.log").read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


def last_row(name):
    return text_of(name).splitlines()[-1]


def test_parameters_of_one_of_several_ranks_are_not_those_of_the_model(log):
    run = log(text_of("primus_c", ("parameters in billions: 8.03", "parameters in billions: 16.06")))
    assert (run.fact("parameter_count"), run.fact("parameters_of_rank_0_0")) == (None, 8030261248)


def test_lines_that_lost_their_prefix_are_of_the_framework_of_the_others(log):
    assert log(text_of("primus_a", ("rank-7/8", "rank"), (" | hip mem usage/free", " | mem/free"))).framework == "prim"
    run = log(text_of("megatron_old", ("7:  [2024-09-09 08:00:15", "[rank-7/8] [2024-09-09 08:00:15")))
    assert (run.framework, len(run.steps), run.status) == ("prim", 6, "ok")


TITAN_VALIDATION = "validate step: 7  loss:  3.00000  memory: 50.50GiB(26.30%)  tps: 9,000\n"
ROWS_OF_HF = text_of("hugging_face").splitlines(keepends=True)
AROUND = {  # changes of a text that change no step
    "torchrun": lambda text: "".join(f"[rank7]: {row}\n" for row in text.splitlines()),
    "srun and CRLF": lambda text: "".join(f"default7: 7: {row}\r\n" for row in text.splitlines()),
    "without ESC": lambda text: text.replace("\x1b", ""),
    "collapsed blanks": lambda text: "\n".join(" ".join(row.split()) for row in text.splitlines()) + "\n",
    "carriage returns": lambda text: text.replace("\n", "\r"),
    "broken bytes": lambda text: "\ufffd\x00" + text,
    "a line twice, once damaged": lambda text: text + text.splitlines()[-1].replace("loss", "lo ss") + "\n",
    "a long talk before": lambda text: "rank 3 has nothing to say\n" * 20_000 + text,
    "a validation of torchtitan": lambda text: text + TITAN_VALIDATION,
}


LINES = ("primus_a", "primus_c", "megatron_old", "nemo", "torchtitan")


@pytest.mark.parametrize(
    ("change", "name"),
    [(change, name) for change in AROUND for name in LINES if "torchtitan" not in change or name == "torchtitan"],
)
def test_what_stands_around_a_line_changes_nothing(log, name, change):
    whole, run = read(f"{name}.log"), log(AROUND[change](text_of(name)))
    assert (run.status, run.framework) == (whole.status, whole.framework)
    for field in ("step_time", "loss"):
        assert column(run, field) == column(whole, field)
    if change == "a long talk before":  # half a megabyte, which is read in several pieces
        places = [[int(step.where.partition(":")[2]) for step in found.steps] for found in (whole, run)]
        assert places[1] == [line + 20_000 for line in places[0]]


def test_a_repeated_dict_of_the_hugging_face_trainer_is_one_step(log):
    assert len(log("".join([*ROWS_OF_HF[:2], "[rank0]: ", *ROWS_OF_HF[1:]])).steps) == 3


def test_parts_of_a_log_are_one_run_in_any_order_and_however_often(tmp_path):
    rows = text_of("primus_c").splitlines(keepends=True)
    parts = [tmp_path / f"part{number}.log" for number in range(3)]
    for number, part in enumerate(parts):
        part.write_text("".join(rows[number::3]))
    whole, again = read("primus_c.log"), reader.read_log([*reversed(parts), *parts])
    for name in ("step_time", "loss", "grad_norm", "learning_rate"):
        assert column(again, name) == column(whole, name)
    assert again.status == "ok"


TENTH = "".join(last_row("megatron_old").replace("       6/       6", f"{at}/ 30") + "\n" for at in (1, 10, 20, 30))
TWICE = text_of("megatron_old") + text_of("megatron_old", ("(ms): 4000.0", "(ms): 4100.0"))
FAULTS = [  # log, a text in it and what stands there instead, status, problem; twins: the same logs unchanged
    ("primus_a", "lm loss: 1.100000E+01 | ", "", "nan", "iteration 4 (primus_a.log:6): it has no loss"),
    ("primus_a", "lm loss: 1.100000E+01", "lm loss: nan", "nan", "lm loss is nan"),
    ("primus_a", "grad norm: 5.500", "grad norm: inf", "nan", "grad norm is inf"),
    ("nemo", "reduced_train_loss: 11.25", "reduced_train_loss: nan", "nan", "reduced_train_loss is nan"),
    ("torchtitan", "11.25000", "nan", "nan", "iteration 3 (torchtitan.log:7): loss is nan"),
    ("ours", "loss 11.0000", "loss nan", "nan", "iteration 4 (ours.log:4): loss is nan"),
    ("megatron_old", "nan iterations:   0", "nan iterations:   1", "nan", "number of nan iterations: 1"),
    ("megatron_old", "skipped iterations:   0", "skipped iterations:   1", "failed", "skipped iterations: 1"),
    ("primus_a", "/       6 |", "/      50 |", "failed", "the log stops at iteration 6 of 50"),
    ("primus_a", "/       6 |", "/       4 |", "failed", "the log goes to iteration 6 of 4"),
    ("primus_a", "iteration        3/", "iteration        9/", "failed", "the log has no iteration 3, 7 to 8"),
    ("primus_a", "GPU): 8192.0", "GPU): 8193.0", "failed", "8193 tokens/s/GPU do not fit 4 s"),
    ("primus_a", "(ms): 4000.0", "(ms): 3000.0", "failed", "iteration 3 (primus_a.log:5): 8192 tokens/s/GPU"),
    ("megatron_old", "elapsed time", "lapsed time", "failed", "iteration 1 (megatron_old.log:16): it has no time"),
    ("megatron_old", "(ms): 4000.0", "(ms): 0.0", "failed", "it took 0 s"),
    ("megatron_old", "batch size:    64", "batch size:     0", "failed", "zero samples"),
    ("megatron_old", "samples:          192", "samples:          128", "failed", "0 samples since iteration 2"),
    ("primus_a", "exited with code 0", "exited with code 137", "failed", "exited with code 137 (primus_a.log:9)"),
    ("primus_a", "loading the iterations", "HIP out of memory, iterations", "oom", "memory ran out"),
    ("torchtitan", "total steps 6", "all steps 6", "failed", "does not say how many iterations"),
    ("nemo", "iteration 3/5", "iteration 3/7", "failed", "total steps is 6 at nemo.log:1 and 8 at nemo.log:4"),
    ("megatron_old", None, TENTH, "failed", "only every 10th iteration was printed"),
    (
        "megatron_old",
        None,
        TWICE,
        "failed",
        "iteration 3: step time is 4 at megatron_old.log:18 and 4.1 at megatron_old.log:39",
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "status", "problem"), FAULTS)
def test_what_speaks_against_a_run_is_said_with_its_line(log, name, old, new, status, problem):
    run = log(new if old is None else text_of(name, (old, new)), f"{name}.log")
    assert run.status == status
    assert problem in (run.reason or "")
    assert len(run.steps) >= 5 or new is TENTH


NEMO_ROW = "Training epoch 0, iteration 5/5 | reduced_train_loss: 10.5 | train_step_timing in s: 2.488"
TITAN_ROW = "step:  6  loss: 10.50000  memory: 50.50GiB(26.30%)  tps: 20,480"
LENGTH = "  seq_length ...................................... 4096"


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_value_that_the_file_ends_in_may_have_lost_digits_and_is_not_taken(log, cut):
    assert column(log(NEMO_ROW + "\n"), "step_time") == {6: 2.488}
    assert column(log(NEMO_ROW[:-cut]), "step_time") == {6: None}
    assert column(log(NEMO_ROW[:-cut] + NEMO_ROW + "\n"), "step_time") == {6: 2.488}, "glued to the next"
    assert column(log(TITAN_ROW + "\n"), "tokens") == {6: 20480}
    assert column(log(TITAN_ROW[:-cut]), "tokens") == {6: None}
    row = last_row("megatron_old")
    assert log(f"{row}\n{LENGTH}\n").fact("sequence_length") == 4096
    assert log(f"{row}\n{LENGTH[: len(LENGTH) - cut + 1]}").fact("sequence_length") is None


def test_an_event_file_that_ends_anywhere_or_has_a_broken_byte_gives_what_it_holds_or_less(log):
    data = (LOGS / "events.out.tfevents.nemo").read_bytes()
    counts = set()
    for end in range(0, len(data), 7):
        for damaged in (data[:end], data[:end] + bytes([data[end] ^ 0xFF]) + data[end + 1 :]):
            steps = {}
            with suppress(reader.LogFormatError):
                steps = column(log(damaged, "events.out.tfevents.cut"), "step_time")
            assert len(steps) <= 7
            if len(damaged) < len(data):
                assert steps.items() <= EVENTS["step_time"].items()
                counts.add(len(steps))
    assert counts == set(range(7))


def test_an_event_file_with_a_record_larger_than_any_memory_is_refused(log):
    size = (1 << 60).to_bytes(8, "little") + bytes.fromhex("c4234e8e")  # and its checksum
    with pytest.raises(EventFileError, match="made: a record states a size beyond this machine's memory"):
        log(size, "events.out.tfevents.made")


def test_what_the_caller_knows_fills_in_what_the_log_does_not_say():
    run = read("bridge.log", known={"sequence_length": 2048, "world_size": 8, "total_steps": None})
    assert (run.fact("sequence_length"), run.fact("world_size"), run.fact("total_steps")) == (2048, 8, 6)


def test_a_log_that_names_no_ranks_is_held_against_its_tokens(log):
    """tests/evaluate/test_extract.py has what a log says itself."""
    text = text_of("primus_b", ("rank-7/8", "rank"))
    assert log(text, known={"world_size": 8, "sequence_length": 4096}).status == "ok"
    with pytest.raises(reader.ContradictionError, match="made.log:1: tokens/s/GPU x time gives 32768.0 tokens a step"):
        log(text, known={"world_size": 8, "sequence_length": 2048})


def test_a_file_without_a_training_is_no_log(log):
    text = "the loss of an iteration 3/4 of the way\n"
    with pytest.raises(reader.LogFormatError, match="no line tells of an iteration"):
        log(text)
    run = log(text, framework="prim")
    assert (run.status, run.steps, run.problems[-1]) == ("failed", (), "no line tells of an iteration")


@pytest.mark.parametrize(
    ("names", "framework", "message"),
    [
        (["primus_a.log"], "nemo", "no iteration of nemo, but of prim"),
        (["primus_a.log", "nemo.log"], "auto", "iterations of nemo and prim in several formats"),
        (["primus_a.log"], "megatron", "got 'megatron', wanted auto or one of"),
        (["primus_a.log", "nemo.log"], "nemo", None),
        (["bridge.log"], "mega", None),
    ],
)
def test_a_log_of_another_framework_is_refused(names, framework, message):
    if message is None:
        assert read(*names, framework=framework).framework == framework
        return
    with pytest.raises(reader.LogFormatError, match=message):
        read(*names, framework=framework)


OURS = "[CPU] Step {0}/8 | 0.500 s | avg 0.500 s | loss 6.0000 | 1.2 GB\n"


@pytest.mark.parametrize(("loss", "status"), [("6.0000", "ok"), ("nan", "nan")])
def test_a_profiled_step_is_left_out_with_its_reason_and_its_loss_has_to_be_a_number(log, loss, status):
    text = "".join(OURS.format(step) for step in range(1, 9))
    profiled = f"[CPU] Step 4/8 | profiled | loss {loss} | 1.2 GB\n"
    run = log(text.replace(OURS.format(4), profiled), known={"world_size": 1, "global_batch_size": 8})
    assert [step.number for step in run.steps] == [1, 2, 3, 5, 6, 7, 8]
    assert dict(run.excluded) == {4: "profiled"} and "iteration 4 is left out: profiled" in run.notes
    assert (run.status, run.problems == ()) == (status, status == "ok")
