"""Print what a data set is, as JSON: digests and counts of a `.bin/.idx` pair, and whether its manifest agrees.

    python -m evaluate.fingerprint PREFIX

Exits 0; 1 where files and manifest disagree; 2 where the pair is missing or broken.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from utils.fingerprint import sha256_file
from utils.indexed import DataError, bin_path, check, idx_path, load_manifest, manifest_path


def fingerprint(prefix: Path) -> dict[str, Any]:
    """Return digests and counts of a pair, and under `manifest_differs` the keys in which its manifest says otherwise.

    `manifest_differs` is None where there is no manifest. Raises DataError for a pair that is missing or broken.
    """
    index = check(prefix)
    found: dict[str, Any] = {
        "bin_sha256": sha256_file(bin_path(prefix)),
        "idx_sha256": sha256_file(idx_path(prefix)),
        "documents": index.documents,
        "sequences": index.sequences,
        "tokens": index.tokens,
        "dtype": str(index.dtype),
    }
    differs = None
    if manifest_path(prefix).exists():
        manifest = load_manifest(prefix)
        differs = [key for key, value in found.items() if manifest[key] != value]
    return {"prefix": str(prefix), **found, "manifest_differs": differs}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m evaluate.fingerprint", description=__doc__.splitlines()[0])
    parser.add_argument("prefix", type=Path, help="path of the pair without .bin / .idx")
    options = parser.parse_args(arguments)
    try:
        found = fingerprint(options.prefix)
    except (DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=1))
    if found["manifest_differs"]:
        where = manifest_path(options.prefix)
        keys = ", ".join(found["manifest_differs"])
        print(f"error: {where}: says otherwise about {keys}; encode again, the pair is not its own", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
