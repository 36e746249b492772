"""What starts and does not run as hoped, and what the command line refuses before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quantplan.dispatch.facts import Gpu
from quantplan.dispatch.predicates import FAIL, PASS, evaluate
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.sglang.operators import shown_name
from quantplan.dispatch.trace import SEVERITIES, EngineError, Finding, Layer, Method

NO_OPERATOR = "none"
"""Operator of experts whose method has none for the backend."""
MXFP4 = "Mxfp4MoEMethod"
WEIGHT_ONLY = "apply_fp8_marlin_linear"


def findings(
    table: Table, gpu: Gpu, method: Method, layers: tuple[Layer, ...], error: EngineError | None,
    *, backend: str, notes: Iterable[Finding] = (),
) -> tuple[Finding, ...]:
    """Return the findings, errors first; `backend` is --moe-runner-backend as it was given,
    `notes` what attention adds."""
    found = [*_argparse(table, method), *_not_optimized(table, method), *notes,
             *(() if error else (*_weight_only(gpu, layers), *_unfused(layers), *_upcast(layers),
                                   *_failing(table, layers), *_runnerless(table, layers),
                                   *_cannot_run(table, gpu, layers)))]
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))


def _argparse(table: Table, method: Method) -> Iterator[Finding]:
    asked = method.requested
    if asked is not None and asked not in table["quantization_choices"]:
        yield Finding("flags", "error", "no-such-choice",
                      f"the command line refuses --quantization {asked}: invalid choice", None,
                      table["quantization_choices_source"])


def _not_optimized(table: Table, method: Method) -> Iterator[Finding]:
    row = table["methods"].get(method.resolved)
    if row is not None and not row.get("optimized"):
        yield Finding("method name", "warning", "not-optimized",
                      f"the engine warns: {method.resolved} quantization is not fully optimized "
                      "yet", None, table["names_source"])


def _weight_only(gpu: Gpu, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    hit = next((x for x in layers if x.kernel == WEIGHT_ONLY and x.asked), None)
    if hit is not None:
        yield Finding("mode and numerics", "warning", "fp8-weight-only",
                      f"{hit.path}: FP8 weights run weight-only on Marlin on {gpu.capability_text}:"
                      " activations stay in 16 bits", None,
                      "layers/quantization/fp8_utils.py:can_auto_enable_marlin_fp8")


def _upcast(layers: tuple[Layer, ...]) -> Iterator[Finding]:
    hit = next((x for x in layers if x.method == MXFP4 and x.mode == "W16A16"), None)
    if hit is not None:
        yield Finding("mode and numerics", "warning", "mxfp4-upcast",
                      f"{hit.path}: no runner here takes MXFP4 weights: they become 16-bit while "
                      "loading, and take about four times their memory",
                      "Serve it on 10.0 or 10.3.", "layers/quantization/mxfp4.py:Mxfp4MoEMethod")


def _unfused(layers: tuple[Layer, ...]) -> Iterator[Finding]:
    hit = next((x for x in layers if x.fused is False), None)
    if hit is not None:
        yield Finding("mode and numerics", "warning", "fp8-unfused",
                      f"{hit.path}: one weight scale and a scale per token: torch._scaled_mm runs "
                      "with unit scales into float32, and two products follow",
                      "Serve a checkpoint with static activation scales, or one quantized per "
                      "channel.", "layers/quantization/fp8_utils.py:_apply_fallback_scaled_mm")


def _failing(table: Table, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    words = {(part["id"], shown_name(row)): row for part in table["operators"].values()
             for row in part["operators"] if "fails" in row}
    for layer in layers:
        chosen = next((c.kernel for c in layer.selection.candidates if c.verdict == PASS),
                      None) if layer.selection else None
        row = words.get((layer.selection.family, chosen)) if layer.selection and chosen else None
        if row is not None:
            yield Finding("first forward", "error", "no-operator", f"{layer.path}: the first "
                          f"forward ends with {row['fails']}", None, row["source"])
            return


def _runnerless(table: Table, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    for row in table["runnerless"]:
        hit = next((x for x in layers if x.method == row["method"] and x.kernel == NO_OPERATOR),
                   None)
        if hit is not None:
            yield Finding("first forward", "error", "experts-without-runner",
                          f"{hit.path}: the first forward of {row['method']} fails: {row['says']}",
                          "Drop --moe-runner-backend.", row["source"])


def _cannot_run(table: Table, gpu: Gpu, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """Yield what chosen operators ask of the device only when they run."""
    for row in table["forwards"]:
        hit = next((x for x in layers if x.kernel == row["kernel"]
                    and x.mode in row.get("modes", (x.mode,))), None)
        check = hit and evaluate(row["runs"], {"gpu.capability": gpu.capability}, row["kernel"],
                                 row["source"])
        if hit and check and check.verdict == FAIL:
            yield Finding("first forward", "error", "kernel-cannot-run",
                          f"{row['kernel']} is selected for {hit.path}, but its first forward "
                          f"fails: {check.says}", row["hint"], check.source)
