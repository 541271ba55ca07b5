"""Addresses with a user in every form, issued tokens and named values are taken out; harmless text stays as it is.

The expected texts are worked by hand.
"""

from __future__ import annotations

import base64
import json
import re
import string
import time
from dataclasses import fields
from pathlib import Path
from random import Random
from urllib.parse import quote

import pytest
from checkout import settings_of

from example import example_result
from utils import redact
from utils.redact import is_secret_name

LETTERS = "aB3dE5gH7jK9" * 8
HEX = "0123456789abcdef" * 2 + "01234567"
HUB = "hf_" + LETTERS[:34]
ADDRESSES = {
    # user information of RFC 3986
    "http://ann:pass@host": "http://***@host",
    "http://ann:pass@host:3128/path?x=1#y": "http://***@host:3128/path?x=1#y",
    "https://ann@host/x": "https://***@host/x",
    f"https://{LETTERS[:30]}@host/x": "https://***@host/x",
    "https://:pass@host/x": "https://***@host/x",
    "https://ann:@host/x": "https://***@host/x",
    "ftp://ann:pa;ss,wo!rd$&*+=@host/x": "ftp://***@host/x",
    "https://ann:pa%73s@host/x": "https://***@host/x",
    "https://an%40n:pa%2Fss@host/x": "https://***@host/x",
    "http://ann:pass@[::1]:3128/": "http://***@[::1]:3128/",
    "http://[::1]:80/ http://ann:pass@[fe80::1%25eth0]/": "http://[::1]:80/ http://***@[fe80::1%25eth0]/",
    "http://ann:pass@127.0.0.1:80": "http://***@127.0.0.1:80",
    "git+ssh://ann:pass@host/x.git": "git+ssh://***@host/x.git",
    "ssh://ann@host:22/x": "ssh://***@host:22/x",
    "git://git:pass@host/x": "git://***@host/x",
    "https://oauth2:pass@gitlab.example/a.git@v1.2": "https://***@gitlab.example/a.git@v1.2",
    "pip install git+https://ann:pass@github.com/o/r.git@v1.0#egg=x": "pip install git+https://***@github.com/o/r.git@v1.0#egg=x",
    "https://ann:pass@host.example/path/@scope/name": "https://***@host.example/path/@scope/name",
    "https://token@host/path/@scope/name": "https://***@host/path/@scope/name",
    # characters that a password must not have there, and has
    "http://ann:pa@ss@host/x": "http://***@host/x",
    "http://u:P@REST@h/": "http://***@h/",
    "http://u:P@@@h/": "http://***@h/",
    "http://ann:pa/ss@host:3128": "http://***@host:3128",
    "http://ann:/pass@host:3128/x": "http://***@host:3128/x",
    "http://ann:pa?ss@host/x": "http://***@host/x",
    "http://ann:pa#ss@host/x": "http://***@host/x",
    "http://ann:pa:ss@host/x": "http://***@host/x",
    r"http://CORP\ann:pass@proxy:3128": "http://***@proxy:3128",
    # several in one text, and what comes after
    "http://a:b@h,http://c:d@i": "http://***@h,http://***@i",
    "https://s/?next=https://ann:pass@host/x": "https://s/?next=https://***@host/x",
    "['https://ann:pass@host/x', 'b']": "['https://***@host/x', 'b']",
    '{"a":"https://ann:pass@host/x","b":"c@d"}': '{"a":"https://***@host/x","b":"c@d"}',
    "see https://ann:pass@host/x, or ask ann@example.org": "see https://***@host/x, or ask ann@example.org",
    # percent-encoded, once and twice
    "https%3A%2F%2Fann%3Apass%40host": "https%3A%2F%2F***%40host",
    "x?u=https%3a%2f%2fann%3apass%40host%3a80%2fp&m=a@b.c": "x?u=https%3a%2f%2f***%40host%3a80%2fp&m=a@b.c",
    "https%3A%2F%2Fann:pass@host/x": "https%3A%2F%2F***@host/x",
    "http://ann%3Apass%40host:3128": "http://***%40host:3128",
    # without a scheme
    "UCX_PROXY=ann:pass@host:3128": "UCX_PROXY=***@host:3128",
    "http_proxy=ann:pa/s@s@host:3128": "http_proxy=***@host:3128",
    "cannot connect to ann:pass@host:3128": "cannot connect to ***@host:3128",
    "PIP_INDEX_URL=https://ann:pass@host/simple": "PIP_INDEX_URL=https://***@host/simple",
    "TRITON_CACHE_MANAGER_URL=https://opensesame@host": "TRITON_CACHE_MANAGER_URL=https://***@host",
}


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
    "GitLab": "glpat-" + LETTERS[:20],
    "GitLab, routable": "glpat-" + LETTERS[:27] + ".01." + LETTERS[:9],
    "GitLab, of a job": "glcbt-64_" + LETTERS[:20],
    "W&B": "wandb_v1_" + LETTERS[:77],
    "Slack": "xoxb-" + "0123456789-" * 2 + LETTERS[:24],
    "OpenAI": "sk-" + LETTERS[:48],
    "OpenAI, of a project": "sk-proj-" + LETTERS[:60] + "_-" + LETTERS[:30],
    "Docker Hub": "dckr_pat_" + LETTERS[:27],
    "PyPI": "pypi-" + "AgEIcHlwaS5vcmc" + LETTERS[:40],
    "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----" + LETTERS + "-----END OPENSSH PRIVATE KEY-----",
    "JWT": "eyJ" + LETTERS[:17] + ".eyJ" + LETTERS[:40] + "." + LETTERS[:43],
}


