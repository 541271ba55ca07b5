"""Every format gives the numbers in its lines: fixtures of ours, whose values are worked out by hand here."""

from pathlib import Path

import pytest

from utils.logs.reader import ContradictionError, LogFormatError, read_log

LOGS = Path(__file__).parent / "samples"
# 4096 tokens x 64 sequences / 8 GPUs = 32768 tokens a step and GPU, which over these times are the tokens/s/GPU.
TIMES = {1: 20.0, 2: 4.096, 3: 4.0, 4: 2.0, 5: 3.2, 6: 2.56}
TOKENS = {1: 1638.4, 2: 8000.0, 3: 8192.0, 4: 16384.0, 5: 10240.0, 6: 12800.0}
LOSSES = {1: 11.75, 2: 11.5, 3: 11.25, 4: 11.0, 5: 10.75, 6: 10.5}
NORMS = {1: 8.5, 2: 7.25, 3: 6.125, 4: 5.5, 5: 4.75, 6: 4.0}
RATES = {1: 1.5e-4, 2: 3.0e-4, 3: 2.7e-4, 4: 1.5e-4, 5: 4.0e-5, 6: 0.0}
FIRST_FREE = "Megatron-LM, core 0.16 and later"
FORMATS = {  # framework, format, iterations left out
    "primus_a": ("prim", "Primus A: trainer, GB (up to v25.10)", []),
    "primus_b": ("prim", "Primus B: trainer, GiB (v25.10 to v26.1)", []),
    "primus_c": ("prim", "Primus C: core runtime (v25.11 to v26.4)", [2]),
    "primus_cd": (
        "prim",
        "Primus C: core runtime (v25.11 to v26.4) + Primus D: core runtime, harmonic mean (v26.5 and later)",
        [2],
    ),
    "megatron_old": ("mega", "Megatron-LM, up to core 0.15", []),
    "megatron_new": ("mega", FIRST_FREE, [2]),
    "bridge": ("bridge", "Megatron Bridge, up to core 0.15", []),
}


def read(*names, **options):
    return read_log([LOGS / f"{name}.log" for name in names], **options)


def column(run, name):
    return {step.number: getattr(step, name) for step in run.steps}


def without(values, numbers):
    return {number: value for number, value in values.items() if number not in numbers}


@pytest.mark.parametrize("name", FORMATS)
def test_an_iteration_line_gives_its_instantaneous_values(name):
    framework, format_name, left_out = FORMATS[name]
    run = read(name)
    assert (run.framework, run.format, run.status, run.problems) == (framework, format_name, "ok", ())
    assert column(run, "step_time_seconds") == without(TIMES, left_out)
    assert column(run, "loss") == without(LOSSES, left_out)
    assert column(run, "grad_norm") == without(NORMS, left_out)
    assert column(run, "learning_rate") == without(RATES, left_out)
    assert column(run, "tflops") == without({number: 59.0 + number for number in TIMES}, left_out)
    assert list(run.excluded) == left_out
    assert (run.fact("global_batch_size"), run.fact("total_steps")) == (64, 6)


@pytest.mark.parametrize(
    ("name", "unknown"), [("primus_a", []), ("primus_b", []), ("primus_c", [1]), ("primus_cd", [1])]
)
def test_primus_prints_tokens_a_second_from_which_the_sequence_length_follows(name, unknown):
    run = read(name)
    left_out = FORMATS[name][2]
    assert column(run, "tokens_per_second_per_gpu") == without(TOKENS, left_out) | dict.fromkeys(unknown)
    assert (run.fact("world_size"), run.fact("sequence_length")) == (8, 4096)


