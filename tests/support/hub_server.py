"""A Hugging Face Hub on the loopback interface, for tests with the real huggingface_hub and datasets.

It serves the files of a test by the routes that the libraries use (huggingface_hub 2.4.0, datasets 5.2.0): resolve with
Range, ETag and X-Repo-Commit; revision, tree and paths-info of the API; gating; X-Error-Code. It records every request
and produces the faults that a test sets. `with HubServer() as hub:` starts and stops it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import yaml

from data import synth

LARGE_BYTES = 512
"""From this size on, a file is stored like a large file of the hub, under its sha256."""


@dataclass
class ServedRepo:
    """The files of one repository at each of its commits."""

    commits: list[dict[str, bytes]] = field(default_factory=list)
    is_gated: bool = False

    def commit_id(self, number: int = -1) -> str:
        """Return the id of a commit; -1 is main."""
        number %= len(self.commits)
        names = "".join(sorted(self.commits[number]))
        return hashlib.sha1(f"{number}{names}".encode()).hexdigest()

    def files(self, revision: str) -> dict[str, bytes] | None:
        """Return the files at a revision, None for an unknown revision."""
        if revision == "main":
            return self.commits[-1]
        return next((files for n, files in enumerate(self.commits) if self.commit_id(n) == revision), None)


TOKEN = "hf_PlantedTokenThatMustNotShow"
"""The token that opens gated repositories."""


class HubServer:
    """A server with its repositories, the faults to produce, and the received requests."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], ServedRepo] = {}
        self.faults: list[SimpleNamespace] = []
        """Each of the next request whose `METHOD path` matches its pattern."""
        self.requests: list[SimpleNamespace] = []
        self.on_request: Any = None
        self.sizes: dict[str, int] = {}
        """Sizes that the hub reports instead of the true ones."""
        self.lists_cards = True
        """False: like a mirror that leaves the metadata of cards out."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        """HF_ENDPOINT of this hub."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, kind: str, name: str, files: Mapping[str, bytes], *, is_gated: bool = False) -> ServedRepo:
        """Commit `files` to a repository; `kind` is `models` or `datasets`."""
        repo = self.repos.setdefault((kind, name), ServedRepo())
        repo.commits.append(dict(files))
        repo.is_gated = is_gated
        return repo

    def fail(self, pattern: str, kind: str, status: int = 500, **headers: str) -> None:
        """Set a fault: `status`, `cut` (the connection ends in the middle of the body) or `slow`.

        `Retry_After="1"` is the header Retry-After.
        """
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.faults.append(SimpleNamespace(pattern=pattern, kind=kind, status=status, headers=named))

    def downloads(self) -> list[str]:
        """Return the names of the files whose content was requested, in order."""
        found = [request.path for request in self.requests if request.method == "GET" and "/resolve/" in request.path]
        return [path.partition("/resolve/")[2].partition("/")[2] for path in found]


