"""The model folder that the engine is given."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import Any


def write_folder(folder: str, question: Mapping[str, Any]) -> None:
    """Write the model folder of a question: its JSON files, and headers without weights."""
    os.makedirs(folder)
    for name, content in {"config.json": question["config"], **question["side_files"]}.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)
    if question["tensors"] is not None:
        header = json.dumps({name: {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]}
                             for name, dtype in question["tensors"].items()}).encode()
        with open(os.path.join(folder, "model.safetensors"), "wb") as weights:
            weights.write(struct.pack("<Q", len(header)) + header)
