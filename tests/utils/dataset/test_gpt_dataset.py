"""Which data a run reads, in which order, how often, and what is refused; through megatron-core's own GPTDataset."""

import re

import numpy as np
import pytest
from manifests import write_manifest

from utils.dataset.gpt_dataset import (
    build_train_dataset,
    bytes_needed,
    check_epochs,
    data_prefix,
    describe,
    micro_batches,
    tokens_needed,
)
from utils.dataset.indexed import bin_path, idx_path, write_index
from utils.dataset.place import text_paths
from utils.errors import DataError
from utils.settings.config import load

DOCUMENT_LENGTHS = (8, 4, 13, 6, 10, 5, 12, 7, 9, 6)  # 80 tokens
SMALL = [
    "MBS=2",
    "GBS=4",
    "SL=4",
    "TRAIN_ITERS=4",
    "WARMUP_ITERS=0",
    "MODEL_SIZE=tiny",
    "PRECISION=fp32",
    "CPU_RANKS=1",
]


def config_of(tmp_path, *settings):
    return load("cpu", arguments=[*SMALL, f"DATA_DIR={tmp_path}", *settings], environ={})


@pytest.fixture
def documents():
    """Each token occurs once in the whole file, so that it says where it comes from: 1..8, 9..12, 13..25, ..."""
    ends = [sum(DOCUMENT_LENGTHS[: number + 1]) for number in range(len(DOCUMENT_LENGTHS))]
    return [list(range(end - length + 1, end + 1)) for end, length in zip(ends, DOCUMENT_LENGTHS, strict=True)]


@pytest.fixture
def prefix(tmp_path, documents):
    prefix = tmp_path / "text"
    bin_path(prefix).write_bytes(np.concatenate(documents).astype(np.uint16).tobytes())
    write_index(idx_path(prefix), np.dtype(np.uint16), DOCUMENT_LENGTHS, np.arange(len(documents) + 1))
    return prefix


def windows(config, prefix):
    """Return all samples as lists of SL + 1 tokens: the inputs and, last, the label of the last input."""
    dataset = build_train_dataset(config, prefix, describe(prefix))
    samples = [dataset[number] for number in range(len(dataset))]
    assert all(sample["labels"][:-1].equal(sample["tokens"][1:]) for sample in samples), "labels are shifted already"
    return [[*sample["tokens"].tolist(), int(sample["labels"][-1])] for sample in samples]


def chained(samples):
    """Return the samples put one behind the other: the last label of each is the first token of the next."""
    by_first_token = {sample[0]: sample for sample in samples}
    (first,) = by_first_token.keys() - {sample[-1] for sample in samples}
    chain = [by_first_token[first]]
    while chain[-1][-1] in by_first_token:
        chain.append(by_first_token[chain[-1][-1]])
    return chain


def test_micro_batches_have_the_order_of_megatron(tmp_path):
    config = config_of(tmp_path, "CPU_RANKS=2", "TRAIN_ITERS=2")
    assert (config.data_parallel_size, config.gradient_accumulation, config.training_samples) == (2, 1, 8)
    assert list(micro_batches(config, 0)) == [[0, 1], [4, 5]]
    assert list(micro_batches(config, 1)) == [[2, 3], [6, 7]]


@pytest.mark.parametrize(("ranks", "micro_batch"), [(1, 1), (1, 4), (2, 1), (4, 2), (8, 1)])
def test_every_layout_reads_the_same_samples_in_each_step(tmp_path, ranks, micro_batch):
    config = config_of(tmp_path, "GBS=8", f"CPU_RANKS={ranks}", f"MBS={micro_batch}")
    of_ranks = [list(micro_batches(config, rank)) for rank in range(ranks)]
    for step in range(4):
        share = slice(step * config.gradient_accumulation, (step + 1) * config.gradient_accumulation)
        read = sorted(sample for batches in of_ranks for batch in batches[share] for sample in batch)
        assert read == list(range(step * 8, step * 8 + 8))


def test_samples_are_whole_documents_one_behind_the_other_cut_at_the_sequence_length(tmp_path, documents, prefix):
    samples = windows(config_of(tmp_path), prefix)
    assert len(samples) == 19, "of 80 tokens 79 have a label: 19 samples of 4"
    chain = chained(samples)
    assert len(chain) == 19
    stream = [token for sample in chain for token in sample[:-1]] + chain[-1][-1:]
    document_of = {token: number for number, document in enumerate(documents) for token in document}
    order = list(dict.fromkeys(document_of[token] for token in stream))
    by_hand = [token for number in order for token in documents[number]]
    assert stream == by_hand[: 19 * 4 + 1]
    assert order != sorted(order), "documents are shuffled"
    assert chain != samples, "samples are shuffled"


def test_order_follows_from_the_seed_alone(tmp_path, prefix):
    # each build has a cache of its own, so that none reads what another has built
    first, again, other = (
        windows(config_of(tmp_path / name, f"SEED={seed}"), prefix)
        for name, seed in (("first", 42), ("again", 42), ("other", 43))
    )
    assert first == again
    assert first != other


