"""Folders that are read without transformers give the tokenizer that AutoTokenizer loads, in every form."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from standins import changed, scripts, write_gpt2, write_llama3, write_mistral, write_qwen2
from transformers import AutoTokenizer

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
    (tmp_path / "in.jsonl").write_text('{"text": "some words"}\n')
    code = (
        "import sys; from data import encode; encode.main(sys.argv[1:]); "
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    given = ("--input", tmp_path / "in.jsonl", "--tokenizer", folder, "--output-prefix", tmp_path / "out")
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
        for key in [key for key, value in config.items() if value == text]:
            del config[key]
        config.pop("added_tokens_decoder", None)
        config["eos_token"] = content["added_tokens"][-1]["content"] if content["added_tokens"] else text

    assert plain.read_plain(changed(sources[kind], tmp_path / "changed", change)) is None


@pytest.mark.parametrize("form", [None, of_transformers_4])
def test_the_special_tokens_map_counts_only_beside_a_file_without_added_tokens(
    tmp_path, sources, like_transformers, form: Any
) -> None:
    folder = tmp_path / "t"
    if form is None:
        shutil.copytree(sources["llama3"], folder)
    else:
        form(sources["llama3"], folder, "PreTrainedTokenizerFast")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|reserved_special_token_0|>"}))
    like_transformers(folder, TEXTS)


def test_a_version_of_transformers_that_was_not_compared_reads_its_folders_itself(sources, monkeypatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "5.99.0")
    assert plain.read_plain(sources["llama3"]) is None
