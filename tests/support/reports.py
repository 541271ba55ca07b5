"""Results as files, and what `evaluate.compare` makes of them: JSON, text, page, figures, as its users see them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evaluate import compare
from tests.support.sides import Result, write


def probed(**changes: Any) -> dict[str, Any]:
    """Return the content of a probe of one H100 on the day of the example result, with these keys replaced."""
    known = {
        **{"probe_version": 1, "platform": "nvd", "host": "nvd-1", "device_name": "NVIDIA H100 80GB HBM3"},
        **{"total_memory_gb": 85.0, "started_utc": "2026-11-21T00:00:00+00:00", "pytorch_version": "2.13.0"},
        "rates": {"bf16": {"best_tflops": 800.0, "sustained_tflops": 700.0, "spread_percent": 1.0}},
        "reasons": {"fp8": "torch cannot"},
    }
    return known | changes


def write_probe(folder: Path, **changes: Any) -> Path:
    """Write such a probe and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    content = probed(**changes)
    path = folder / f"probe_{content['platform']}_{content['host']}.json"
    path.write_text(json.dumps(content))
    return path


def refused(main: Callable[[list[str]], int], *arguments: object, code: int = 2) -> str:
    """Return the one line with which a command refuses its arguments; bad input (2) prints nothing on stdout."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            found = main([str(one) for one in arguments])
        except SystemExit as ended:
            found = int(str(ended.code))
    error = errors.getvalue()
    assert (found, error[:7], error.count("\n")) == (code, "error: ", 1), error
    assert code != 2 or not printed.getvalue()
    return error


@dataclass
class Report:
    """What the command wrote and printed."""

    folder: Path
    code: int
    printed: str
    errors: str
    figures: list[Figure] = field(default_factory=list)
    """Figures that were drawn, with the settings of the picture."""

    def _read(self, ending: str) -> str:
        return (self.folder / f"compare.{ending}").read_text(encoding="utf8")

    @cached_property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self._read("json")))

    @cached_property
    def markdown(self) -> str:
        return self._read("md")

    @cached_property
    def page(self) -> str:
        return self._read("html")

    @property
    def verdict(self) -> dict[str, Any]:
        """The only verdict."""
        (found,) = self.json["verdicts"]
        return dict(found)

    @property
    def notes(self) -> list[str]:
        return [note for group in self.json["groups"] for note in group["notes"]]

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Metrics of the only system."""
        ((row,),) = (group["rows"] for group in self.json["groups"])
        return dict(row["metrics"])


@contextlib.contextmanager
def drawn() -> Iterator[list[Figure]]:
    """Collect the figures that are saved as PNG; each is drawn, so that its texts have their places."""
    found: list[Figure] = []
    real = Figure.savefig

    def savefig(figure: Figure, stream: Any, **options: Any) -> None:
        if options["format"] != "png":
            return real(figure, stream, **options)
        FigureCanvasAgg(figure).draw()
        found.append(figure)
        stream.write(b"\x89PNG, not rendered a second time")
        return None

    with patch.object(Figure, "savefig", savefig):
        yield found


def report(folder: Path, results: Iterable[Result], *options: str, formats: str = "json") -> Report:
    """Write results into a folder, compare them and return the report."""
    write(folder / "in", list(results))
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors), drawn() as figures:
        arguments = [str(folder / "in"), "--output", str(folder / "report"), "--format", formats, *options]
        code = compare.main(arguments)
    return Report(folder / "report", code, printed.getvalue(), errors.getvalue(), figures)


def visible(page: str) -> str:
    """Return the text of a page without its data, script and style, on one line."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())