def test_a_cached_order_is_not_taken_for_another_seed(tmp_path, prefix):
    first, other = (windows(config_of(tmp_path, f"SEED={seed}"), prefix) for seed in (42, 43))
    assert first != other


def test_every_token_is_learned_and_end_of_text_is_no_exception(tmp_path, prefix):
    dataset = build_train_dataset(config_of(tmp_path), prefix, describe(prefix) | {"eod_token_id": 12})
    for number in range(len(dataset)):
        assert dataset[number]["loss_mask"].tolist() == [1.0] * 4
        assert dataset[number]["position_ids"].tolist() == [0, 1, 2, 3]


def test_a_training_longer_than_the_data_gets_all_its_samples(tmp_path, prefix):
    config = config_of(tmp_path, "TRAIN_ITERS=10")
    assert len(build_train_dataset(config, prefix, describe(prefix))) >= 40


def test_epochs_count_tokens_with_the_last_label(tmp_path):
    config = config_of(tmp_path)
    assert tokens_needed(config) == 4 * 4 * 4 + 1
    assert check_epochs(config, 65) == (1.0, None)
    assert check_epochs(config, 130) == (0.5, None)


def test_more_than_one_epoch_warns(tmp_path):
    epochs, warning = check_epochs(config_of(tmp_path), 26)
    assert epochs == 2.5
    assert warning == "26 tokens for a training of 65: 2.5 epochs"


def test_more_than_four_epochs_is_an_error_unless_allowed(tmp_path):
    assert check_epochs(config_of(tmp_path, "SL=2", "GBS=2", "TRAIN_ITERS=1"), 2)[0] == 2.5
    with pytest.raises(DataError, match="5.0 epochs is memorising; take more SAMPLES or set ALLOW_REPEAT=true"):
        check_epochs(config_of(tmp_path), 13)
    assert check_epochs(config_of(tmp_path, "ALLOW_REPEAT=true"), 13)[0] == 5.0


DECIDE_THE_BYTES = {
    "DATASET": "DATASET=bc",
    "DATASET_REPO": "DATASET_REPO=some/copy",
    "DATASET_CONFIG": "DATASET_CONFIG=en.noblocklist",
    "DATASET_REVISION": "DATASET_REVISION=v1",
    "TEXT_COLUMN": "TEXT_COLUMN=body",
    "TOKENIZER": "TOKENIZER=some/tokenizer",
    "SAMPLES": "SAMPLES=7",
    "TRAIN_ITERS": "TRAIN_ITERS=5",  # how much of the data one epoch is
    "GBS": "GBS=8",
    "SL": "SL=8",
    "TEXT_UNIT": "TEXT_UNIT=line",
    "ON_BAD_RECORD": "ON_BAD_RECORD=skip",
    "CLEAN": "CLEAN=none",
    "GROUP_ROWS": "GROUP_ROWS=3",
    "MIN_CHARS": "MIN_CHARS=20",
    "MAX_CHARS": "MAX_CHARS=1000",
}


@pytest.mark.parametrize("key", DECIDE_THE_BYTES)
def test_each_setting_that_changes_a_byte_has_a_place_of_its_own(tmp_path, key):
    usual = data_prefix(config_of(tmp_path, "DATASET=c4"), "llama")
    assert data_prefix(config_of(tmp_path, "DATASET=c4", DECIDE_THE_BYTES[key]), "llama") != usual


@pytest.mark.parametrize(
    "setting", ["LR=1e-3", "SEED=1", "MODEL=mistral", "RUNS=9", "MBS=1", "PRECISION=bf16", "ENCODER=hf"]
)
def test_a_setting_that_changes_no_byte_changes_no_place(tmp_path, setting):
    usual = data_prefix(config_of(tmp_path, "DATASET=c4"), "llama")
    assert data_prefix(config_of(tmp_path, "DATASET=c4", setting), "llama") == usual


def test_models_share_data_where_they_share_the_tokenizer(tmp_path):
    def places(*settings):
        config = config_of(tmp_path, *settings)
        return {data_prefix(config, model) for model in ("llama", "qwen", "mistral")}

    assert len(places("DATASET=synth")) == 1
    assert len(places("DATASET=c4")) == 3
    assert len(places("DATASET=c4", "TOKENIZER=some/tokenizer")) == 1


def test_tokenizers_of_one_name_have_places_of_their_own(tmp_path):
    texts = [f"DATASET={name}" for name in ("c4", "synth")]
    for text in texts:
        places = {
            data_prefix(config_of(tmp_path, text, f"TOKENIZER=/{folder}/mine"), "llama") for folder in ("one", "other")
        }
        assert len(places) == 2


