"""The command lines that stand before the import of packages, because help needs the standard library only."""

from __future__ import annotations

from pathlib import Path

from utils.arguments import Parser, from_one
from utils.settings.config import PLATFORMS
from utils.settings.keys import ON_BAD, TEXT_UNITS

VERIFY = Parser(
    {
        "prefix": {"type": Path, "help": "path of the pair without .bin / .idx"},
        "--tokenizer": {"type": Path, "help": "folder of the tokenizer; a sample of the documents is decoded too"},
        "--input": {
            "type": Path,
            "nargs": "+",
            "help": "JSONL files in the order of encoding; a sample is encoded again",
        },
        "--text-key": {"default": "text", "help": "key of the text in each line (default: %(default)s)"},
        "--write-manifest": {
            "action": "store_true",
            "help": "write the manifest of a pair without one (needs --tokenizer)",
        },
        "--plot": {"type": Path, "metavar": "FILE.png", "help": "PNG file to draw the lengths of the documents to"},
    },
    module="data.verify",
    epilog="Prints a summary. Exit codes: 0 the pair is correct; 1 it is not; 2 missing files or bad arguments.",
)
CLEAN = Parser(
    {
        "input": {"nargs": "+", "type": Path, "metavar": "IN", "help": "file, folder or glob"},
        "--output": {"type": Path, "required": True, "help": "JSONL file to write, whole or not at all"},
        "--column": {"default": "text", "help": "key or column of the text (default: %(default)s)"},
        "--text-unit": {
            "choices": TEXT_UNITS,
            "default": "file",
            "help": "a document of a .txt file (default: %(default)s)",
        },
        "--on-bad": {
            "choices": ON_BAD,
            "default": "error",
            "help": "end at a bad record, or skip it (default: %(default)s)",
        },
        "--clean": {
            "choices": ("light", "none", "full"),
            "default": "light",
            "help": "level of cleaning (default: %(default)s)",
        },
        "--front-matter": {
            "action": "store_true",
            "help": "remove lines with an ISBN or a copyright notice, for BookCorpus",
        },
        "--group-rows": {
            "type": from_one,
            "default": 1,
            "help": "number of rows joined to a document (default: %(default)s)",
        },
        "--min-chars": {"type": from_one, "help": "shortest document, in characters (default: 1, with --clean none 0)"},
        "--max-chars": {"type": from_one, "help": "longest document, in characters (default: no limit)"},
        "--show-dropped": {
            "type": from_one,
            "default": 0,
            "help": "dropped records printed per reason (default: %(default)s)",
        },
    },
    module="data.clean",
)
PREPARE = Parser(
    {
        "--platform": {"required": True, "choices": PLATFORMS, "help": "platform whose settings are used"},
        "--workers": {
            "type": int,
            "default": 1,
            "help": "processes that encode, at most one a core (default: %(default)s)",
        },
        "--for-any-training": {
            "action": "store_true",
            "help": "prepare data that do not fit this machine's model size or number of steps too, with a warning",
        },
        "settings": {"nargs": "*", "metavar": "KEY=VALUE", "help": "settings that override config.env"},
    },
    module="data.prepare",
    epilog="""Prints the prefix of each pair.
Exit codes: 0 success; 1 the work failed; 2 bad settings or data; 130 interrupted; 143 terminated.""",
)
SYNTH = Parser(
    {
        "--output": {"type": Path, "required": True, "help": "JSONL file to write, key `text`"},
        "--seed": {"type": int, "default": 42, "help": "seed of the text, 0 or more (default: %(default)s)"},
        "--tokenizer-output": {"type": Path, "help": "folder to write a byte-level BPE tokenizer of this text to"},
        "--vocabulary-size": {
            "type": int,
            "default": 4096,
            "help": "number of tokens of that tokenizer, its one special token included (default: %(default)s)",
        },
    },
    module="data.synth",
    epilog="Prints the counts as JSON. Exit codes: 0 success; 1 the work failed; 2 bad input or arguments.",
)
# exactly one of two, which the table above cannot express
_SIZE = SYNTH.add_mutually_exclusive_group(required=True)
_SIZE.add_argument("--words", type=int, help="minimum number of words; each is at least one token")
_SIZE.add_argument("--documents", type=int, help="number of documents, of about 50 to 500 words each")
