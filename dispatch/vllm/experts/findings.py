"""What comes of routed experts after their class is chosen, and flags that change nothing."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.dispatch.predicates import PASS
from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm.context import Context
from quantplan.dispatch.vllm.experts.mega import native
from quantplan.dispatch.vllm.experts.walk import WITHOUT

Layers = tuple[Layer, ...]


def without_class(context: Context, layers: Layers) -> Iterator[Finding]:
    """Experts that Humming builds although none of its classes takes them."""
    hit = next((x for x in layers if x.moe_backend == WITHOUT), None)
    if hit and hit.selection:
        tried = hit.selection.candidates[-1]
        yield Finding("weight loading", "error", "experts-without-class",
                      f"{hit.path}: no class of Humming takes these experts ({tried.reason}); "
                      f"{hit.method} is built without one, and loading the weights raises "
                      "AssertionError", "Drop --quantization humming.",
                      "model_executor/layers/quantization/humming.py:HummingMoEMethod")


def class_not_asked(context: Context, layers: Layers) -> Iterator[Finding]:
    """Experts whose method takes the first class of the backend, though another one passed."""
    for layer in layers:
        first = next((c for c in (layer.selection.candidates if layer.selection else ())
                      if c.kernel == layer.kernel and c.considered), None)
        if layer.moe_backend and first and first.verdict != PASS:
            yield Finding("weight loading", "error", "experts-class-not-asked",
                          f"{layer.path}: {layer.method} takes the first class of the backend "
                          f"{layer.moe_backend}, {layer.kernel}, which refuses this layer "
                          f"({first.reason})", "Choose another --moe-backend.", first.source)
            return


def mega_kernel(context: Context, layers: Layers) -> Iterator[Finding]:
    """DeepSeek V4's own kernel in the place of routed experts."""
    if native(context):
        yield Finding("kernel selection", "info", "native-mega-moe",
                      f"--moe-backend {context.deployment.moe_backend}: routed experts are "
                      "DeepseekV4MegaMoEExperts, which is no fused-experts class and has no list",
                      None, context.table["mega_moe"]["source"])


def unread_flags(context: Context, layers: Layers) -> Iterator[Finding]:
    """Flags about experts that change nothing here."""
    deployment, source = context.deployment, "model_executor/layers/fused_moe/config.py"
    if deployment.moe_backend != "auto" and not native(context) and (
            not any(x.moe_backend for x in layers)):
        yield Finding("flags", "info", "moe-backend-not-read",
                      f"--moe-backend {deployment.moe_backend} changes nothing: the model has no "
                      "routed experts", None, source)
    if layers and deployment.expert_parallel and deployment.tp * deployment.dp == 1:
        yield Finding("flags", "info", "one-expert-rank",
                      "--enable-expert-parallel changes nothing on one rank", None,
                      f"{source}:FusedMoEParallelConfig.make")


RULES = (without_class, class_not_asked, mega_kernel, unread_flags)
