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
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from quantplan.oracle.worker.channel import Channel
from quantplan.oracle.worker.emulation import Emulation
from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.serve import serve


def main() -> int:
    """Serve until the pipe ends; return the exit code."""
    channel = Channel()
    start = channel.read()
    if start is None:
        return 0
    sys.path[:0] = [os.path.abspath(folder) for folder in start["paths"]]
    fault, engine_version = _engine()
    if fault:
        channel.write({"fault": fault})
        return 1
    if start["only_version"]:
        channel.write({"ready": True, "version": engine_version})
        return 0
    try:
        emulation = _prepare(bool(start["emulate"]))
    except Exception as error:
        channel.write({"fault": f"{type(error).__name__}: {error}"})
        return 1
    channel.write({"ready": True, "version": engine_version})
    _serve_machines(channel, emulation)
    return 0


def _engine() -> tuple[str | None, str | None]:
    """Return what keeps the engine from being imported, and its version. vLLM is not imported."""
    for package in ("torch", "transformers", "vllm"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not importable", None
    try:
        return None, version("vllm")
    except PackageNotFoundError:
        return "vllm is importable but its version is not known: its .dist-info is missing", None


def _prepare(emulate: bool) -> Emulation | None:
    """Import what every machine shares; return the emulation, None where the GPU is real."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS"):
        os.environ[name] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if emulate:
        return Emulation()
    imported("transformers.models.auto.modeling_auto")
    return None


def _serve_machines(channel: Channel, emulation: Emulation | None) -> None:
    while (machine := channel.read()) is not None:
        child = os.fork()
        if child == 0:
            _live(channel, machine, emulation)
        _, status = os.waitpid(child, 0)
        channel.write({"ended": os.waitstatus_to_exitcode(status)})


def _live(channel: Channel, machine: Mapping[str, Any], emulation: Emulation | None) -> None:
    """Be a child: serve the questions of one machine, and end without a parent's clean-up."""
    code = 1
    try:
        channel.write({"forked": os.getpid()})
        serve(channel, machine, emulation)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
