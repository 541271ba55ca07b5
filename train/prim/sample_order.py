"""Whether Primus read the samples that this suite's own data set gives, in its order.

Megatron's GPTDataset writes three index files into the cache folder that it is given. With the tokens they decide
every sample: which documents follow one another, where each sample begins, in which order the samples come. Primus is
given an empty folder, so what lies there afterwards is what Primus drew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

INDICES = ("document_index", "sample_index", "shuffle_index")
"""Attributes of GPTDataset and ends of its cache files (megatron/core/datasets/gpt_dataset.py, core 0.15 and 0.16)."""
IN_ORDER = "single"
"""The `dataloader_type` that hands out samples in their order; `cyclic`, Primus's default, shuffles once more."""


def why_unproven(cache: Path, dataset: Any, arguments: Mapping[str, Any], prefix: Path) -> str | None:
    """Return why it is not proven that Primus trained on the samples of `dataset`, our GPTDataset; None where it is.

    `arguments` are what the running Megatron printed.
    """
    paths = arguments.get("train_data_path")
    if arguments.get("mock_data") is not False or paths != [str(prefix)]:
        return f"Primus printed train_data_path={paths!r}, mock_data={arguments.get('mock_data')!r}"
    if arguments.get("dataloader_type") != IN_ORDER:
        return f"Primus printed dataloader_type={arguments.get('dataloader_type')!r}: samples in another order"
    for name in INDICES:
        found = sorted(cache.glob(f"*-GPTDataset-train-{name}.npy"))
        if len(found) != 1:
            return f"Primus left {len(found)} files of its {name}, wanted one"
        if not _equal(found[0], getattr(dataset, name)):
            return f"the {name} that Primus drew is not the one of our data set: other samples, or another order"
    return None


def _equal(path: Path, ours: Any) -> bool:
    try:
        theirs = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return bool(np.array_equal(theirs, np.asarray(ours)))
