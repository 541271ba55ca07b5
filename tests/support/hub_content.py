"""Content for a test hub: shards in C4's layout, rows in BookCorpus's, tokenizers with the ids of the real ones."""

from __future__ import annotations

import gzip
import io
import json
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from data import synth

SHARD_DOCUMENTS = 100
CARD = """---
license:
- odc-by
configs:
- config_name: en
  data_files:
  - split: train
    path: en/c4-train.*.json.gz
  - split: validation
    path: en/c4-validation.*.json.gz
- config_name: realnewslike
  data_files:
  - split: train
    path: realnewslike/c4-train.*.json.gz
---
# C4
"""


def documents(count: int, seed: int = 3) -> list[str]:
    """Return different generated documents."""
    return [text for text, _ in islice(synth.generate(seed), count)]


def shard(number: int) -> str:
    """Return the name of one of C4's shards."""
    return f"en/c4-train.{number:05d}-of-01024.json.gz"


def c4(texts: list[str]) -> dict[str, bytes]:
    """Return the files of a repository like allenai/c4 with `texts` in shards of 100."""
    parts = [texts[start : start + SHARD_DOCUMENTS] for start in range(0, len(texts), SHARD_DOCUMENTS)]
    files = {shard(number): _json_lines(part) for number, part in enumerate(parts)}
    files |= {name: _json_lines(["never read"]) for name in _OTHERS}
    return files | {"README.md": CARD.encode()}


_OTHERS = ("en/c4-validation.00000-of-00008.json.gz", "realnewslike/c4-train.00000-of-00512.json.gz")


def _json_lines(texts: list[str]) -> bytes:
    lines = [
        json.dumps({"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "https://example/"}) for text in texts
    ]
    return gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)


def rows(texts: list[str]) -> bytes:
    """Return a Parquet file with one text per row."""
    sink = io.BytesIO()
    parquet.write_table(pa.table({"text": texts}), sink)
    return sink.getvalue()


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a model's repository: a tokenizer, and other files that must not be downloaded with it."""
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {
        "config.json": b"{}",
        "model-00001-of-00004.safetensors": bytes(4096),
    }


def stand_in(folder: Path, size: int, eos: int, bos: int | None = None) -> dict[str, bytes]:
    """Return the small tokenizer in `folder` extended to this size and these ids; it splits text in the same way."""
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    base = min(eos, size if bos is None else bos)
    vocabulary |= {f"filler{number}": number for number in range(len(vocabulary), base)}
    names = {eos: "<|end|>"} | ({} if bos is None else {bos: "<|begin|>"})
    like = content["added_tokens"][0]
    for number in range(base, size):
        content["added_tokens"].append({**like, "id": number, "content": names.get(number, f"<|reserved{number}|>")})
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"eos_token": "<|end|>"}
    if bos is not None:
        settings["bos_token"] = "<|begin|>"
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [bos], "tokens": ["<|begin|>"]}},
        }
    return {"tokenizer.json": json.dumps(content).encode(), "tokenizer_config.json": json.dumps(settings).encode()}
