"""The table of an engine version, or the nearest one in its place, which every answer says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Note
from quantplan.dispatch.trace import Finding, Trace
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.versions import known_version, nearest_version


def open_table(engine: str, version: str | None, assume_nearest: bool = False) -> Mapping[str, Any]:
    """Return the table of `version` (None: the default); with `assume_nearest` the nearest table
    where it has none. Raises NotKnownError."""
    if version is not None:
        version = nearest_version(engine, version) if assume_nearest else known_version(
            engine, version, stand_in=True)
    return load_engine(engine, version)


def assumed(trace: Trace, asked: str | None) -> Trace:
    """Return the trace, stamped where its table is not of the version that was asked about."""
    if asked in (None, trace.version):
        return trace
    note = _note(trace.engine, asked, trace.version)
    stamp = Finding("flags", note.severity, note.id, note.message, note.hint)
    return trace._replace(asked=asked, findings=(stamp, *trace.findings))


def stand_in_notes(table: Mapping[str, Any], asked: str | None) -> tuple[Note, ...]:
    """Return the note of a table that stands in for the version asked about, or nothing."""
    if asked in (None, table["version"]):
        return ()
    return (_note(table["engine"], str(asked), table["version"]),)


def _note(engine: str, asked: str, version: str) -> Note:
    return Note("assumed-version",
                f"{engine} {asked} has no table: this is the answer of {version}",
                "What changed between the two is not known here.")
