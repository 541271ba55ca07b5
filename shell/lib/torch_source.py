"""Answer the two questions that decide where PyTorch comes from; run by shell/setup.sh before it installs anything."""

from __future__ import annotations

import argparse
import importlib.util
import os
import ssl
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path

WAIT_SECONDS = 5
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
"""Names of the folders of packages; the second is Debian's."""


def machine_torch(platform: str) -> list[str]:
    """Return the folders of packages of a Python that brings PyTorch for the platform, then its pins; empty for none.

    All folders in this Python's own order, because an image may keep PyTorch in one and TransformerEngine in another
    (NVIDIA's NeMo images: PyTorch in /usr/local/lib/python3.12/dist-packages, TransformerEngine in /opt/venv).
    numpy is pinned with PyTorch: extensions built against numpy 1 do not load beside numpy 2.
    """
    if not importlib.util.find_spec("torch"):
        return []
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of the driver is missing
        print(f"warning: the PyTorch of {sys.executable} cannot be imported: {error}", file=sys.stderr)
        return []
    if not {"nvd": torch.version.cuda, "amd": torch.version.hip}[platform]:
        return []
    # an image may have no numpy at all
    names = [name for name in ("torch", "numpy") if importlib.util.find_spec(name)]
    folders = [entry for entry in sys.path if Path(entry).name in PACKAGE_FOLDERS and Path(entry).is_dir()]
    folders.append(str(Path(torch.__file__).parent.parent))
    return [*dict.fromkeys(folders), *(f"{name}=={version(name)}" for name in names)]


def answers(url: str) -> bool:
    """Return whether the index answers, through the proxies of the environment and the certificates set for pip."""
    try:
        trusted = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
        with urllib.request.urlopen(url, timeout=WAIT_SECONDS, context=trusted):
            return True
    except OSError:  # refused, unresolved, timed out, 403 of a proxy, no such certificates: not reachable from here
        return False


def main() -> int:
    """Print the answer to `machine`; exit 0 or 1 for `answers`."""
    parser = argparse.ArgumentParser(description=__doc__)
    questions = parser.add_subparsers(dest="question", required=True)
    questions.add_parser("machine", help="folders of packages and pins of this Python's PyTorch").add_argument(
        "platform", choices=["nvd", "amd"]
    )
    questions.add_parser("answers", help="whether a package index can be reached").add_argument("url")
    arguments = parser.parse_args()
    if arguments.question == "answers":
        return 0 if answers(arguments.url) else 1
    for line in machine_torch(arguments.platform):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
