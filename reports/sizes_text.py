"""Sizes in words: GB are 10^9 bytes, GiB 2^30."""

from __future__ import annotations


def gb(size_bytes: int) -> str:
    """Return bytes in GB, 10^9 bytes, with two decimals."""
    return f"{size_bytes / 10**9:,.2f}"


def gib(size_bytes: int) -> str:
    """Return bytes in GiB, 2^30 bytes, with two decimals."""
    return f"{size_bytes / 2**30:,.2f}"


def kib(size_bytes: int) -> str:
    """Return bytes in KiB when they are a whole number of them, else in bytes."""
    whole, rest = divmod(size_bytes, 1024)
    return f"{size_bytes:,} bytes" if rest else f"{whole:,} KiB"
