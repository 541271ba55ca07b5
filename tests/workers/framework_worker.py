"""Runs whole jobs of one framework as a rank of torchrun does, each in processes forked after the framework's import.

tests/support/launching.py starts `PYTHON tests/workers/framework_worker.py FRAMEWORK FOLDER` with the cases as JSON on
stdin; by its path and not as a module, because a package of NeMo's environment is called `tests`. A case is a map:
`name`, `model`, `settings`, `ranks`, `spec` (fields of the tiny model that are replaced) and `plants` (functions of
plants.py, with their arguments). Each rank runs the trainer's own `main`. Prints, by name of the case: exit codes,
results, notes of the plants by rank, and what the first failed rank printed.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import plants

ROOT = Path(__file__).resolve().parents[2]


def run(framework: str, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the ranks of one case and return what came of it."""
    ranks = case.get("ranks", 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
    started = []
    for rank in range(ranks):
        identity = os.fork()
        if identity == 0:
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ |= {name: str(value) for name, value in places.items()}
            be_rank(framework, case, folder, logs[rank])
        started.append(identity)
    codes = [os.waitstatus_to_exitcode(os.waitpid(identity, 0)[1]) for identity in started]
    results = [json.loads(path.read_text()) for path in folder.rglob("train_cpu_*.json")]
    notes = [json.loads(log.with_suffix(".json").read_text()) for log in logs if log.with_suffix(".json").exists()]
    failed = next((log for log, code in zip(logs, codes, strict=True) if code), logs[0])
    return {"codes": codes, "results": results, "notes": notes, "printed": failed.read_text()[-20000:]}


def be_rank(framework: str, case: dict[str, Any], folder: Path, log: Path) -> NoReturn:
    """Run the trainer's `main` in this process and end it; the notes of the plants go to a file beside the log."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    notes: dict[str, Any] = {}
    leave = os._exit

    def end(code: int) -> NoReturn:
        log.with_suffix(".json").write_text(json.dumps(notes))
        sys.stdout.flush()
        sys.stderr.flush()
        leave(code)

    os._exit = end  # the trainer leaves by it
    try:
        trainer = importlib.import_module(f"train.train_{framework}")
        plants.change_model(case["model"], case.get("spec", {}))
        plants.draw_odd_weights(trainer, notes)
        for name, *arguments in case.get("plants", ()):
            getattr(plants, name)(trainer, notes, *arguments)
        settings = [*case["settings"], f"CPU_RANKS={case.get('ranks', 1)}", f"OUTPUT_DIR={folder}"]
        sys.argv = [f"train_{framework}", "--platform", "cpu", "--model", case["model"], *settings]
        adapter = next(one for one in vars(trainer).values() if getattr(one, "name", None) == framework)
        end(plants.common.main(adapter()))
    except BaseException:  # noqa: BLE001 - whatever ends a rank is told
        traceback.print_exc()
        end(1)


def main() -> None:
    """Run the cases of the input one after another."""
    framework, folder = sys.argv[1:]
    cases = json.load(sys.stdin)
    if framework == "mega":
        plants.kernels.install()  # before megatron-core is imported, as on a GPU
    importlib.import_module(f"train.train_{framework}")
    found = {}
    for number, case in enumerate(cases):
        place = Path(folder) / str(number)
        place.mkdir(parents=True)
        found[case["name"]] = run(framework, case, place)
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(1, str(ROOT))
    main()
