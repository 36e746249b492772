"""What a model is, from whatever names it: a mapping, a folder, a config.json, a name, a hub id."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.config_file import (
    CONFIG,
    SIDE_FILES,
    check_config,
    check_nesting,
    kind,
    read_json,
)
from quantplan.dispatch.facts import Checkpoint, Tensor
from quantplan.dispatch.regular_file import shown, size_bytes
from quantplan.dispatch.safetensors_header import DTYPES
from quantplan.dispatch.store import config_alone, read_folder
from quantplan.dispatch.weight_files import UNREAD_SUFFIXES
from quantplan.tables.errors import CheckpointError, UsageError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
MODEL_FORMS = "a folder, a config.json, a bundled name or a hub id (org/name)"


def read_checkpoint(
    where: str | os.PathLike[str] | Mapping[str, Any],
    *,
    tensors: Mapping[str, Any] | None = None,
    side_files: Mapping[str, Mapping[str, Any]] | None = None,
    revision: str | None = None,
) -> Checkpoint:
    """Return the facts of a checkpoint; no weight is read, no engine is asked.

    `where` is a parsed config.json, a folder, the path of a config.json, a bundled name or a hub
    id, tried in this order; a path that exists wins. `tensors` ({name: dtype} or
    {name: (dtype, shape)}, dtypes as safetensors spells them) and `side_files` ({file name: parsed
    content}) belong to a parsed config; `revision` belongs to a hub id.

    Raises UsageError when `where` cannot be a model, CheckpointError when it is missing, unreadable
    or contradicts itself, NotKnownError for a config layout without a rule.
    """
    if isinstance(where, Mapping):
        _refuse(revision, "revision", "a hub id")
        return _from_mapping(where, tensors, side_files)
    _refuse(tensors, "tensors", "a parsed config")
    _refuse(side_files, "side_files", "a parsed config")
    name = _text(where)
    path = os.path.expanduser(name)
    if os.path.lexists(path):
        _refuse(revision, "revision", "a hub id")
        return _from_path(path)
    if _looks_like_path(name):
        raise CheckpointError(f"{shown(name)} does not exist", wanted=MODEL_FORMS)
    return _from_name(name, revision)


def _from_mapping(
    config: Mapping[str, Any],
    tensors: Mapping[str, Any] | None,
    side_files: Mapping[str, Mapping[str, Any]] | None,
) -> Checkpoint:
    check_config(config)
    for name, content in _mapping(side_files, "side_files").items():
        check_nesting(_mapping(content, f"side_files[{kind(name)}]"), str(name))
    headers = {name: _tensor(name, given) for name, given in _mapping(tensors, "tensors").items()}
    return Checkpoint(
        name=str(config.get("model_type") or "config"),
        origin="mapping",
        config=config,
        side_files=dict(side_files or {}),
        tensors=None if tensors is None else headers,
    )


def _mapping(given: object, what: str) -> Mapping[str, Any]:
    """Return a mapping, empty for None; raise UsageError for anything else."""
    if not isinstance(given, (Mapping, type(None))):
        raise UsageError(f"{what} is not usable", wanted="a mapping", found=kind(given))
    return given or {}


def _tensor(name: str, given: object) -> Tensor:
    """Return a tensor from "BF16" or ("BF16", (4096, 4096))."""
    dtype, shape = (given, None) if isinstance(given, str) else _pair(name, given)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        wanted = "a safetensors dtype such as BF16"
        raise UsageError(f"tensors[{kind(name)}] is not usable", wanted=wanted, found=kind(dtype))
    return Tensor(dtype, shape)


def _pair(name: str, given: object) -> tuple[object, tuple[int, ...] | None]:
    if isinstance(given, (tuple, list)) and len(given) == 2:
        dtype, shape = given
        if shape is None:
            return dtype, None
        if isinstance(shape, (tuple, list)) and all(type(n) is int and n >= 0 for n in shape):
            return dtype, tuple(shape)
    wanted = "dtype or (dtype, shape)"
    raise UsageError(f"tensors[{kind(name)}] is not usable", wanted=wanted, found=kind(given))


def _from_path(path: str) -> Checkpoint:
    if os.path.isdir(path):
        return read_folder(path)
    size_bytes(path)
    if os.path.basename(path) == CONFIG:
        return read_folder(os.path.dirname(path) or ".", weights=False)
    base = os.path.basename(path).lower()
    if base.endswith((".safetensors", ".index.json")) or base in (*SIDE_FILES, "params.json"):
        hint = f"Give the folder that holds it, with its {CONFIG}."
        raise UsageError(f"{shown(path)} is one file of a model", wanted=MODEL_FORMS, hint=hint)
    if base.endswith(UNREAD_SUFFIXES):
        hint = f"Give a folder with {CONFIG} and safetensors files."
        raise CheckpointError(
            f"{shown(path)} is never opened: GGUF is not read, and a pickle can run code", hint=hint
        )
    if not base.endswith(".json"):
        raise UsageError(f"{shown(path)} is not a model", wanted=MODEL_FORMS, found="another file")
    return _from_config(path)


def _from_config(path: str) -> Checkpoint:
    """Return the facts of a config under another name, with nothing read beside it."""
    config = read_json(path)
    check_config(config, path)
    name = os.path.basename(path).removesuffix(".json")
    return Checkpoint(name=name, origin=CONFIG, config=config, notes=(config_alone(),))


def _from_name(name: str, revision: str | None) -> Checkpoint:
    from quantplan.dispatch.bundled import bundled_checkpoint, closest_models

    if (found := bundled_checkpoint(name)) is not None:
        _refuse(revision, "revision", "a hub id")
        return found
    if not HUB_ID.fullmatch(name):
        close = ", ".join(closest_models(name))
        hint = f"Did you mean {close}?" if close else "`quantplan models` lists the bundled names."
        what = f"{kind(name)} is not a model"
        missing = "no such path and no such bundled name"
        raise UsageError(what, wanted=MODEL_FORMS, found=missing, hint=hint)
    try:
        from quantplan.dispatch.hub import read_hub
    except ValueError as error:  # the client reads its variables when it is imported
        raise CheckpointError("the hub's client does not start", found=str(error),
                              hint="Check the HF_HUB_ variables.") from None
    return read_hub(name, revision)


def _looks_like_path(name: str) -> bool:
    endings = ("/", ".json", ".safetensors", *UNREAD_SUFFIXES)
    return name.startswith((".", "/", "~", "\\")) or name.count("/") > 1 or name.endswith(endings)


def _text(where: object) -> str:
    try:
        text = os.fspath(where)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str) or not text.strip():
        raise UsageError("the model is not usable", wanted=MODEL_FORMS, found=kind(where))
    return text


def _refuse(given: object, option: str, owner: str) -> None:
    if given is not None:
        raise UsageError(f"{option} goes with {owner} only", found=kind(given))
