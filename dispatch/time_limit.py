"""A limit on work whose length a checkpoint decides: its regular expressions may never end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from quantplan.tables.errors import CheckpointError

LIMIT_S = 10


@contextmanager
def limited(limit_s: float = LIMIT_S) -> Iterator[None]:
    """Raise CheckpointError when the body takes longer than `limit_s` seconds.

    Python's matcher asks for signals while it runs, so a timer stops it; without SIGALRM, outside
    the main thread or under a timer of the caller there is no limit.
    """
    if not _free():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise CheckpointError("the checkpoint's config and names take too long to match",
                              wanted=f"an answer within {limit_s:g} seconds",
                              hint="Look for regular expressions with nested repeats.")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


def _free() -> bool:
    return (hasattr(signal, "setitimer")
            and threading.current_thread() is threading.main_thread()
            and signal.getitimer(signal.ITIMER_REAL)[0] == 0)
