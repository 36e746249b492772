"""The hub through the real huggingface_hub client, against a stand-in on the loopback interface."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from quantplan.dispatch.facts import Tensor
from quantplan.tables.errors import CheckpointError
from sparse_checkpoint import CONFIG, Stored, write_folder, write_sparse

REPO = "org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secretsecretsecretsecretsecret00"
A, B = Stored("a.weight", "F8_E4M3", (4096, 4096)), Stored("b.weight", "BF16", (8,))
INDEX = "model.safetensors.index.json"


class StandIn(ThreadingHTTPServer):
    """A hub with one repository, served from a folder; `refuse` makes it answer otherwise."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.refuse: dict[str, tuple[int, dict[str, str]]] = {}
        self.ranges = True
        self.requests: list[str] = []
        self.sent_bytes = 0
        self.tokens: set[str | None] = set()


class Handler(BaseHTTPRequestHandler):
    """Answers /api/models/REPO and /REPO/resolve/COMMIT/FILE."""

    server: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""

    def do_HEAD(self) -> None:  # noqa: N802
        self._answer(body=False)

    def do_GET(self) -> None:  # noqa: N802
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.server, self.path.partition("?")[0]
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
                return self._send(200, file.read(1_000_000), headers, body)
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
            self.wfile.write(data)


def listing(folder: Path) -> bytes:
    """Return what the hub's API says of a repository."""
    files = [{"rfilename": file.name, "size": file.stat().st_size} for file in folder.iterdir()]
    files.append({"rfilename": "original/params.json", "size": 10})
    return json.dumps({"id": REPO, "sha": COMMIT, "siblings": files}).encode()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Import huggingface_hub anew, with no home, token or endpoint of this machine in it."""
    home = tmp_path_factory.mktemp("home")
    names = [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]
    kept = {name: sys.modules.pop(name) for name in [*names, "quantplan.dispatch.hub"] if name in sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
            patch.delenv(name, raising=False)
        patch.setenv("HF_HOME", str(home))
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        patch.setenv("HF_HUB_DISABLE_XET", "1")
        patch.setenv("NO_PROXY", "127.0.0.1")
        from quantplan.dispatch import hub

        yield hub
        hub.constants.HF_HUB_CACHE  # noqa: B018
        sys.modules["huggingface_hub.utils"].close_session()
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]
    sys.modules.pop("quantplan.dispatch.hub", None)
    sys.modules.update(kept)
