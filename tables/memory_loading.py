"""The memory rules of one engine version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantplan.tables.errors import NotKnownError
from quantplan.tables.load import read_table
from quantplan.tables.record import NamedTuple
from quantplan.tables.versions import version_key

Facts = Mapping[str, Any]
UNIT_BYTES = {"bytes": 1, "MiB": 2**20, "GiB": 2**30}


class MemoryRule(NamedTuple):
    """One row that holds; `plus_minus` is in the unit of the value, None where it is exact."""

    id: str
    value: Any
    kind: str
    source: str
    unit: str | None = None
    plus_minus: float | None = None
    measured_on: Sequence[Mapping[str, Any]] = ()
    note: str | None = None

    @property
    def bytes(self) -> int:
        """Return the value in bytes; raises KeyError where it is no size."""
        found: int = round(self.value * UNIT_BYTES[self.unit or "bytes"])
        return found

    @property
    def plus_minus_bytes(self) -> int:
        """Return the uncertainty in bytes, 0 for an exact size."""
        return round((self.plus_minus or 0) * UNIT_BYTES[self.unit or "bytes"])

    @property
    def origin(self) -> str:
        """Return the source, with the versions and GPUs that a constant was measured on."""
        places = dict.fromkeys(f"{on['version']} on {on['gpu']}" for on in self.measured_on)
        return f"{self.source}; measured with {', '.join(places)}" if places else self.source


class MemoryRules(NamedTuple):
    """The rows of `engine` that hold for `version`."""

    engine: str
    version: str
    rows: tuple[Mapping[str, Any], ...]

    def find(self, id: str, facts: Facts | None = None) -> MemoryRule | None:
        """Return the first row of `id` whose conditions hold for `facts`, None without one."""
        return next(self.all(id, facts), None)

    def rule(self, id: str, facts: Facts | None = None) -> MemoryRule:
        """Return the same; raise NotKnownError, naming the rule and the facts, without one."""
        found = self.find(id, facts)
        if found is None:
            known = ", ".join(f"{name} {value}" for name, value in (facts or {}).items())
            raise NotKnownError(f"the memory rule {id} of {self.engine} {self.version}",
                                found=known or None)
        return found

    def all(self, id: str, facts: Facts | None = None) -> Iterator[MemoryRule]:
        """Yield every row of `id` whose conditions hold, in the table's order."""
        for row in self.rows:
            if row["id"] == id and _holds(row, facts or {}):
                yield _rule(row)


def memory_rules(engine: str, version: str) -> MemoryRules:
    """Return the memory rules of `engine` in `version`, which need not have a table of kernels.

    Raises NotKnownError for an engine without a memory table and for versions older than it.
    """
    table = read_table(f"memory/{engine}")
    asked = version_key(version)
    if asked < version_key(table["oldest"]):
        raise NotKnownError(f"memory rules of {engine} {version}",
                            wanted=f"{engine} {table['oldest']} or newer")
    rows = tuple(row for row in table["rows"]
                 if version_key(row.get("since", "0")) <= asked
                 and ("before" not in row or asked < version_key(row["before"])))
    return MemoryRules(engine, version, rows)


def _rule(row: Mapping[str, Any]) -> MemoryRule:
    return MemoryRule(**{name: row[name] for name in MemoryRule._fields if name in row})


def _holds(row: Mapping[str, Any], facts: Facts) -> bool:
    return all(_is_met(condition, facts.get(condition["fact"]))
               for condition in row.get("when", ()))


def _is_met(condition: Mapping[str, Any], value: Any) -> bool:
    """Return whether a fact meets a condition; a fact that is not known meets none."""
    return value is not None and (
        ("equals" not in condition or value == condition["equals"])
        and ("min" not in condition or value >= condition["min"])
        and ("below" not in condition or value < condition["below"])
        and ("in" not in condition or value in condition["in"])
        and ("without" not in condition or condition["without"] not in str(value).lower()))
