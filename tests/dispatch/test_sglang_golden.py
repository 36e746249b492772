"""What SGLang 0.5.22 and 0.5.23 themselves answered (tests/golden), row by row: outcome, error,
names, and for every layer its method, scheme, operator, mode and activation quantization."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain

GOLDEN = Path(__file__).parents[1] / "golden"


def rows_of(version: str) -> list[dict[str, Any]]:
    """Return the engine version's rows."""
    packed = (GOLDEN / f"sglang-{version}.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


ROWS = rows_of("0.5.22")
ANSWERED = 1258
"""Rows whose model, method and flags are in the table; the others are not known."""
PRINTED_SET = re.compile(r"\{'[^}]*\}")
"""A set of texts in a message: Python prints it in another order in every process."""
FLAGS = {"fp8_gemm_runner_backend": "fp8_gemm_backend", "moe_runner_backend": "moe_backend",
         "fp4_gemm_runner_backend": "fp4_gemm_backend"}
FIELDS = ("method", "module", "scheme", "kernel", "mode", "fused", "kernel_backend",
          "moe_runner_backend")


def ask(row: dict[str, Any]) -> dict[str, Any]:
    """Return our answer to a row's case; raises NotKnownError for flags that have no option yet."""
    case, given = row["case"], dict(row["case"].get("server_args") or {})
    given.pop("load_format", None)
    ranks = case.get("tp_size", 1)
    split = given.pop("ep_size", 1)
    unknown = set(given) - set(FLAGS)
    if unknown or split not in (1, ranks):
        raise NotKnownError(f"server arguments {unknown}")
    return explain(
        case["config"], engine="sglang", engine_version=row["version"],
        capability=case["capability"],
        tp=ranks, enable_expert_parallel=split > 1, dtype=case.get("dtype"), env=case.get("env"),
        quantization=case.get("quantization"), side_files=case.get("extra_files"),
        kv_cache_dtype=case.get("kv_cache_dtype", "auto"),
        libs=dict.fromkeys(case.get("absent", ()), False),
        **{FLAGS[name]: value for name, value in given.items()}).to_dict()


def said(error: dict[str, Any], field: str) -> str | None:
    """Return a field of an error, the members of printed sets in alphabetical order."""
    value = error.get(field)
    return value and PRINTED_SET.sub(
        lambda found: "{" + ", ".join(sorted(found[0][1:-1].split(", "))) + "}", value)


def differences(row: dict[str, Any], ours: dict[str, Any]) -> list[Any]:
    """Return what differs from the engine's answer."""
    wanted = row["expect"]
    if wanted["outcome"] == "error":
        error = ours["error"] or {}
        return [(f, error.get(f), wanted["error"][f]) for f in ("type", "message")
                if said(error, f) != said(wanted["error"], f)]
    if ours["error"]:
        return [("outcome", ours["error"]["message"], "ok")]
    found = [("method", ours["method"]["resolved"], wanted["method"]),
             ("config_class", ours["method"]["config_class"], wanted["config_class"]),
             ("min_capability", ours["method"]["min_capability"], wanted["min_capability"]),
             ("kv_cache_dtype", ours["kv_cache"]["resolved"], wanted["kv_cache_dtype"])]
    layers = {layer["path"]: layer for layer in ours["layers"]}
    for layer in wanted["layers"]:
        own = layers.get(layer["path"], {})
        own["acts"] = [own.get("act")]
        found += [(layer["path"], own.get(f), layer[f]) for f in FIELDS if f in layer]
        found += [(layer["path"], own["acts"], layer["act"])] if "act" in layer else []
    return [one for one in found if one[1] != one[2]]


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
def test_every_row_is_answered_as_the_engine_answers_or_not_known(version: str) -> None:
    answered, wrong = 0, []
    for row in rows_of(version):
        try:
            ours = ask(row)
        except NotKnownError:
            continue
        answered += 1
        wrong += [(row["id"], one) for one in differences(row, ours)]
    assert wrong == []
    assert answered == ANSWERED


def named(row_id: str) -> dict[str, Any]:
    """Return the row of that id."""
    return next(row for row in ROWS if row["id"] == row_id)


@pytest.mark.parametrize("row_id, kernel, mode", [
    ("llama8b|fp8_dyn|sm80", "apply_fp8_marlin_linear", "W8A16_fp8"),
    ("llama8b|fp8_dyn|sm90", "fp8_scaled_mm", "W8A8_fp8"),
    ("llama8b|awq_g128|sm80", "gptq_marlin_gemm", "W4A16"),
    ("llama8b|awq_g128|sm75", "awq_dequantize", "W4A16"),
])
def test_the_published_table(row_id: str, kernel: str, mode: str) -> None:
    layers = {layer["path"]: layer for layer in ask(named(row_id))["layers"]}
    found = layers["model.layers.*.self_attn.qkv_proj"]
    assert (found["kernel"], found["mode"]) == (kernel, mode)


def test_an_unfused_product_is_told() -> None:
    """A per-tensor checkpoint with dynamic activations on 12.0: weights are requantized to one
    scale, activations have one per token (fp8_utils.py:_apply_fallback_scaled_mm)."""
    row = next(row for row in ROWS if row["id"].startswith("llama8b|fp8_dyn|sm120"))
    findings = {finding["id"] for finding in ask(row)["findings"]}
    assert "fp8-unfused" in findings
