"""Indexed data: the bytes are megatron-core's, and damage of them or of their manifest is found first."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toydata import manifest_of_pair, write_pair

from data.encoding.pair import write_index
from data.reading.tokenizer import dtype_for
from utils.dataset import indexed, manifest
from utils.errors import DataError

DOCUMENTS = [[5, 6, 7], [], [8], [9, 10, 11, 12], []]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return write_pair(tmp_path / "text.v1", DOCUMENTS)  # a dot in the name must not be taken for a suffix


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_index_has_the_bytes_that_megatron_writes_and_megatron_reads_it(tmp_path: Path, dtype: type) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    write_pair(tmp_path / "ours", DOCUMENTS, dtype)
    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    for ids in DOCUMENTS:
        builder.add_document(ids, [len(ids)] if ids else [])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for ending in ("bin", "idx"):
        assert (tmp_path / f"ours.{ending}").read_bytes() == (tmp_path / f"theirs.{ending}").read_bytes()

    theirs, ours = IndexedDataset(str(tmp_path / "ours")), indexed.check(tmp_path / "ours")
    assert [theirs[i].tolist() for i in range(len(theirs))] == [ids for ids in DOCUMENTS if ids]
    assert theirs.document_indices.tolist() == ours.document_indices.tolist() == [0, 1, 1, 2, 3, 3]
    assert theirs.index.sequence_pointers.tolist() == ours.sequence_pointers.tolist()
    assert (ours.dtype, ours.documents, ours.sequences, ours.tokens) == (np.dtype(dtype), 5, 3, 8)


@pytest.mark.parametrize("size", [1, 4096, 65499, 65500, 128256, 151665])
def test_dtype_is_the_one_that_megatron_chooses(size: int) -> None:
    from megatron.core.datasets.indexed_dataset import DType

    assert dtype_for(size) == np.dtype(DType.optimal_dtype(size))


def test_pointers_do_not_wrap_past_two_gibibytes() -> None:
    lengths = np.array([2**30, 2**30, 5], dtype=np.int32)
    assert indexed.pointers(lengths, 4).tolist() == [0, 2**32, 2**33]


def test_a_document_longer_than_an_int32_is_refused_not_wrapped(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2,147,483,648 tokens.*split"):
        write_index(tmp_path / "x.idx", np.dtype(np.int32), [2**31], [0, 1])


def test_a_pair_without_a_token_is_refused_because_megatron_cannot_open_it(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"")
    write_index(tmp_path / "x.idx", np.dtype(np.uint16), [], [0, 0, 0])
    with pytest.raises(DataError, match="holds no token"):
        indexed.check(tmp_path / "x")


# The manifest of a pair: a field of a wrong type, or one that contradicts another, is one line of a DataError.

WRONG: dict[str, Any] = {
    "string": "x",
    "long string": "x" * 10**5,
    "number as string": "1",
    "bool": False,
    "negative": -1,
    "float": 1.0,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "huge": 10**30,
    "list": [1],
    "object": {"a": 1},
    "many keys": {str(number): number for number in range(20_000)},
    "nested": [[[[[[[[[[[[]]]]]]]]]]]],
    "null": None,
}
VALID = {
    *((key, "null") for key in ("bytes_of_text", "input", "engine", "bad_lines")),
    *(("cleaning", kind) for kind in ("object", "many keys")),
}
"""Kinds of value that are right; bytes of text and input must then both be null."""


def refusal(prefix: Path, content: str) -> str:
    indexed.manifest_path(prefix).write_text(content)
    with pytest.raises(DataError) as caught:
        indexed.load_manifest(prefix)
    said = str(caught.value)
    assert said.startswith(f"{indexed.manifest_path(prefix)}: ") and "encode the text again" in said
    assert "\n" not in said and len(said) < 600 + len(str(prefix))
    return said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON: Expecting property name"),
        ("[]", "got format_version None, wanted 1"),
        ('{"format_version": 2}', "got format_version 2, wanted 1"),
        ('{"format_version": 1, "documents": 1}', "lacks sequences, tokens"),
        ("[" * 100_000, "deep"),
    ],
)
def test_another_text_is_no_manifest(prefix: Path, text: str, message: str) -> None:
    assert message in refusal(prefix, text)


KEYS = (*manifest._FIELDS, "engine", "bad_lines", "cleaning")


@pytest.mark.parametrize(("key", "kind"), [(key, kind) for key in KEYS for kind in WRONG if (key, kind) not in VALID])
def test_a_field_of_a_wrong_type_is_named(prefix: Path, key: str, kind: str) -> None:
    named = "is no finite number" if kind in ("NaN", "infinity") else key  # which no JSON of the suite holds
    assert named in refusal(prefix, json.dumps(manifest_of_pair(prefix, **{key: WRONG[kind]})))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("tokenizer", value)
            for value in ({"class": "X"}, {"class": 1, "sha256": "5" * 64}, {"sha256": "5" * 63}, {"sha256": "G" * 64})
        ),
        *(
            (origin, {key: ["mit"]})
            for origin in ("source", "tokenizer_source")
            for key in ("licence", "licence_source", "licence_reason")
        ),
    ],
)
def test_a_tokenizer_needs_its_digest_and_a_licence_is_a_text(prefix: Path, key: str, value: dict[str, Any]) -> None:
    assert f"{key}: got" in refusal(prefix, json.dumps(manifest_of_pair(prefix, **{key: value})))


def files(*contents: str) -> dict[str, Any]:
    """Return the field for several inputs, as docs/data.md describes it."""
    digests = [hashlib.sha256(content.encode()).hexdigest() for content in contents]
    return {
        "name": f"{len(contents)} files",
        "sha256": hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest(),
        "bytes": sum(map(len, contents)),
        "files": [
            {"name": "a", "sha256": digest, "bytes": len(content)}
            for digest, content in zip(digests, contents, strict=True)
        ],
    }


def test_the_sum_and_digest_of_several_inputs_are_theirs(prefix: Path) -> None:
    source = files("one", "others")
    content = manifest_of_pair(prefix, input=source)
    indexed.manifest_path(prefix).write_text(json.dumps(content))
    assert indexed.load_manifest(prefix) == content
    for lie in ({"bytes": 10}, {"sha256": "0" * 64}, {"files": source["files"][:1]}, {"files": [1]}, {"files": 3}):
        assert "input: got" in refusal(prefix, json.dumps({**content, "input": source | lie}))


def test_manifests_that_older_versions_wrote_are_valid(prefix: Path) -> None:
    # before there was a choice of engines; while there was one; and of a pair of another program
    older = manifest_of_pair(prefix)
    del older["engine"], older["bad_lines"]
    versions = {"numpy": "2.4.6", "tokenizers": "0.23.3", "transformers": "5.23.0", "gigatoken": "0.10.0"}
    fast = manifest_of_pair(prefix, engine={"name": "gigatoken", "documents_by_reference": 3}, versions=versions)
    foreign = manifest_of_pair(prefix, **dict.fromkeys(("bytes_of_text", "input", "engine", "bad_lines")))
    prepared = manifest_of_pair(
        prefix, later_key="kept", source={"files": []}, cleaning={"rules": {}}, tokenizer_source={"folder": "x"}
    )
    for content in (older, fast, foreign, prepared):
        indexed.manifest_path(prefix).write_text(json.dumps(content))
        assert indexed.load_manifest(prefix) == content


@pytest.mark.parametrize(
    ("content", "dataset"),
    [
        ({"source": {"licence": "odc-by"}, "tokenizer_source": {"licence": None}}, "odc-by"),
        ({"tokenizer_source": {"folder": "x"}}, None),
    ],
)
def test_licences_are_those_of_data_set_and_tokenizer_and_null_where_none_is_recorded(content, dataset) -> None:
    assert manifest.licences(content) == {"dataset": dataset, "tokenizer": None}
