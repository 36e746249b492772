"""Every way quantplan can refuse, with the exit code that the command line ends with."""

from __future__ import annotations

from typing import Any


class QuantplanError(Exception):
    """A refusal that fits one line: what is wrong, what was wanted and found, what to do next."""

    exit_code = 5
    kind = "internal"

    def __init__(
        self,
        what: str,
        *,
        wanted: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.what, self.wanted, self.found, self.hint = what, wanted, found, hint
        super().__init__(what)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON-ready data (reports/schema/error.v1.json)."""
        return {"schema": "quantplan/error/1", "error": {
            "code": self.exit_code, "kind": self.kind, "what": self.what, "wanted": self.wanted,
            "found": self.found, "hint": self.hint or None}}

    def __str__(self) -> str:
        parts = [self.what]
        if self.wanted is not None:
            parts.append(f"wanted {self.wanted}")
        if self.found is not None:
            parts.append(f"found {self.found}")
        line = "; ".join(parts)
        if not self.hint:
            return line
        return f"{line}{'' if line.endswith(('.', '?')) else '.'} {self.hint}"


class UsageError(QuantplanError):
    """The question itself is malformed: an option, a size, a name that cannot be one."""

    exit_code = 2
    kind = "usage"


class EngineRefusalError(QuantplanError):
    """The engine itself would refuse the question; its words are `what`."""

    exit_code = 1
    kind = "refused"


class CheckpointError(QuantplanError):
    """The checkpoint is missing, unreadable or contradicts itself."""

    exit_code = 3
    kind = "bad-checkpoint"


class NotKnownError(QuantplanError):
    """No table or no rule answers this: the gap is named, never approximated."""

    exit_code = 4
    kind = "not-known"


class TableError(QuantplanError):
    """A table of ours breaks its own schema or a lint law."""

    kind = "bad-table"