def test_memory_keeps_its_meaning_and_real_unit():
    gib = 1024**3 / 1e9
    used = {"device used (hip)": 150.5 * gib, "device total (hip)": 192 * gib}
    assert {name: one.gb for name, one in read("primus_a").memory.items()} == pytest.approx(used)
    fullest = {"device used (rocm-smi, fullest rank)": 151.5 * gib}
    assert {name: one.gb for name, one in read("primus_b").memory.items()} == pytest.approx(used | fullest)
    mib = 1024**2 / 1e9
    allocator = {
        "allocated": 30000 * mib,
        "max allocated": 75000 * mib,
        "reserved": 70000 * mib,
        "max reserved": 80000 * mib,
    }
    assert {name: one.gb for name, one in read("primus_c").memory.items()} == pytest.approx(used | allocator)
    bridge = {"allocated": 50.5, "max allocated": 121.5, "reserved": 130.5, "max reserved": 131.75}
    assert {name: one.gb for name, one in read("bridge").memory.items()} == bridge
    nemo = {"max reserved (rank 0)": 70.0, "allocated (rank 0)": 44.0}
    assert {name: one.gb for name, one in read("nemo").memory.items()} == nemo


def test_what_a_log_says_of_the_whole_run_is_kept_with_its_line():
    run = read("primus_cd")
    facts = ("world_size", "padded_vocab_size", "parameter_count", "exit_code", "host")
    assert [run.fact(name) for name in facts] == [8, 128256, 8030261248, 0, "node-c"]
    assert run.facts["padded_vocab_size"].where == "primus_cd.log:1"
    stated = {
        "world_size": 8,
        "sequence_length": 4096,
        "micro_batch_size": 2,
        "tp": 2,
        "pp": 1,
        "cp": 1,
        "dp": 4,
        "seed": 1234,
        "lr": 3e-4,
        "beta1": 0.9,
        "precision": "bf16",
        "total_steps": 6,
    }
    old = read("megatron_old")
    assert {name: old.fact(name) for name in stated} == stated
    new = read("megatron_new")
    assert {name: new.fact(name) for name in ("world_size", "dp", "tp", "pp", "cp")} == {
        "world_size": 8,
        "dp": 8,
        "tp": 1,
        "pp": 1,
        "cp": 1,
    }


def test_parameters_of_one_of_several_ranks_are_not_those_of_the_model(tmp_path):
    run = changed(tmp_path, "primus_c", ("parameters in billions: 8.03", "parameters in billions: 16.06"))
    assert run.fact("parameter_count") is None
    assert run.fact("parameters_of_rank_0_0") == 8030261248


def test_a_fact_that_the_file_ends_in_may_have_lost_digits_and_is_not_taken(tmp_path):
    path = tmp_path / "cut.log"
    row = (LOGS / "megatron_old.log").read_text().splitlines()[-1]
    path.write_text(f"{row}\n  seq_length ...................................... 4096")
    assert read_log([path]).fact("sequence_length") is None
    path.write_text(f"{row}\n  seq_length ...................................... 4096\n")
    assert read_log([path]).fact("sequence_length") == 4096


def test_lines_that_lost_their_prefix_are_of_the_framework_of_the_others(tmp_path):
    run = changed(tmp_path, "primus_a", ("rank-7/8", "rank"), (" | hip mem usage/free", " | mem/free"))
    assert run.framework == "prim"
    text = (
        (LOGS / "megatron_old.log").read_text().replace("7:  [2024-09-09 08:00:15", "[rank-7/8] [2024-09-09 08:00:15")
    )
    path = tmp_path / "mixed.log"
    path.write_text(text)
    run = read_log([path])
    assert (run.framework, len(run.steps), run.status) == ("prim", 6, "ok")


def test_nemo_counts_from_0_and_prints_4_digits():
    run = read("nemo")
    assert (run.framework, run.status, run.step_time_digits) == ("nemo", "ok", 4)
    assert column(run, "step_time_seconds") == {1: 10.25, 2: 2.5, 3: 2.506, 4: 2.494, 5: 2.512, 6: 2.488}
    assert column(run, "loss") == LOSSES
    assert column(run, "learning_rate") == RATES
    assert column(run, "grad_norm") == dict.fromkeys(TIMES)
    assert run.steps[1].step_time_rounding == pytest.approx(0.0005)  # "2.5" stands for 2.500
    assert any("4 significant digits" in note for note in run.notes)


