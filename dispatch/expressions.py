"""Regular expressions of quantization configs. The engine reads them with the package `regex`
(model_executor/layers/quantization/utils/config_utils.py), this program with Python's `re`: what
the two read differently is named, not guessed."""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

from quantplan.tables.errors import CheckpointError, NotKnownError

BAD_TO_BOTH = (
    "unterminated character set", "unbalanced parenthesis", "missing ), unterminated subpattern",
    "multiple repeat", "bad escape (end of pattern)", "cannot refer to an open group",
    "unexpected end of pattern", "nothing to repeat at position 0", "unknown flag",
)
"""How the messages begin with which `re` turns down what `regex` turns down too."""
OTHER_TO_REGEX = (
    (re.compile(r"(?<!\\)\[\[:\^?\w+:\]"), "a POSIX character class"),
    (re.compile(r"(?<!\\)(?<!\\N)\{[\d<=\s]*[eids][\d<=+,eids\s]*\}"), "a fuzzy match"),
)
"""What `re` reads as plain characters and `regex` does not."""
POSSESSIVE = re.compile(r"[*+?}]\+")
"""Python 3.10 takes a possessive quantifier for a repeat of a repeat."""


def search(pattern: str, value: str) -> bool:
    """Return whether `pattern` matches at the start of `value`. Raises CheckpointError if it is no
    expression, NotKnownError if only the package `regex` could say what it means."""
    return compiled(pattern).match(value) is not None


def finds(pattern: str, value: str) -> bool:
    """Return whether `pattern` matches anywhere in `value`; false if it is no expression."""
    try:
        return compiled(pattern).search(value) is not None
    except CheckpointError:
        return False


@lru_cache(maxsize=1 << 16)
def compiled(pattern: str) -> re.Pattern[str]:
    """Return an expression compiled once: Python's own cache holds fewer than a config may have."""
    other = next((what for form, what in OTHER_TO_REGEX if form.search(pattern)), None)
    if other:
        raise _not_known(pattern, f"{other} to the package regex only")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", DeprecationWarning)  # an error from Python 3.11 on
            return re.compile(pattern)
    except DeprecationWarning as late_flags:
        raise _not_known(pattern, str(late_flags)[:80]) from None
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        words = str(error)
        surely_bad = words.startswith(BAD_TO_BOTH) and not POSSESSIVE.search(pattern)
        if isinstance(error, re.error) and not surely_bad:
            raise _not_known(pattern, words[:80]) from None
        raise CheckpointError(f"pattern {_shown(pattern)} in the quantization config",
                              wanted="a regular expression", found=words[:80]) from None


def _not_known(pattern: str, why: str) -> NotKnownError:
    return NotKnownError(f"pattern {_shown(pattern)} in the quantization config",
                         wanted="an expression that Python's re reads as the engine's package "
                         "regex does", hint=f"{why[:1].upper()}{why[1:]}.")


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 60 else f"{pattern[:57]}...")
