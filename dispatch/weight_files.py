"""Which files of a model hold its weights, and the tensors that their headers declare together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from quantplan.dispatch.config_file import kind
from quantplan.dispatch.facts import Note, Tensor
from quantplan.dispatch.regular_file import shown
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

INDEX = "model.safetensors.index.json"
CONSOLIDATED_INDEX = "consolidated.safetensors.index.json"
INDEX_LIMIT_BYTES = 256 << 20
UNREAD_SUFFIXES = (".bin", ".pt", ".pth", ".gguf")
# Source: vLLM 0.32.0 weight_utils.filter_files_not_needed_for_inference.
NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<total>\d+)\.safetensors")
NAMED_AT_MOST = 3


class Store(Protocol):
    """A folder or a hub repository: plain file names, and what can be read of them."""

    where: str
    names: frozenset[str]

    def label(self, name: str) -> str:
        """Return how errors name a file."""

    def json(self, name: str, limit_bytes: int) -> dict[str, Any]:
        """Return the JSON object in a file of at most `limit_bytes`."""

    def headers(self, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
        """Yield one header a file, in the order asked."""

    def size_bytes(self, name: str) -> int | None:
        """Return a file's size in bytes, None when the store does not say."""


class Weights(NamedTuple):
    """The tensors of a checkpoint (None when no header was read), the files' size, what was odd."""

    tensors: dict[str, Tensor] | None
    file_bytes: int | None
    notes: tuple[Note, ...]


def read_weights(store: Store) -> Weights:
    """Return the weights a store holds: its index decides, else every safetensors file counts.

    Raises CheckpointError: a missing shard, a shard name that leaves the folder, an index that
    names tensors no file holds, a bad header.
    """
    files = sorted(name for name in store.names if name.endswith(".safetensors"))
    consolidated = [name for name in files if name.startswith("consolidated")]
    model = [name for name in files if not name.startswith("consolidated")]
    if INDEX in store.names:
        return _indexed(store, INDEX, files)
    if model:
        return _unindexed(store, model, consolidated)
    if CONSOLIDATED_INDEX in store.names:
        return _indexed(store, CONSOLIDATED_INDEX, files)
    if consolidated:
        return _unindexed(store, consolidated)
    return _unread(store)


def weight_map(index: Mapping[str, Any], label: str) -> dict[str, str]:
    """Return {tensor: file} of an index; raise CheckpointError unless all files are plain names."""
    found = index.get("weight_map")
    if not isinstance(found, dict) or not found:
        wanted = '{"weight_map": {tensor name: file name}}'
        raise CheckpointError(f"{shown(label)} has no weight_map", wanted=wanted, found=kind(found))
    odd: list[object] = [file for file in found.values() if not isinstance(file, str)]
    odd = odd or [file for file in set(found.values()) if not _is_plain(file)]
    if odd:
        raise CheckpointError(
            f"{shown(label)} names a file that is not a safetensors file of its folder",
            wanted="plain names ending in .safetensors",
            found=kind(odd[0]),
        )
    return found


def _indexed(store: Store, index_name: str, files: Sequence[str]) -> Weights:
    label = store.label(index_name)
    expected = weight_map(store.json(index_name, INDEX_LIMIT_BYTES), label)
    shards = sorted(set(expected.values()))
    missing = [name for name in shards if name not in store.names]
    if missing:
        raise _missing_shards(store.where, missing, len(missing), len(shards))
    tensors, twice = _merge(store.headers(shards))
    if absent := sorted(name for name in expected if name not in tensors):
        raise CheckpointError(
            f"{shown(label)} names {_count(len(absent), 'tensor')} that no shard holds",
            wanted="an index written with these shards",
            found=_some(absent),
            hint="Fetch the index and the shards of one revision.",
        )
    extra = sorted(name for name in tensors if name not in expected)
    left_out = sorted(set(files) - set(shards))
    notes = (
        *_note("stale-index", extra, "tensor", f"in the shards but not in {index_name}"),
        *_note("duplicate-tensor", twice, "tensor", "stored in more than one file"),
        *_note("weight-files-left-out", left_out, "safetensors file", f"not named by {index_name}"),
    )
    return Weights(tensors, _sum_bytes(store, shards), notes)


