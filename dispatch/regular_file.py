"""Regular files, checked before they are opened: a FIFO would block, a device would never end."""

from __future__ import annotations

import os
import stat

from quantplan.tables.errors import CheckpointError

LFS_HEAD = b"version https://git-lfs.github.com/spec/v1"
# A pointer holds three short lines; the specification bounds it.
# Source: git-lfs docs/spec.md, "Pointer files must be less than 1024 bytes".
LFS_LIMIT_BYTES = 1024


def shown(text: str) -> str:
    """Return a file or field name as one printable line: a name may hold newlines or escapes."""
    return text if text.isprintable() else ascii(text)


def size_bytes(path: str) -> int:
    """Return the size of a regular file in bytes.

    Raises CheckpointError for a missing or unreadable file, and for anything that is not a regular
    file. Links are followed: the hub's cache is made of them.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(
            f"{shown(path)} cannot be read", wanted="a regular file", found=_kind(status.st_mode)
        )
    return status.st_size


def read_bytes(path: str, *, limit_bytes: int) -> bytes:
    """Return a regular file's content; raise CheckpointError when too large or an LFS pointer."""
    size = size_bytes(path)
    if size > limit_bytes:
        raise CheckpointError(
            f"{shown(path)} is too large",
            wanted=f"at most {limit_bytes:,} bytes",
            found=f"{size:,} bytes",
        )
    refuse_lfs_pointer(path, size, path)
    try:
        with open(path, "rb") as file:
            return file.read(limit_bytes + 1)
    except OSError as error:
        raise unreadable(path, error) from None


def refuse_lfs_pointer(path: str, size: int, name: str) -> None:
    """Raise CheckpointError, naming `name`, when the file is the pointer that git leaves for it."""
    if not len(LFS_HEAD) <= size < LFS_LIMIT_BYTES:
        return
    try:
        with open(path, "rb") as file:
            head = file.read(len(LFS_HEAD))
    except OSError as error:
        raise unreadable(path, error) from None
    if head == LFS_HEAD:
        raise CheckpointError(
            f"{shown(name)} is a Git LFS pointer, not the file itself",
            hint="Run `git lfs pull` in the folder.",
        )


def unreadable(path: str, error: OSError | ValueError) -> CheckpointError:
    """Return the refusal for a path that the operating system would not open."""
    if isinstance(error, FileNotFoundError):
        found = "a link to a missing file" if os.path.islink(path) else "no such file"
    else:
        found = getattr(error, "strerror", None) or str(error)
    wanted = "a readable file or folder"
    return CheckpointError(f"{shown(path)} cannot be read", wanted=wanted, found=found)


def _kind(mode: int) -> str:
    """Return what a mode says the path is, in words."""
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a named pipe (FIFO)"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"
