"""Secrets in use are taken out by their value, and JSON keeps its form; test_secret_forms.py has all other forms."""

from __future__ import annotations

import pytest
from nasty import no_hang
from settings_of import settings_of

from utils import redact
from utils.errors import ConfigError

LETTERS = "aB3dE5gH7jK9" * 4
HUB = "hf_" + LETTERS[:34]


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"])
def test_the_value_in_use_is_taken_out_whatever_its_form(name, monkeypatch):
    monkeypatch.setenv(name, " open*sesame\n")
    assert redact.text("say open*sesame!") == "say ***!"
    assert redact.holds_secret(b"say open*sesame!", {name: "open*sesame"})
    assert redact.text("say open*sesame!", {}) == "say open*sesame!"


def test_a_value_within_another_leaves_nothing_of_the_longer_one():
    assert redact.text("opensesame-two", {"HF_TOKEN": "opensesame", "GH_TOKEN": "opensesame-two"}) == "***"


@pytest.mark.parametrize("value", ["", " ", "short"])
def test_a_value_too_short_to_be_a_secret_is_none(value):
    assert redact.text("a short text", {"HF_TOKEN": value}) == "a short text"
    assert not redact.holds_secret(b"a short text", {"HF_TOKEN": value})


def test_json_keeps_its_form_and_its_numbers():
    samples = [1.5, 2, 3]
    given = {HUB: [None, True, samples, (f"see {HUB}", {"reason": f"a\n{HUB}"})], "n": 1e-3}
    assert redact.json_value(given, {}) == {"***": [None, True, samples, ["see ***", {"reason": "a\n***"}]], "n": 1e-3}


@pytest.mark.parametrize("text", [f"HF_TOKEN={HUB}", f"HF_TOKEN='{LETTERS[:30]}'", f"TOKENIZER=https://u:{HUB}@h'"])
def test_a_settings_error_does_not_repeat_a_secret(text):
    with pytest.raises(ConfigError) as caught:
        settings_of(text)
    assert "***" in str(caught.value) and "aB3dE5" not in str(caught.value)


@pytest.mark.parametrize("length", [1000, 1024, 1025, 5000])
def test_a_long_value_behind_a_name_is_taken_out_to_its_end(length):
    secret = (LETTERS * 200)[:length]
    assert redact.text(f"HF_TOKEN={secret}), rest", {}) == "HF_TOKEN=***), rest"
    assert redact.text(f"password: {secret}, rest", {}) == "password: ***, rest"


@pytest.mark.parametrize("part", ["key=", "password=abc://x@", "~", "$", "a:"])
def test_a_line_without_spaces_takes_no_time_that_grows_with_its_square(part):
    times = 100_000 // len(part)
    with no_hang(30):  # 100,000 characters took 42 s, and now take 1 s
        redacted = redact.text(part * times + "@", {})
    # only the user of an address is a secret here; the last one reaches to the last @
    assert redacted == ("password=abc://***@" * times if "://" in part else part * times + "@")
