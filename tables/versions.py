"""Which versions of an engine have a table, which one is meant, and which are near another."""

from __future__ import annotations

import re
from functools import cache

from quantplan.tables.errors import NotKnownError, TableError
from quantplan.tables.load import head_field, table_names

PREFIX = "engines/"
VERSION = re.compile(r"v?\d+(\.\w+)*([.+-]\w+)*")


@cache
def engine_versions(engine: str) -> list[str]:
    """Return the versions of `engine` that have a table, oldest first."""
    prefix = f"{PREFIX}{engine}/"
    found = [name[len(prefix):] for name in table_names() if name.startswith(prefix)]
    return sorted(found, key=version_key)


def version_key(version: str) -> tuple[int, ...]:
    """Return what versions are ordered by: their numbers, 0.9.10 before 0.10.0."""
    return tuple(map(int, re.findall(r"\d+", version)))


@cache
def default_version(engine: str) -> str:
    """Return the version that is meant where none is named: the table with `default: true`."""
    for version in reversed(engine_versions(engine)):
        if head_field(f"{PREFIX}{engine}/{version}", "default") == "true":
            return version
    raise TableError(f"tables/{PREFIX}{engine}: no table is the default", wanted="default: true")


def known_version(engine: str, version: str | None, *, stand_in: bool = False) -> str:
    """Return `version`, or the engine's default for None; raise NotKnownError without a table.

    `stand_in` says that the command asked can answer from another version's table instead.
    """
    known = engine_versions(engine)
    if not known:
        raise NotKnownError(f"no table for {engine} {version or ''}".rstrip(),
                            wanted=" or ".join(engines()), hint="Name one of those engines.")
    if version is None:
        return default_version(engine)
    if version not in known:
        near = _neighbours(known, version)
        which = f"There are {', '.join(known)}: name one" if near else "Name one of those versions"
        way_out = ", or pass --assume-nearest." if near and stand_in else "."
        raise NotKnownError(f"no table for {engine} {version}",
                            hint=f"{which}{way_out}",
                            wanted=" or ".join(f"{engine} {name}" for name in near or known))
    return version


def nearest_version(engine: str, version: str) -> str:
    """Return the version whose table stands for `version`: its own, else the newest before it,
    else the oldest. Raises NotKnownError for what is no version, and for engines without tables."""
    known = engine_versions(engine)
    near = [version] if version in known else _neighbours(known, version)
    return near[0] if near else known_version(engine, version)


def _neighbours(known: list[str], version: str) -> list[str]:
    """Return the newest version before `version`, if any, and the oldest behind it, if any;
    nothing for what is no version."""
    if not VERSION.fullmatch(version):
        return []
    asked = version_key(version)
    before = [name for name in known if version_key(name) <= asked]
    behind = [name for name in known if version_key(name) > asked]
    return [*before[-1:], *behind[:1]]


def engines() -> list[str]:
    """Return the engines that have tables, sorted."""
    names = (name.split("/")[1] for name in table_names() if name.startswith(PREFIX))
    return sorted(set(names))
