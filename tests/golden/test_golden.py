"""Our answer against the engine's own, row by row; README.md here says where rows are from."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import selection_only

from quantplan import explain

HERE = Path(__file__).parent
LAYER_FIELDS = ("module", "method", "scheme", "family", "kernel", "mode", "n", "k",
                "attn_backend", "kv_cache_dtype")


FILES = ("vllm-0.25.1", "vllm-0.32.0", "vllm-0.33.0", "schemes-vllm-0.32.0")


def _rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(HERE / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _corrected(row: dict[str, Any], corrections: dict[str, Any]) -> dict[str, Any]:
    if row["id"] in corrections["rows"]:
        for layer in row["expect"]["layers"]:
            if "kernel" in layer:
                layer |= {"kernel": corrections["kernel"], "rejected": corrections["rejected"]}
    return row


CORRECTIONS = json.loads((HERE / "corrections.json").read_text(encoding="utf-8"))
ROWS = [_corrected(row, CORRECTIONS) for name in FILES for row in _rows(name)]
AGREEMENT: Counter[tuple[str, bool]] = Counter()


def _kind(row: dict[str, Any]) -> str:
    return "/".join((row["version"], *row["id"].split("/")[:2]))


KINDS = sorted({_kind(row) for row in ROWS})


def _ask(row: dict[str, Any]) -> dict[str, Any]:
    case = row["case"]
    side = {"hf_quant_config.json": case["hf_quant_config"]} if "hf_quant_config" in case else None
    return explain(
        case["config"], engine="vllm", engine_version=row["version"], capability=case["capability"],
        tp=case.get("tp_size", 1), dtype=case.get("dtype"), env=case.get("env"),
        quantization=case.get("quantization"), kv_cache_dtype=case.get("kv_cache_dtype"),
        libs=case.get("libs"), linear_backend=case.get("linear_backend"),
        moe_backend=case.get("moe_backend"),
        tensors=case.get("tensors"), side_files=side, **case.get("engine_args", {})).to_dict()


def differences(got: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    """Return every place where our answer is not the engine's."""
    found = [f"{name}: {a!r} is not {b!r}" for name, a, b in (
        ("outcome", got["outcome"], expect["outcome"]),
        ("method", got["method"]["resolved"], expect["method"]),
        ("config_class", got["method"]["config_class"], expect["config_class"]),
        ("min_capability", got["method"]["min_capability"], expect["min_capability"]),
        *_error_fields(got["error"], expect["error"]),
    ) if a != b]
    return found + _layer_differences(got["layers"], expect["layers"])


def _error_fields(got: Any, expect: Any) -> list[tuple[str, Any, Any]]:
    got, expect = got or {}, expect or {}
    return [(name, got.get(name), expect.get(name)) for name in ("type", "message")]


def _layer_differences(got: list[Any], expect: list[Any]) -> list[str]:
    ours = {(row["path"], index): row for row in got for index in row["indices"] or [None]}
    found = []
    asked = set()
    for row in expect:
        for index in _indices(row, ours):
            asked.add((row["path"], index))
            found += _row_differences(ours.get((row["path"], index)), row)
    found += [f"{path} [{index}] is not a layer of the engine's" for path, index in ours
              if (path, index) not in asked]
    return found


def _indices(row: dict[str, Any], ours: dict[Any, Any]) -> list[Any]:
    if "indices" in row:
        return list(row["indices"])
    return [index for path, index in ours if path == row["path"]] or [None]


def _row_differences(got: dict[str, Any] | None, expect: dict[str, Any]) -> list[str]:
    if got is None:
        return [f"{expect['path']}: missing"]
    found = [f"{expect['path']} {name}: {got.get(name)!r} is not {expect.get(name)!r}"
             for name in LAYER_FIELDS
             if got.get(name) != expect.get(name) and name not in expect.get("unseen", ())]
    rejected = [r["kernel"] for r in got["rejected"]] if "attn_backend" not in got else []
    if experts := expect.get("experts"):
        ours = {name: got["experts"][name] for name in experts}
        found += [] if ours == experts else [f"{expect['path']} experts: {ours} is not {experts}"]
        rejected = [name for name in rejected if name in expect.get("rejected", ())]
    if rejected != (expect.get("rejected") or []) and "unseen" not in expect:
        found.append(f"{expect['path']} rejected: {rejected} is not {expect.get('rejected')}")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_agrees(kind: str) -> None:
    """Outcome, error type and message, method, scheme, family, kernel, mode, sizes, KV method,
    attention backend and the rejected kernels are the engine's."""
    wrong = {}
    for row in ROWS:
        if _kind(row) == kind:
            answer = _ask(row)
            if row["id"] in CORRECTIONS["worker"]:
                answer = selection_only(answer)
            found = differences(answer, row["expect"])
            AGREEMENT[kind, not found] += 1
            if found:
                wrong[row["id"]] = found[:3]
    assert wrong == {}


def test_agreement_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Print how many rows of each kind agree; every row was asked."""
    with capsys.disabled():
        print("\nagreement with vLLM, by version and kind:")
        for kind in KINDS:
            right, wrong = AGREEMENT[kind, True], AGREEMENT[kind, False]
            print(f"  {kind:35} {right:4} of {right + wrong}")
    assert sum(AGREEMENT.values()) in (len(ROWS), 0)
