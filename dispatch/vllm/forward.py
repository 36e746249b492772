"""What a chosen kernel asks only when it runs: selection passes, the first forward fails."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.dispatch.predicates import FAIL, Check, evaluate
from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm.context import Context


def failing_forwards(context: Context, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """The first requirement of each chosen kernel that its own forward raises on."""
    shapes = {(x.kernel, x.n, x.k): x for x in reversed(layers) if x.kernel}
    told: set[tuple[str | None, str]] = set()
    for layer in reversed(shapes.values()):
        check = _failure(context, layer)
        if check is not None and (layer.kernel, check.text) not in told:
            told.add((layer.kernel, check.text))
            yield Finding("first forward", "error", "kernel-cannot-run",
                          f"{layer.kernel} is selected for {layer.path}, but its first forward "
                          f"fails: {check.says}", _hint(context, layer, check), check.source)


def tied_lm_head(context: Context, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """A quantized lm_head on the 16-bit tensor of the embedding: its scales are never loaded."""
    head = next((x for x in layers if x.path == "lm_head"), None)
    if head and context.structure.tied and not str(head.method).startswith("Unquantized"):
        yield Finding("weight loading", "error", "tied-lm-head-quantized",
                      f"lm_head is planned as quantized ({head.method}), but it shares the "
                      "embedding's 16-bit weight (tie_word_embeddings): no scales are loaded",
                      "Add lm_head to the ignore entries of the quantization config.",
                      "model_executor/layers/vocab_parallel_embedding.py:"
                      "ParallelLMHead.tie_weights")


def _failure(context: Context, layer: Layer) -> Check | None:
    name = str(layer.kernel)
    row = context.table["kernels"].get(name, {})
    facts = {**context.facts, "layer.n": layer.n, "layer.k": layer.k}
    checks = (evaluate(r, facts, name, f"{row['file']}:{name}") for r in row.get("runs", ()))
    return next((check for check in checks if check and check.verdict == FAIL), None)


def _hint(context: Context, layer: Layer, check: Check) -> str:
    if check.fact == "dtype.model":
        return "Pass --dtype bfloat16, or choose another kernel with --linear-backend marlin."
    if check.fact.startswith("lib."):
        return f"Install that library; --lib {check.fact[4:]}=on says that it is there."
    if check.fact == "layer.k":
        return "Use a tensor parallel size that leaves whole groups of 16."
    deployment, family = context.deployment, layer.selection.family if layer.selection else ""
    return "Choose another kernel with --linear-backend." if (
        deployment.backend_of(family) == "auto") else f"Drop {deployment.backend_words(family)}."
