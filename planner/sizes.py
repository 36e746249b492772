"""Memory sizes as people write them: 24GiB, 24 GB, 23.65 GiB, or a plain number of bytes."""

from __future__ import annotations

import re

from quantplan.tables.errors import UsageError

UNIT_BYTES = {
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "": 1,
}
LIMIT_BYTES = 64 * 2**40
SMALLEST_BYTES = 2**20
"""A plain number below it is a forgotten unit, not a size."""
WANTED = "a size such as 24GiB, 24GB or 25769803776 (bytes)"
_FORM = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?[ ]*([A-Za-z]{0,3})")


def parse_size(text: str, what: str) -> int:
    """Return the bytes that `text` says, fractions of a byte dropped: GiB = 2^30, GB = 10^9.

    Raises UsageError, naming `what`, for anything else: an ambiguous 24G, a negative or zero size,
    one above 64 TiB, a plain number below 1 MiB.
    """
    text = str(text).strip()
    match = _FORM.fullmatch(text)
    if match is None:
        raise _refused(what, text)
    whole, fraction, unit = match[1], match[2] or "", match[3]
    scale = int("1" + "0" * len(fraction))
    size = int(whole + fraction) * _unit_bytes(unit, text, what) // scale
    if not unit and (fraction or 0 < size < SMALLEST_BYTES):
        raise _refused(what, text, "Without a unit a number counts bytes: add GiB or GB.")
    if size <= 0:
        raise UsageError(what, wanted="more than zero bytes", found=repr(text))
    if size > LIMIT_BYTES:
        raise UsageError(what, wanted="at most 64 TiB", found=repr(text))
    return size


def _unit_bytes(unit: str, text: str, what: str) -> int:
    in_bits = len(unit) == 2 and unit[0].isupper() and unit[1] == "b"
    if unit.lower() in UNIT_BYTES and not in_bits:
        return UNIT_BYTES[unit.lower()]
    letter = unit[0].upper()
    raise _refused(what, text, f"{unit} is ambiguous: write {letter}iB (powers of 1024) or "
                   f"{letter}B (powers of 1000)." if letter in "KMGT" else None)


def _refused(what: str, text: str, hint: str | None = None) -> UsageError:
    return UsageError(what, wanted=WANTED, found=repr(text[:40]), hint=hint)
