"""Whatever happens to a log on its way, reading it never crashes and never gives a number that is not in it."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from utils.logs import reader
from utils.logs.lines import value_of

TEXTS = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parent / "samples").glob("*.log"))}
NUMBER = re.compile(r"\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?")
ANSI = re.compile(r"\x1b?\[[0-9;]*m")
NAMES = st.sampled_from(sorted(TEXTS))
EXAMPLES = settings(max_examples=150, deadline=None)
VALUES = ("step_time", "loss", "grad_norm", "learning_rate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def read(folder, data):
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
    whole = {step.number: step for step in read(folder, text).steps}
    run = read(folder, text[: data.draw(st.integers(0, len(text)))])
    for step in run.steps if run else ():
        for field in VALUES:
            assert value_of(getattr(step, field)) in (None, value_of(getattr(whole[step.number], field))), field
    assert not run or run.status != "ok" or len(run.steps) == len(whole)


@EXAMPLES
@given(name=NAMES, data=st.data())
def test_lines_in_any_order_and_number_give_the_same_steps(folder, name, data):
    rows = TEXTS[name].splitlines()
    if name == "hugging_face":  # numbered by their order
        return
    order = data.draw(st.permutations(list(range(len(rows)))))
    more = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5))
    shuffled = b"".join(rows[at] + b"\n" for at in [*order, *more])
    values = [
        [(step.number, *(value_of(getattr(step, name)) for name in VALUES)) for step in read(folder, text).steps]
        for text in (shuffled, TEXTS[name])
    ]
    assert values[0] == values[1]


@EXAMPLES
@given(one=NAMES, two=NAMES, data=st.data())
def test_interleaved_logs_give_no_number_that_is_in_neither(folder, one, two, data):
    parts = []
    for text in (TEXTS[one], TEXTS[two]):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
        parts.append([text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    read(folder, b"".join(piece for index in range(5) for part in parts for piece in part[index : index + 1]))


@EXAMPLES
@given(name=NAMES, data=st.data())
def test_a_log_with_broken_bytes_gives_no_number_that_is_not_in_it(folder, name, data):
    text = bytearray(TEXTS[name])
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    read(folder, bytes(text))


@EXAMPLES
@given(data=st.binary(max_size=400) | st.text(alphabet="iteration /|:0123456789.eE+-nalms g{}'\n\r", max_size=400))
def test_any_file_can_be_read(folder, data):
    read(folder, data if isinstance(data, bytes) else data.encode())