AROUND = ("{}", "a {} b", "x={};", "https://host/{}/file", "<{}>", "'{}'", '"{}"', r"\n{}\n", "a%3D{}%26b")


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("secret", SHAPES.values(), ids=SHAPES)
def test_an_issued_token_is_taken_out_wherever_it_stands(secret, around):
    assert redact.text(around.format(secret), {}) == around.format("***")
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
    "NCCL_PW=hunter2": "NCCL_PW=***",
    "docker run --env NCCL_PW=hunter2 image": "docker run --env NCCL_PW=*** image",
    "environ=HF_TOKEN=abcdefgh rest": "environ=HF_TOKEN=*** rest",
    "DB_PASSWORD=a,b;c&d rest": "DB_PASSWORD=*** rest",
    "{'NCCL_PW': 'two words', 'x': 'y'}": "{'NCCL_PW': '***', 'x': 'y'}",
    r'{"password": "a\"b\\", "x": "y"}': '{"password": "***", "x": "y"}',
    r'"{\"authToken\": \"abcdefgh\", \"x\": 1}"': r'"{\"authToken\": \"***\", \"x\": 1}"',
    "login(password='x', token='abcdefgh')": "login(password='***', token='***')",
    "login(token=abc12345, user=ann)": "login(token=***, user=ann)",
    "password: abc123": "password: ***",
    "--api-key abcdefgh --x y": "--api-key *** --x y",
    "['--hf-token', 'abcdefgh', 'x']": "['--hf-token', '***', 'x']",
    "PRIVATE-TOKEN: abcd-1234": "PRIVATE-TOKEN: ***",
    f"AWS_SECRET_ACCESS_KEY={LETTERS[:20]}/+x": "AWS_SECRET_ACCESS_KEY=***",
    f"aws_secret_access_key = {LETTERS[:40]}": "aws_secret_access_key = ***",
    "Proxy-Authorization: Basic YW5uOnBhc3M=": "Proxy-Authorization: Basic ***",
    "https://s/x?X-Goog-Signature=0f0f&b=2": "https://s/x?X-Goog-Signature=***&b=2",
    "u=https%3A%2F%2Fs%2Fx%3FX-Amz-Signature%3D0f0f": "u=https%3A%2F%2Fs%2Fx%3FX-Amz-Signature%3D***",
}


TOLD = ADDRESSES | NAMED


@pytest.mark.parametrize("given", TOLD)
def test_what_a_name_or_an_address_tells_is_taken_out_and_the_rest_stays(given):
    assert redact.text(given, {}) == TOLD[given]
    assert redact.text(TOLD[given], {}) == TOLD[given], "once more changes nothing"
    document = json.dumps({"a": f'\\"{given}\\" {given}\n', "b": [given]})
    assert json.loads(redact.text(document, {})).keys() == {"a", "b"}, "JSON as text stays JSON"


