"""Preparation before training: make missing data, keep existing data, refuse data that do not fit."""

import hashlib
import json

import pytest
from standins import write_llama3, write_qwen2
from toydata import write_toy_data

from data.prepare import prepare
from utils.dataset.gpt_dataset import build_train_dataset, describe, tokens_needed
from utils.dataset.indexed import bin_path, load_manifest, manifest_path
from utils.errors import DataError
from utils.provenance.digests import sha256_file
from utils.settings.config import load


def config_for(tmp_path, *settings):
    folders = (f"DATA_DIR={tmp_path / 'data'}", f"OUTPUT_DIR={tmp_path / 'output'}")
    short = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=6", "WARMUP_ITERS=2")
    return load("cpu", arguments=[*folders, *short, *settings], environ={})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("prepared")
    prefix, manifest = prepare(config_for(tmp_path), "llama")
    return tmp_path, prefix, manifest


def test_synthetic_text_is_enough_for_one_epoch(prepared):
    tmp_path, _, manifest = prepared
    # 6 steps x 8 sequences x 128 tokens, and one more for the last label
    assert tokens_needed(config_for(tmp_path)) == 6 * 8 * 128 + 1
    assert manifest["tokens"] >= 6 * 8 * 128 + 1
    assert manifest["vocab_size"] == 4096


def test_prepared_data_is_kept_as_it_is(prepared):
    tmp_path, prefix, _ = prepared
    before = bin_path(prefix).stat().st_mtime_ns
    again, _ = prepare(config_for(tmp_path), "llama")
    assert again == prefix and bin_path(prefix).stat().st_mtime_ns == before


def test_another_seed_is_another_text(prepared):
    tmp_path, prefix, manifest = prepared
    other, other_manifest = prepare(config_for(tmp_path, "SEED=7"), "llama")
    assert other != prefix and other_manifest["bin_sha256"] != manifest["bin_sha256"]


def test_own_text_is_encoded_with_the_named_tokenizer(prepared, tmp_path):
    _, prefix, _ = prepared
    text = tmp_path / "mine.jsonl"
    text.write_text("".join(json.dumps({"text": f"the {number} lines of mine " * 40}) + "\n" for number in range(60)))
    settings = (f"DATASET={text}", f"TOKENIZER={prefix.parent / 'tokenizer'}", "ALLOW_REPEAT=true")
    mine, manifest = prepare(config_for(tmp_path, *settings), "llama")
    assert manifest["documents"] == 60
    assert manifest["source"]["files"][0]["name"] == "mine.jsonl"
    with pytest.raises(DataError, match="TOKENIZER=auto: 128,256 token ids of llama do not fit the 4,096"):
        prepare(config_for(tmp_path, f"DATASET={text}"), "llama")
    assert load_manifest(mine) == manifest


def test_samples_takes_the_first_documents_and_no_fewer(prepared, tmp_path):
    _, prefix, _ = prepared
    text = tmp_path / "mine.jsonl"
    text.write_text("".join(json.dumps({"text": f"line {number} of mine " * 40}) + "\n" for number in range(60)))
    settings = (f"DATASET={text}", f"TOKENIZER={prefix.parent / 'tokenizer'}", "ALLOW_REPEAT=true")
    _, manifest = prepare(config_for(tmp_path, *settings, "SAMPLES=20"), "llama")
    assert manifest["documents"] == 20
    with pytest.raises(DataError, match="has only 60 documents"):
        prepare(config_for(tmp_path, *settings, "SAMPLES=61"), "llama")


@pytest.mark.parametrize("folder", ["theirs", "data"])
def test_pair_without_a_manifest_is_taken_and_not_written_to(tmp_path, folder):
    prefix = write_toy_data(tmp_path / folder / "text", documents=60)
    prefix.with_suffix(".jsonl").write_text("their own text")
    before = sorted(prefix.parent.iterdir())
    taken, manifest = prepare(config_for(tmp_path, f"DATASET={prefix}"), "llama")
    assert taken == prefix and manifest["documents"] == 60
    assert sorted(prefix.parent.iterdir()) == before


def test_ids_beyond_the_model_vocabulary_are_refused(prepared, tmp_path):
    prefix = write_toy_data(tmp_path / "theirs" / "text", documents=60)
    content = bytearray(bin_path(prefix).read_bytes())
    content[:2] = (5000).to_bytes(2, "little")
    bin_path(prefix).write_bytes(bytes(content))
    with pytest.raises(DataError, match="5,001 token ids do not fit the 4,096"):
        prepare(config_for(tmp_path, f"DATASET={prefix}"), "llama")


def test_data_changed_after_it_was_encoded_is_refused(tmp_path):
    prefix, _ = prepare(config_for(tmp_path), "llama")
    content = bytearray(bin_path(prefix).read_bytes())
    content[0] ^= 1
    bin_path(prefix).write_bytes(bytes(content))
    with pytest.raises(DataError, match="bin_sha256"):
        prepare(config_for(tmp_path), "llama")
    assert manifest_path(prefix).exists()


def test_new_data_is_hashed_while_it_is_written_and_read_whole_only_to_verify_it(tmp_path, monkeypatch):
    """`check_tokens` reads and hashes `.bin` in one pass, so no other step of the preparation may hash the file."""
    hashed = []
    for module in ("data.verify", "data.checking.checks", "data.encoding.pair", "utils.dataset.gpt_dataset"):
        monkeypatch.setattr(f"{module}.sha256_file", lambda path: hashed.append(path) or sha256_file(path))
    prefix, manifest = prepare(config_for(tmp_path), "llama")
    assert bin_path(prefix) not in hashed and hashed
    assert manifest["bin_sha256"] == hashlib.sha256(bin_path(prefix).read_bytes()).hexdigest()


@pytest.mark.parametrize("write", [write_qwen2, write_llama3])
def test_chats_with_special_tokens_are_prepared_and_accepted_by_training(tmp_path, write):
    tokenizer = write(tmp_path / "tokenizer")
    added = [token["content"] for token in json.loads((tokenizer / "tokenizer.json").read_text())["added_tokens"]]
    text = tmp_path / "chats.jsonl"
    chats = (f"{added[1]}user\nquestion {number}{added[2]}\n{added[1]}an answer{added[2]}\n" for number in range(200))
    text.write_text("".join(json.dumps({"text": chat}) + "\n" for chat in chats))
    config = config_for(tmp_path, f"DATASET={text}", f"TOKENIZER={tokenizer}", "ALLOW_REPEAT=true")
    prefix, manifest = prepare(config, "llama")
    assert manifest["documents"] == 200
    # as a ready pair, of which nothing but the tokenizer is known
    ready = config_for(tmp_path, f"DATASET={prefix}", f"TOKENIZER={tokenizer}", "ALLOW_REPEAT=true")
    assert prepare(ready, "llama", is_for_training=False)[1] == describe(prefix) == manifest
    sample = build_train_dataset(ready, prefix, manifest)[0]
    special = {token["id"] for token in json.loads((tokenizer / "tokenizer.json").read_text())["added_tokens"]}
    assert special & set(sample["tokens"].tolist())