def etag(content: bytes) -> str:
    """Return the identity of a content: sha256 of a large file, git blob id of a small one."""
    return hashlib.sha256(content).hexdigest() if len(content) >= LARGE_BYTES else _blob(content)


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(name: str, content: bytes) -> dict[str, Any]:
    size = len(content)
    large = {"lfs": {"oid": etag(content), "size": size, "pointerSize": 134}} if size >= LARGE_BYTES else {}
    return {"type": "file", "oid": _blob(content), "size": size, "path": name, **large}


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = f"{self.command} {self.path}"
            if hub.on_request:
                hub.on_request(request)
            fault = next((fault for fault in hub.faults if re.search(fault.pattern, request)), None)
            if fault:  # it is over with this request
                hub.faults.remove(fault)
            if fault and fault.kind == "status":
                self.reply(fault.status, b"fault", fault.headers)
                return
            url = urllib.parse.urlsplit(self.path)
            path, query = urllib.parse.unquote(url.path), urllib.parse.parse_qs(url.query)
            if match := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(.+))?", path):
                self.api(match[1], match[2], match[3] or "revision/main", query, body)
            elif match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self.file("datasets" if match[1] else "models", match[2], match[3], match[4], fault)
            else:
                self.error(404, "NotFound")

        do_GET = do_HEAD = do_POST = answer  # noqa: N815 names of the standard library

        def api(self, kind: str, name: str, route: str, query: dict[str, list[str]], body: bytes) -> None:
            repo = hub.repos.get((kind, name))
            if repo is None:
                self.error(401 if kind == "models" else 404, "RepoNotFound")
                return
            operation, _, rest = route.partition("/")
            revision, _, folder = rest.partition("/")
            files = repo.files(revision)
            if files is None:
                self.error(404, "RevisionNotFound")
            elif operation == "revision":
                siblings = [] if "expand" in query else [{"rfilename": name} for name in sorted(files)]
                sha = repo.commit_id() if revision == "main" else revision
                about = {"id": name, "sha": sha, "gated": "manual" if repo.is_gated else False, "tags": []}
                wanted = query.get("expand", [*about, "siblings", "cardData"])
                card = re.match(r"---\n(.*?)\n---", files.get("README.md", b"").decode(), re.DOTALL)
                metadata = yaml.safe_load(card[1]) if card and hub.lists_cards else None
                about |= {"siblings": siblings, "cardData": metadata}
                self.reply_json({key: value for key, value in about.items() if key in ("id", *wanted)})
            elif operation == "tree":
                folders = {str(parent) for name in files for parent in PurePosixPath(name).parents} - {"."}
                entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in sorted(folders)]
                entries += [_entry(name, content) for name, content in sorted(files.items())]
                depth = None if query.get("recursive", ["false"])[0].lower() == "true" else 1
                above = PurePosixPath(folder)
                tree = [entry for entry in entries if above in PurePosixPath(entry["path"]).parents[:depth]]
                self.reply_json(tree) if tree else self.error(404, "EntryNotFound")
            elif operation == "paths-info":
                asked = urllib.parse.parse_qs(body.decode()).get("paths", [])
                known = [_entry(path, files[path]) for path in asked if path in files]
                self.reply_json([entry | {"size": hub.sizes.get(entry["path"], entry["size"])} for entry in known])
            else:
                self.error(404, "NotFound")

        def file(self, kind: str, name: str, revision: str, path: str, fault: SimpleNamespace | None) -> None:
            repo = hub.repos.get((kind, name))
            files = repo.files(revision) if repo else None
            if repo is None:
                self.error(401, "RepoNotFound")
            elif repo.is_gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.error(403 if self.headers.get("Authorization") else 401, "GatedRepo")
            elif files is None:
                self.error(404, "RevisionNotFound")
            elif path not in files:
                self.error(404, "EntryNotFound", {"X-Repo-Commit": repo.commit_id()})
            else:
                commit = repo.commit_id() if revision == "main" else revision
                headers = {"ETag": f'"{etag(files[path])}"', "X-Repo-Commit": commit}
                if path in hub.sizes:
                    headers["X-Linked-Size"] = str(hub.sizes[path])
                self.content(files[path], headers, fault)

        def content(self, content: bytes, headers: dict[str, str], fault: SimpleNamespace | None) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            start = int(asked[1]) if asked and self.command == "GET" else 0
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.reply(206 if start else 200, content[start:], headers, fault)

        def error(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
            self.reply(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code, **(headers or {})})

        def reply_json(self, value: Any) -> None:
            self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def reply(
            self, status: int, body: bytes, headers: Mapping[str, str], fault: SimpleNamespace | None = None
        ) -> None:
            path, asked = urllib.parse.unquote(self.path), self.headers.get("Range")
            hub.requests.append(SimpleNamespace(method=self.command, path=path, range=asked))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if fault and fault.kind == "slow":
                time.sleep(0.5)
            self.close_connection = bool(fault and fault.kind == "cut")
            self.wfile.write(body[: len(body) // 2] if self.close_connection else body)

    return Handler


# Content for a test hub: shards in C4's layout, rows in BookCorpus's, tokenizers with the ids of the real ones.

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
    files = {shard(start // 100): _json_lines(texts[start : start + 100]) for start in range(0, len(texts), 100)}
    others = ("en/c4-validation.00000-of-00008.json.gz", "realnewslike/c4-train.00000-of-00512.json.gz")
    return files | {name: _json_lines(["never read"]) for name in others} | {"README.md": CARD.encode()}


def _json_lines(texts: list[str]) -> bytes:
    lines = [
        json.dumps({"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "https://example/"}) for text in texts
    ]
    return gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)


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