@pytest.mark.parametrize(
    "harmless",
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
        f"commit {HEX} wandb: git commit {HEX}",
        "ann@example.org, bob@example.org: see https://host/x; curl ann@host registry ann@host",
        "git@github.com:org/repo.git",
        "ssh://git@github.com/org/repo.git git+https://git@host:22/x@v1",
        "https://host/path/@scope/name http://localhost:4873/@scope/name",
        "https://host:8080/mod/@v/v1.2.3 http://127.0.0.1:8000/to/ann@example.org",
        "https://host/a@b:c@d?mail=x@y#z@w https://@host",
        "https://host/x?mail=ann%40example.org https%3A%2F%2Fhost%2Fx%3Fmail%3Dann%40example.org",
        "docker://ubuntu@sha256:" + "0123456789abcdef" * 4 + " registry:5000/o/i:tag@sha256:" + "0123456789abcdef" * 4,
        "/data/a@b/c:d@e /home/ann/.cache@2/x",
        "2026-11-22T05:20:51+00:00 [05:20:51.123] ann@node7:~$ 12:30:05",
        "s3://bucket/key s3://bucket/a@b hf://datasets/o/n@main/x gs://bucket/x",
        "tcp://127.0.0.1:29500 c10d://node0:29500 http://[::1]:80/a@b file:///x@y file://C:/x@y",
        "tokens_per_second: 1234 tokens=65536 tokens_per_second_per_gpu=12345.678a",
        "eod_token=50256 eos_token='<|im_end|>' pad_token_id=0 bos_token: <s>",
        "unk_token=endoftext1 special_token='<|x1|>'",
        "token_stream_sha256=0123456789abcdef 'gigatoken': '0.10.0.post12345' gigatoken==0.10.0a1234567",
        "tokenizer=meta-llama/Llama-3.1-8B TOKENIZERS_PARALLELISM=false tokenizer: Qwen/Qwen2.5-7B",
        "--moe-token-dispatcher-type alltoall1 --tokenizer-type HuggingFaceTokenizer --passes 12345678",
        "forward pass: 1234.5ms backward_pass=12345678ms PASS=12 FAIL=3 passed=12345678a by_pass 1",
        "NCCL_IB_PKEY=0x7fff1234 MONKEY=12345678a",
        '"query_key_norm": "per_head" --token-budget 1234567890 tiktoken==0.11.0.post1',
        "KEYBOARD=qwertz12345 SSH_AUTH_SOCK=/tmp/ssh-1234/agent.5678 PWD=/home/a1b2c3",
        'sort_key=abc12345 cache_key: 0123abcd4567 primary_key=\'abcdefgh\' "key": "abcd1234"',
        "the author: ann1234 authored=abc12345 authority=abc12345",
        "token=None use_auth_token=True password=None api_key='' HF_TOKEN= WANDB_API_KEY",
        "set HF_TOKEN: see the account; the token: an example; password: required",
        "risk-aware-optimization-with-restarts-0123456789 task-0123456789abcdefghij0123",
        "disk-abcdefghijklmnopqrstuvwxyz0",
        "[CPU] Step 1/2 | 0.123 s | avg 0.123 s | loss 7.1234 | 0.4 GB",
        " iteration 1/ 2 | elapsed time per iteration (ms): 812.3 | learning rate: 3.0E-04 | lm loss: 1.0E+01 |",
        "W1122 05:20:51.123000 4242 torch/distributed/run.py:774] Setting OMP_NUM_THREADS environment variable",
        "image:v1@sha256:0123456789abcdef ann@host:22 user@host",
        "AWS_ACCESS_KEY_ID=short HF_TOKEN_PATH=/root/.cache/huggingface/token TPRIMAT_SECRETS_TAKEN=1",
    ],
)
def test_harmless_text_stays_as_it_is(harmless):
    assert redact.text(harmless, {}) == harmless
    assert redact.json_value({"a": harmless}, {}) == {"a": harmless}
    assert not redact.holds_secret(harmless.encode(), {})


SECRET_NAMES = """
    HF_TOKEN GITLAB_TOKEN_2 X-Api-Key authToken WANDB_API_KEY AWS_SECRET_ACCESS_KEY NCCL_PW PGPASSWORD MYSQL_PWD DB_PASS
    UCX_PASSWD CLIENT_SECRET GLOO_CREDENTIALS REDIS_AUTH SSH_PRIVATE_KEY HIP_ACCESS_KEY _authToken TORCH_AUTH_TOKENS
    NVTE_secret TE_APIKEY GITLAB_TOKEN_PROD"""
