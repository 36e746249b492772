"""What ServerArgs of SGLang 0.5.22 and 0.5.23 made of attention's arguments for 146 models
(tests/golden): the backends of both phases, the page size, the KV dtype, DSA's kernels, or the
refusal."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.checkpoint import read_checkpoint
from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.sglang.attention import server_attention
from quantplan.dispatch.trace import Refusal
from quantplan.tables.engine_loading import load_engine

from quantplan.api import open_gpu

FILE = Path(__file__).parents[1] / "golden" / "sglang-attention.jsonl.gz"
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]


def answer(checkpoint: Checkpoint, version: str, asked: dict[str, Any]) -> list[Any]:
    """Return our answer in the form of the file's."""
    try:
        found = server_attention(load_engine("sglang", version), checkpoint,
                                 open_gpu(None, asked["capability"]),
                                 Deployment(**asked["flags"]))
    except Refusal as refusal:
        return [refusal.error.type, refusal.error.message]
    kernels = [found.facts["dsa.prefill"], found.facts["dsa.decode"]]
    return [found.prefill, found.decode, found.page_size, found.kv_dtype,
            *(kernels if found.facts["model.dsa"] else ())]


@pytest.mark.parametrize("row", ROWS, ids=[row["model"] for row in ROWS])
def test_the_server_answers_so(row: dict[str, Any]) -> None:
    checkpoint = read_checkpoint(row["config"])
    wrong = [(version, asked, found) for asked in row["answers"] for version in asked["versions"]
             if (found := answer(checkpoint, version, asked)) != asked["answer"]]
    assert wrong == []


def test_every_backend_is_among_the_answers() -> None:
    """The rows reach each choice of the command line at least once."""
    backends = {name for row in ROWS for asked in row["answers"] for name in asked["answer"][:2]
                if len(asked["answer"]) > 2}
    assert {*load_engine("sglang", "0.5.22")["attention"]["choices"]} - backends == {
        "compressed", "minicpm_flashinfer"}
