"""A model on the hub, through huggingface_hub: configs whole, of the weights the headers alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from json import JSONDecodeError
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url, try_to_load_from_cache

# Public, yet re-exported in a way that mypy does not follow.
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    are_progress_bars_disabled,
    build_hf_headers,
    disable_progress_bars,
    enable_progress_bars,
    hf_raise_for_status,
    http_stream_backoff,
)
from quantplan.dispatch.config_file import CONFIG, parse_json
from quantplan.dispatch.facts import Checkpoint, Note, Tensor
from quantplan.dispatch.hub_errors import is_unreachable, not_a_hub, not_understood, refusal
from quantplan.dispatch.regular_file import read_bytes
from quantplan.dispatch.safetensors_header import HEADER_LIMIT_BYTES, LENGTH_BYTES, read_header
from quantplan.dispatch.store import Folder, read_store
from quantplan.dispatch.weight_files import CONSOLIDATED_INDEX, INDEX
from quantplan.tables.errors import CheckpointError, QuantplanError

# huggingface_hub's own first request: 97 % of headers are shorter.
# Source: huggingface_hub 2.4.0 HfApi.parse_safetensors_file_metadata.
FIRST_BYTES = 100_000
REQUESTS_AT_ONCE = 8
RETRIES = 2
RETRIED_STATUS = (500, 502, 503, 504)


def read_hub(repo_id: str, revision: str | None = None) -> Checkpoint:
    """Return the facts of a hub repository; `fetched_bytes` counts what came over the network.

    Cache, token, HF_ENDPOINT and HF_HUB_OFFLINE are huggingface_hub's. When the hub is not reached,
    a cached snapshot answers, with a note. Raises CheckpointError: not found, gated, not reached,
    or what a local folder would raise. Errors are raised without their cause: the client's own
    may quote the token.
    """
    try:
        return _read_online(repo_id, revision)
    except QuantplanError:
        raise
    except Exception as error:
        failure = error
    if is_unreachable(failure) and (cached := _read_cached(repo_id, revision)) is not None:
        return cached
    raise refusal(failure, repo_id, revision) or not_understood(failure, repo_id)


def _read_online(repo_id: str, revision: str | None) -> Checkpoint:
    repository = Repository(repo_id, revision)
    found = read_store(repository, name=repo_id, origin="hub", revision=repository.revision)
    return found._replace(fetched_bytes=repository.fetched_bytes)


def _read_cached(repo_id: str, revision: str | None) -> Checkpoint | None:
    """Return what the cached snapshot says, None when its config was never fetched."""
    config = try_to_load_from_cache(repo_id, CONFIG, revision=revision)
    if not isinstance(config, str):
        return None
    folder = Folder(os.path.dirname(config))
    if not any(name.endswith(".safetensors") for name in folder.names):
        # An earlier online read leaves the index in the cache but no shard: nothing is missing.
        folder.names -= {INDEX, CONSOLIDATED_INDEX}
    commit = os.path.basename(folder.where)
    found = read_store(folder, name=repo_id, origin="hub-cache", revision=commit)
    note = Note("hub-not-reached",
                f"the hub was not reached; revision {commit} is from the cache", severity="info")
    return found._replace(notes=(note, *found.notes))


class Repository:
    """A hub repository at one commit as a store."""

    def __init__(self, repo_id: str, revision: str | None) -> None:
        self.where = repo_id
        self.revision, self.sizes_bytes = _listing(repo_id, revision)
        self.names = frozenset(self.sizes_bytes)
        self.fetched_bytes = 0

    def label(self, name: str) -> str:
        """Return how errors name a file: repository and file."""
        return f"{self.where}/{name}"

    def json(self, name: str, limit_bytes: int) -> dict[str, Any]:
        """Return a file's JSON object, from the cache or fetched into it."""
        size = self.sizes_bytes[name] or 0
        if size > limit_bytes:
            raise CheckpointError(
                f"{self.label(name)} is too large",
                wanted=f"at most {limit_bytes:,} bytes",
                found=f"{size:,} bytes",
            )
        path = self._cached(name)
        if path is None:
            with _without_progress_bars():
                path = hf_hub_download(self.where, name, revision=self.revision)
            self.fetched_bytes += os.path.getsize(path)
        return parse_json(read_bytes(path, limit_bytes=limit_bytes), self.label(name))

    def size_bytes(self, name: str) -> int | None:
        """Return a file's size in bytes, as the hub lists it."""
        return self.sizes_bytes[name]

    def headers(self, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
        """Yield the header of each file, checked as a local one would be."""
        from concurrent.futures import ThreadPoolExecutor
        from tempfile import TemporaryDirectory

        shared: dict[Tensor, Tensor] = {}
        pool = ThreadPoolExecutor(REQUESTS_AT_ONCE)
        try:
            with TemporaryDirectory() as folder:
                for name, head in zip(names, pool.map(self._head, names), strict=True):
                    path = self._at_rest(name, head, folder)
                    yield read_header(path, shared, name=self.label(name))
        finally:
            # After one bad header the other requests are for nothing.
            pool.shutdown(cancel_futures=True)

    def _at_rest(self, name: str, head: str | bytes, folder: str) -> str:
        """Return a path whose file has the remote one's header and size, and takes no disk."""
        if isinstance(head, str):
            return head
        self.fetched_bytes += len(head)
        path = os.path.join(folder, "header")
        with open(path, "wb") as file:
            file.write(head)
            file.truncate(self.sizes_bytes[name] or 0)
        return path

    def _cached(self, name: str) -> str | None:
        path = try_to_load_from_cache(self.where, name, revision=self.revision)
        return path if isinstance(path, str) else None

    def _head(self, name: str) -> str | bytes:
        """Return the path of a cached file, else the first bytes of a remote one: its header."""
        if (path := self._cached(name)) is not None:
            return path
        head = self._range(name, 0, FIRST_BYTES)
        end = LENGTH_BYTES + int.from_bytes(head[:LENGTH_BYTES], "little")
        if len(head) < end <= min(HEADER_LIMIT_BYTES, self.sizes_bytes[name] or 0):
            head += self._range(name, len(head), end)
        return head

    def _range(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes start to stop of a remote file, and note the size that the answer states."""
        headers = build_hf_headers() | {
            "Range": f"bytes={start}-{stop - 1}",
            "Accept-Encoding": "identity",
        }
        with http_stream_backoff(
            "GET",
            hf_hub_url(self.where, name, revision=self.revision),
            headers=headers,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            max_retries=RETRIES,
            retry_on_status_codes=RETRIED_STATUS,
        ) as response:
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            size = response.headers.get("Content-Range", "").rpartition("/")[2]
            if response.status_code != 206 or not size.isdecimal():
                raise self._no_ranges(name)
            self.sizes_bytes[name] = int(size)
            return _first(response.iter_bytes(), stop - start)

    def _no_ranges(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"{self.label(name)} cannot be read in part: its server ignores byte ranges",
            wanted="the header alone, not the weights",
            hint="Fetch the model with `hf download` and give its folder.",
        )


def _listing(repo_id: str, revision: str | None) -> tuple[str | None, dict[str, int | None]]:
    """Return a repository's commit and the sizes in bytes of the files at its top."""
    timeout_s = constants.HF_HUB_ETAG_TIMEOUT
    try:
        info = HfApi().model_info(
            repo_id, revision=revision, files_metadata=True, timeout=timeout_s
        )
    except (JSONDecodeError, KeyError, TypeError):
        raise not_a_hub(repo_id) from None
    files = info.siblings or ()
    if not all(isinstance(file.rfilename, str) and isinstance(file.size, (int, type(None)))
               for file in files):
        raise not_a_hub(repo_id)
    return info.sha, {file.rfilename: file.size for file in files if "/" not in file.rfilename}


def _first(chunks: Iterable[bytes], count: int) -> bytes:
    """Return at most `count` bytes, whatever more a server sends."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) >= count:
            break
    return bytes(data[:count])


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