OTHER_NAMES = """
    TOKENIZER TOKENS_PER_STEP EOD_TOKEN_ID eos_token SSH_AUTH_SOCK KEYBOARD MONKEY PASSES NCCL_IB_PKEY NCCL_DEBUG PWD
    OLDPWD XAUTHORITY AUTHOR COMPASS HF_TOKEN_PATH key seconds_per_token tokens_per_second_per_gpu eod_token UCX_TLS
    TPRIMAT_SECRETS_TAKEN SORT_KEY query_key_norm token_budget tiktoken section__key added_token
    TokenClassifierOutput"""


@pytest.mark.parametrize("name", f"{SECRET_NAMES} {OTHER_NAMES}".split())
def test_a_name_means_a_secret_or_does_not(name):
    assert is_secret_name(name) == (name in SECRET_NAMES.split())


def test_no_key_of_a_result_or_a_setting_means_a_secret():
    result = example_result()
    keys = {*result, *(key for section in result.values() if isinstance(section, dict) for key in section)}
    keys |= {field.name for field in fields(settings_of())}
    keys |= set(re.findall(r"^(\w+)=", (Path(__file__).parents[2] / "config.env").read_text(), re.MULTILINE))
    assert len(keys) > 150 and not [key for key in keys if is_secret_name(key)]


KNOWN = {
    "NCCL_PW": "corr&ct horse/9",
    "HTTPS_PROXY": "http://ann:ba%40ttery/x@proxy:3128",
    "UCX_PROXY": "bob:stapl:e@y@proxy:3128",
    "CACHE_URL": "http://ann:12/34567@proxy.example/wo@host",
    "PIP_INDEX_URL": "https://lonely-user@mirror/simple",
    "ALL_PROXY": "eve%3Aencoded-one%40proxy:3128",
    "TINY_PW": "hunter2",
    "SOME_AUTH": "disabled",
    "TOKENIZER": "ordinary-tokenizer",
}


ENCODED = (
    "corr&ct horse/9",
    "corr%26ct%20horse%2F9",
    "corr%26ct%20horse/9",
    "corr%26ct%20horse%2f9",
    "ann:ba%40ttery/x",
    "ba%40ttery/x",
    "ba@ttery/x",
    "ba%40ttery%2Fx",
    "bob:stapl:e@y",
    "stapl:e@y",
    "stapl%3Ae%40y",
    "12/34567@proxy.example/wo",
    "lonely-user",
    "eve%3Aencoded-one",
    "encoded-one",
    "%63orr%26ct%20h%6Frse/9",
    "%256Conely-user",
)
ORDINARY = "hunter2 is short, a disabled ordinary-tokenizer through proxy:3128 of mirror/simple"


@pytest.mark.parametrize(
    ("told", "known", "wanted"),
    [
        *((f"say {told}!", KNOWN, "say ***!") for told in ENCODED),
        ("opensesame-two", {"HF_TOKEN": "opensesame", "GH_TOKEN": "opensesame-two"}, "***"),  # one within the other
        (ORDINARY, KNOWN, ORDINARY),
        *(("a short text", {"HF_TOKEN": value}, "a short text") for value in ("", " ", "short")),
    ],
)
def test_a_known_value_is_taken_out_in_every_encoding_and_an_ordinary_one_is_not(told, known, wanted):
    assert redact.text(told, known) == wanted
    assert redact.holds_secret(f"\0{told}".encode(), known) == (wanted != told)


LETTERS_OF_PASSWORDS = string.ascii_letters + string.digits + "!$&'()*+,;=-._~:@/?#[]%é"
FORMS = {
    "plain": str,
    "as a library encodes it": quote,
    "twice": lambda secret: quote(quote(secret, safe="")),
    "each letter": lambda secret: "".join(f"%{byte:02x}" for byte in secret.encode()),
}


@pytest.mark.parametrize("form", FORMS)
def test_no_planted_value_is_shown_whatever_it_is_made_of(form):
    random = Random(7)
    for _ in range(200):
        secret = "".join(random.choices(LETTERS_OF_PASSWORDS, k=random.randrange(8, 40)))
        planted = f"begin {FORMS[form](secret)} end"
        assert redact.text(planted, {"HF_TOKEN": secret}) == "begin *** end"
        assert redact.holds_secret(planted.encode(), {"HF_TOKEN": secret})


