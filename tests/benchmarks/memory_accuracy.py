"""The budget against what engines printed: every row of tests/cases/memory_truth.jsonl.

Prints predicted minus printed, term by term; rows that a constant of the tables was fitted to stand
apart from held-out ones. Rows whose engine version has no memory rules, or where it or the GPU is
not stated, are told apart too: of them only weights are told, and tokens of the printed memory.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from memory_truth import by_worker, model_config, truth_rows
from quantplan.reports.budget_terms import Term, budget_terms
from quantplan.reports.columns import columns
from quantplan.reports.startup_log import Figure, StartupLog
from quantplan.tables.errors import QuantplanError

import quantplan

TERMS = {"weights": "weights", "activations": "activations", "non-torch memory": "non-torch",
         "CUDA graphs, estimated": "graphs", "KV cache memory": "KV GiB", "KV tokens": "KV tokens",
         "KV tokens of the printed memory": "of printed"}
"""Term -> its column. The last is the tokens that the printed KV memory holds by our rules."""
RELATIVE = ("KV tokens", "KV tokens of the printed memory")
"""Terms whose error is a share of the printed figure."""
UNVERSIONED = ("weights", "KV tokens of the printed memory")
"""Terms that are told where the rules may be of another version than the engine."""
FIGURES = {"concurrency": "concurrency_x"}
OLDEST = (0, 15)
"""The first version with memory rules."""


class Compared(NamedTuple):
    """A row with its terms, or with why it has none."""

    row: dict[str, Any]
    terms: dict[str, Term]
    problem: str | None = None

    @property
    def version(self) -> str | None:
        """Return the engine's version without its build, None where it has no memory rules."""
        version = (self.row["version"] or "0").partition("rc")[0]
        return version if tuple(map(int, version.split(".")[:2])) >= OLDEST else None

    @property
    def versioned(self) -> bool:
        """Return whether engine version and GPU are stated, and the version has memory rules."""
        return self.version is not None and "gpu_note" not in self.row

    @property
    def group(self) -> str:
        """Return what its constants are to it."""
        if not self.versioned:
            return "held out; engine or GPU not stated, or before 0.15"
        return "used to fit a constant" if self.row["fitted"] else "held out"


def compared(row: dict[str, Any]) -> Compared:
    """Return a row's terms."""
    config = model_config(row["model"])
    if config is None:
        return Compared(row, {}, "the model's config is not known")
    if row["gpu"] is None:
        return Compared(row, {}, "the GPU is not known")
    try:
        budget = quantplan.budget(
            config, engine=row["engine"], engine_version=Compared(row, {}).version,
            gpu=row["gpu"], assume_nearest=True, **options(row))
    except QuantplanError as error:
        return Compared(row, {}, str(error)[:100])
    return Compared(row, {term.name: term for term in budget_terms(as_log(row), budget)})


def options(row: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that `budget` has of a row's; drafts are not predicted."""
    asked = {name: value for name, value in row["asked"].items()
             if name != "num_speculative_tokens"}
    drafts = row["asked"].get("num_speculative_tokens")
    if drafts:
        asked["speculative_config"] = {"method": "mtp", "num_speculative_tokens": drafts}
    return asked


def as_log(row: dict[str, Any]) -> StartupLog:
    """Return a row as the log that it was read from."""
    figures = tuple(
        Figure(FIGURES.get(name, name), each, f"worker {rank}", 0)
        for name, value in by_worker(row["printed"]).items()
        for rank, each in enumerate(value if isinstance(value, list) else [value]))
    return StartupLog(row["id"], row["engine"], row["version"], {}, {}, figures, 1, ())


def error_of(term: Term) -> float | None:
    """Return predicted minus printed: GiB, or percent of the printed figure."""
    if term.gap is None or term.printed is None:
        return None
    return 100 * term.gap / term.printed if term.name in RELATIVE else term.gap


def cell(term: Term | None) -> str | None:
    """Return a term's error in words."""
    error = error_of(term) if term else None
    if term is None or error is None:
        return None
    return f"{error:+.2f} %" if term.name in RELATIVE else f"{error:+.3f}"


def row_cells(each: Compared) -> list[object]:
    """Return a row of the table."""
    asked = each.row["asked"]
    ranks = f"{asked.get('tp', 1)}x{asked.get('pp', 1)}"
    model = each.row["model"].split("/")[-1][:38]
    cells = (cell(each.terms.get(name)) if each.versioned or name in UNVERSIONED else None
             for name in TERMS)
    return [each.row["id"], each.row["version"] or "?", model, ranks, *cells, each.problem]


def summary(rows: list[Compared]) -> Iterator[list[object]]:
    """Yield a line per group and term: how many rows, and their largest, mean and median error."""
    for group in sorted({each.group for each in rows}):
        for name, title in TERMS.items():
            terms = [each.terms[name] for each in rows if each.group == group
                     and name in each.terms and (each.versioned or name in UNVERSIONED)]
            errors = [abs(error) for term in terms if (error := error_of(term)) is not None]
            if errors:
                unit = "%" if name in RELATIVE else "GiB"
                yield [group, title, len(errors), *(f"{value:.3f} {unit}" for value in (
                    max(errors), statistics.mean(errors), statistics.median(errors)))]


def main() -> None:
    """Print every row, then the summary."""
    rows = [compared(row) for row in truth_rows()]
    for group in sorted({each.group for each in rows}):
        cells = [row_cells(each) for each in rows if each.group == group]
        print(f"{group}: predicted minus printed, GiB of one rank")
        print(columns(cells, ["row", "version", "model", "tp x pp", *TERMS.values()],
                      "llllrrrrrrrl") + "\n")
    print(columns(list(summary(rows)), ["rows", "term", "", "most", "mean", "median"], "llrrrr"))
    answered = sum(bool(each.terms) for each in rows)
    print(f"\n{answered} of {len(rows)} rows are answered")


if __name__ == "__main__":
    main()
