"""Which data a run reads, in which order, how often, and what is refused; through megatron-core's own GPTDataset."""

import hashlib
import itertools
import json
import os

import pytest
from checkout import settings_of
from toydata import write_manifest, write_pair, write_toy_data

from data import prepare
from train.common.loading import micro_batches
from train.preflight.matrix_checks import bytes_needed
from train.runner import plan
from utils.dataset import gpt_dataset, indexed, manifest
from utils.dataset.place import data_prefix
from utils.errors import DataError

build_train_dataset = gpt_dataset.build_train_dataset
describe = gpt_dataset.describe
DOCUMENT_LENGTHS = (8, 4, 13, 6, 10, 5, 12, 7, 9, 6)  # 80 tokens
SMALL = ("MBS=2 GBS=4 SL=4 TRAIN_ITERS=4 WARMUP_ITERS=0", "MODEL_SIZE=tiny PRECISION=fp32 CPU_RANKS=1")


def config_of(tmp_path, *settings):
    return settings_of(*SMALL, f"DATA_DIR={tmp_path}", *settings)


ENDS = list(itertools.accumulate(DOCUMENT_LENGTHS))
DOCUMENTS = [list(range(end - length + 1, end + 1)) for end, length in zip(ENDS, DOCUMENT_LENGTHS, strict=True)]
"""Each token occurs once in the whole file, so that it says where it comes from: 1..8, 9..12, 13..25, ..."""


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "text", DOCUMENTS)


def windows(config, prefix):
    """Return all samples as lists of SL + 1 tokens: the inputs and, last, the label of the last input."""
    dataset = build_train_dataset(config, prefix, describe(prefix))
    samples = [dataset[number] for number in range(len(dataset))]
    assert all(sample["labels"][:-1].equal(sample["tokens"][1:]) for sample in samples), "labels are shifted already"
    return [[*sample["tokens"].tolist(), int(sample["labels"][-1])] for sample in samples]


@pytest.mark.parametrize(("ranks", "micro_batch"), [(1, 1), (1, 4), (2, 1), (2, 2), (4, 2), (8, 1)])
def test_every_layout_reads_the_same_samples_in_each_step(tmp_path, ranks, micro_batch):
    config = config_of(tmp_path, "GBS=8", f"CPU_RANKS={ranks}", f"MBS={micro_batch}")
    of_ranks = [list(micro_batches(config, rank)) for rank in range(ranks)]
    for step in range(4):
        share = slice(step * config.gradient_accumulation, (step + 1) * config.gradient_accumulation)
        read = sorted(sample for batches in of_ranks for batch in batches[share] for sample in batch)
        assert read == list(range(step * 8, step * 8 + 8))
    if (ranks, micro_batch) == (2, 2):  # the order of megatron
        assert [batches[:2] for batches in of_ranks] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_samples_are_whole_documents_one_behind_the_other_cut_at_the_sequence_length(tmp_path, prefix):
    samples = windows(config_of(tmp_path), prefix)
    by_first_token = {sample[0]: sample for sample in samples}
    (first,) = by_first_token.keys() - {sample[-1] for sample in samples}
    chain = [by_first_token[first]]  # the last label of each is the first token of the next
    while chain[-1][-1] in by_first_token:
        chain.append(by_first_token[chain[-1][-1]])
    assert len(samples) == len(chain) == 19, "of 80 tokens 79 have a label: 19 samples of 4"
    stream = [token for sample in chain for token in sample[:-1]] + chain[-1][-1:]
    document_of = {token: number for number, document in enumerate(DOCUMENTS) for token in document}
    order = list(dict.fromkeys(document_of[token] for token in stream))
    by_hand = [token for number in order for token in DOCUMENTS[number]]
    assert stream == by_hand[: 19 * 4 + 1]
    assert order != sorted(order) and chain != samples, "documents and samples are shuffled"


@pytest.mark.parametrize("caches", [("one", "two", "three"), ("one", "one", "one")])
def test_order_follows_from_the_seed_alone_also_where_one_is_cached(tmp_path, prefix, caches):
    first, again, other = (
        windows(config_of(tmp_path / cache, f"SEED={seed}"), prefix)
        for cache, seed in zip(caches, (42, 42, 43), strict=True)
    )
    assert first == again
    assert first != other


def test_every_token_is_learned_and_end_of_text_is_no_exception(tmp_path, prefix):
    dataset = build_train_dataset(config_of(tmp_path), prefix, describe(prefix) | {"eod_token_id": 12})
    for number in range(len(dataset)):
        assert dataset[number]["loss_mask"].tolist() == [1.0] * 4
        assert dataset[number]["position_ids"].tolist() == [0, 1, 2, 3]


