"""Folders that are read without transformers give the tokenizer that AutoTokenizer loads, in every form."""

from __future__ import annotations

import functools
import json
import operator
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from standins import changed, scripts, write_gpt2, write_jsonl, write_llama3, write_mistral, write_qwen2
from transformers import AutoTokenizer

from data import encode, verify
from data.engines import plain

TEXTS = [
    *("", " ", "\n", "  two  spaces ", "it's IT'S 12345678 \u0664\u0665", "\u2581a \u2581 <0x41>", "\t\x00"),
    *("<|endoftext|>a <|im_start|><|im_end|> <s></s><unk>", "x<|end_of_text|> <tool_call>y</tool_call>"),
    *("e\u0301 \u00e9 \u212b \u1100\u1161 \u0958", "a" * 300 + " \n" * 30, "Gr\u00fc\u00dfe \u6771\u4eac \U0001f642"),
    *list(scripts())[::64],
]
WRITERS = {"llama3": write_llama3, "qwen2": write_qwen2, "gpt2": write_gpt2, "mistral": write_mistral}
CLASSES = [
    *(("llama3", name) for name in ("PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizerFast")),
    *(("qwen2", name) for name in ("Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast")),
    *(("gpt2", name) for name in ("GPT2Tokenizer", "GPT2TokenizerFast", "TokenizersBackend")),
    *(("mistral", name) for name in ("LlamaTokenizer", "LlamaTokenizerFast")),
]
MODEL_TYPES = {"llama3": "llama", "qwen2": "qwen2", "gpt2": "gpt2", "mistral": "llama"}


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plain")
    return {kind: write(folder / kind) for kind, write in WRITERS.items()}


def of_transformers_4(source: Path, folder: Path, name: str) -> Path:
    """Write the files and keys of `save_pretrained` of transformers 4.57 beside the tokenizer.json."""

    def change(config: dict[str, Any], content: dict[str, Any]) -> None:
        added = {token["content"]: {**token} for token in content["added_tokens"]}
        ids = {text: token.pop("id") for text, token in added.items()}
        config |= {"added_tokens_decoder": {str(ids[text]): token for text, token in added.items()}}
        config |= {"clean_up_tokenization_spaces": False, "extra_special_tokens": {}, "tokenizer_class": name}
        specials = {key: added[config[key]] for key in ("bos_token", "eos_token") if config.get(key)}
        files = {"special_tokens_map": specials, "added_tokens": ids, "vocab": content["model"]["vocab"]}
        for file, inside in files.items():
            folder.joinpath(f"{file}.json").write_text(json.dumps(inside))
        folder.joinpath("merges.txt").write_text("#version: 0.2\n")

    return changed(source, folder, change)


def of_transformers_5(source: Path, folder: Path, name: str) -> Path:
    before = changed(source, folder / "before", lambda config, _: config.update(tokenizer_class=name))
    AutoTokenizer.from_pretrained(before).save_pretrained(folder / "after")
    return folder / "after"


def with_the_config_of_the_model(source: Path, folder: Path, name: str) -> Path:
    folder = of_transformers_4(source, folder, name)
    (folder / "config.json").write_text(json.dumps({"model_type": MODEL_TYPES[source.name], "vocab_size": 1600}))
    return folder


@pytest.mark.parametrize("form", [of_transformers_4, of_transformers_5, with_the_config_of_the_model])
@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_each_class_in_each_form_is_read_as_transformers_would(
    tmp_path, sources, like_transformers, kind: str, name: str, form: Any
) -> None:
    like_transformers(form(sources[kind], tmp_path / "t", name), TEXTS)


