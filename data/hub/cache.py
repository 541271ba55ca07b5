"""What the hub's cache on this machine holds, for HF_HUB_OFFLINE: the same files, commits and digests, nobody asked.

The layout is huggingface_hub's: `refs/<revision>` names a commit, `snapshots/<commit>/` its files as links into
`blobs/`, where each file is named by its sha256 (large files) or git blob id.
"""

from __future__ import annotations

import re
from pathlib import Path

from data.hub.hub_errors import SourceError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PLACE_IN_SPLIT = re.compile(r"[-.](\d{5})-of-\d{5}\b")
"""How shards are numbered on the hub, from 0: `c4-train.00003-of-01024.json.gz`, `train-00003-of-00010.parquet`."""


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE was set when huggingface_hub was imported."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def commit_of(repo_id: str, kind: str, revision: str) -> str:
    """Return the commit that `revision` was when it was downloaded; raises SourceError where it was not.

    What was downloaded by its commit, as this suite does, has no name there; where it is the only one, it is meant.
    """
    folder = _folder(repo_id, kind)
    commits = sorted(path.name for path in folder.glob("snapshots/*"))
    ref = folder / "refs" / revision
    wanted = ref.read_text(encoding="ascii").strip() if ref.is_file() else revision
    if wanted in commits:
        return wanted
    if _COMMIT.fullmatch(wanted) or not commits:
        raise _missing(repo_id, kind, f"revision {revision}")
    if len(commits) > 1:
        raise SourceError(
            f"{repo_id}: HF_HUB_OFFLINE is set, and which of the {len(commits)} commits in the cache is {revision} is "
            f"not known there; name one, e.g. revision {commits[-1]}"
        )
    return commits[0]


def snapshot(repo_id: str, kind: str, commit: str) -> Path:
    """Return the folder of the files of a commit that were downloaded."""
    return _folder(repo_id, kind) / "snapshots" / commit


def names(repo_id: str, kind: str, commit: str) -> list[str]:
    """Return the names of these files, sorted."""
    folder = snapshot(repo_id, kind, commit)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def train_patterns(repo_id: str, commit: str, config: str | None) -> dict[str, list[str]] | None:
    """Return the train split of a data set as `datasets` takes `data_files`, by its card; None where that says nothing.

    A card that names other splits too cannot be followed as it is, because their files were not downloaded.
    Raises SourceError for a configuration or a split that the card does not have.
    """
    from datasets.data_files import sanitize_patterns
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCardData, RepoCard

    card = snapshot(repo_id, "dataset", commit) / "README.md"
    if not card.is_file():
        return None
    configs = MetadataConfigs.from_dataset_card_data(DatasetCardData(**RepoCard.load(card).data.to_dict()))
    name = config or configs.get_default_config_name()
    if not configs or name is None:
        return None
    files = configs.get(name, {}).get("data_files")
    patterns = sanitize_patterns(files).get("train") if files else None
    if not patterns:
        raise SourceError(f"{repo_id}: its card has no train split of {name}; name another DATASET_CONFIG")
    return {"train": list(patterns)}


def require_no_gap(repo_id: str, kind: str, files: list[str]) -> None:
    """Raise SourceError where a numbered shard is not there before one that is: other text than with a network."""
    for place, name in enumerate(files):
        number = _PLACE_IN_SPLIT.search(name)
        if number and int(number[1]) != place:
            before = name[: number.start(1)] + f"{place:05}" + name[number.end(1) :]
            raise _missing(repo_id, kind, before)


def file(repo_id: str, kind: str, commit: str, name: str) -> tuple[Path, int, str]:
    """Return path, size in bytes and digest of a file; raises SourceError for one that was not downloaded."""
    path = snapshot(repo_id, kind, commit) / name
    if not path.is_file():
        raise _missing(repo_id, kind, name)
    return path, path.stat().st_size, path.resolve().name


def _folder(repo_id: str, kind: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo_id, repo_type=kind)


def _missing(repo_id: str, kind: str, what: str) -> SourceError:
    option = " --repo-type dataset" if kind == "dataset" else ""
    return SourceError(
        f"{repo_id}: HF_HUB_OFFLINE is set and {what} is not in the cache; unset it, or take along the cache of a "
        f"machine with a network (hf download {repo_id}{option}), or its DATA_DIR"
    )