def _unindexed(store: Store, files: Sequence[str], left_out: Sequence[str] = ()) -> Weights:
    _check_complete(store.where, files)
    tensors, twice = _merge(store.headers(files))
    reason = "not read: model files are beside them"
    notes = (
        *_note("duplicate-tensor", twice, "tensor", "stored in more than one file"),
        *_note("weight-files-left-out", left_out, "safetensors file", reason),
    )
    return Weights(tensors, _sum_bytes(store, files), notes)


def _unread(store: Store) -> Weights:
    """Return what can be said without a safetensors header: pickles and GGUF are never opened."""
    files = sorted(
        name
        for name in store.names
        if name.lower().endswith(UNREAD_SUFFIXES) and name not in NOT_WEIGHTS
    )
    if not files:
        note = Note("no-weights", "no weight files: shapes come from the config alone",
                    severity="info")
        return Weights(None, None, (note,))
    note = Note(
        "weights-not-read",
        f"{_count(len(files), 'weight file')} without a safetensors header, not opened: "
        f"{_some(files)}",
        "Convert to safetensors to check tensor names, dtypes and shapes.",
    )
    return Weights(None, _sum_bytes(store, files), (note,))


def _merge(headers: Iterable[dict[str, Tensor]]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors of all headers and the names met twice."""
    tensors: dict[str, Tensor] = {}
    twice: list[str] = []
    for header in headers:
        # Set operations on keys run in C: 200,000 names must not cost a Python loop.
        if not tensors.keys().isdisjoint(header):
            twice += sorted(tensors.keys() & header.keys())
        tensors.update(header)
    return tensors, twice


def _check_complete(where: str, files: Iterable[str]) -> None:
    """Raise CheckpointError when names say "3 of 4" and one of the four is not there."""
    numbers_of: dict[tuple[str, str], set[int]] = {}
    for file in files:
        if match := SHARD.fullmatch(file):
            numbers_of.setdefault((match["stem"], match["total"]), set()).add(int(match["number"]))
    for (stem, total), numbers in numbers_of.items():
        absent = int(total) - len(numbers)
        if absent > 0:
            # Some exporters count from 0.
            first = 0 if 0 in numbers else 1
            wanted = (i for i in range(first, first + int(total)) if i not in numbers)
            width = len(total)
            names = [
                f"{stem}-{i:0{width}d}-of-{total}.safetensors"
                for i in islice(wanted, NAMED_AT_MOST)
            ]
            raise _missing_shards(where, names, absent, int(total))


def _missing_shards(where: str, names: Sequence[str], count: int, total: int) -> CheckpointError:
    """Return the refusal for `count` missing shards of `total`; `names` are at least the first."""
    return CheckpointError(
        f"{shown(where)} lacks {_count(count, 'shard')}: {_some(names, count)}",
        wanted=_count(total, "shard"),
        found=f"{total - count:,}",
        hint="Fetch the missing files again.",
    )


def _note(id: str, names: Sequence[str], noun: str, what: str) -> list[Note]:
    """Return one note about some names, none when there are none."""
    return [Note(id, f"{_count(len(names), noun)} {what}: {_some(names)}")] if names else []


def _sum_bytes(store: Store, names: Iterable[str]) -> int | None:
    sizes = [store.size_bytes(name) for name in names]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _is_plain(name: str) -> bool:
    return name.endswith(".safetensors") and not any(mark in name for mark in "/\\\0")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _some(names: Iterable[str], count: int | None = None) -> str:
    """Return the first names of a list and how many more there are."""
    listed = list(names)
    rest = (len(listed) if count is None else count) - min(len(listed), NAMED_AT_MOST)
    text = ", ".join(shown(name) for name in listed[:NAMED_AT_MOST])
    return f"{text} and {rest:,} more" if rest else text