def test_a_training_longer_than_the_data_gets_all_its_samples(tmp_path, prefix):
    config = config_of(tmp_path, "TRAIN_ITERS=10")
    assert len(build_train_dataset(config, prefix, describe(prefix))) >= 40


# 4 steps of 4 sequences of 4 tokens and the last label are 65 tokens
@pytest.mark.parametrize(
    ("settings", "tokens", "epochs", "warning"),
    [
        ([], 65, 1.0, None),
        ([], 130, 0.5, None),
        ([], 26, 2.5, "26 tokens for a training of 65: 2.5 epochs"),
        (["SL=2", "GBS=2", "TRAIN_ITERS=1"], 2, 2.5, "2 tokens for a training of 5: 2.5 epochs"),
        (["ALLOW_REPEAT=true"], 13, 5.0, "13 tokens for a training of 65: 5.0 epochs"),
    ],
)
def test_more_than_one_epoch_warns_and_more_than_four_is_an_error_unless_allowed(
    tmp_path, settings, tokens, epochs, warning
):
    assert gpt_dataset.check_epochs(config_of(tmp_path, *settings), tokens) == (epochs, warning)
    with pytest.raises(DataError, match="5.0 epochs is memorising; take more SAMPLES or set ALLOW_REPEAT=true"):
        gpt_dataset.check_epochs(config_of(tmp_path), 13)


# settings that change a byte of the data, which then have a place of their own, and settings that do not; of GBS, SL
# and TRAIN_ITERS follows how much of the data one epoch is
DECIDE_THE_BYTES = """
    DATASET=bc DATASET_REPO=some/copy DATASET_CONFIG=en.noblocklist DATASET_REVISION=v1 TEXT_COLUMN=body SAMPLES=7
    TOKENIZER=some/tokenizer TRAIN_ITERS=5 GBS=8 SL=8 TEXT_UNIT=line ON_BAD_RECORD=skip CLEAN=none GROUP_ROWS=3
    MIN_CHARS=20 MAX_CHARS=1000"""
OTHERS = "LR=1e-3 SEED=1 MODEL=mistral RUNS=9 MBS=1 PRECISION=bf16"


@pytest.mark.parametrize("setting", f"{DECIDE_THE_BYTES} {OTHERS}".split())
def test_exactly_a_setting_that_changes_a_byte_has_a_place_of_its_own(tmp_path, setting):
    usual = data_prefix(config_of(tmp_path, "DATASET=c4"), "llama")
    other = data_prefix(config_of(tmp_path, "DATASET=c4", setting), "llama")
    assert (other == usual) == (setting in OTHERS)


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ([["DATASET=synth"]], 1),
        ([["DATASET=c4"]], 3),
        ([["DATASET=c4", "TOKENIZER=some/tokenizer"]], 1),
        # tokenizers of one name
        *(
            ([[f"DATASET={text}", f"TOKENIZER=/{folder}/mine"] for folder in ("one", "other")], 2)
            for text in ("c4", "synth")
        ),
        # other text, seed or size
        ([["DATASET=synth", *more] for more in ([], ["SEED=1"], ["TRAIN_ITERS=5"], ["SAMPLES=7"])], 4),
    ],
)
def test_models_share_data_where_they_share_text_and_tokenizer(tmp_path, settings, places):
    configs = [config_of(tmp_path, *some) for some in settings]
    assert len({data_prefix(config, model) for config in configs for model in ("llama", "qwen", "mistral")}) == places


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["DATASET=hub"], "DATASET=hub: no repository given"),
        (["DATASET=synth", "DATASET_REPO=some/text"], "DATASET=synth: does not come from a repository"),
        (["DATASET={tmp}/nothing.jsonl"], "DATASET={tmp}/nothing.jsonl: "),
        (["DATASET={tmp}/nothing"], "DATASET={tmp}/nothing: "),
        (["DATASET={tmp}/text.bin"], r"got a file of a pair, wanted its prefix; leave out \.bin"),
    ],
)
def test_a_text_that_is_not_there_or_named_wrongly_is_refused(tmp_path, prefix, settings, said):
    settings = [setting.replace("{tmp}", str(tmp_path)) for setting in settings]
    with pytest.raises(DataError, match=said.replace("{tmp}", str(tmp_path))):
        data_prefix(config_of(tmp_path, *settings), "llama")


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        # int32 ids, once as parts and once whole, and text of at least 3 bytes a token
        ("DATASET=c4 GBS=64 SL=2048 TRAIN_ITERS=10000", (4 + 4 + 3) * 10_000 * 64 * 2048),
        ("DATASET=c4 SAMPLES=1000", 1000 * 2271),
        ("DATASET=hub DATASET_REPO=some/text SAMPLES=5", None),
    ],
)
def test_disk_needed_is_above_what_the_pair_takes_and_unknown_where_nothing_is_known(tmp_path, settings, least):
    needed = bytes_needed(config_of(tmp_path, settings), "llama")
    assert needed is least is None or needed > least


