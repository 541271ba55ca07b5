"""A manifest whose fields are of a wrong type, or contradict one another, is one line of a DataError."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from manifests import manifest_of_pair
from toydata import write_toy_data

from utils.dataset import indexed, manifest
from utils.errors import DataError

WRONG: dict[str, Any] = {
    "string": "x",
    "long string": "x" * 10**6,
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
VALID = {("bytes_of_text", "null"), ("input", "null"), ("engine", "null"), ("bad_lines", "null")}
"""Kinds of value that are right; bytes of text and input must then both be null."""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_data(tmp_path_factory.mktemp("toy") / "text", documents=3)


def refusal(prefix: Path, content: str) -> str:
    indexed.manifest_path(prefix).write_text(content)
    with pytest.raises(DataError) as caught:
        indexed.load_manifest(prefix)
    said = str(caught.value)
    assert said.startswith(f"{indexed.manifest_path(prefix)}: ") and "encode the text again" in said
    assert "\n" not in said and len(said) < 600 + len(str(prefix))
    return said


@pytest.mark.parametrize("key", [*manifest.MANIFEST_KEYS, "engine", "bad_lines", "cleaning"])
@pytest.mark.parametrize("kind", WRONG)
def test_a_field_of_a_wrong_type_is_named(prefix: Path, key: str, kind: str) -> None:
    if (key, kind) in VALID or (key, kind) in (("cleaning", "object"), ("cleaning", "many keys")):
        return
    assert key in refusal(prefix, json.dumps(manifest_of_pair(prefix, **{key: WRONG[kind]})))


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_deep_nesting_is_not_a_manifest(prefix: Path, bracket: str) -> None:
    refusal(prefix, bracket * 100_000)
    good = json.dumps(manifest_of_pair(prefix))
    refusal(prefix, f'{good[:-1]}, "cleaning": {bracket * 100_000}')


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
    assert f"got {key}" in refusal(prefix, json.dumps(manifest_of_pair(prefix, **{key: value})))


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
        assert "got input" in refusal(prefix, json.dumps({**content, "input": source | lie}))


def test_manifests_that_older_versions_wrote_are_valid(prefix: Path) -> None:
    # before there was a choice of engines; and of a pair of another program
    older = manifest_of_pair(prefix)
    del older["engine"], older["bad_lines"]
    foreign = manifest_of_pair(prefix, **dict.fromkeys(("bytes_of_text", "input", "engine", "bad_lines")))
    prepared = manifest_of_pair(prefix, source={"files": []}, cleaning={"rules": {}}, tokenizer_source={"folder": "x"})
    for content in (older, foreign, prepared):
        indexed.manifest_path(prefix).write_text(json.dumps(content))
        assert indexed.load_manifest(prefix) == content


def test_licences_are_those_of_data_set_and_tokenizer_and_null_where_none_is_recorded() -> None:
    assert manifest.licences({"source": {"licence": "odc-by"}, "tokenizer_source": {"licence": None}}) == {
        "dataset": "odc-by",
        "tokenizer": None,
    }
    assert manifest.licences({"tokenizer_source": {"folder": "x"}}) == {"dataset": None, "tokenizer": None}