@pytest.mark.parametrize(
    ("name", "framework", "known"), [("torchtitan", "torchtitan", {}), ("primus_torchtitan", "prim", {"world_size": 4})]
)
def test_torchtitan_prints_no_time_which_follows_from_its_tokens_a_second(name, framework, known):
    run = read(name, known=known)
    assert (run.framework, run.status) == (framework, "ok")
    # 4096 tokens x 16 sequences / 4 GPUs = 16384; of two ranks the slower one, which prints fewer tokens/s
    times = {1: 16.384, 2: 1.024, 3: 1.0, 4: 2.0, 5: 0.5, 6: 0.8}
    assert column(run, "step_time_seconds") == pytest.approx(times)
    assert column(run, "tokens_per_second_per_gpu") == {1: 1000, 2: 16000, 3: 16384, 4: 8192, 5: 32768, 6: 20480}
    assert column(run, "loss") == LOSSES
    assert column(run, "grad_norm") == NORMS
    assert (run.fact("world_size"), run.fact("sequence_length"), run.fact("micro_batch_size")) == (4, 4096, 2)
    assert run.memory["max reserved"].gb == pytest.approx(50.5 * 1024**3 / 1e9)


def test_the_hugging_face_trainer_prints_losses_and_no_times_which_is_a_failed_run():
    run = read("hugging_face")
    assert (run.framework, run.status, run.fact("total_steps")) == ("hf", "failed", 3)
    assert column(run, "loss") == {1: 11.75, 2: 11.5, 3: 11.25}
    assert column(run, "step_time_seconds") == {1: None, 2: None, 3: None}
    assert run.problems[0].startswith("the Hugging Face Trainer prints no time of a step")


def test_our_own_lines_are_read_behind_the_prefix_of_a_launcher():
    run = read("ours")
    assert (run.framework, run.status, run.fact("platform")) == ("ours", "ok", "nvd")
    assert column(run, "step_time_seconds") == TIMES
    assert column(run, "loss") == LOSSES
    assert run.memory["allocated"].gb == 61.7


def test_parts_of_a_log_are_one_run_in_any_order_and_however_often(tmp_path):
    rows = (LOGS / "primus_c.log").read_text().splitlines(keepends=True)
    parts = [tmp_path / f"part{number}.log" for number in range(3)]
    for number, part in enumerate(parts):
        part.write_text("".join(rows[number::3]))
    whole, again = read("primus_c"), read_log([*reversed(parts), *parts])
    for name in ("step_time_seconds", "loss", "grad_norm", "learning_rate"):
        assert column(again, name) == column(whole, name)
    assert again.status == "ok"


@pytest.mark.parametrize("name", ["primus_a", "primus_c", "megatron_old", "nemo", "torchtitan"])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: "".join(f"[rank7]: {row}\n" for row in text.splitlines()),
        lambda text: "".join(f"default7: 7: {row}\r\n" for row in text.splitlines()),
        lambda text: text.replace("\x1b", ""),
        lambda text: "\n".join(" ".join(row.split()) for row in text.splitlines()) + "\n",
        lambda text: text.replace("\n", "\r"),
        lambda text: "\ufffd\x00" + text,
    ],
    ids=["torchrun", "srun and CRLF", "without ESC", "collapsed blanks", "carriage returns", "broken bytes"],
)
def test_what_stands_around_a_line_changes_nothing(tmp_path, name, change):
    whole = read(name)
    path = tmp_path / f"{name}.log"
    path.write_bytes(change((LOGS / f"{name}.log").read_text()).encode())
    run = read_log([path])
    assert [(step.number, step.step_time_seconds, step.loss) for step in run.steps] == [
        (step.number, step.step_time_seconds, step.loss) for step in whole.steps
    ]
    assert (run.status, run.framework) == (whole.status, whole.framework)


def changed(tmp_path, name, *replacements):
    text = (LOGS / f"{name}.log").read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"{name}.log"
    path.write_text(text)
    return read_log([path])


