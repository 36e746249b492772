"""MXFP4, which serves routed experts only: dense layers end the start
(layers/quantization/mxfp4.py:Mxfp4Config)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import NO_EXCHANGE, Assignment, Context, Site
from quantplan.dispatch.sglang.experts import Experts, check_method
from quantplan.dispatch.sglang.fields import Config
from quantplan.dispatch.trace import Refusal, refuse
from quantplan.tables.errors import NotKnownError

SOURCE = "layers/quantization/mxfp4.py:Mxfp4Config.get_quant_method"
EXPERTS = "layers/quantization/mxfp4.py:Mxfp4MoEMethod.__init__"
RUNNER = "layers/quantization/mxfp4.py:Mxfp4MoEMethod.create_moe_runner"
HINT = "SGLang serves MXFP4 for the experts of gpt-oss; choose another method."
LOADED = "layers/quantization/mxfp4.py:Mxfp4MoEMethod.process_weights_after_loading"
FLASHINFER = "flashinfer_mxfp4"
SERVED = ("triton_kernel", "marlin", FLASHINFER, "auto", "triton", "deep_gemm", "aiter")
"""MoE runner backends that have a runner; under auto and triton weights are made 16-bit while
loading (Mxfp4MoEMethod)."""


def read(config: Config | None, context: Context) -> bool:
    """Return whether the checkpoint is stored so."""
    return config is not None


def assign(fields: bool, context: Context, site: Site) -> Assignment | None:
    """Return nothing for embeddings of a checkpoint that is not stored so, else refuse."""
    if site.module.split == "vocab":
        if fields:
            raise _no_attention(site)
        return None
    raise refuse("layer assignment", "AssertionError", "", site.path, SOURCE, HINT)


def check_attention(fields: bool, context: Context, site: Site) -> None:
    """Refuse attention that asks the config class of a checkpoint that is stored so."""
    if fields:
        raise _no_attention(site)


def _no_attention(site: Site) -> Refusal:
    return refuse("layer assignment", "NotImplementedError",
                  "Mxfp4 attention layer is not implemented", site.path, SOURCE, HINT)


def experts(fields: bool, context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment of routed experts, or refuse as Mxfp4MoEMethod does. Raises
    NotKnownError for 16-bit checkpoints."""
    check_method(context, "Mxfp4MoEMethod", site)
    if context.facts["moe.exchange"] != NO_EXCHANGE:
        raise NotKnownError("MXFP4 experts of gpt-oss with --moe-backend "
                            f"{context.facts['moe.exchange']}", hint="Drop --moe-backend.")
    if not fields:
        raise NotKnownError("SGLang's MXFP4 experts made while loading",
                            wanted="a checkpoint stored so")
    named: str = context.facts["moe.named"]
    backend, family = context.facts["moe.backend"], context.facts["gpu.family"]
    if backend == FLASHINFER and family not in (90, 100, 120):
        raise refuse("kernel selection", "NotImplementedError", f"moe_runner_backend={FLASHINFER} "
                     "requires SM90, SM100, or SM120.", site.path, EXPERTS,
                     hint="Drop --moe-backend.")
    if backend not in SERVED:
        raise refuse("kernel selection", "NotImplementedError", "Mxfp4MoEMethod has no MoeRunner "
                     f"for backend=MoeRunnerBackend.{named.upper()} / _fi_kernel=None.",
                     site.path, RUNNER, hint="Drop --moe-backend.")
    refusal = refuse("weight loading", "RuntimeError", "MXFP4 Marlin requires SM90+.", site.path,
                     LOADED, hint="Drop --moe-backend.") if (
                         backend == "marlin" and family not in (90, 100, 120)) else None
    return Assignment("Mxfp4MoEMethod", operators="experts_mxfp4", refusal=refusal)