def test_texts_of_a_folder_a_glob_or_a_file_are_known_by_their_content(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("b.jsonl", "a.jsonl"):
        (folder / name).write_text('{"text": "a"}\n')
    for named, changed in ((folder, "b.jsonl"), (f"{folder}/b*", "b.jsonl"), (folder / "a.jsonl", "a.jsonl")):
        config = config_of(tmp_path, f"DATASET={named}")
        before = data_prefix(config, "llama")
        (folder / changed).write_text(f'{{"text": "changed for {named}"}}\n')
        assert data_prefix(config, "llama") != before
    one = config_of(tmp_path, f"DATASET={folder}/b*")
    before = data_prefix(one, "llama")
    (folder / "a.jsonl").write_text('{"text": "of another file"}\n')
    assert data_prefix(one, "llama") == before, "the glob does not name it"


def test_a_pair_is_taken_where_it_lies_and_what_is_made_goes_to_the_data_folder(tmp_path, prefix):
    given = config_of(tmp_path / "data", f"DATASET={prefix}")
    assert data_prefix(given, "llama") == prefix and bytes_needed(given, "llama") == 0
    assert (tmp_path / "data") in data_prefix(config_of(tmp_path / "data", "DATASET=synth"), "llama").parents


LIES = {
    "tokens": 81,
    "documents": 81,
    "sequences": 81,
    "bin_bytes": 81,
    **dict.fromkeys(("bin_sha256", "idx_sha256"), "0" * 64),
    "dtype": "int16",
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


# A data file is read for its digest once, by whichever process comes first, and again only when it has changed.

SHORT = ("TRAIN_ITERS=1", "WARMUP_ITERS=0", "GBS=16")


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that were read whole for their digest."""
    found, real = [], manifest.sha256_file
    for module in (manifest, gpt_dataset):
        monkeypatch.setattr(module, "sha256_file", lambda path: found.append(path.name) or real(path))
    return found


@pytest.fixture
def pair(tmp_path):
    return write_toy_data(tmp_path / "pair" / "text", documents=30)


def test_matrix_launcher_and_eight_ranks_read_a_pair_once(pair, tmp_path, reads):
    config = settings_of(f"DATASET={pair}", f"DATA_DIR={tmp_path / 'cache'}", *SHORT)
    prepare.prepare_all(config)
    digests = plan.data_digests(config)
    ranks = [describe(pair, config.data_dir)["bin_sha256"] for _ in range(1 + 8)]
    assert reads == ["text.bin", "text.idx"]
    assert {*digests.values(), *ranks} == {hashlib.sha256(indexed.bin_path(pair).read_bytes()).hexdigest()}
    assert {path.name for path in pair.parent.iterdir()} == {"text.bin", "text.idx"}  # a user's folder stays as it is


def test_pair_that_was_made_here_is_not_read_again_after_it_was_verified(tmp_path, reads):
    prepare.prepare_all(settings_of("DATASET=synth", f"DATA_DIR={tmp_path}", *SHORT))
    assert reads == []


@pytest.mark.parametrize("change", ["new time", "old time", "another file"])
def test_file_of_the_same_size_that_has_changed_is_read_again(change, pair, tmp_path):
    before = describe(pair, tmp_path)["bin_sha256"]
    path, status = indexed.bin_path(pair), indexed.bin_path(pair).stat()
    target = path.with_name("other") if change == "another file" else path
    target.write_bytes(path.read_bytes()[::-1])
    if change != "new time":
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    target.replace(path)
    after = describe(pair, tmp_path)["bin_sha256"]
    assert after == hashlib.sha256(path.read_bytes()).hexdigest() != before


@pytest.mark.parametrize("content", ["", "[]", '{"%s": 1}', '{"%s": {"sha256": "0"}}'])
def test_damaged_record_costs_another_read(content, pair, tmp_path, reads):
    (tmp_path / manifest.NAME).write_text(content.replace("%s", str(indexed.bin_path(pair))))
    assert describe(pair, tmp_path) == describe(pair)
    assert json.loads((tmp_path / manifest.NAME).read_text()).keys() == {
        str(indexed.bin_path(pair)),
        str(pair.with_suffix(".idx")),
    }


def test_nothing_is_recorded_where_nothing_may_be_written(pair, tmp_path):
    describe(pair, tmp_path / "new", is_recorded=False)
    assert not (tmp_path / "new").exists()
    assert describe(pair, pair.with_suffix(".bin") / "data") == describe(pair), "below a file"
