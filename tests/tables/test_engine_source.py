"""Where an engine's sources are read from."""

from __future__ import annotations

from pathlib import Path

import pytest
from quantplan.tables.engine_source import open_source


@pytest.mark.parametrize("engine, inside", [("vllm", ""), ("sglang", "srt/")])
def test_paths_are_relative_to_what_the_tables_cite(
    tmp_path: Path, engine: str, inside: str
) -> None:
    """Sources of SGLang are relative to sglang/srt, those of vLLM to vllm."""
    file = tmp_path / engine / inside / "layers" / "linear.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n", encoding="utf-8")
    (tmp_path / engine / "__init__.py").write_text("", encoding="utf-8")
    source = open_source(engine, str(tmp_path))
    assert "layers/linear.py" in source.files
    assert source.read("layers/linear.py") == "x = 1\n"
