"""A profiled run is compared with none that was not profiled, and is averaged with none."""

import pytest
from reports import report
from sides import SAMPLES, run, summarise

PROFILE, OTHER, STEPS = "steps 41-43 of rank 0", "steps 41-43 of all ranks", (41, 42, 43)


def side(platform, seconds, profile=None, first=1, **changes):
    """Return three runs, of which some steps were under a profiler if it is named."""
    results = [run(platform, number, seconds, **changes) for number in range(first, first + 3)]
    for result in results if profile else ():
        kept = [place for place, step in enumerate(result["steps"]) if step not in STEPS]
        for key in SAMPLES:
            result[key] = [result[key][place] for place in kept]
        result["excluded_steps"] = dict.fromkeys(map(str, STEPS), "profiled")
        result["training_config"]["profile"] = profile
        summarise(result)
    return results


@pytest.mark.parametrize(
    ("nvd", "amd", "word"),
    [(None, PROFILE, "not_comparable"), (PROFILE, PROFILE, "faster"), (PROFILE, OTHER, "not_comparable")],
)
def test_only_sides_that_were_profiled_alike_are_compared(tmp_path, nvd, amd, word):
    label = {"label": "profiled"}
    found = report(tmp_path, side("nvd", 1.0, nvd, **(label if nvd else {})) + side("amd", 0.9, amd, **label))
    assert found.verdict["verdict"] == word
    assert "REJECTED" not in found.printed
    if not nvd:
        assert "profile differs: none against steps 41-43 of rank 0" in " ".join(found.printed.split())


def test_profiled_runs_beside_others_are_left_out_and_named(tmp_path):
    found = report(tmp_path, side("nvd", 1.0) + side("amd", 0.9) + side("amd", 1.3, PROFILE, first=4))
    assert (found.verdict["verdict"], found.verdict["runs"]) == ("faster", [3, 3])
    printed = " ".join(found.printed.split())
    assert "the other side has no run of" in printed and "profile of steps 41-43 of rank 0" in printed