@pytest.mark.parametrize(
    ("name", "old", "new", "status", "problem"),
    [
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
        ("megatron_old", "elapsed time", "lapsed time", "failed", "iteration 1 (megatron_old.log:15): it has no time"),
        ("megatron_old", "(ms): 4000.0", "(ms): 0.0", "failed", "it took 0 s"),
        ("megatron_old", "batch size:    64", "batch size:     0", "failed", "zero samples"),
        ("megatron_old", "samples:          192", "samples:          128", "failed", "0 samples since iteration 2"),
        ("primus_a", "exited with code 0", "exited with code 137", "failed", "exited with code 137 (primus_a.log:9)"),
        ("primus_a", "loading the iterations", "HIP out of memory, iterations", "oom", "memory ran out"),
        ("torchtitan", "total steps 6", "all steps 6", "failed", "does not say how many iterations"),
        ("nemo", "iteration 3/5", "iteration 3/7", "failed", "total steps is 6 at nemo.log:1 and 8 at nemo.log:4"),
    ],
)
def test_what_speaks_against_a_run_is_said_with_its_line(tmp_path, name, old, new, status, problem):
    run = changed(tmp_path, name, (old, new))
    assert run.status == status
    assert problem in (run.reason or "")
    assert len(run.steps) >= 5


def test_the_status_of_a_loss_that_is_missing_comes_before_that_of_an_early_end(tmp_path):
    run = changed(tmp_path, "primus_a", ("/       6 |", "/      50 |"), ("lm loss: 1.100000E+01 | ", ""))
    assert run.status == "nan"
    assert [problem.partition(":")[0] for problem in run.problems] == [
        "iteration 4 (primus_a.log",
        "the log stops at iteration 6 of 50",
    ]


def test_every_tenth_iteration_holds_means_and_no_steps(tmp_path):
    path = tmp_path / "tenth.log"
    row = (LOGS / "megatron_old.log").read_text().splitlines()[-1]
    numbers = [1, 10, 20, 30]
    path.write_text("".join(row.replace("       6/       6", f"{number}/ 30") + "\n" for number in numbers))
    assert "only every 10th iteration was printed" in (read_log([path]).reason or "")


def test_two_runs_in_one_log_are_told(tmp_path):
    text = (LOGS / "megatron_old.log").read_text()
    path = tmp_path / "twice.log"
    path.write_text(text + text.replace("(ms): 4000.0", "(ms): 4100.0"))
    run = read_log([path])
    assert run.status == "failed"
    assert "iteration 3: step time is 4 at twice.log:17 and 4.1 at twice.log:37" in (run.reason or "")
    assert column(run, "step_time_seconds") == TIMES


@pytest.mark.parametrize("name", ["megatron_old", "primus_a", "primus_cd"])
def test_a_line_that_was_cut_off_gives_no_value_that_it_does_not_close(tmp_path, name):
    text = (LOGS / f"{name}.log").read_text()
    row = text.splitlines()[-1 if name == "megatron_old" else -2]
    start = row.index("iteration ")
    path = tmp_path / "cut.log"
    known = {6: (2.56, 10.5, 4.0, 0.0)}
    for end in range(start, len(row)):
        path.write_text(row[:end])
        try:
            run = read_log([path])
        except LogFormatError:
            continue
        for step in run.steps:
            values = (step.step_time_seconds, step.loss, step.grad_norm, step.learning_rate)
            assert all(value in (None, right) for value, right in zip(values, known[step.number], strict=True))


def test_the_last_value_of_a_cut_off_line_of_nemo_is_not_taken(tmp_path):
    path = tmp_path / "cut.log"
    row = "Training epoch 0, iteration 5/5 | reduced_train_loss: 10.5 | train_step_timing in s: 2.488"
    path.write_text(row + "\n")
    assert read_log([path]).steps[0].step_time_seconds == 2.488
    for end in range(1, len("2.488")):
        path.write_text(row[:-end])
        assert read_log([path]).steps[0].step_time_seconds is None
        path.write_text(row[:-end] + row + "\n")  # glued to the next
        assert column(read_log([path]), "step_time_seconds") == {6: 2.488}


def test_a_value_that_the_file_ends_in_is_not_taken_from_torchtitan(tmp_path):
    path = tmp_path / "cut.log"
    row = "step:  6  loss: 10.50000  memory: 50.50GiB(26.30%)  tps: 20,480"
    path.write_text(row + "\n")
    assert read_log([path]).steps[0].tokens_per_second_per_gpu == 20480
    path.write_text(row[:-2])
    assert read_log([path]).steps[0].tokens_per_second_per_gpu is None


