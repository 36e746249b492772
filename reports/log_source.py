"""Lines of a log from a file, a gzip file or standard input: clean, whole, and only so many."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator
from typing import IO, cast

from quantplan.tables.errors import UsageError
from quantplan.tables.record import NamedTuple

LONGEST_LOG, LONGEST_LINE = 256 * 2**20, 256 * 2**10
"""Bytes read of a log, unpacked, and of one line: a start-up is over long before."""
GZIP = b"\x1f\x8b"
CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]"
                      r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Terminal sequences (ECMA-48) and other control characters; a tab stays."""


class LogLine(NamedTuple):
    """One line without control characters, its number from 1, and whether it was cut."""

    number: int
    text: str
    cut: bool = False


class LogEndError(Exception):
    """Why reading stopped before the end of the log; the words are in the exception."""


def log_lines(where: str) -> Iterator[LogLine]:
    """Yield the lines of the log at path `where`, "-" is standard input; gzip is unpacked.

    Raises UsageError where nothing can be read, LogEndError where the log goes on but reading does
    not: it is longer than LONGEST_LOG, or its gzip data ends early or is damaged.
    """
    if where == "-":
        yield from _lines(sys.stdin.buffer)
        return
    try:
        if not stat.S_ISREG(os.stat(where).st_mode) and not stat.S_ISFIFO(os.stat(where).st_mode):
            raise UsageError(f"--check {where}", wanted="a log file, or - for standard input",
                             found="a folder or a device")
        with open(where, "rb") as file:
            yield from _lines(file)
    except (OSError, ValueError) as error:
        found = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--check {where}", wanted="a log that can be read",
                         found=found) from None


def _lines(raw: IO[bytes]) -> Iterator[LogLine]:
    file = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(
        cast(io.RawIOBase, raw))
    packed = file.peek(2)[:2] == GZIP
    try:
        yield from _bounded(gzip.GzipFile(fileobj=file) if packed else file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LogEndError(f"the gzip data is damaged or ends early ({error})") from None


def _bounded(file: IO[bytes] | gzip.GzipFile) -> Iterator[LogLine]:
    size, number = 0, 0
    while chunk := file.readline(LONGEST_LINE):
        number += 1
        size += len(chunk)
        cut = len(chunk) == LONGEST_LINE and not chunk.endswith(b"\n")
        while cut and size < LONGEST_LOG and (rest := file.readline(LONGEST_LINE)):
            size += len(rest)
            if rest.endswith(b"\n"):
                break
        yield LogLine(number, clean_line(chunk.decode("utf-8", "replace")), cut)
        if size >= LONGEST_LOG:
            raise LogEndError(f"only its first {LONGEST_LOG // 2**20} MiB were read")


def clean_line(text: str) -> str:
    """Return a line without colours and control characters; what UTF-16 becomes when it is read as
    UTF-8 keeps its letters."""
    return CONTROLS.sub("", text)
