"""Places that hold a model's files: what they say together, and the local folder as one of them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from quantplan.dispatch.config_file import (
    CONFIG,
    CONFIG_LIMIT_BYTES,
    SIDE_FILES,
    check_config,
    check_nesting,
    read_json,
)
from quantplan.dispatch.facts import Checkpoint, Note, Tensor
from quantplan.dispatch.regular_file import shown, size_bytes, unreadable
from quantplan.dispatch.safetensors_header import read_header
from quantplan.dispatch.weight_files import Store, Weights, read_weights
from quantplan.tables.errors import CheckpointError

# The layout of the hub's cache: models--ORG--NAME/snapshots/REVISION.
SNAPSHOT = re.compile(r"models--(?P<id>[^/\\]+)[/\\]snapshots[/\\](?P<revision>[0-9a-f]{40})$")


def read_store(
    store: Store, *, name: str, origin: str, revision: str | None = None, weights: bool = True
) -> Checkpoint:
    """Return what a store's config, side files and safetensors headers say.

    With `weights` False no header is read and `tensors` is None. Raises CheckpointError, and
    NotKnownError for a config layout without a rule.
    """
    if CONFIG not in store.names:
        raise no_config(store.where, store.names)
    config = store.json(CONFIG, CONFIG_LIMIT_BYTES)
    check_config(config, store.label(CONFIG))
    side_files = {
        side: store.json(side, CONFIG_LIMIT_BYTES) for side in SIDE_FILES if side in store.names
    }
    for side, content in side_files.items():
        check_nesting(content, store.label(side))
    found = read_weights(store) if weights else Weights(None, None, (config_alone(),))
    return Checkpoint(
        name=name,
        origin=origin,
        config=config,
        side_files=side_files,
        tensors=found.tensors,
        file_bytes=found.file_bytes,
        revision=revision,
        notes=found.notes,
    )


def config_alone() -> Note:
    """Return the note for a model of which only config.json was given."""
    return Note("config-alone", "a config.json alone: shapes come from it, not from headers",
                severity="info")


def no_config(where: str, names: Collection[str]) -> CheckpointError:
    """Return the refusal for a folder or repository without config.json: what it holds instead."""
    hint = f"Give a folder with {CONFIG}, a hub id (org/name) or a bundled name."
    if not names:
        found = "nothing"
    elif "params.json" in names:
        found = "params.json alone (Mistral's own layout)"
        hint = f"Give a repository or folder of the same model that has {CONFIG}."
    elif "adapter_config.json" in names:
        found = "adapter_config.json (a LoRA adapter)"
        hint = "Give its base model."
    elif gguf := sorted(name for name in names if name.lower().endswith(".gguf")):
        found = f"{shown(gguf[0])} (GGUF is not read)"
        hint = "Give the model that the GGUF file was made from."
    elif "snapshots" in names:
        found = "a repository of the hub's cache"
        hint = "Give a folder under snapshots/, or the hub id."
    else:
        found = f"{len(names):,} other name{'' if len(names) == 1 else 's'}"
    return CheckpointError(f"{shown(where)} has no {CONFIG}", wanted=CONFIG, found=found, hint=hint)


class Folder:
    """A local folder as a store."""

    def __init__(self, path: str) -> None:
        try:
            self.names = frozenset(os.listdir(path))
        except OSError as error:
            raise unreadable(path, error) from None
        self.where = path

    def label(self, name: str) -> str:
        """Return how errors name a file: by its path."""
        return os.path.join(self.where, name)

    def json(self, name: str, limit_bytes: int) -> dict[str, Any]:
        """Return a file's JSON object."""
        return read_json(self.label(name), limit_bytes=limit_bytes)

    def headers(self, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
        """Yield the header of each file; equal tensors are one object."""
        shared: dict[Tensor, Tensor] = {}
        for name in names:
            yield read_header(self.label(name), shared)

    def size_bytes(self, name: str) -> int:
        """Return a file's size in bytes."""
        return size_bytes(self.label(name))


def read_folder(path: str, *, weights: bool = True) -> Checkpoint:
    """Return the facts of a local folder; inside the hub's cache it is named as on the hub."""
    whole = os.path.abspath(path)
    name, revision = shown(os.path.basename(whole)) or "model", None
    if match := SNAPSHOT.search(whole):
        name, revision = match["id"].replace("--", "/", 1), match["revision"]
    origin = "folder" if weights else CONFIG
    return read_store(Folder(path), name=name, origin=origin, revision=revision, weights=weights)
