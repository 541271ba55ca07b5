"""Repositories in the local cache of huggingface_hub, for HF_HUB_OFFLINE: the files, commits and digests of a download.

huggingface_hub's own offline mode finds single files only. This module adds the commit of a revision, the names of the
cached files, the train split of a data set, and the refusal of a split with a gap.
In the cache, `refs/<revision>` contains a commit and `snapshots/<commit>/` its files, as links into `blobs/`, where the
name of each file is its sha256 (large files) or git blob id.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from data.hub.hub_errors import SourceError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PLACE_IN_SPLIT = re.compile(r"[-.](\d{5})-of-\d{5}\b")
"""Number of a shard on the hub, from 0: `c4-train.00003-of-01024.json.gz`, `train-00003-of-00010.parquet`."""


def commit_of(repo_id: str, kind: str, revision: str) -> str:
    """Return the commit of `revision` at the time of its download; raises SourceError if it was not downloaded.

    A download by commit, as this suite makes, records no revision; the only commit in the cache is then taken for it.
    """
    folder = _folder(repo_id, kind)
    commits = sorted(path.name for path in folder.glob("snapshots/*"))
    ref = folder / "refs" / revision
    wanted = revision
    if ref.is_file():
        wanted = ref.read_text(encoding="ascii").strip()
    if wanted in commits:
        return wanted
    if _COMMIT.fullmatch(wanted) or not commits:
        raise missing(repo_id, kind, f"revision {revision}")
    if len(commits) > 1:
        raise SourceError(
            f"{repo_id}: HF_HUB_OFFLINE is set, and the cache does not record which of its {len(commits)} commits is "
            f"{revision}; name a commit as the revision, e.g. {commits[-1]}"
        )
    return commits[0]


def snapshot(repo_id: str, kind: str, commit: str) -> Path:
    """Return the folder of the downloaded files of a commit."""
    return _folder(repo_id, kind) / "snapshots" / commit


def names(repo_id: str, kind: str, commit: str) -> list[str]:
    """Return the names of the downloaded files of a commit, sorted."""
    folder = snapshot(repo_id, kind, commit)
    # a link to a blob that was removed is no file
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def card(repo_id: str, kind: str, commit: str) -> dict[str, Any] | None:
    """Return the metadata of a downloaded card; None if it was not downloaded or is not as the library wants it."""
    import yaml
    from huggingface_hub import RepoCard

    path = snapshot(repo_id, kind, commit) / "README.md"
    if not path.is_file():
        return None
    try:
        return dict(RepoCard.load(path).data.to_dict())
    except (ValueError, yaml.YAMLError):
        return None


def train_patterns(repo_id: str, commit: str, config: str | None) -> dict[str, list[str]] | None:
    """Return the train split in a data set's card as `data_files` of `datasets`; None if the card has no splits.

    `datasets` cannot use the card itself if it names other splits too, because their files were not downloaded.
    Raises SourceError for a configuration or a split that the card does not have.
    """
    from datasets.data_files import sanitize_patterns
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCardData

    metadata = card(repo_id, "dataset", commit)
    if metadata is None:
        return None
    configs = MetadataConfigs.from_dataset_card_data(DatasetCardData(**metadata))
    name = config or configs.get_default_config_name()
    if not configs or name is None:
        return None
    files = configs.get(name, {}).get("data_files")
    splits = sanitize_patterns(files) if files else {}
    if not splits.get("train"):
        raise SourceError(f"{repo_id}: its card has no train split of {name}; name another DATASET_CONFIG")
    return {"train": list(splits["train"])}


def require_no_gap(repo_id: str, kind: str, files: list[str]) -> None:
    """Raise SourceError if a numbered shard is missing before an existing one: the text would differ from online."""
    for place, name in enumerate(files):
        number = _PLACE_IN_SPLIT.search(name)
        if number and int(number[1]) != place:
            expected = f"{name[: number.start(1)]}{place:05}{name[number.end(1) :]}"
            raise missing(repo_id, kind, expected)


def _folder(repo_id: str, kind: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo_id, repo_type=kind)


def missing(repo_id: str, kind: str, name: str) -> SourceError:
    """Return the error for a file or revision that is not in the cache."""
    option = " --repo-type dataset" if kind == "dataset" else ""
    return SourceError(
        f"{repo_id}: HF_HUB_OFFLINE is set and {name} is not in the cache; unset it, or copy the cache of a machine "
        f"with a network (hf download {repo_id}{option}), or its DATA_DIR"
    )
