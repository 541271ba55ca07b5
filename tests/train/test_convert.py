"""A converted checkpoint has its name only when it is whole; what cannot be converted here is said in one line.

The import itself needs TransformerEngine, so a stand-in writes what NeMo writes: `context/` and `weights/`.
"""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from checkout import ROOT

from train.convert import ConversionError, check_source, convert
from utils.errors import ConfigError, ForeignFileError


def write_whole(folder):
    for part, name in (("context", "io.json"), ("weights", "__0_0.distcp")):
        (folder / part).mkdir(parents=True)
        (folder / part / name).write_text("x")


def test_whole_checkpoint_gets_its_name_and_is_kept(tmp_path):
    output = tmp_path / "deep" / "nemo_llama"
    assert convert(output, write_whole)
    assert (output / "weights" / "__0_0.distcp").exists()
    assert not convert(output, lambda folder: pytest.fail("it was converted again"))
    assert {path.name for path in output.parent.iterdir()} == {"nemo_llama", ".nemo_llama.lock"}


def test_killed_import_leaves_nothing_under_the_name_that_is_reused(tmp_path):
    output = tmp_path / "nemo_llama"
    program = (
        "import sys, time; from pathlib import Path; from train.convert import convert\n"
        "def write(folder):\n"
        "    (folder / 'weights').mkdir(parents=True); (folder / 'weights' / 'half').touch()\n"
        "    print('half', flush=True); time.sleep(600)\n"
        "convert(Path(sys.argv[1]), write)"
    )
    command = [sys.executable, "-c", program, str(output)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "half\n"
        process.kill()
    assert not output.exists()
    assert convert(output, write_whole) and not (output / "weights" / "half").exists()


def test_import_that_returns_without_a_whole_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ConversionError, match="no weights"):
        convert(tmp_path / "nemo_llama", lambda folder: (folder / "context").mkdir(parents=True))
    assert not (tmp_path / "nemo_llama").exists()


def test_half_that_somebody_else_left_under_the_name_is_refused(tmp_path):
    output = tmp_path / "nemo_llama"
    (output / "context").mkdir(parents=True)
    with pytest.raises(ForeignFileError, match="nemo_llama: exists, and this suite has not written it"):
        convert(output, write_whole)


def test_second_of_two_at_once_waits_and_finds_the_first_ones(tmp_path):
    output, inside, go_on = tmp_path / "nemo_llama", threading.Event(), threading.Event()

    def slowly(folder):
        inside.set()
        go_on.wait()
        write_whole(folder)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(convert, output, slowly)
        inside.wait()
        second = pool.submit(convert, output, write_whole)
        assert not second.done()
        go_on.set()
        assert (first.result(), second.result()) == (True, False)


def test_source_is_written_as_nemo_wants_it(tmp_path):
    assert check_source("llama", "meta-llama/Llama-3.1-8B") == "hf://meta-llama/Llama-3.1-8B"
    (tmp_path / "config.json").touch()
    assert check_source("llama", str(tmp_path)) == f"hf://{tmp_path}"
    with pytest.raises(ConfigError, match=r"no generation_config\.json"):
        check_source("qwen", str(tmp_path))


def test_without_transformer_engine_it_is_one_line_and_2():
    environment = {**os.environ, "PLATFORM": "cpu"}
    command = [sys.executable, "-m", "train.convert", "mistral"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("error: convert: got platform cpu, wanted nvd") and "nvcr.io/nvidia/nemo:26.02" in line
