"""Print the fingerprint of a data set as JSON: digests and counts of a `.bin/.idx` pair, its tokenizer and token order.

Usage:   ./tprimat fingerprint PREFIX [--tokenizer FOLDER] [--platform cpu [--batches K] [KEY=VALUE ...]]
Reads:   PREFIX.bin, .idx and .json; the tokenizer; with --platform config.env and its overlays, the environment
Writes:  nothing
Exits:   0; 1 files and manifest disagree; 2 the pair or a setting is missing or invalid
Example: ./tprimat fingerprint data/synth/text --platform cpu MODEL=llama

With --platform the settings are read as the trainers read them, and `token_stream_sha256` is the digest of the input
tokens of the first K global batches, which every framework records in its result. It needs megatron-core.
An unknown value is null and has a reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from evaluate.command_lines import FINGERPRINT

if __name__ == "__main__":
    FINGERPRINT.parse_first()

from evaluate.report.tables import plain
from utils.arguments import refusing, run
from utils.dataset.gpt_dataset import build_train_dataset
from utils.dataset.indexed import bin_path, check, idx_path, load_manifest, manifest_path
from utils.errors import ConfigError, DataError
from utils.hardware.detect import HardwareError, visible_gpus
from utils.input_files import InputFileError, require_regular
from utils.provenance.digests import TOKEN_STREAM_BATCHES, sha256_file, sha256_token_stream, sha256_tokenizer
from utils.settings.config import RunConfig, load


def fingerprint(
    prefix: Path, tokenizer: Path | None = None, config: RunConfig | None = None, batches: int = TOKEN_STREAM_BATCHES
) -> dict[str, Any]:
    """Return digests and counts of a pair, and under `manifest_differs` the keys in which its manifest differs.

    `manifest_differs` is None if there is no manifest. `tokenizer` is the folder of the tokenizer; without it the
    digest comes from the manifest. `config` is the training whose first `batches` global batches are digested (fewer if
    it is shorter). `reasons` holds the reason for each digest that is None.
    Raises DataError for a pair that is missing or broken, or too short for the training.
    """
    for path in filter(Path.exists, (bin_path(prefix), idx_path(prefix), manifest_path(prefix))):
        # reading a device, a pipe or a folder may never end
        try:
            require_regular(path)
        except InputFileError as error:
            raise DataError(f"{path}: {error}; name another prefix") from error
    index = check(prefix)
    digests = {
        "bin_sha256": sha256_file(bin_path(prefix)),
        "idx_sha256": sha256_file(idx_path(prefix)),
        "documents": index.documents,
        "sequences": index.sequences,
        "tokens": index.tokens,
        "dtype": str(index.dtype),
    }
    manifest = load_manifest(prefix) if manifest_path(prefix).exists() else {}
    recorded = (manifest.get("tokenizer") or {}).get("sha256")
    known = manifest | {"tokenizer_sha256": recorded}
    digests["tokenizer_sha256"] = sha256_tokenizer(tokenizer) if tokenizer else recorded
    count = min(batches, config.train_iterations) if config else 0
    stream, reason = _token_stream(prefix, digests | known, config, count)
    reasons = {}
    if not digests["tokenizer_sha256"]:
        reasons["tokenizer_sha256"] = "no manifest beside the pair; name the folder with --tokenizer"
    if reason:
        reasons["token_stream_sha256"] = reason
    # an older manifest may lack a key
    differs = [key for key in digests if known.get(key) not in (None, digests[key])]
    return {
        "prefix": str(prefix),
        **digests,
        "token_stream_sha256": stream,
        "token_stream_batches": count if stream else None,
        "reasons": reasons,
        "manifest_differs": differs if manifest else None,
    }


def _token_stream(
    prefix: Path, manifest: dict[str, Any], config: RunConfig | None, batches: int
) -> tuple[str | None, str | None]:
    if config is None:
        return None, "depends on the training; name its settings: --platform cpu [KEY=VALUE ...]"
    try:
        dataset = build_train_dataset(config, prefix, manifest)
    except ImportError as error:
        return None, f"needs megatron-core and torch ({error}); run it where the training runs"
    return sha256_token_stream(dataset, config.global_batch_size, batches), None


def _config(options: argparse.Namespace) -> RunConfig | None:
    if options.platform is None:
        if options.settings:
            raise ConfigError(f"{options.settings[0]}: settings depend on the platform; add --platform cpu")
        return None
    try:
        visible = options.visible_gpus or visible_gpus(options.platform) or 1
    except HardwareError:
        # a laptop: the order of the samples is the same for any number of GPUs
        visible = 1
    return load(options.platform, visible, arguments=options.settings)


@refusing((ConfigError, DataError))
def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = FINGERPRINT.parse_args(arguments)
    if options.batches < 1:
        FINGERPRINT.error(f"--batches: got {options.batches}, wanted at least 1")
    content = fingerprint(options.prefix, options.tokenizer, _config(options), options.batches)
    print(json.dumps(content, indent=1))
    if content["manifest_differs"]:
        keys = ", ".join(content["manifest_differs"])
        where = plain(manifest_path(options.prefix))
        print(f"error: {where}: differs from the files in {keys}; encode the data again", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
