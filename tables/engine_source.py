"""An engine's package as it was installed or packed: its files, read from a folder or a wheel."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Sequence
from functools import cache

from quantplan.tables.errors import UsageError
from quantplan.tables.record import NamedTuple

ROOTS = {"sglang": "srt/"}
"""Engine -> the folder of its package that sources are relative to, where it is not the whole."""


class EngineSource(NamedTuple):
    """The files of one engine version; paths are relative to its package, or the root in it."""

    where: str
    version: str | None
    files: frozenset[str]
    read: Callable[[str], str]


def open_source(engine: str, where: str) -> EngineSource:
    """Return the files of package `engine` in a wheel, an unpacked wheel or the package's folder.

    Raises UsageError when the package is not there.
    """
    if os.path.isdir(where):
        return _rooted(engine, _folder(engine, where))
    if zipfile.is_zipfile(where):
        return _rooted(engine, _wheel(engine, where))
    raise UsageError(f"{where}: no wheel and no folder", wanted=f"one that holds {engine}")


def engine_in(where: str, engines: Sequence[str]) -> str:
    """Return the engine whose package is in a wheel or folder; raise UsageError for none."""
    for engine in engines:
        try:
            open_source(engine, where)
        except UsageError:
            continue
        return engine
    raise UsageError(f"{where}: no package {' or '.join(engines)}", wanted="an engine's wheel, or "
                     "a folder that holds its package")


def _rooted(engine: str, source: EngineSource) -> EngineSource:
    root = ROOTS.get(engine, "")
    files = frozenset(path[len(root):] for path in source.files if path.startswith(root))
    return source._replace(files=files, read=lambda path: source.read(root + path))


def _folder(engine: str, where: str) -> EngineSource:
    package = where if os.path.basename(os.path.normpath(where)) == engine else os.path.join(
        where, engine)
    if not os.path.exists(os.path.join(package, "__init__.py")):
        raise UsageError(f"{where}: no package {engine}", wanted=f"a folder that holds {engine}/")
    files = {os.path.relpath(os.path.join(folder, name), package).replace(os.sep, "/")
             for folder, _, names in os.walk(package) for name in names}

    def read(path: str) -> str:
        with open(os.path.join(package, path), encoding="utf-8") as file:
            return file.read()

    beside = os.listdir(os.path.dirname(os.path.abspath(package)))
    return EngineSource(where, _version(engine, beside), frozenset(files), cache(read))


def _wheel(engine: str, where: str) -> EngineSource:
    archive = zipfile.ZipFile(where)
    names = [name for name in archive.namelist() if not name.endswith("/")]
    files = {name[len(engine) + 1:] for name in names if name.startswith(f"{engine}/")}
    if "__init__.py" not in files:
        raise UsageError(f"{where}: no package {engine}", wanted=f"a wheel of {engine}")

    def read(path: str) -> str:
        return archive.read(f"{engine}/{path}").decode("utf-8")

    tops = sorted({name.split("/")[0] for name in names})
    return EngineSource(where, _version(engine, tops), frozenset(files), cache(read))


def _version(engine: str, names: list[str]) -> str | None:
    """Return the version that the package's .dist-info folder has in its name."""
    found = [re.fullmatch(rf"{engine}-([^-+]+)(\+[^-]+)?\.dist-info", name) for name in names]
    versions = [match[1] for match in found if match]
    return versions[0] if len(versions) == 1 else None
