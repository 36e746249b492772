"""Arguments as engines print them: {'a': 1, 'b': 'x'}, Args(a=1, b='x') or a=1, b='x'."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

MOST_FIELDS, LONGEST_VALUE, DEEPEST = 2000, 4096, 20
OPENING, CLOSING = "([{", ")]}"
KEY = re.compile(r"\s*(?:'(?P<quoted>\w+)'\s*:|\"(?P<double>\w+)\"\s*:|(?P<plain>\w+)\s*=)\s*")


def log_fields(text: str) -> dict[str, Any]:
    """Return key -> value of printed arguments; a value that is no Python literal stays text.

    What follows the closing bracket is ignored; text that is cut off gives the fields before the
    cut. Nothing is evaluated.
    """
    found: dict[str, Any] = {}
    for part in _parts(text.lstrip().removeprefix("{")):
        match = KEY.match(part)
        if match:
            key = next(name for name in match.groups() if name)
            found.setdefault(key, _value(part[match.end():].strip()))
        if len(found) >= MOST_FIELDS:
            break
    return found


def _parts(text: str) -> list[str]:
    """Return the parts between commas outside brackets and quotes; the last one only where it was
    closed or the text's end is not inside a value."""
    parts: list[str] = []
    start, depth, quote, position = 0, 0, "", 0
    while position < len(text):
        letter = text[position]
        if quote:
            position += letter == "\\"
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in OPENING:
            depth += 1
        elif letter in CLOSING and depth:
            depth -= 1
        elif letter in CLOSING:
            break
        elif letter == "," and not depth:
            parts.append(text[start:position])
            start = position + 1
        position += 1
    if not quote and not depth:
        parts.append(text[start:position])
    return parts


def _value(text: str) -> Any:
    if len(text) > LONGEST_VALUE or sum(text.count(c) for c in OPENING) > DEEPEST:
        return text[:LONGEST_VALUE]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
