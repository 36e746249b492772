"""What the checkpoint reader's tests share: a config on disk, and the one line of a refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.checkpoint import read_checkpoint
from quantplan.dispatch.facts import Checkpoint
from quantplan.tables.errors import CheckpointError, QuantplanError
from sparse_checkpoint import CONFIG


def refusal(where: Any, error: type[QuantplanError] = CheckpointError) -> str:
    """Return the one line that reading raises, of exactly this class and without a cause."""
    with pytest.raises(QuantplanError) as raised:
        read_checkpoint(where)
    assert type(raised.value) is error
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    line = str(raised.value)
    assert line.isprintable()
    return line


def write_config(folder: Path, content: bytes | str | Mapping[str, Any] = CONFIG) -> Path:
    """Write config.json into `folder`, which is made; return the folder."""
    folder.mkdir(exist_ok=True)
    text = json.dumps(content) if isinstance(content, Mapping) else content
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def note_ids(checkpoint: Checkpoint) -> list[str]:
    """Return the ids of what the reader noticed."""
    return [note.id for note in checkpoint.notes]
