"""`quantplan.diff`: what another version of the engine would do differently, and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from quantplan.api import Explanation, explain
from quantplan.dispatch.resolve import resolve
from quantplan.dispatch.time_limit import limited
from quantplan.dispatch.trace import Trace
from quantplan.dispatch.upgrade import Change, changes, with_reasons
from quantplan.options import checked
from quantplan.stand_in import assumed, open_table
from quantplan.tables.engine_loading import keyed
from quantplan.tables.errors import NotKnownError
from quantplan.tables.load import read_table
from quantplan.tables.record import NamedTuple
from quantplan.tables.table_diff import table_differences

Answer = TypeVar("Answer")


class Upgrade(NamedTuple):
    """Two versions' answers to one question, and what differs between them."""

    old: Explanation
    new: Explanation
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the differences as JSON-ready data (reports/schema/diff.v1.json)."""
        from quantplan.reports.upgrade_view import upgrade_view

        asked = (self.old.checkpoint, self.old.gpu, self.old.deployment)
        return upgrade_view(asked, (self.old.trace, self.new.trace), self.changes)


def diff(
    model: str | os.PathLike[str] | Mapping[str, Any],
    *,
    to_version: str | None,
    from_version: str | None = None,
    engine: str = "vllm",
    assume_nearest: bool = False,
    **options: Any,
) -> Upgrade:
    """Return what version `to_version` of `engine` would do differently from `from_version`.

    None is the engine's default version. `options` are those of `explain`. Raises what `explain`
    raises; NotKnownError says for which version something is not known.
    """
    checked(from_version=from_version, to_version=to_version, engine=engine)
    tables = [open_table(engine, version, assume_nearest) for version in (from_version, to_version)]
    old = _known(tables[0], lambda: explain(
        model, engine=engine, engine_version=from_version, assume_nearest=assume_nearest,
        **options))

    def ask(table: Mapping[str, Any]) -> Trace:
        with limited():
            return resolve(old.checkpoint, table, old.gpu, old.deployment)

    trace = _known(tables[1], lambda: ask(tables[1]))
    found = changes(old.trace, trace, _looked_for(tables))
    if found:
        versions = (old.trace.version, trace.version)
        contents = tuple(read_table(f"engines/{engine}/{version}") for version in versions)
        found = with_reasons(found, contents, table_differences(engine, *versions),
                             lambda content: ask(keyed(content)))
    new = Explanation(old.checkpoint, old.gpu, old.deployment, assumed(trace, to_version))
    return Upgrade(old, new, tuple(found))


def _looked_for(tables: Sequence[Mapping[str, Any]]) -> frozenset[str] | None:
    """Return the ids of the findings that every table looks for, None where all look for all."""
    covered = [table["covers"]["findings"] for table in tables if "covers" in table]
    return frozenset.intersection(*map(frozenset, covered)) if covered else None


def _known(table: Mapping[str, Any], answer: Callable[[], Answer]) -> Answer:
    """Return the answer from `table`; a gap says which version's it is."""
    try:
        return answer()
    except NotKnownError as error:
        raise NotKnownError(f"{table['engine']} {table['version']}: {error.what}",
                            wanted=error.wanted, found=error.found, hint=error.hint) from None
