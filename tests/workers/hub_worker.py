"""Worker process of the hub tests; it is separate because huggingface_hub reads its settings when imported.

    python hub_worker.py KIND REPO FILE [FILE ...]

It prints the commit and the path of each file, or the class of the error with its message.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.hub import client, hub_errors  # noqa: E402 the path must be set first


def main() -> int:
    kind, name, *files = sys.argv[1:]
    try:
        repo = client.resolve(name, kind, None)
        print(repo.commit)
        for file in files:
            print(client.download(repo, file).path)
    except (hub_errors.FetchError, hub_errors.SourceError) as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