def test_a_folder_of_transformers_5_is_read_without_torch_and_transformers(tmp_path: Path, sources) -> None:
    folder = of_transformers_5(sources["llama3"], tmp_path, "PreTrainedTokenizerFast")
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "TokenizersBackend"
    source = write_jsonl(tmp_path / "in.jsonl", ["some words"])
    code = (
        "import sys; from data import encode; encode.main(sys.argv[1:]); "
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    given = ("--input", source, "--tokenizer", folder, "--output-prefix", tmp_path / "out")
    done = subprocess.run([sys.executable, "-c", code, *given], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")


WITHOUT_INFLUENCE: dict[str, Any] = {
    "an end of text that the file does not add": lambda c, t: c.update(add_eos_token=True),
    "a beginning of text that the file adds": lambda c, t: c.update(add_bos_token=False),
    "a flag of a token that is known": lambda c, t: c.update(
        eos_token={"__type": "AddedToken", "content": c["eos_token"], "lstrip": True, "rstrip": False,
                   "normalized": False, "single_word": False, "special": True}
    ),
    "a list of known tokens": lambda c, t: c.update(extra_special_tokens=[c["eos_token"]]),
    "old settings of SentencePiece": lambda c, t: c.update(sp_model_kwargs={}, use_default_system_prompt=True),
}  # fmt: skip
KEPT = [(kind, change) for kind in WRITERS for change in WITHOUT_INFLUENCE.values()]


@pytest.mark.parametrize(("kind", "change"), KEPT)
def test_a_setting_counts_as_transformers_counts_it(tmp_path, sources, like_transformers, kind, change) -> None:
    like_transformers(changed(sources[kind], tmp_path / "changed", change), TEXTS)


CHANGES: dict[str, Any] = {
    "another class": lambda c, t: c.update(tokenizer_class="GemmaTokenizer"),
    "a class of another split": lambda c, t: c.update(tokenizer_class="GPT2Tokenizer"),
    "no class": lambda c, t: c.pop("tokenizer_class"),
    "an unknown setting": lambda c, t: c.update(unknown=True),
    "code of its own": lambda c, t: c.update(auto_map={"AutoTokenizer": ["a.B", None]}),
    "another file": lambda c, t: c.update(fast_tokenizer_files=["tokenizer.9.0.0.json"]),
    "specials are split": lambda c, t: c.update(split_special_tokens=True),
    "a space before": lambda c, t: c.update(add_prefix_space=True),
    "a token that is new": lambda c, t: c.update(pad_token="<|pad|>"),
    "a token of the model": lambda c, t: c.update(image_token="<|image|>"),
    "named tokens": lambda c, t: c.update(extra_special_tokens={"image_token": "<|image|>"}),
    "a new token in a list": lambda c, t: c.update(extra_special_tokens=["<|image|>"]),
    "a token that changes": lambda c, t: c.update(added_tokens_decoder={"0": {"content": "<|x|>"}}),
    "a flag that changes": lambda c, t: c.update(
        added_tokens_decoder={"1501": {**t["added_tokens"][1], "lstrip": True}}
    ),
    "an end that is not special": lambda c, t: t["added_tokens"][1].update(special=False),
    "ids that are given anew": lambda c, t: t["added_tokens"][1].update(id=1600),
    "a vocabulary with gaps": lambda c, t: t["model"]["vocab"].update(far=5000),
    "another split": lambda c, t: t["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\s+"),
    "another normalizer": lambda c, t: t.update(normalizer={"type": "NFKC"}),
    "dropout": lambda c, t: t["model"].update(dropout=0.1),
    "truncation": lambda c, t: t.update(
        truncation={"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    ),
}
FILES = ["vocab.txt", "tekken.json", "added_tokens.json", "config.json"]


@pytest.mark.parametrize("change", ["nothing", *CHANGES, *FILES])
def test_a_folder_that_is_not_certain_is_left_to_transformers(tmp_path: Path, sources, change: str) -> None:
    folder = changed(sources["llama3"], tmp_path / "changed", CHANGES.get(change, lambda c, t: None))
    if change in FILES:
        (folder / change).write_text('{"model_type": "mistral"}')
    assert (plain.read_plain(folder) is not None) == (change == "nothing")


@pytest.mark.parametrize(("kind", "text"), [("qwen2", "<|endoftext|>"), ("gpt2", "<|endoftext|>")])
def test_a_default_token_of_a_class_that_the_file_lacks_is_added_by_transformers(tmp_path, sources, kind, text) -> None:
    def change(config: dict[str, Any], content: dict[str, Any]) -> None:
        content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != text]
        for key in [key for key, value in config.items() if value == text or key == "added_tokens_decoder"]:
            del config[key]
        config["eos_token"] = content["added_tokens"][-1]["content"] if content["added_tokens"] else text

    assert plain.read_plain(changed(sources[kind], tmp_path / "changed", change)) is None


@pytest.mark.parametrize("form", [lambda source, folder, _: shutil.copytree(source, folder), of_transformers_4])
def test_the_special_tokens_map_counts_only_beside_a_file_without_added_tokens(
    tmp_path, sources, like_transformers, form: Any
) -> None:
    folder = form(sources["llama3"], tmp_path / "t", "PreTrainedTokenizerFast")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|reserved_special_token_0|>"}))
    like_transformers(folder, TEXTS)


def test_a_version_of_transformers_that_was_not_compared_reads_its_folders_itself(sources, monkeypatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "5.99.0")
    assert plain.read_plain(sources["llama3"]) is None


# A tokenizer that gives other ids each time, or whose files are damaged, is refused by every command, in one line.

TWO_TEXTS = ["a text", ""]


@pytest.fixture
def folder(plain_tokenizer: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain_tokenizer, tmp_path / "tokenizer"))


NEW = {"content": "<|new|>"}
DEEP, LONG = "[" * 100_000, '{"a": "' + "x" * 10**6
UNSOUND: list[tuple[str, Any, str]] = [
    # the place of a value in tokenizer.json, or the file itself; the value, or the content; what is said
    ("model dropout", 0.1, r"model\.dropout is 0\.1, .* set it to null"),
    ("model vocab er", 5, "the entries '.*' and 'er' have the same id 5; .* use a repaired tokenizer"),
    ("added_tokens +", NEW | {"id": 7}, r"the entries .* and '<\|new\|>' have the same id 7"),
    ("added_tokens +", NEW | {"id": 0}, r"the entries '<\|endoftext\|>' and '<\|new\|>' have"),
    ("tokenizer.json", "[]", r"tokenizer\.json: got content \[\], wanted a JSON object"),
    ("tokenizer.json", DEEP, r"tokenizer\.json: is not JSON"),
    ("tokenizer.json", LONG, r"tokenizer\.json: is not JSON"),
    ("tokenizer_config.json", "[1]", r"tokenizer_config\.json: got content \[1\], wanted"),
    ("tokenizer_config.json", DEEP, r"tokenizer_config\.json: is not JSON"),
    ("special_tokens_map.json", "3", r"special_tokens_map\.json: got content 3, wanted"),
    ("tokenizer_config.json", '{"eos_token": 5}', "tokenizer"),
    ("tokenizer_config.json", "{}", "no eos_token"),
    ("tokenizer_config.json", json.dumps({"eos_token": ["a"] * 10**5}), "tokenizer"),
    ("tokenizer_config.json", '{"eos_token": "<|endoftext|>", "added_tokens_decoder": [1]}', "tokenizer"),
    ("model", [], r"got model \[\], wanted an object with a vocab"),
    ("model vocab", None, "wanted an object with a vocab"),
    ("model vocab", [["x"]], r"got model {.*}, wanted an object with a"),
    ("model vocab er", "5", r"got model\.vocab '5', wanted a whole"),
    ("model vocab er", True, r"got model\.vocab True, wanted a whole"),
    ("model vocab er", -1, r"got model\.vocab -1, wanted a whole"),
    ("model merges", {"a": 1}, r"got model\.merges {'a': 1}, wanted a list"),
    ("model merges 0", ["a"], r"got model\.merges"),
    ("model merges 0", ["a", []], r"got model\.merges"),
    ("model dropout", "1", r"got model\.dropout '1', wanted null"),
    ("model ignore_merges", 1, "cannot load it"),
    ("added_tokens", {}, r"got added_tokens {}, wanted a list"),
    ("added_tokens +", NEW | {"id": "600"}, r"got added_tokens {.*}, wanted a list of objects"),
    ("added_tokens +", NEW | {"id": 600, "special": "yes"}, "got added_tokens"),
    ("version", [], r"got version \[\], wanted 1\.0"),
    ("truncation", {}, r"got truncation {}, wanted an object or null"),
    ("decoder", 5, "got decoder 5, wanted an object or null"),
    ("post_processor", [1], r"got post_processor \[1\], wanted"),
    ("post_processor", {"type": "TemplateProcessing", "single": [1]}, "got post_processor"),
]


def damage(folder: Path, place: str, value: Any) -> None:
    if place.endswith(".json"):
        (folder / place).write_text(value)
        return
    content = json.loads((folder / "tokenizer.json").read_text())
    *path, last = (int(key) if key.isdigit() else key for key in place.split())
    node = functools.reduce(operator.getitem, path, content)
    if last == "+":
        node.append({**node[0], **value})
    else:
        node[last] = value
    (folder / "tokenizer.json").write_text(json.dumps(content))


WAYS = [(encode.main, ("--engine", "hf")), (encode.main, ("--workers", "2")), (verify.main, ())]


@pytest.mark.parametrize(("place", "value", "message"), UNSOUND, ids=[message[:50] for *_, message in UNSOUND])
@pytest.mark.parametrize(("main", "more"), WAYS, ids=["hf", "workers", "verify"])
def test_an_unsound_tokenizer_is_refused(
    folder, tmp_path, commands, encoded, place, value, message, main, more
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", TWO_TEXTS)
    given = ("--input", source, "--tokenizer", folder, "--output-prefix", tmp_path / "out", *more)
    if main is verify.main:
        encoded(source, folder, tmp_path / "out")
        (tmp_path / "out.json").unlink()
        given = (tmp_path / "out", "--tokenizer", folder)
    before = sorted(tmp_path.iterdir())
    damage(folder, place, value)
    error = commands.error(main, *given, wanted=2)
    assert re.search(message, error) and len(error) < 900
    assert sorted(tmp_path.iterdir()) == before


UNIGRAM = {
    "version": "1.0",
    "added_tokens": [
        {
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            **{"id": 2, "content": "<|endoftext|>", "special": True},
        }
    ],
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["<|endoftext|>", 0.0]]},
}
"""An entry of a list has its place as its id."""


@pytest.mark.parametrize(
    ("place", "value"),
    [("model dropout", 0.0), ("added_tokens +", {}), ("tokenizer.json", json.dumps(UNIGRAM))],
    ids=["dropout of zero", "a token listed twice with one id", "Unigram"],
)
def test_what_only_looks_unsound_is_encoded_as_transformers_does(folder, like_transformers, place, value) -> None:
    damage(folder, place, value)
    like_transformers(folder, ["a a", "", "aa"])
