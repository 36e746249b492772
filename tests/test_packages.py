"""What an installed copy holds."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("quantplan", "tables", "dispatch", "planner", "reports", "kernels")


def test_every_folder_with_code_is_a_package_that_is_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = set(re.findall(r'^  "(quantplan[\w.]*)",$', text, re.MULTILINE))
    folders = {path.parent.relative_to(ROOT) for room in ROOMS
               for path in (ROOT / room).rglob("__init__.py")}
    names = {".".join(folder.parts) for folder in folders}
    assert listed == {name if name.startswith("quantplan") else f"quantplan.{name}"
                      for name in names}
