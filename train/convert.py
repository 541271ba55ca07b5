"""Turn a published Hugging Face checkpoint into NeMo's format: `python -m train.convert llama`.

NeMo (`llm.import_ckpt` of nemo_toolkit 2.3) takes any existing folder for a finished checkpoint, also an incomplete one
that an interrupted import has left. Here NeMo writes under a temporary name, and only a complete checkpoint is renamed.
The import builds TransformerEngine layers and so needs NVIDIA's container, though the weights never go to a GPU.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from train.job.rank_environment import python_of
from utils.arguments import Parser, refusing, run
from utils.errors import ConfigError, ForeignFileError
from utils.hardware.detect import HardwareError, detect_platform
from utils.models import MODELS
from utils.own_files import require_ours
from utils.settings.config import folders

OPTIONS: dict[str, dict[str, Any]] = {
    "model": {"choices": [name for name, model in MODELS.items() if model.nemo_recipe is not None]},
    "--source": {"help": "Hugging Face repository or local folder (default: the release of the model)"},
    "--output": {"type": Path, "help": "folder of the checkpoint (default: DATA_DIR/nemo_<model>)"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE"},
}
PARTS = ("context", "weights")
"""Folders of a finished NeMo 2 checkpoint."""
READ_BESIDE_THE_WEIGHTS = ("config.json", "generation_config.json")
"""Files of a local source that NeMo's importers read without a check that they exist; Llama's reads only the first."""


class ConversionError(RuntimeError):
    """An incomplete or missing checkpoint; the message names the folder to remove or the next step."""


def convert(output: Path, write: Callable[[Path], object]) -> bool:
    """Make a checkpoint with `write` in a folder beside `output`, and rename it when it is complete.

    Returns False where `output` exists already. Of two processes at once the second waits and finds the checkpoint of
    the first. Raises ForeignFileError where `output` exists and is no complete checkpoint, and ConversionError
    where `write` leaves it incomplete.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.with_name(f".{output.name}.lock").open("a") as lock:
        # of two conversions at once the second waits here and finds the checkpoint of the first
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.lexists(output):
            require_ours(lambda folder: not _missing(folder), output, is_folder=True)
            return False
        partial = output.with_name(f".{output.name}.partial")
        if partial.exists():
            shutil.rmtree(partial)
        write(partial)
        missing = _missing(partial)
        if missing:
            raise ConversionError(
                f"{partial}: incomplete checkpoint, no {' and no '.join(missing)}; NeMo reported success; read its "
                "output above"
            )
        # the name appears at once, so that an existing folder is a complete checkpoint
        partial.rename(output)
    return True


def check_source(model: str, source: str) -> str:
    """Return the source in NeMo's notation: `hf://` before the name of a repository or an absolute path.

    Raises ConfigError for a local folder that lacks a file which NeMo reads.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return f"hf://{source}"
    wanted = list(READ_BESIDE_THE_WEIGHTS)
    if MODELS[model].transformers == "Llama":
        wanted = ["config.json"]
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"--source {source}: no {', '.join(missing)}; copy the whole repository there")
    return f"hf://{folder.resolve()}"


@refusing((ConfigError, HardwareError, ForeignFileError), failed=(ConversionError, OSError))
def main() -> int:
    """Convert the model of the command line; return 0 also where its checkpoint exists already."""
    options = Parser(OPTIONS, prog="python -m train.convert", description=__doc__).parse_args()
    platform = detect_platform(os.environ)
    if platform != "nvd":
        raise ConfigError(
            f"convert: got platform {platform}, wanted nvd: NeMo's importer builds TransformerEngine layers, which "
            "need CUDA; run inside nvcr.io/nvidia/nemo:26.02"
        )
    if importlib.util.find_spec("nemo") is None:  # the suite's own Python
        python = python_of("nemo", platform)
        os.execv(python, [python, "-m", "train.convert", *sys.argv[1:]])
    if importlib.util.find_spec("transformer_engine") is None:
        raise ConfigError(f"convert: {sys.executable} has no transformer_engine; use nvcr.io/nvidia/nemo:26.02")
    source = check_source(options.model, options.source or MODELS[options.model].release)
    output = options.output or folders(platform, arguments=options.settings)[1] / f"nemo_{options.model}"
    is_new = convert(output, lambda folder: _import(options.model, source, folder))
    if is_new:
        print(f"{output}: converted from {source}")
    else:
        print(f"{output}: exists already")
    return 0


def _import(model: str, source: str, folder: Path) -> None:
    """Import the checkpoint: the only lines that need NeMo with TransformerEngine, in one process without torchrun."""
    import fiddle
    from nemo.collections import llm

    recipe = getattr(llm, str(MODELS[model].nemo_recipe))
    llm.import_ckpt(model=fiddle.build(recipe.model()), source=source, output_path=folder)


def _missing(folder: Path) -> list[str]:
    return [part for part in PARTS if not any((folder / part).glob("*"))]


if __name__ == "__main__":
    sys.exit(run(main))
