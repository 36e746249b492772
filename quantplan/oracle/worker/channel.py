"""Questions and answers: one JSON object a line, over the pipes that were stdin and stdout."""

from __future__ import annotations

import json
import os
from typing import Any


class Channel:
    """Both pipes, taken from the process: what the engine prints goes to stderr from now on.

    The other side waits for an answer before it writes again, so a forked child may read on where
    its parent stopped.
    """

    def __init__(self) -> None:
        self._questions = os.fdopen(os.dup(0), "rb")
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)

    def read(self) -> Any:
        """Return the next question, or None at the end of the pipe."""
        line = self._questions.readline()
        return json.loads(line) if line else None

    def write(self, answer: Any) -> None:
        """Write one answer."""
        self._answers.write(json.dumps(answer, separators=(",", ":")) + "\n")
        self._answers.flush()