def test_a_place_has_a_name_that_people_can_read(tmp_path):
    place = data_prefix(config_of(tmp_path, "DATASET=c4", "SAMPLES=50000"), "qwen").parent.name
    assert re.fullmatch(r"c4_qwen_50000documents_[0-9a-f]{12}", place)
    hub = config_of(tmp_path, "DATASET=hub", "DATASET_REPO=some/text", "TOKENIZER=other/tokenizer")
    assert re.fullmatch(r"some--text_other--tokenizer_65tokens_[0-9a-f]{12}", data_prefix(hub, "llama").parent.name)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["DATASET=hub"], "DATASET=hub: no repository given"),
        (["DATASET=synth", "DATASET_REPO=some/text"], "DATASET=synth: does not come from a repository"),
    ],
)
def test_a_repository_is_named_where_one_is_read_and_only_there(tmp_path, settings, said):
    with pytest.raises(DataError, match=said):
        data_prefix(config_of(tmp_path, *settings), "llama")


def test_disk_needed_is_above_what_the_pair_takes_and_unknown_where_nothing_is_known(tmp_path):
    tokens = 10_000 * 64 * 2048
    config = config_of(tmp_path, "DATASET=c4", "GBS=64", "SL=2048", "TRAIN_ITERS=10000")
    # int32 ids, once as parts and once whole, and text of at least 3 bytes a token
    assert bytes_needed(config, "llama") > (4 + 4 + 3) * tokens
    assert bytes_needed(config_of(tmp_path, "DATASET=c4", "SAMPLES=1000"), "llama") > 1000 * 2271
    named = ("DATASET=hub", "DATASET_REPO=some/text", "SAMPLES=5")
    assert bytes_needed(config_of(tmp_path, *named), "llama") is None


def test_a_pair_needs_no_disk(tmp_path, prefix):
    assert bytes_needed(config_of(tmp_path, f"DATASET={prefix}"), "llama") == 0


def test_a_folder_and_a_glob_are_the_texts_in_them(tmp_path):
    for name in ("b.jsonl", "a.jsonl"):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / name).write_text('{"text": "a"}\n')
    assert [path.name for path in text_paths(str(tmp_path / "texts"))] == ["a.jsonl", "b.jsonl"]
    assert [path.name for path in text_paths(str(tmp_path / "texts" / "b*"))] == ["b.jsonl"]
    before = data_prefix(config_of(tmp_path, f"DATASET={tmp_path / 'texts'}"), "llama")
    (tmp_path / "texts" / "b.jsonl").write_text('{"text": "changed"}\n')
    assert data_prefix(config_of(tmp_path, f"DATASET={tmp_path / 'texts'}"), "llama") != before


def test_one_file_of_a_pair_is_no_name_of_it(prefix):
    with pytest.raises(DataError, match=r"got a file of a pair, wanted its prefix; leave out \.bin"):
        text_paths(f"{prefix}.bin")


@pytest.mark.parametrize("name", ["nothing.jsonl", "nothing"])
def test_data_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(DataError, match=f"DATASET={tmp_path / name}: "):
        data_prefix(config_of(tmp_path, f"DATASET={tmp_path / name}"), "llama")


def test_a_pair_is_taken_where_it_lies_and_what_is_made_goes_to_the_data_folder(tmp_path, prefix):
    assert data_prefix(config_of(tmp_path / "data", f"DATASET={prefix}"), "llama") == prefix
    assert (tmp_path / "data") in data_prefix(config_of(tmp_path / "data", "DATASET=synth"), "llama").parents


def test_other_text_seed_or_size_is_another_data_set(tmp_path):
    text = tmp_path / "some.jsonl"
    text.write_text('{"text": "a"}\n')
    named = f"DATASET={text}"
    prefixes = {data_prefix(config_of(tmp_path, *more), "llama") for more in ([named], [named, "SAMPLES=5"])}
    text.write_text('{"text": "another"}\n')
    prefixes.add(data_prefix(config_of(tmp_path, named), "llama"))
    synth = "DATASET=synth"
    for more in ([], ["SEED=1"], ["TRAIN_ITERS=5"], ["SAMPLES=7"]):
        prefixes.add(data_prefix(config_of(tmp_path, synth, *more), "llama"))
    assert len(prefixes) == 7


@pytest.mark.parametrize("missing", [bin_path, idx_path])
def test_half_a_pair_is_no_data(prefix, missing):
    missing(prefix).unlink()
    with pytest.raises(DataError, match=missing(prefix).name):
        describe(prefix)


LIES = {
    "tokens": 81,
    "documents": 81,
    "sequences": 81,
    "bin_bytes": 81,
    "dtype": "int16",
    "bin_sha256": "0" * 64,
    "idx_sha256": "0" * 64,
    "eod_token_id": 79,
}


@pytest.mark.parametrize("key", LIES)
def test_a_manifest_that_was_written_for_other_files_is_an_error(prefix, key):
    true = describe(prefix)
    assert (true["tokens"], true["documents"]) == (80, 10)
    manifest = write_manifest(prefix)
    assert describe(prefix) == manifest
    write_manifest(prefix, **{key: LIES[key]})
    with pytest.raises(DataError, match=rf"text\.json: {key} is {LIES[key]}, .* {manifest[key]}; .* encode the text"):
        describe(prefix)


def test_a_manifest_of_wrong_types_is_an_error_in_training_too(prefix):
    write_manifest(prefix, vocab_size="81")
    with pytest.raises(DataError, match=r"text\.json: got vocab_size '81', wanted a whole number"):
        describe(prefix)