def test_values_of_secrets_env_are_known_without_the_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(redact, "SECRETS_FILE", tmp_path / "secrets.env")
    monkeypatch.setattr(redact, "_of_file", redact._of_file.__wrapped__)  # which reads it once a process
    (tmp_path / "secrets.env").write_text("# a comment=of-the-file\nHF_TOKEN=open*sesame\n")
    assert redact.text("say open*sesame of-the-file", {}) == "say *** of-the-file"


@pytest.mark.parametrize("piece", ["a-b.", "eyJa-", "key-", "http://a:", "token", "%3A", "a:b@", "--pass "])
def test_a_secret_at_the_end_of_a_long_line_is_found(piece):
    """A rule whose time grew with the square of the length would not end here."""
    assert HUB not in redact.text(f"{piece * 20_000} {HUB}", {})


@pytest.mark.parametrize("before", ["", "a", "ab", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_known_value_is_found_in_base64_wherever_it_begins(encode, before):
    """The twin is the same text around another value."""
    assert redact.holds_secret(encode(f"{before}corr&ct horse/9 and more".encode()), KNOWN)
    assert not redact.holds_secret(encode(f"{before}another horse/9 and more".encode()), KNOWN)


KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7Zq\nqT5\n-----END RSA PRIVATE KEY-----"
PUBLIC = KEY.replace("RSA PRIVATE KEY", "CERTIFICATE")


@pytest.mark.parametrize(("pasted", "holds"), [(KEY, True), (KEY.partition("\n")[0], True), (PUBLIC, False)])
def test_a_private_key_of_many_lines_is_found_and_a_certificate_is_not(pasted, holds):
    content = f"begin\n{pasted}\nend\n"
    assert redact.holds_secret(content.encode(), {}) == redact.holds_secret(content, {}) == holds
    assert redact.text(content, {}) == ("begin\n***\nend\n" if holds else content)


# Secrets in use are taken out by their value, and JSON keeps its form.


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"])
def test_the_value_in_use_is_taken_out_whatever_its_form(name, monkeypatch):
    monkeypatch.setenv(name, " open*sesame\n")
    assert redact.text("say open*sesame!") == "say ***!" and redact.text("say open*sesame!", {}) == "say open*sesame!"


def test_json_keeps_its_form_and_its_numbers_and_its_keys_tell_what_a_value_is():
    kept = {"n": 1e-3, "eos_token": "endoftext1", "password": None, "token": 3}
    given = {HUB: [None, True, [1.5, 2, 3], (f"see {HUB}", {"reason": f"a\n{HUB}"})], "NCCL_PW": "hunter2"}
    wanted = {"***": [None, True, [1.5, 2, 3], ["see ***", {"reason": "a\n***"}]], "NCCL_PW": "***"}
    assert redact.json_value(given | kept | {"auth_token": "abcdefgh"}, {}) == wanted | kept | {"auth_token": "***"}


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        (b"\xff\0\nUCX_PASSWD=a1\n", True),
        (b"UCX_PASSWD=***\n", False),
        (b"\xff://a:b@c \0NCCL_PW=d", False),  # bytes that are no text hold only what chance does not make
        (b"\xff\0" + HUB.encode(), True),
    ],
)
def test_names_in_a_file_are_read_with_their_values_and_bytes_that_are_no_text_are_not(content, holds):
    assert redact.holds_secret(content, {}) == holds


@pytest.mark.parametrize("length", [1000, 1024, 1025, 5000])
@pytest.mark.parametrize("line", ["HF_TOKEN={}), rest", "password: {}, rest"])
def test_a_long_value_behind_a_name_is_taken_out_to_its_end(line, length):
    assert redact.text(line.format((LETTERS * 200)[:length]), {}) == line.format("***")


@pytest.mark.parametrize("part", ["key=", "password=abc://x@", "~", "$", "a:"])
def test_a_line_without_spaces_takes_no_time_that_grows_with_its_square(part):
    times = 100_000 // len(part)
    before = time.process_time()
    redacted = redact.text(part * times, {})
    assert time.process_time() - before < 30, "with the square they took 42 s of a core; now 1 s"
    # only the user of an address is a secret here, and no host follows the last one
    assert redacted == (part * times).replace("x@pass", "***@pass")
