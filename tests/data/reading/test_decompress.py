"""A compressed file is read whole or not at all: a file that is cut or damaged anywhere is an error."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from data.reading.sources import open_decompressed
from utils.errors import DataError

CONTENT = b"".join(b"line %d of a few\n" % number for number in range(2000))
PACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstd.compress}


def read_all(path: Path) -> bytes:
    with open_decompressed(path) as (file, _):
        return b"".join(iter(file.readline, b""))


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_content_comes_back(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACK.get(ending, bytes)(CONTENT))
    assert read_all(path) == CONTENT
    with open_decompressed(path) as (file, position):
        file.read()
        assert position() == path.stat().st_size


@pytest.mark.parametrize("ending", PACK)
def test_concatenated_compressed_files_are_one_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACK[ending](b"") + PACK[ending](CONTENT) + PACK[ending](b"end"))
    assert read_all(path) == CONTENT + b"end"


def test_a_zst_larger_than_any_buffer_and_with_a_long_window_comes_back(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(3 << 20) * 2
    long_window = {
        zstd.CompressionParameter.window_log: 28,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    # written as a stream of unknown size: the frame then demands the whole window of 256 MiB, more than zstd's default
    with zstd.ZstdFile(tmp_path / "a.jsonl.zst", "w", options=long_window) as file:
        file.write(content)
    assert (tmp_path / "a.jsonl.zst").stat().st_size < len(content) * 0.6
    assert read_all(tmp_path / "a.jsonl.zst") == content


@pytest.mark.parametrize("ending", PACK)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_anywhere_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, ending: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / f"cut.jsonl{ending}"
    whole = PACK[ending](CONTENT)
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(DataError, match=f"cut.jsonl{ending}: the compressed data is cut short or damaged"):
        read_all(path)


@pytest.mark.parametrize("ending", PACK)
def test_a_flipped_bit_and_bytes_after_the_end_are_errors(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    whole = bytearray(PACK[ending](CONTENT))
    path.write_bytes(bytes(whole) + b"oops")
    with pytest.raises(DataError, match="damaged"):
        read_all(path)
    whole[len(whole) // 2] ^= 16
    path.write_bytes(whole)
    if ending == ".gz":  # the checksum of a .zst is optional, and this file has none
        with pytest.raises(DataError, match="damaged"):
            read_all(path)


def test_another_format_under_the_name_is_an_error(tmp_path: Path) -> None:
    for ending in PACK:
        (tmp_path / f"a.jsonl{ending}").write_bytes(CONTENT)
        with pytest.raises(DataError, match="damaged"):
            read_all(tmp_path / f"a.jsonl{ending}")
