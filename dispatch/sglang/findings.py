"""What starts and does not run as hoped, and what the command line refuses before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from quantplan.dispatch.facts import Checkpoint, Gpu, capability_family
from quantplan.dispatch.predicates import FAIL, evaluate
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.sglang.names import UNQUANT
from quantplan.dispatch.sglang.unheeded import unheeded
from quantplan.dispatch.trace import SEVERITIES, EngineError, Finding, Layer, Method
from quantplan.tables.record import NamedTuple

MXFP4 = "Mxfp4MoEMethod"
WEIGHT_ONLY = "apply_fp8_marlin_linear"
TYPED = "Typed"
"""Step of a name that the architecture's pass copies into the arguments."""
UNSET = "arg_groups/serving_hook.py:handle_missing_default_values"
PLAIN_EXPERTS = "UnquantizedFusedMoEMethod"
HUMMING = "Humming"
"""How the methods of --quantization humming begin."""


class Told(NamedTuple):
    """What the findings are about: the answer so far."""

    table: Table
    checkpoint: Checkpoint
    gpu: Gpu
    method: Method
    layers: tuple[Layer, ...]
    error: EngineError | None
    env: Mapping[str, str]


def findings(told: Told, notes: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """Return the findings, errors first; `notes` are what attention adds."""
    table, method, layers = told.table, told.method, told.layers
    found = [*_argparse(table, method), *_not_optimized(told), *_replaced(method), *_typed(told),
             *notes,
             *(() if told.error else (
                 *_weight_only(told.gpu, layers), *_unfused(layers), *_upcast(layers),
                 *_failing(layers), *_set_by_server(told),
                 *_cannot_run(table, told.gpu, layers), *_plain_experts(told), *_online(told),
                 *unheeded(table, told.checkpoint, layers)))]
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))


def _argparse(table: Table, method: Method) -> Iterator[Finding]:
    asked = method.requested
    if asked is not None and asked not in table["quantization_choices"]:
        yield Finding("flags", "error", "no-such-choice",
                      f"the command line refuses --quantization {asked}: invalid choice", None,
                      table["quantization_choices_source"])


def _not_optimized(told: Told) -> Iterator[Finding]:
    resolved = told.method.resolved
    row = told.table["methods"].get(resolved)
    if row is None or row.get("optimized"):
        return
    if told.gpu.capability // 10 * 10 not in row.get("optimized_on", ()):
        yield Finding("method name", "warning", "not-optimized", f"the engine warns: {resolved} "
                      "quantization is not fully optimized yet. The speed can be slower than "
                      "non-quantized models.", None, told.table["names_source"])


def _replaced(method: Method) -> Iterator[Finding]:
    """Yield what becomes of a --quantization that another method takes over without a word."""
    asked, resolved = method.requested, method.resolved
    if asked is None or resolved is None or resolved.startswith(asked.lower()):
        return
    if asked == UNQUANT:
        yield Finding("method name", "warning", "unquant-unheeded", "--quantization unquant keeps "
                      f"no quantization away: the checkpoint's own {resolved} serves it", "Serve "
                      "the unquantized checkpoint.", UNSET)
    else:
        yield Finding("method name", "warning", "method-replaced", f"--quantization {asked} is "
                      f"replaced by {resolved}, and nothing says so", f"Pass {resolved}, or no "
                      "--quantization.", "configs/model_config.py:ModelConfig._verify_quantization")


def _typed(told: Told) -> Iterator[Finding]:
    """Yield why a name is refused that nobody typed."""
    step = next((step for step in told.method.steps if step.kind == TYPED), None)
    if step is not None and told.error is not None:
        yield Finding("method name", "info", "counts-as-typed", f"{step.what} was not asked for: "
                      f"{step.because}. An earlier reading of the config would have served it",
                      "Serve it on a GPU below 10.0, or with --quantization moe_wna16 where that "
                      "takes it.", step.source)


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


def _failing(layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """Yield how the first forward fails: the first layer whose operator is known to."""
    note = next((layer.note for layer in layers if layer.note is not None), None)
    if note is not None:
        yield note


def _set_by_server(told: Told) -> Iterator[Finding]:
    """Yield what the server sets for an architecture before its class is read, where the answer is
    that of the class alone."""
    family = capability_family(told.gpu.capability)
    named = told.checkpoint.config.get("architectures") or ()
    for row in told.table["set_by_server"]:
        unset = told.env.get(row["variable"]) is None
        hit = next((x for x in told.layers if x.path.endswith(row["ends_with"])
                    and x.method == row["method"]), None)
        if hit is not None and unset and family in row["families"] and named[:1] == [
                row["architecture"]]:
            yield Finding("layer assignment", "warning", "server-sets-otherwise",
                          f"{hit.path}: {row['says']}", row["hint"], row["source"])


def _cannot_run(table: Table, gpu: Gpu, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """Yield what chosen operators ask of the device only when they run."""
    for row in table["forwards"]:
        for layer in layers:
            if layer.kernel != row["kernel"] or layer.mode not in row.get("modes", (layer.mode,)):
                continue
            check = evaluate(row["runs"], {"gpu.capability": gpu.capability, "layer.k": layer.k,
                                           "layer.n": layer.n}, row["kernel"], row["source"])
            if check and check.verdict == FAIL:
                yield Finding("first forward", "error", "kernel-cannot-run",
                              f"{row['kernel']} is selected for {layer.path}, but its first "
                              f"forward fails: {check.says}", row["hint"], check.source)
                break


def _plain_experts(told: Told) -> Iterator[Finding]:
    """Yield that AWQConfig has no method for experts, whose packed weights then find no place."""
    hit = next((x for x in told.layers if x.moe_backend and x.method == PLAIN_EXPERTS), None)
    if hit is not None and told.method.resolved == "awq":
        yield Finding("weight loading", "error", "experts-not-quantized",
                      f"{hit.path}: built in 16 bits under awq; the checkpoint's packed weights of "
                      "experts find no parameter and loading fails", "Pass --quantization "
                      "moe_wna16, or serve it on 8.0 or above as awq_marlin.",
                      "layers/quantization/awq/awq.py:AWQConfig.get_quant_method")


def _online(told: Told) -> Iterator[Finding]:
    """Yield that humming cannot quantize 16-bit weights: the engine calls the package with an
    argument that the version which its wheel requires does not have."""
    hit = next((x for x in told.layers if (x.method or "").startswith(HUMMING)), None)
    if hit is not None and told.method.checkpoint is None:
        yield Finding("weight loading", "error", "humming-online",
                      f"{hit.path}: quantizing its 16-bit weights raises TypeError: "
                      "quantize_weight() got an unexpected keyword argument 'has_global_scale'",
                      "Unset SGLANG_HUMMING_ONLINE_QUANT_CONFIG, or serve a quantized checkpoint.",
                      "layers/quantization/humming.py:HummingLinearMethod.prepare_weight_loader")
