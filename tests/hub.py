"""A hub on this host: what of the Hugging Face hub its own client asks for when it downloads a model's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves the files of a folder as one model.

    Args:
        model: its name, such as "org/model".
        folder: its files.
        revisions: the names by which there is a commit of it, and that commit.

    Attributes:
        downloaded: the files that were sent, in order, each with the offset from which on.
        breaks: files of which the next answer ends in the middle.
    """

    daemon_threads = True

    def __init__(self, model: str, folder: Path, revisions: tuple[str, ...] = ("main",)) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.folder, self.revisions = model, folder, {*revisions, COMMIT}
        self.downloaded: list[tuple[str, int]] = []
        self.breaks: set[str] = set()

    @property
    def endpoint(self) -> str:
        """What HF_ENDPOINT has to be."""
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Hub]:
        """Serves until the context is left."""
        thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    @contextmanager
    def serving_here(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Hub]:
        """Serves also to the hub's client in this process, which keeps in a folder what it has downloaded."""
        from huggingface_hub import constants

        with self.serving():
            monkeypatch.setattr(constants, "ENDPOINT", self.endpoint)
            template = self.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
            yield self


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        words = urlsplit(self.path).path.strip("/").split("/")
        is_api = words[:2] == ["api", "models"]
        words = words[2:] if is_api else words
        model, (kind, revision, *file) = "/".join(words[:2]), words[2:] or ["revision", "main"]
        if model != self.server.model:
            self._fail("RepoNotFound")
        elif revision not in self.server.revisions:
            self._fail("RevisionNotFound")
        elif not is_api:
            self._send_file("/".join(file))
        elif kind == "revision":
            self._send_json({"id": model, "sha": COMMIT, "siblings": []})
        else:
            files = sorted(self.server.folder.iterdir())
            self._send_json(
                [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": _etag(f)} for f in files]
            )

    def _send_file(self, name: str) -> None:
        file = self.server.folder / name
        if not file.is_file():
            self._fail("EntryNotFound")
            return
        content = file.read_bytes()
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{_etag(file)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            self.server.downloaded.append((name, start))
            if name in self.server.breaks:
                self.server.breaks.remove(name)
                self.wfile.write(content[start : len(content) // 2])
                self.close_connection = True
            else:
                self.wfile.write(content[start:])

    def _send_json(self, content: object) -> None:
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def _fail(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def _etag(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()
