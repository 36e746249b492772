"""What reaches the terminal: whole lines without control characters."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from quantplan.tables.errors import UsageError


def say(text: str) -> None:
    """Print `text`, control characters of names and configs escaped. A reader that left early
    (`| head`) changes nothing: the exit code is still the answer."""
    lines = [clean(line) for line in text.removesuffix("\n").split("\n")]
    if sys.stdout is None:  # closed by the caller (>&-): the exit code is the answer
        return
    try:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        if not isinstance(error, BrokenPipeError):
            raise UsageError("the output cannot be written", found=error.strerror) from None


def say_json(value: Any) -> None:
    """Print JSON-ready data."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def discard_stdout() -> None:
    """Send what is still to be flushed nowhere: its reader is gone, or the disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_whole(path: str, text: str) -> None:
    """Write a file that is never half there. Raises UsageError where it cannot be written."""
    import tempfile

    folder = os.path.dirname(os.path.abspath(path))
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written", found=error.strerror) from None


def clean(text: str) -> str:
    """Return one line of printable text: control characters become \\x escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def wrapped(text: str) -> str:
    """Return `text` with its long lines wrapped for a terminal; as it is where none reads it."""
    width = line_width()
    if width is None:
        return text
    import textwrap

    lines: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines += [line] if len(line) <= width else textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


WIDTH = 160
"""Characters of a line where no terminal and no COLUMNS says how many it has."""


def terminal_width() -> int:
    """Return how many characters a line may have."""
    import shutil

    return max(60, shutil.get_terminal_size((WIDTH, 24)).columns)


def line_width() -> int | None:
    """Return how many characters a line of the terminal has, None where none reads the output."""
    return terminal_width() if sys.stdout is not None and sys.stdout.isatty() else None
