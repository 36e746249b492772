"""A stand-in for the hub on the loopback interface: one repository, served from a folder."""

from __future__ import annotations

import hashlib
import json
import re
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPO = "org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StandIn(ThreadingHTTPServer):
    """A hub with one repository, served from a folder; `refuse` makes it answer otherwise."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.refuse: dict[str, tuple[int, dict[str, str]]] = {}
        self.ranges = True
        self.delay_s = 0.0
        self.requests: list[str] = []
        self.sent_bytes = 0
        self.tokens: set[str | None] = set()


class Handler(BaseHTTPRequestHandler):
    """Answers /api/models/REPO and /REPO/resolve/COMMIT/FILE."""

    server: StandIn
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        time.sleep(hub.delay_s)
        hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        hub.tokens.add(self.headers.get("Authorization"))
        for pattern, (status, headers) in hub.refuse.items():
            if re.search(pattern, path):
                return self._send(status, b"{}", headers, body)
        if re.fullmatch(f"/api/models/{REPO}(/revision/(main|{COMMIT}))?", path):
            return self._send(200, listing(hub.folder), {}, body)
        if match := re.fullmatch(f"/{REPO}/resolve/({COMMIT}|main)/(.+)", path):
            return self._file(hub.folder / match[2], body)
        code = "RevisionNotFound" if f"/{REPO}/revision/" in path else "RepoNotFound"
        return self._send(404, b"{}", {"X-Error-Code": code}, body)

    def _file(self, path: Path, body: bool) -> None:
        size = path.stat().st_size
        name = hashlib.sha256(path.name.encode()).hexdigest()
        headers = {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not wanted or not self.server.ranges:
            with path.open("rb") as file:
                return self._send(200, file.read(), headers, body)
        start, stop = int(wanted[1]), min(int(wanted[2]) + 1, size)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        with path.open("rb") as file:
            file.seek(start)
            return self._send(206, file.read(stop - start), headers, body)

    def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.server.sent_bytes += len(data)
            # The client hangs up on an answer that it does not want whole.
            with suppress(ConnectionError):
                self.wfile.write(data)


def listing(folder: Path) -> bytes:
    """Return what the hub's API says of a repository."""
    files = [{"rfilename": file.name, "size": file.stat().st_size} for file in folder.iterdir()]
    files.append({"rfilename": "original/params.json", "size": 10})
    return json.dumps({"id": REPO, "sha": COMMIT, "siblings": files}).encode()
