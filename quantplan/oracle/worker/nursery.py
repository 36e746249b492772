"""The first process: imports what no question changes, and forks a child for every machine.

A machine is a capability, a set of libraries and an environment. The engine reads them while it is
imported (class attributes, module constants, cached answers), so each gets a fresh import.

Messages, in order: `start` -> `ready` with the engine's version; then per machine: the machine ->
`forked` with the child's process id -> the child's `ready`; questions and answers; `end` -> `ended`
with the child's exit code. A child that dies is reported by `ended` at once.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from quantplan.oracle.worker.channel import Channel
from quantplan.oracle.worker.modules import imported

WORKER = "quantplan.oracle.worker"
"""Each engine's side is a package in it: `serve` says what it needs, prepares, and serves."""


def main() -> int:
    """Serve until the pipe ends; return the exit code."""
    channel = Channel()
    start = channel.read()
    if start is None:
        return 0
    sys.path[:0] = [os.path.abspath(folder) for folder in start["paths"]]
    engine = str(start.get("engine", "vllm"))
    side = imported(f"{WORKER}.{engine}.serve")
    fault, engine_version = _version(engine, side.NEEDED)
    if fault:
        channel.write({"fault": fault})
        return 1
    if start["only_version"]:
        channel.write({"ready": True, "version": engine_version})
        return 0
    try:
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            os.environ[name] = "1"
        emulation = side.prepare(bool(start["emulate"]))
    except Exception as error:
        channel.write({"fault": f"{type(error).__name__}: {error}"})
        return 1
    channel.write({"ready": True, "version": engine_version})
    _serve_machines(channel, side, emulation)
    return 0


def _version(engine: str, needed: Sequence[str]) -> tuple[str | None, str | None]:
    """Return what keeps the engine from being imported, and its version. It is not imported."""
    for package in needed:
        if importlib.util.find_spec(package) is None:
            return f"{package} is not importable", None
    try:
        return None, version(engine)
    except PackageNotFoundError:
        why = f"{engine} is importable but its version is not known: its .dist-info is missing"
        return why, None


def _serve_machines(channel: Channel, side: Any, emulation: Any) -> None:
    while (machine := channel.read()) is not None:
        child = os.fork()
        if child == 0:
            _live(channel, machine, side, emulation)
        _, status = os.waitpid(child, 0)
        channel.write({"ended": os.waitstatus_to_exitcode(status)})


def _live(channel: Channel, machine: Mapping[str, Any], side: Any, emulation: Any) -> None:
    """Be a child: serve the questions of one machine, and end without a parent's clean-up."""
    code = 1
    try:
        channel.write({"forked": os.getpid()})
        side.serve(channel, machine, emulation)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
