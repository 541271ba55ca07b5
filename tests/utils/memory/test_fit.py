"""Changes that fit a job are the fewest, allowed on both sides of a comparison, and do fit by the estimate."""

import pytest

from utils.memory.estimate import estimate
from utils.memory.fit import USABLE, change_text, changes_that_fit, lower_bound_gb, terms_text
from utils.settings.config import load


def config_of(*settings, gpus=8, framework="mega"):
    arguments = ["DATASET=synth", "MODEL_SIZE=full", "MODEL=llama", f"FRAMEWORK={framework}", *settings]
    return load("nvd", gpus, arguments=arguments, environ={})


def changes(config, capacity_gb):
    (framework,) = config.frameworks
    return [change_text(change) for change in changes_that_fit(config, framework, config.spec("llama"), capacity_gb)]


@pytest.mark.parametrize("framework", ["mega", "hf"])
@pytest.mark.parametrize("capacity_gb", [85.0, 149.3, 206.0])
@pytest.mark.parametrize("settings", [("SL=8192",), ("MBS=4",), ("SL=8192", "MBS=8", "RECOMPUTE=selective")])
def test_every_change_is_accepted_as_settings_and_fits(framework, capacity_gb, settings):
    config = config_of(*settings, framework=framework)
    for change in changes(config, capacity_gb):
        changed = config_of(*settings, *change.split(), framework=framework)
        needed = estimate(changed, framework, changed.spec("llama")).total_gb
        assert needed <= USABLE * capacity_gb
        kept = ("sequence_length", "global_batch_size", "precision", "num_gpus")
        assert [getattr(changed, key) for key in kept] == [getattr(config, key) for key in kept]


def test_one_change_comes_before_two_and_no_change_contains_another():
    assert changes(config_of("SL=8192"), 85.0) == ["RECOMPUTE=full", "TP=2", "PP=2"]
    assert changes(config_of("MBS=4"), 100.0)[0] == "MBS=2"
    both = changes(config_of("SL=8192", gpus=1, framework="hf"), 130.0)
    assert both == ["RECOMPUTE=full OPTIMIZER_STATE=bf16"]


def test_hf_is_never_told_to_use_tensor_or_pipeline_parallelism():
    for capacity_gb in (30.0, 60.0, 85.0):
        assert "P=" not in " ".join(changes(config_of("SL=8192", "MBS=8", framework="hf"), capacity_gb))


def test_job_that_fits_needs_no_change_and_a_hopeless_one_has_none():
    assert changes(config_of(), 149.3) == [""]
    assert changes(config_of(gpus=1), 85.0) == []


def test_lower_bound_is_below_the_estimate_by_the_error_that_was_measured():
    found = estimate(config_of(), "mega", config_of().spec("llama"))
    assert lower_bound_gb(found) == pytest.approx(0.96 * found.total_gb)
    numbers = [float(term.split()[1]) for term in terms_text(found).split(", ")]
    assert sum(numbers) == pytest.approx(found.total_gb, abs=0.4)
    assert len(numbers) == 6, "the process of a GPU is not known"
