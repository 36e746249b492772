"""The names that `import quantplan` offers."""

from __future__ import annotations

import quantplan


def test_dir_lists_what_is_imported_on_first_use() -> None:
    assert {"explain", "budget", "diff", "verify"} <= set(dir(quantplan))
    assert all(hasattr(quantplan, name) for name in dir(quantplan))
