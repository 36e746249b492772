"""The process: `quantplan` and `python -m quantplan`."""

from __future__ import annotations

import atexit
import gc

ALLOCATIONS_BETWEEN_COLLECTIONS = 200_000


def run() -> None:
    """Run the command line in a process of its own.

    Nearly everything that a command allocates (tables, headers) lives until it ends, so collecting
    early and on the way out finds nothing and costs a tenth of the start-up (tests/benchmarks).
    """
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
    atexit.register(gc.freeze)
    from quantplan.cli import main

    main()


if __name__ == "__main__":
    run()
