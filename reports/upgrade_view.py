"""What an upgrade changes, as plain data: the JSON of `quantplan diff`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quantplan.dispatch.trace import Trace
from quantplan.dispatch.upgrade import Change
from quantplan.reports.explain_view import explain_view
from quantplan.reports.table_diff_text import difference_data

if TYPE_CHECKING:
    from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu

SCHEMA = "quantplan/diff/1"


def upgrade_view(
    asked: tuple[Checkpoint, Gpu, Deployment], traces: tuple[Trace, Trace],
    changes: Iterable[Change],
) -> dict[str, Any]:
    """Return the differences between two versions' traces of one question, by
    reports/schema/diff.v1.json."""
    views = [explain_view(*asked, trace) for trace in traces]
    return {
        "schema": SCHEMA,
        **{name: views[0][name] for name in ("model", "gpu", "deployment")},
        **{side: {"engine": view["engine"], "outcome": view["outcome"], "starts": view["starts"],
                  "error": view["error"] and {name: view["error"][name] for name in (
                      "stage", "type", "message", "layer")}}
           for side, view in zip(("from", "to"), views, strict=True)},
        "changes": [_change(change) for change in changes],
    }


def _change(change: Change) -> dict[str, Any]:
    return {"subject": change.subject, "names": list(change.names),
            "fields": {name: {"from": old, "to": new}
                       for name, (old, new) in change.fields.items()},
            "because": [difference_data(difference) for difference in change.because]}
