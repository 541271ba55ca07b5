"""Changes that fit a job are few, allowed, and do fit."""

import pytest
from settings_of import settings_of

from train.preflight import fit
from utils.memory import estimate


def config_of(*settings, platform="nvd", gpus=1):
    return settings_of("DATASET=synth MODEL_SIZE=full", *settings, platform=platform, gpus=gpus)


def job_of(*settings, gpus=8, framework="mega"):
    return config_of(f"MODEL=llama FRAMEWORK={framework}", *settings, gpus=gpus)


def changes_of(config, capacity_gb):
    (framework,) = config.frameworks
    return [
        fit.change_text(change) for change in fit.changes_that_fit(config, framework, config.spec("llama"), capacity_gb)
    ]


@pytest.mark.parametrize("framework", ["mega", "hf"])
@pytest.mark.parametrize("capacity_gb", [30.0, 60.0, 85.0, 149.3, 206.0])
@pytest.mark.parametrize(
    "settings", [("SL=8192",), ("MBS=4",), ("SL=8192", "MBS=8"), ("SL=8192", "MBS=8", "RECOMPUTE=selective")]
)
def test_every_change_is_accepted_as_settings_and_fits(framework, capacity_gb, settings):
    config = job_of(*settings, framework=framework)
    for change in changes_of(config, capacity_gb):
        changed = job_of(*settings, *change.split(), framework=framework)
        needed = estimate.estimate(changed, framework, changed.spec("llama")).total_gb
        assert needed <= estimate.usable_gb(capacity_gb, config.platform)
        kept = ("sequence_length", "global_batch_size", "precision", "num_gpus")
        assert [getattr(changed, key) for key in kept] == [getattr(config, key) for key in kept]


@pytest.mark.parametrize(
    ("settings", "gpus", "framework", "capacity_gb", "wanted"),
    [
        ("SL=8192", 8, "mega", 85.0, ["RECOMPUTE=full", "TP=2", "PP=2"]),
        ("MBS=4", 8, "mega", 100.0, ["MBS=2", "RECOMPUTE=selective", "TP=2"]),
        ("SL=8192", 1, "hf", 130.0, ["RECOMPUTE=full OPTIMIZER_STATE=bf16"]),
        ("", 8, "mega", 149.3, [""]),  # it fits
        ("", 1, "mega", 85.0, []),  # nothing helps
    ],
)
def test_one_change_comes_before_two_and_no_change_contains_another(settings, gpus, framework, capacity_gb, wanted):
    assert changes_of(job_of(settings, gpus=gpus, framework=framework), capacity_gb) == wanted


def test_what_fits_an_mi300x_by_its_share_alone_is_changed_where_the_runtime_needs_more():
    settings = ("FRAMEWORK=mega", "MODEL=llama", "SL=8192", "MBS=2")
    on = {platform: config_of(*settings, gpus=8, platform=platform) for platform in ("nvd", "amd")}
    needed = estimate.estimate(on["amd"], "mega", on["amd"].spec("llama")).total_gb
    capacity = needed + 10.0  # between 5 % and 10.9 GB more than the job needs
    assert 0.95 * capacity > needed and needed > 100
    assert changes_of(on["nvd"], capacity) == [""] and changes_of(on["amd"], capacity)[0] != ""


def test_lower_bound_is_below_the_estimate_by_the_error_that_was_measured():
    found = estimate.estimate(job_of(), "mega", job_of().spec("llama"))
    assert fit.lower_bound_gb(found) == pytest.approx(0.96 * found.total_gb)
    numbers = [float(term.split()[1]) for term in fit.terms_text(found).split(", ")]
    assert sum(numbers) == pytest.approx(found.total_gb, abs=0.4)
    assert len(numbers) == 6, "the process of a GPU is not known"
