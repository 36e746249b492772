"""What stands around the figures of a budget: the engine's refusal before, notes behind."""

from __future__ import annotations

from collections.abc import Iterable

from quantplan.dispatch.facts import Note
from quantplan.planner.budget import EngineRefusal


def refusal_text(refusal: EngineRefusal) -> str:
    """Return why the engine does not start, and on a line of its own what to do next."""
    hint = f"\n  next: {refusal.hint}" if refusal.hint else ""
    return f"{refusal.line()}{hint}"


def notes_text(notes: Iterable[Note]) -> str:
    """Return a line per note, with its hint."""
    return "\n".join(f"note: {note.message}." + (f" {note.hint}" if note.hint else "")
                     for note in notes)
