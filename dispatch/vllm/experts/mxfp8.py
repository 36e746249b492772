"""What MXFP8 experts of a checkpoint ask of their sizes
(model_executor/layers/quantization/modelopt.py, inc/schemes/inc_mxfp8_moe.py)."""

from __future__ import annotations

from quantplan.dispatch.shard import whole_pieces
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.experts.plan import Experts

MX_BLOCK = 32


def check_mxfp8(source: str, experts: Experts, backend: str | None, name: str) -> None:
    """Refuse sizes of one rank that are no whole groups of 32."""
    for size, word, whole in (
            ("moe.hidden", "hidden_size", experts.facts["moe.hidden"]),
            ("moe.shard", "intermediate_size_per_partition", experts.facts["moe.intermediate"])):
        if experts.facts[size] % MX_BLOCK:
            raise refuse("shapes under TP", "ValueError",
                         f"MXFP8 MoE requires {word} divisible by {MX_BLOCK}, got "
                         f"{experts.facts[size]}.", experts.prefix, f"{source}.create_weights",
                         hint=whole_pieces(whole, MX_BLOCK, "groups"))
