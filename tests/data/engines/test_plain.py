"""Folders that are read without transformers give the tokenizer that AutoTokenizer loads, in every form."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from standins import scripts, write_gpt2, write_llama3, write_mistral, write_qwen2
from transformers import AutoTokenizer

from data.engines import plain
from data.engines.backend import Encoder, _read_plain, _through_transformers
from data.engines.engines import EngineSpec
from data.engines.guard import guard_of

TEXTS = [
    *(
        "",
        " ",
        "\n",
        "  two  spaces ",
        "it's IT'S 12345678 \u0664\u0665",
        "<|endoftext|>a <|im_start|><|im_end|> <s></s><unk>",
    ),
    *(
        "x<|end_of_text|> <tool_call>y</tool_call>",
        "e\u0301 \u00e9 \u212b \u1100\u1161 \u0958",
        "\u2581a \u2581 <0x41>",
        "\t\x00",
    ),
    *("a" * 300 + " \n" * 30, "Gr\u00fc\u00dfe \u6771\u4eac \U0001f642", *list(scripts())[::16]),
]
WRITERS = {"llama3": write_llama3, "qwen2": write_qwen2, "gpt2": write_gpt2, "mistral": write_mistral}
CLASSES = [
    *(("llama3", name) for name in ("PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizerFast")),
    *(("qwen2", name) for name in ("Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast")),
    *(("gpt2", name) for name in ("GPT2Tokenizer", "GPT2TokenizerFast", "TokenizersBackend")),
    *(("mistral", name) for name in ("LlamaTokenizer", "LlamaTokenizerFast")),
]
OTHER_THAN_THE_MODELS = {("qwen2", "PreTrainedTokenizerFast"), ("gpt2", "TokenizersBackend")}
"""Classes that are not those of the model in config.json: transformers may prefer that of the model."""
MODEL_TYPES = {"llama3": "llama", "qwen2": "qwen2", "gpt2": "gpt2", "mistral": "llama"}


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plain")
    return {kind: write(folder / kind) for kind, write in WRITERS.items()}


def written(source: Path, folder: Path, change: Any) -> Path:
    shutil.copytree(source, folder)
    config = json.loads((source / "tokenizer_config.json").read_text())
    content = json.loads((source / "tokenizer.json").read_text())
    change(config, content)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def as_transformers_4_wrote_it(source: Path, folder: Path, name: str) -> Path:
    """Write the files and keys of `save_pretrained` of transformers 4.57 beside the tokenizer.json."""

    def change(config: dict[str, Any], content: dict[str, Any]) -> None:
        added = {token["content"]: {**token} for token in content["added_tokens"]}
        ids = {text: token.pop("id") for text, token in added.items()}
        config |= {"added_tokens_decoder": {str(ids[text]): token for text, token in added.items()}}
        config |= {"clean_up_tokenization_spaces": False, "extra_special_tokens": {}, "tokenizer_class": name}
        folder.joinpath("special_tokens_map.json").write_text(
            json.dumps({key: added[config[key]] for key in ("bos_token", "eos_token") if config.get(key)})
        )
        folder.joinpath("added_tokens.json").write_text(json.dumps(ids))
        folder.joinpath("vocab.json").write_text(json.dumps(content["model"]["vocab"]))
        folder.joinpath("merges.txt").write_text("#version: 0.2\n")

    return written(source, folder, change)


def as_transformers_5_writes_it(source: Path, folder: Path, name: str) -> Path:
    def change(config: dict[str, Any], content: dict[str, Any]) -> None:
        config["tokenizer_class"] = name

    AutoTokenizer.from_pretrained(written(source, folder / "before", change)).save_pretrained(folder / "after")
    return folder / "after"


def with_the_config_of_the_model(source: Path, folder: Path, name: str) -> Path:
    folder = as_transformers_4_wrote_it(source, folder, name)
    (folder / "config.json").write_text(json.dumps({"model_type": MODEL_TYPES[source.name], "vocab_size": 1600}))
    return folder


def assert_same(folder: Path) -> None:
    """Check that the folder read without transformers is what AutoTokenizer loads."""
    found, real, tokenizer = _read_plain(folder), _through_transformers(Encoder(folder)), Encoder(folder).tokenizer
    assert found is not None and found.content is not None
    for field in ("vocabulary_size", "eod", "class_name", "dtype"):
        assert getattr(found, field) == getattr(real, field), field
    added = {token["content"]: token["id"] for token in found.parsed["added_tokens"]}
    assert added == {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
    assert guard_of(found) == guard_of(real)
    (folder / "content.json").write_bytes(found.content)
    rows = EngineSpec("hf", folder / "content.json").build().guarded_rows([text.encode("utf8") for text in TEXTS])
    wrong = [ascii(text[:60]) for text, a, b in zip(TEXTS, rows, tokenizer(TEXTS).input_ids, strict=True) if [*a] != b]
    assert wrong == []


@pytest.mark.parametrize(
    "form", [as_transformers_4_wrote_it, as_transformers_5_writes_it, with_the_config_of_the_model]
)
@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_each_class_in_each_form_is_read_as_transformers_would(
    tmp_path: Path, sources: dict[str, Path], kind: str, name: str, form: Any
) -> None:
    folder = form(sources[kind], tmp_path / "t", name)
    if (folder / "config.json").exists() and (kind, name) in OTHER_THAN_THE_MODELS:
        assert _read_plain(folder) is None
    else:
        assert_same(folder)


def test_a_folder_of_transformers_5_is_read_without_torch_and_transformers(
    tmp_path: Path, sources: dict[str, Path]
) -> None:
    folder = as_transformers_5_writes_it(sources["llama3"], tmp_path, "PreTrainedTokenizerFast")
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "TokenizersBackend"
    code = (
        "import sys; from pathlib import Path; from data.engines.backend import load_backend; "
        "load_backend(Path(sys.argv[1])); print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


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


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("change", WITHOUT_INFLUENCE)
def test_a_setting_without_influence_changes_nothing(
    tmp_path: Path, sources: dict[str, Path], kind: str, change: str
) -> None:
    assert_same(written(sources[kind], tmp_path / "changed", WITHOUT_INFLUENCE[change]))


@pytest.mark.parametrize(
    "change", [{"legacy": False}, {"legacy": None}, {"add_prefix_space": True}, {"add_prefix_space": False}]
)
def test_settings_of_spaces_of_sentencepiece_are_heeded(
    tmp_path: Path, sources: dict[str, Path], change: dict[str, Any]
) -> None:
    assert_same(written(sources["mistral"], tmp_path / "changed", lambda c, t: c.update(change)))


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


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_that_is_not_certain_is_read_by_transformers(
    tmp_path: Path, sources: dict[str, Path], change: str
) -> None:
    folder = written(sources["llama3"], tmp_path / "changed", CHANGES[change])
    assert _read_plain(folder) is None


@pytest.mark.parametrize(
    ("kind", "text"), [("qwen2", "<|endoftext|>"), ("gpt2", "<|endoftext|>"), ("mistral", "<unk>")]
)
def test_a_default_token_of_a_class_that_the_file_lacks_is_added_by_transformers(
    tmp_path: Path, sources: dict[str, Path], kind: str, text: str
) -> None:
    def change(config: dict[str, Any], content: dict[str, Any]) -> None:
        content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != text]
        for key in [key for key, value in config.items() if value == text]:
            del config[key]
        config.pop("added_tokens_decoder", None)
        config["eos_token"] = content["added_tokens"][-1]["content"] if content["added_tokens"] else text

    assert _read_plain(written(sources[kind], tmp_path / "changed", change)) is None


def test_the_special_tokens_map_counts_only_beside_a_file_without_added_tokens(
    tmp_path: Path, sources: dict[str, Path]
) -> None:
    other = json.dumps({"eos_token": "<|reserved_special_token_0|>"})
    new = written(sources["llama3"], tmp_path / "new", lambda c, t: None)
    old = as_transformers_4_wrote_it(sources["llama3"], tmp_path / "old", "PreTrainedTokenizerFast")
    for folder in (new, old):
        (folder / "special_tokens_map.json").write_text(other)
        assert_same(folder)


def test_a_version_of_transformers_that_was_not_compared_reads_its_folders_itself(
    sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain.metadata, "version", lambda name: "5.99.0")
    assert _read_plain(sources["llama3"]) is None


@pytest.mark.parametrize("name", ["vocab.txt", "tekken.json", "added_tokens.json", "config.json"])
def test_files_that_could_change_the_ids_are_left_to_transformers(
    tmp_path: Path, sources: dict[str, Path], name: str
) -> None:
    folder = written(sources["llama3"], tmp_path / "t", lambda c, t: None)
    (folder / name).write_text('{"model_type": "mistral"}')
    assert _read_plain(folder) is None
