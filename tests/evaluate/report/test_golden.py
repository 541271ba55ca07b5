"""Reports of made-up folders: four of them are kept in all formats, all ten fit every screen, and their ratios and
intervals follow from the samples by scipy.

`python -m pytest tests/evaluate/report/test_golden.py --update` writes the kept reports anew; look at what changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import browser
import numpy as np
import pytest
from reports import Report, report, visible
from scipy import stats
from sides import H100, H200, MI300X, MI355X, Result, failed_early, on, run, runs

RENDERS = True
KEPT = Path(__file__).parent / "golden"
LEVEL = 0.04
"""Of an interval of 95 % and a p-value of 5 %, with what simulations took off (docs/compare.md)."""


FOLDERS: dict[str, list[Result]] = {
    "tie": runs("nvd", 1.0, 5) + runs("amd", 1.003, 5),
    "not_comparable": runs("nvd", 1.0) + runs("amd", 0.8, resolved_config__qkv_bias=True),
    "failed": [
        *(*runs("nvd", 1.0), *runs("amd", 0.9), run("amd", 4, status="oom", reason="out of memory at step 3")),
        failed_early(model="qwen", platform="nvd"),
    ],
    "four_devices": on(H100, 1.0) + on(H200, 0.9) + on(MI300X, 0.901) + on(MI355X, 0.5),
    "one_side": runs("nvd", 1.0),
    "full_size": runs("nvd", 10.0, model_size="full") + runs("amd", 9.0, model_size="full"),
    "undecided": runs("nvd", 1.0, 2) + runs("amd", 0.9, 2),
    "six_frameworks": [
        one
        for place, name in enumerate(("mega", "hf", "bridge", "titan", "nemo", "prim"))
        for one in runs("nvd", 1 + place / 10, framework=name)
    ],
    "alike": [one for name in ("mega", "hf", "titan") for one in runs("nvd", 1.0, 4, framework=name)],
    "two_models": runs("nvd", 1.0) + runs("amd", 0.9) + runs("nvd", 2, model="qwen") + runs("amd", 1.3, model="qwen"),
}
GOLDEN = list(FOLDERS)[:4]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Report]]:
    """Return the reports; their paths are relative, so that they are the same on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("made"))
        yield {name: report(Path(name), results, formats="json,md,html,png") for name, results in FOLDERS.items()}


def forms(found: Report) -> str:
    """Return what is kept of a report: the texts, the words of the page above the certificates, which are in Markdown,
    and the verdicts of compare.json, a line a key."""
    words = re.sub(r"<svg\b[^>]*aria-label=\"([^\"]*)\".*?</svg>", r"[\1]", found.page, flags=re.DOTALL)
    words = words.partition('id="certificates"')[0]
    words = re.sub(r"<(script|style|svg)\b.*?</\1>", "", words, flags=re.DOTALL)
    words = re.sub(r"</t[dh]>\s*<t[dh]", " | <t", re.sub(r"</?(small|a|button|span)\b[^>]*>", " ", words))
    lines = (" ".join(line.split()) for line in re.sub(r"<[^>]+>", "\n", words.replace("\n", " ")).split("\n"))
    verdicts = [
        json.dumps({f"{one['b']} against {one['a']}, {one['model']}: {key}": value})
        for one in found.json["verdicts"]
        for key, value in one.items()
        if key != "certificate"
    ]
    known = {"terminal": found.printed, "compare.md": found.markdown, "compare.html": "\n".join(filter(None, lines))}
    known["compare.json"] = "\n".join([json.dumps({"ranking": found.json["ranking"]}), *verdicts])
    return "\n".join(f"===== {name}\n{text.rstrip()}\n" for name, text in known.items())


@pytest.mark.parametrize("name", GOLDEN)
def test_the_kept_reports_are_made_again(made: dict[str, Report], name: str, request: pytest.FixtureRequest) -> None:
    path, text = KEPT / f"{name}.txt", forms(made[name])
    if request.config.getoption("--update"):
        path.write_text(text, encoding="utf8")
    assert text == path.read_text(encoding="utf8"), f"{path.name}: --update, and look at what changed"


@pytest.mark.parametrize("name", ["tie", "failed", "four_devices", "full_size", "undecided"])
def test_ratios_and_intervals_are_those_of_scipy_in_every_format(made: dict[str, Report], name: str) -> None:
    counted = [one for one in FOLDERS[name] if one["status"] == "ok"]
    known = list(dict.fromkeys(one["gpu_info"]["device_name"] for one in counted))
    found = {frozenset((one["a"], one["b"])): one for one in made[name].json["verdicts"]}
    assert len(found) == len(list(combinations(known, 2)))
    for pair in combinations(known, 2):
        verdict = found[frozenset(pair)]
        # the logarithm of the mean steady step of each counted run of a device
        a, b = (
            np.log([np.mean(one["step_times"][10:]) for one in counted if one["gpu_info"]["device_name"] == device])
            for device in (verdict["a"], verdict["b"])
        )
        welch = stats.ttest_ind(a, b, equal_var=False)
        wanted = [np.exp(a.mean() - b.mean()), *np.exp(list(welch.confidence_interval(1 - LEVEL)))]
        assert [verdict["ratio"], *verdict["interval"]] == pytest.approx(wanted, rel=1e-6), pair
        shown = {f"{verdict['ratio']:.{decimals}f}x" for decimals in (2, 3, 4)}
        for text in (made[name].printed, made[name].markdown, visible(made[name].page)):
            assert any(ratio in text for ratio in shown), (pair, shown)


# Wide content must be reachable: a cell that is wider than its room is cut unless a table around it scrolls.
CUT = """[...document.querySelectorAll('td, th, .card p, .card li')].filter((one) => {
  const box = one.closest('.scroll') || document.documentElement;
  return one.scrollWidth > one.clientWidth + 1 && box.scrollWidth <= box.clientWidth;
}).map((one) => one.textContent)"""


@pytest.mark.full("ten reports in Chromium at three widths, light, dark and printed, about 30 s")
def test_every_report_fits_every_screen_and_sheet(made: dict[str, Report]) -> None:
    with browser.running() as tab:
        for name, found in made.items():
            path = found.folder / "compare.html"
            for width in (360, 1280, 1920):
                for scheme in ("light", "dark"):
                    tab.open(path, width, scheme=scheme)
                    assert tab.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
                        name,
                        width,
                    )
                    assert tab.value(CUT) == [], (name, width)
            tab.print_on(700)  # pixels of 1/96 inch: a sheet of A4 between its margins
            assert tab.value("document.documentElement.scrollWidth") <= 700, name
            assert tab.complaints == [], name
