"""A case: one question that both quantplan and the engine are asked, and its JSON form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.oracle.flags import engine_flags, option_names
from quantplan.oracle.stored import assumed_headers
from quantplan.tables.errors import UsageError
from quantplan.tables.record import NamedTuple

SHOWN_HEADERS = ("vllm",)
"""Engines that read headers which our answer takes for granted."""


class Case(NamedTuple):
    """One question; `capability` None means this machine's own GPU. `options` are those of
    `explain` that are also the engine's flags; `tensors` stand for the safetensors headers."""

    id: str
    kind: str
    config: Mapping[str, Any]
    capability: int | None = None
    options: Mapping[str, Any] = {}
    env: Mapping[str, str] = {}
    libs: Mapping[str, Any] = {}
    side_files: Mapping[str, Any] = {}
    tensors: Mapping[str, Any] | None = None

    def asked(self) -> dict[str, Any]:
        """Return the keyword arguments of `explain`, without the model, engine and GPU."""
        return {**self.options, "env": dict(self.env), "libs": dict(self.libs),
                "side_files": dict(self.side_files) or None, "tensors": self.tensors}

    def question(self, engine: str = "vllm") -> dict[str, Any]:
        """Return what the engine's worker is asked."""
        tensors = self.tensors
        if tensors is None and engine in SHOWN_HEADERS:
            tensors = assumed_headers(self.config)
        return {
            "config": self.config, "side_files": self.side_files,
            "flags": engine_flags(engine, self.options),
            "tensors": None if tensors is None else {
                name: stored if isinstance(stored, str) else stored[0]
                for name, stored in tensors.items()},
        }

    def deployment(self) -> Deployment:
        """Return what the machine depends on: environment and libraries."""
        return Deployment(env=self.env, libs=self.libs)

    def to_dict(self) -> dict[str, Any]:
        """Return the case as JSON-ready data; fields at their defaults are left out."""
        defaults = type(self)._field_defaults
        return {name: value for name, value in self._asdict().items()
                if name not in defaults or value != defaults[name]}


FIELD_KINDS: Mapping[str, tuple[type, ...]] = {
    "id": (str,), "kind": (str,), "config": (dict,), "capability": (int, type(None)),
    "options": (dict,), "env": (dict,), "libs": (dict,), "side_files": (dict,),
    "tensors": (dict, type(None)),
}


def read_cases(path: str) -> Iterator[Case]:
    """Yield the cases of a JSON-lines file, as `to_dict` writes them; raise UsageError naming the
    line that is none."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _case(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--cases {path}", wanted="a JSON-lines file", found=found) from None


def _case(line: str, where: str) -> Case:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON", found=str(error)[:200]) from None
    if not isinstance(given, dict):
        raise UsageError(f"{where}: not a case", wanted="an object", found=type(given).__name__)
    for name, value in given.items():
        if name not in FIELD_KINDS:
            raise UsageError(f"{where}: unknown field {name!r}", wanted="one of "
                             + ", ".join(FIELD_KINDS))
        if not isinstance(value, FIELD_KINDS[name]):
            raise UsageError(f"{where}: {name}", wanted=FIELD_KINDS[name][0].__name__,
                             found=type(value).__name__)
    missing = [name for name in ("id", "config") if name not in given]
    unknown = sorted(set(given.get("options", {})) - set(option_names()))
    if missing:
        raise UsageError(f"{where}: {missing[0]} is missing", wanted="id and config")
    if unknown:
        raise UsageError(f"{where}: unknown option {unknown[0]!r}",
                         wanted="one of " + ", ".join(option_names()))
    return Case(**{"kind": "case", **given})


def checkpoint_case(checkpoint: Checkpoint, capability: int | None, **asked: Any) -> Case:
    """Return the case of a checkpoint; `asked` are further fields of Case."""
    tensors = checkpoint.tensors
    at = "" if capability is None else f" at {capability / 10}"
    return Case(
        id=checkpoint.name + at, kind="model", config=dict(checkpoint.config),
        capability=capability, side_files=dict(checkpoint.side_files),
        tensors=None if tensors is None else {
            name: stored.dtype if stored.shape is None else [stored.dtype, list(stored.shape)]
            for name, stored in tensors.items()}, **asked)