def test_what_one_of_two_equal_lines_lost_is_in_the_other(tmp_path):
    rows = (LOGS / "megatron_old.log").read_text().splitlines()
    path = tmp_path / "twice.log"
    path.write_text("\n".join([*rows[:-1], rows[-1].replace("lm loss", "lm lo ss"), rows[-1]]) + "\n")
    run = read_log([path])
    assert run.status == "ok"
    assert column(run, "loss") == LOSSES


def test_a_validation_line_of_torchtitan_is_no_step_and_a_repeated_dict_is_one(tmp_path):
    path = tmp_path / "more.log"
    validation = "validate step: 7  loss:  3.00000  memory: 50.50GiB(26.30%)  tps: 9,000\n"
    path.write_bytes((LOGS / "torchtitan.log").read_bytes() + validation.encode())
    assert column(read_log([path]), "loss") == LOSSES
    rows = (LOGS / "hugging_face.log").read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([rows[0], rows[1], b"[rank0]: ", rows[1], *rows[2:]]))
    assert len(read_log([path]).steps) == 3


def test_lines_are_numbered_from_the_start_of_a_long_file(tmp_path):
    path = tmp_path / "long.log"
    talk = "rank 3 has nothing to say\n" * 20_000  # half a megabyte, which is read in several pieces
    path.write_text(talk + (LOGS / "primus_b.log").read_text())
    assert [step.where for step in read_log([path]).steps][:2] == ["long.log:20001", "long.log:20002"]


def test_what_the_caller_knows_fills_in_what_the_log_does_not_say():
    assert read("bridge").fact("sequence_length") is None
    run = read("bridge", known={"sequence_length": 2048, "world_size": 8, "total_steps": None})
    assert (run.fact("sequence_length"), run.fact("world_size")) == (2048, 8)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"world_size": 16}, "primus_b.log:1: world size is 8 in the log and 16 was said"),
        ({"global_batch_size": 128}, "primus_b.log:1: global batch size is 64 in the log and 128 was said"),
        ({"total_steps": 50}, "primus_b.log:1: total steps is 6 in the log and 50 was said"),
        ({"sequence_length": 2048}, "sequence length is 4096 in the log and 2048 was said"),
    ],
)
def test_a_log_that_says_otherwise_is_an_error_that_shows_both(known, message):
    with pytest.raises(ContradictionError) as error:
        read("primus_b", known=known)
    assert message in str(error.value)


def test_tokens_a_second_contradict_a_wrong_size_also_where_the_log_has_lost_its_ranks(tmp_path):
    path = tmp_path / "no_ranks.log"
    path.write_text((LOGS / "primus_b.log").read_text().replace("rank-7/8", "rank"))
    assert read_log([path], known={"world_size": 8, "sequence_length": 4096}).status == "ok"
    with pytest.raises(ContradictionError) as error:
        read_log([path], known={"world_size": 8, "sequence_length": 2048})
    assert "no_ranks.log:1: tokens/s/GPU x time gives 32768.0 tokens a step and GPU" in str(error.value)


def test_a_file_without_a_training_is_no_log(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("the loss of an iteration 3/4 of the way\n")
    with pytest.raises(LogFormatError, match="no line tells of an iteration"):
        read_log([path])
    run = read_log([path], "prim")
    assert (run.status, run.steps, run.problems[-1]) == ("failed", (), "no line tells of an iteration")


def test_a_log_of_another_framework_is_refused():
    with pytest.raises(LogFormatError, match="no iteration of nemo, but of prim"):
        read("primus_a", framework="nemo")
    with pytest.raises(LogFormatError, match="iterations of nemo and prim in several formats"):
        read("primus_a", "nemo")
    assert read("primus_a", "nemo", framework="nemo").framework == "nemo"
    with pytest.raises(LogFormatError, match="got 'megatron', wanted auto or one of"):
        read("primus_a", framework="megatron")
    assert read("bridge", framework="mega").framework == "mega"
