"""What reaches the terminal: whole lines without control characters."""

from __future__ import annotations

import os
import sys

from quantplan.tables.errors import UsageError


def say(text: str) -> None:
    """Print `text`, control characters of names and configs escaped. A reader that left early
    (`| head`) changes nothing: the exit code is still the answer."""
    lines = [clean(line) for line in text.removesuffix("\n").split("\n")]
    try:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise UsageError("the output cannot be written", found=error.strerror) from None


def clean(text: str) -> str:
    """Return one line of printable text: control characters become \\x escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
