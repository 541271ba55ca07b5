"""Every report opens with who, how much and for what it holds, and names what weakens or does not prove it."""

from __future__ import annotations

import re
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text
from reports import Report, report, visible
from sides import both, conditions, run, runs, write

from evaluate import compare
from example import example_result

UNKNOWN_NORM = {
    "resolved_config__norm_eps": None,
    "resolved_config__reasons": {"norm_eps": "not read back", "sliding_window": "this model has none"},
}
ALL = "json,md,html,png"
FORMS = ("terminal", "markdown", "page")


def pair(count: int = 3, **changes: Any) -> list[dict[str, Any]]:
    """Return two sides that differ by a tenth, the second one with these changes."""
    return runs("nvd", 1.0, count) + runs("amd", 0.9, count, **changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """Return three reports: of a proven verdict, of one with an unknown setting, and of one that is undecided."""
    results = {"proven": pair(), "unproven": pair(**UNKNOWN_NORM), "undecided": pair(count=2)}
    return {name: report(tmp_path_factory.mktemp(name), of, formats=ALL) for name, of in results.items()}


def texts(found: Report) -> dict[str, str]:
    """Return all forms of a report as words, each on one line."""
    picture = found.figures[0].findobj(Text)
    forms = {
        "terminal": found.printed,
        "markdown": found.markdown.replace("**", ""),
        "page": visible(found.page),
        "picture": " ".join(text.get_text() for text in picture),
        "json": found.verdict["sentence"],
    }
    return {name: " ".join(text.split()) for name, text in forms.items()}


def squares(found: Report) -> list[str]:
    """Return the colour inside the square of each verdict."""
    lines = (line for line in found.figures[0].axes[0].lines if line.get_marker() == "s")
    return [to_hex(line.get_markerfacecolor()) for line in lines]


def test_every_report_says_who_how_much_and_for_what_it_holds(made: dict[str, Report]) -> None:
    wanted = re.compile(
        r"AMD Instinct MI300X is 1\.\d+x as fast as NVIDIA H100 80GB HBM3 \(1\.\d+ to 1\.\d+\), "
        r"Llama 3\.1 8B \(tiny size\), equal settings, for these machines"
    )
    for name, text in texts(made["proven"]).items():
        assert wanted.search(text) and "3 runs a side, 1 machine a side" in text and "steps 11 to 100" in text, name


def test_a_proven_verdict_has_a_bold_word_and_one_with_an_unknown_setting_a_condition(made: dict[str, Report]) -> None:
    proven, unproven = made["proven"], made["unproven"]
    assert proven.markdown.splitlines()[2].startswith("**faster:** AMD")
    assert 'class="card w-faster"' in proven.page and squares(proven) == ["#d55e00"]
    assert (unproven.verdict["verdict"], unproven.verdict["unproven"]) == ("faster", ["norm epsilon"])
    assert unproven.verdict["headline"].endswith(", for these machines; not proven: norm epsilon")
    assert all("not proven: norm epsilon" in text for text in texts(unproven).values())
    opening = unproven.markdown.splitlines()[2]
    assert opening.startswith("faster if the work is the same: AMD") and "**" not in opening
    assert 'class="card w-faster unproven"' in unproven.page and squares(unproven) == ["#ffffff"]


@pytest.mark.parametrize(
    ("changes", "is_bold"),
    [({}, True), (UNKNOWN_NORM, False), (UNKNOWN_NORM | {"gpu_info__device_name": "slower: x"}, False)],
)
def test_only_the_word_of_a_proven_verdict_is_bold_in_the_terminal(
    tmp_path: Path,
    changes: dict[str, Any],
    is_bold: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device that is called like a verdict begins a line of the table."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    compare.main([str(write(tmp_path, pair(**changes))), "--format", "json"])
    said = capsys.readouterr().out
    assert said.startswith("\x1b[1mfaster\x1b[0m: ") == is_bold and said.count("\x1b[1m") == is_bold


def test_undecided_is_said_with_what_would_decide_it_in_every_report(made: dict[str, Report]) -> None:
    undecided, said = made["undecided"], texts(made["undecided"])
    clause = " ".join(undecided.verdict["would_decide"].split())
    assert all("undecided" in text and clause in text for text in said.values()), said
    assert 'class="card w-undecided"' in undecided.page and squares(undecided) == ["#ffffff"]
    assert "trillion tokens cost" not in " ".join(said.values()), "no money for what is undecided"


def test_a_pair_without_an_interval_says_so(tmp_path: Path) -> None:
    single = report(tmp_path, pair(count=1), formats="json,html")
    assert re.search(r"is undecided: 1\.\d+x, no interval, Llama", single.verdict["headline"])
    assert "95 % interval 1" not in visible(single.page).partition("Systems")[0]


def test_certificates_are_ordered_by_effect_on_speed(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        **{"provenance__code_sha256": "8" * 64, "fingerprint__tokenizer_sha256": "9" * 64},
        "provenance__environment": {"PYTORCH_TUNABLEOP_ENABLED": "1"},
        "provenance__framework_versions": {"torch": "2.14.0"},
        **both(micro_batch_size=2, gradient_accumulation=4, seed=43),
    }
    certificate = report(tmp_path, pair(**changes)).verdict["certificate"]
    names = [item["name"] for item in certificate if item["state"].startswith("differs")]
    assert names == [
        # what forbids a comparison, then what is allowed; of both what changes the speed most
        *("micro batch", "gradient accumulation", "seed", "tokenizer"),
        *("environment PYTORCH_TUNABLEOP_ENABLED", "framework versions", "code sha256", "hosts"),
    ]


def test_experts_and_their_layout_stand_in_every_report(tmp_path: Path) -> None:
    moe = {"model": "moe", "resolved_config__num_experts": 8, "resolved_config__experts_per_token": 2}
    tokens = [64 * 128 * 100 * 4 * 2 // 8] * 8
    sides = (("nvd", 0.5, {}), ("amd", 0.125, {}), ("amd", 0.125, {"first": 4, **both(ep=8, routing="balanced")}))
    results = [
        one
        for platform, share, more in sides
        for one in runs(platform, 1.0, experts={"tokens": tokens, "fullest_share": [share] * 100}, **moe, **more)
    ]
    for text in itemgetter(*FORMS)(texts(report(tmp_path, results, formats=ALL))):
        assert "fullest expert: NVIDIA H100 80GB HBM3 50.0 %, AMD Instinct MI300X 12.5 %" in text
        assert "DP 8, EP 8, balanced routing" in text


CONDITIONS = {
    **{"gpu_tool": "smi", "gpu_count": 8, "power_cap_watts": 700.0, "default_power_cap_watts": 700.0},
    **{"max_power_cap_watts": 700.0, "max_sm_clock_mhz": 1980.0, "clock_limit_mhz": 1980.0},
    **{"default_clock_limit_mhz": 1980.0, "numa_balancing": False, "other_processes": 0},
}


def under(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the conditions of a machine as it is shipped, with these differences."""
    return {"conditions": conditions(**CONDITIONS | changes)}


def test_what_weakens_a_verdict_stands_on_its_card(tmp_path: Path) -> None:
    hot, nvd, amd = (
        under({"throttled_percent": {name: share}})
        for name, share in (("socket_thermal", 12.0), ("hw_thermal_slowdown", 0.0), ("ppt", 60.0))
    )
    results = runs("nvd", 1.0, **nvd) + runs("amd", 0.9, **hot)
    results[-1] |= under({"throttled_percent": {"socket_thermal": 12.0}, "other_processes": 2})
    results.append(run("amd", 4, status="oom", reason="out of memory at step 3"))
    weak = report(tmp_path / "weak", results, formats="json,md,html")
    lines = weak.verdict["weaknesses"]
    assert lines[0] == "AMD Instinct MI300X: 1 of 4 runs does not count: out of memory at step 3"
    assert "slowing down: AMD Instinct MI300X: socket_thermal 12 % of the run; NVIDIA" in "\n".join(lines)
    assert "other work: AMD Instinct MI300X: none or 2 processes on the GPUs; NVIDIA" in "\n".join(lines)
    card = visible(weak.page).partition("Systems")[0]
    assert all(line in card and line in weak.markdown for line in lines)
    fine = report(tmp_path / "fine", runs("nvd", 1.0, **nvd) + runs("amd", 0.9, **amd), formats="json,html")
    assert fine.verdict["weaknesses"] == [] and "Weakened by" not in fine.page and "weakened" not in fine.printed


def test_money_is_shown_for_decided_verdicts_on_full_sizes_only(tmp_path: Path, made: dict[str, Report]) -> None:
    full = {"model_size": "full"}
    results = runs("nvd", 1.0, **full) + runs("nvd", 0.8, framework="hf", **full)
    frameworks = report(tmp_path / "one", results, "--by", "framework", formats=ALL)
    assert frameworks.verdict["saving"]["percent_range"] is None
    vendors = report(tmp_path / "two", runs("nvd", 1.0, **full) + runs("amd", 0.9, **full), formats=ALL)
    one, two, tiny = ([texts(of)[form] for form in FORMS] for of in (frameworks, vendors, made["proven"]))
    assert all("trillion tokens cost" in text and "prices are" not in text for text in one)
    assert all("prices are 25% off" in text for text in two), "two devices have a price each"
    assert "Cost of 15 T tokens" in vendors.markdown
    assert not re.search("trillion tokens cost|15 T tokens|Largest model|Micro batch that would fit", " ".join(tiny))


# Notes on a group name what its figures are of.


def energy(method: str, source: str) -> dict[str, Any]:
    values = {"joules": 57.3, "avg_watts": 16.4, "joules_per_token": 0.001, "source": source, "interval": "7 steps"}
    return {"energy_metrics": values | {"method": method, "reasons": {}}}


NVML, AMD_SMI = (energy("gpu_counter", f"GPU counter, not the wall ({tool})") for tool in ("NVML", "AMD SMI"))
INTEGRATED = energy("gpu_power", "GPU power, integrated, not the wall (AMD SMI)")
LICENCE, UNKNOWN_LICENCE = {"dataset": "odc-by", "tokenizer": "llama3.1"}, {"dataset": None, "tokenizer": None}


@pytest.mark.parametrize(
    ("mega", "hf", "word", "notes"),
    [
        (
            {"fingerprint__licences": LICENCE},
            {"fingerprint__licences": LICENCE | {"tokenizer": None}},
            "licence",
            ["licences: dataset odc-by; tokenizer llama3.1"],
        ),
        ({"fingerprint__licences": UNKNOWN_LICENCE}, {}, "licence", []),
        (
            NVML,
            INTEGRATED,
            "energy",
            [
                "energy is not comparable: GPU power, integrated, not the wall (A cpu/hf); "
                "GPU counter, not the wall (B cpu/mega)"
            ],
        ),
        (NVML, AMD_SMI, "energy", []),
        (
            {},
            {"memory_metrics__source": "allocator"},
            "memory",
            ["memory is not comparable: allocator (A cpu/hf); resident set of the process (B cpu/mega)"],
        ),
    ],
)
def test_what_differs_is_noted_once_under_its_name(
    tmp_path: Path, mega: dict[str, Any], hf: dict[str, Any], word: str, notes: list[str]
) -> None:
    found = report(tmp_path, [example_result(framework="mega", **mega), example_result(framework="hf", **hf)]).notes
    assert [note for note in found if word in note and "run 1" not in note] == notes
