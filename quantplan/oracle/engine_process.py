"""The engine's process: started, asked, restarted when it dies, and ended when it hangs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from quantplan.reports.naming import ENGINE_NAMES
from quantplan.tables.record import NamedTuple

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker")
START_LIMIT_S = 300.0
"""For the first import of torch, transformers and the engine, on a slow disk."""
CHUNK_BYTES = 1 << 16
LONGEST_WORDS = 300


class Where(NamedTuple):
    """Where the engine is: the interpreter of its environment, folders for its path, whether the
    GPU is emulated, the script that asks it, and which engine it is."""

    python: str = sys.executable
    paths: tuple[str, ...] = ()
    emulate: bool = True
    worker: str = WORKER
    engine: str = "vllm"


class CannotAskError(Exception):
    """The engine cannot be asked: why, in a sentence."""


class EngineProcess:
    """One worker: at most one machine at a time, entered when a question needs it."""

    def __init__(self, where: Where, limit_s: float = 60.0) -> None:
        self._where, self._limit_s = where, limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._words: Any = None
        self._buffer = b""
        self._machine: Any = None
        self._child = 0
        self._refused: dict[str, str] = {}
        self.version = ""

    @property
    def engine(self) -> str:
        """Return which engine it is."""
        return self._where.engine

    def start(self, only_version: bool = False) -> str:
        """Start the worker unless it runs; return the engine's version, for which alone nothing is
        imported and the worker ends. Raises CannotAskError."""
        if self._process is not None:
            return self.version
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        try:
            self._process = subprocess.Popen(
                [self._where.python, self._where.worker], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._words, start_new_session=True)
        except OSError as error:
            self._words.close()
            raise CannotAskError(f"{self._where.python} cannot be run: {error.strerror}") from None
        self._send({"paths": list(self._where.paths), "emulate": self._where.emulate,
                    "only_version": only_version, "engine": self._where.engine})
        ready = self._receive(START_LIMIT_S)
        if ready is None or "ready" not in ready:
            why = self._why(ready)
            self.close()
            raise CannotAskError(f"{ENGINE_NAMES[self._where.engine]} cannot be asked with "
                                 f"{self._where.python}: {why}")
        self.version = str(ready["version"])
        return self.version

    def enter(self, machine: Mapping[str, Any]) -> Mapping[str, Any]:
        """Be on this machine; return what the worker says of it. Raises CannotAskError."""
        if self._machine is not None and self._machine[0] == machine:
            return dict(self._machine[1])
        key = json.dumps(machine, sort_keys=True)
        if key in self._refused:
            raise CannotAskError(self._refused[key])
        self.leave()
        self.start()
        self._send(machine)
        forked = self._receive(START_LIMIT_S)
        self._child = forked["forked"] if forked else 0
        ready = self._receive(START_LIMIT_S) if forked else None
        if ready is None or "ready" not in ready:
            self._refused[key] = f"the engine did not come up: {self._why(ready)}"
            self._abandon(self._receive(self._limit_s) if ready and "fault" in ready else ready)
            raise CannotAskError(self._refused[key])
        self._machine = (dict(machine), ready)
        return dict(ready)

    def ask(self, machine: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine's answer, `machine` being what it says of the machine; outcome
        "untold" with a reason when it gave none."""
        try:
            ready = self.enter(machine)
        except CannotAskError as error:
            return {"outcome": "untold", "reason": str(error)}
        self._send(question)
        before = time.monotonic()
        answer = self._receive(self._limit_s)
        if answer is not None and "outcome" in answer:
            return {**answer, "machine": ready}
        late = time.monotonic() - before >= self._limit_s
        why = (f"no answer within {self._limit_s:g} s" if late else
               f"the engine's process ended: {self._last_words()}")
        self._abandon(answer)
        return {"outcome": "untold", "reason": why}

    def leave(self) -> None:
        """End the machine's child, if there is one."""
        if self._machine is None:
            return
        self._send({"end": True})
        self._abandon(self._receive(self._limit_s))

    def close(self) -> None:
        """End the worker."""
        if self._process is None:
            return
        process, self._process = self._process, None
        self._kill_child()
        for file in (process.stdin, process.stdout, self._words):
            if file is not None:
                with suppress(OSError):
                    file.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._buffer, self._machine = b"", None

    def _abandon(self, said: Mapping[str, Any] | None) -> None:
        """Be on no machine any more: its child has ended, or is ended now; a worker that does not
        say so is ended too."""
        self._machine = None
        if said is None:
            self._kill_child()
            said = self._receive(self._limit_s)
        self._child = 0
        if said is None or "ended" not in said:
            self.close()

    def _kill_child(self) -> None:
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
        self._child = 0

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its end shows when it is read from
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _receive(self, limit_s: float) -> Any:
        """Return the next message; None when the worker ended or said nothing within the limit."""
        if self._process is None or self._process.stdout is None:
            return None
        pipe = self._process.stdout.fileno()
        until = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return None
            data = os.read(pipe, CHUNK_BYTES)
            if not data:
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        with suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, dict):
                return said
        return {"fault": f"it said {line[:60]!r}"}  # another program than our worker

    def _why(self, said: Mapping[str, Any] | None) -> str:
        """Return what the worker said of its failure, or else wrote last."""
        return str(said["fault"]) if said and "fault" in said else self._last_words()

    def _last_words(self) -> str:
        """Return the last line that the worker wrote to stderr."""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - CHUNK_BYTES))
        lines = self._words.read().decode(errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        return said[-1].strip()[:LONGEST_WORDS] if said else "it said nothing"

