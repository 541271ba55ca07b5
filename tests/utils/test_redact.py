"""Secrets are taken out by shape, by name and by value, and nothing else is."""

from __future__ import annotations

import json

import pytest
from nasty import no_hang

from utils import redact
from utils.errors import ConfigError
from utils.settings.layers import parse_assignment

LETTERS = "aB3dE5gH7jK9" * 4
HUB = "hf_" + LETTERS[:34]
SHAPES = {
    "hub": HUB,
    "hub, cut off": HUB[:23],
    "organization of the hub": "api_org_" + LETTERS[:34],
    "GitHub, classic": "ghp_" + LETTERS[:36],
    "GitHub, of a server": "ghs_" + LETTERS[:36],
    "GitHub, fine-grained": "github_pat_" + LETTERS[:22] + "_" + LETTERS[:40],
    "AWS": "AKIA" + "ABCD2345EFGH67IJ",
    "AWS, for a while": "ASIA" + "ABCD2345EFGH67IJ",
    "NGC": "nvapi-" + LETTERS[:20] + "-_" + LETTERS[:30],
}
HEX = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize("around", ["{}", "a {} b", "'{}'", r"\n{}\n", "x={};", "https://host/{}/file", "<{}>"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_taken_out_wherever_it_stands(shape, around):
    secret = SHAPES[shape]
    told = redact.text(around.format(secret), {})
    assert told == around.format("***")
    assert redact.holds_secret(b"\xff\x00" + around.format(secret).encode(), {})


NAMED = {
    f"WANDB_API_KEY={HEX}": "WANDB_API_KEY=***",
    f'"WANDB_API_KEY": "{HEX}", "a": 1': '"WANDB_API_KEY": "***", "a": 1',
    f"HF_TOKEN={LETTERS[:16]} rest": "HF_TOKEN=*** rest",
    f"Authorization: Bearer {LETTERS[:8]}": "Authorization: Bearer ***",
    "{'authorization': 'Basic YWxhOmFsYQ=='}": "{'authorization': 'Basic ***'}",
    f"sent Bearer {LETTERS[:20]}.x-y": "sent Bearer ***",
    "https://ann:pass@mirror.example/simple": "https://***@mirror.example/simple",
    "git+ssh://:pass@host, next": "git+ssh://***@host, next",
    "https://s3/x?a=1&X-Amz-Signature=0f0f&b=2": "https://s3/x?a=1&X-Amz-Signature=***&b=2",
    "https://blob/x?sig=0f%2Bf'": "https://blob/x?sig=***'",
}


@pytest.mark.parametrize("given", NAMED)
def test_what_a_name_or_an_address_tells_is_taken_out_and_the_name_stays(given):
    assert redact.text(given, {}) == NAMED[given]


@pytest.mark.parametrize(
    "innocent",
    [
        HEX,
        f"commit {HEX}",
        "train_cpu_hf_llama_run1_attempt1.log hf_trainer HF_TOKEN (status 401) set HF_TOKEN: see the account",
        "eod_token=2 tokens=65536 tokenizer: gpt2 TOKENIZERS_PARALLELISM=false",
        "hf://datasets/owner/name@0123456789abcdef/file git@github.com:owner/name https://git@host/x",
        "[CPU] Step 1/2 | 0.123 s | avg 0.123 s | loss 7.1234 | 0.4 GB",
        "the bearer of this letter",
        "tcp://127.0.0.1:29500 http://[::1]:80/ https://host/a@b:c@d",
        "sha256:" + "0123456789abcdef" * 4,
        "AKIAABCD2345EFGH67IJK",
    ],
)
def test_what_is_no_secret_stays_as_it_is(innocent):
    assert redact.text(innocent, {}) == innocent
    assert not redact.holds_secret(innocent.encode(), {})


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


@pytest.mark.parametrize("given", [*SHAPES.values(), *NAMED])
def test_json_as_text_stays_json(given):
    document = json.dumps({"a": f'\\"{given}\\" {given}\n', "b": [given]})
    assert json.loads(redact.text(document, {})).keys() == {"a", "b"}


@pytest.mark.parametrize("text", [f"HF_TOKEN={HUB}", f"HF_TOKEN='{LETTERS[:30]}'", f"TOKENIZER=https://u:{HUB}@h '"])
def test_a_settings_error_does_not_repeat_a_secret(text):
    with pytest.raises(ConfigError) as caught:
        parse_assignment(text, "argument")
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
