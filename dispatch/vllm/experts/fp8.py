"""quant_method fp8: Fp8MoEMethod (model_executor/layers/quantization/fp8.py), and what FP8 block
scales ask of the experts' shard (model_executor/layers/fused_moe/oracle/fp8.py)."""

from __future__ import annotations

from functools import partial
from math import gcd
from typing import Any

from quantplan.dispatch import blocks
from quantplan.dispatch.predicates import PASS
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import trait
from quantplan.dispatch.vllm.experts.ignore import experts_skipped
from quantplan.dispatch.vllm.experts.mxfp4 import MXFP4
from quantplan.dispatch.vllm.experts.plan import Experts, Plan, unquantized
from quantplan.dispatch.vllm.experts.walk import class_checks, scheme_facts
from quantplan.dispatch.vllm.fp8 import Fp8Fields, block_facts

Block = tuple[int, int]
REFINED_MIN = 32
"""oracle/fp8.py:refine_fp8_moe_block_shape."""
SHAPE_SOURCE = (
    "model_executor/layers/quantization/utils/fp8_utils.py:validate_fp8_block_shape_moe")
PAD_SOURCE = "model_executor/layers/fused_moe/oracle/fp8.py:pad_tp_shard_to_weight_blocks"


def plan(fields: Fp8Fields, experts: Experts) -> Plan:
    """Return the plan of experts in an fp8 checkpoint."""
    if experts_skipped(experts, fields.ignored):
        return unquantized("named in ignored_layers")
    if fields.store_dtype == "mxfp4":
        return MXFP4
    if fields.block:
        return block_plan("Fp8MoEMethod", fields.block, experts)
    act = "kFp8StaticTensorSym" if fields.static else dynamic_act(experts)
    method = "Fp8MoEMethod" if fields.serialized else "Fp8PerTensorOnlineMoEMethod"
    return tensor_plan(method, "kFp8StaticTensorSym", act)


def dynamic_act(experts: Experts) -> str:
    """Return the activation key of experts whose activations are scaled while they run."""
    facts, table = experts.context.facts, experts.context.table
    return str(trait(table, "batch_invariant_fp8_experts_act")) if facts[
        "env.VLLM_BATCH_INVARIANT"] else "kFp8DynamicTensorSym"


def tensor_plan(method: str, weight: str, act: str, vllm_cutlass: bool = False) -> Plan:
    """Return the plan of FP8 experts without blocks."""
    return Plan(method, "fp8", weight, act, {"quant.vllm_cutlass": vllm_cutlass})


def block_plan(method: str, block: Block, experts: Experts) -> Plan:
    """Return the plan of FP8 experts in blocks: the blocks are made smaller where they straddle
    ranks and a kernel can read that, else the shard is padded, else it must hold whole blocks
    (oracle/fp8.py:resolve_fp8_moe_weight_block_shape)."""
    if not trait(experts.context.table, "fp8_experts_blocks_fit"):
        return sized_plan(method, block)._replace(after=partial(check_blocks, block))
    finer = _finer(block, experts)
    flag = experts.context.facts["flag.moe_backend"]
    if flag != "auto" and not _flag_reads(flag, finer, experts) and _padded(block, experts):
        return sized_plan(method, block)
    if finer is None:
        return sized_plan(method, block)._replace(after=partial(check_blocks, block))
    return sized_plan(method, finer)._replace(
        why=f"blocks of {block[0]}x{block[1]} made {finer[0]}x{finer[1]}, which divide the "
        f"{experts.facts['moe.shard']} features of one rank")


def sized_plan(method: str, block: Block) -> Plan:
    """Return the plan of FP8 experts in blocks of this size, whatever their shard."""
    key = "kFp8Static128BlockSym" if block == (128, 128) else (
        "fp8_block" if min(block) > 1 else "fp8_thin_block")
    return Plan(method, "fp8", key, "kFp8Dynamic128Sym",
                {"quant.vllm_cutlass": False, **block_facts(block)})


def _finer(block: Block, experts: Experts) -> Block | None:
    shard, facts = experts.facts["moe.shard"], experts.facts
    if shard % block[0] == 0 and (facts["moe.tp"] == 1 or shard % block[1] == 0):
        return None
    size = gcd(*block, shard, facts["moe.hidden"])
    return (size, size) if size >= REFINED_MIN else None


def _flag_reads(flag: str, finer: Block | None, experts: Experts) -> bool:
    """Return whether a class that --moe-backend asks for reads the finer blocks, or the flag asks
    for none of FP8 experts (which is refused later)."""
    table = experts.context.table
    row = table["experts_lists"]["fp8"]
    names = row["flags"].get(flag)
    if names is None:
        return True
    if finer is None:
        return False
    refined = sized_plan("", finer)
    facts: dict[str, Any] = {**experts.context.facts, **experts.facts, **refined.quant}
    facts.update(scheme_facts(table, refined.weight, refined.act, facts))
    classes = [name for backend in row["backends"] if backend["id"] in names
               for name in backend["classes"]]
    return any(all(check.verdict == PASS for check in class_checks(table, name, facts, ["scheme"]))
               for name in classes)


def _padded(block: Block, experts: Experts) -> bool:
    """Return whether one rank's shard is padded to whole blocks; refuses where that cannot be."""
    facts, size = experts.facts, block[0]
    if block[0] != block[1] or facts["moe.tp"] == 1 or facts["moe.shard"] % size == 0:
        return False
    if facts["moe.intermediate"] % size or facts["moe.hidden"] % size or facts["moe.bias"]:
        raise refuse("shapes under TP", "ValueError",
                     f"Block-aligned FP8 TP sharding requires {size}-aligned global expert "
                     "dimensions, pure TP, and no LoRA or expert bias.", experts.prefix, PAD_SOURCE,
                     hint="Drop --moe-backend, or choose another tensor parallel size.")
    return True


def check_blocks(block: Block, experts: Experts, backend: str | None, name: str) -> None:
    """Refuse a shard that does not hold whole blocks."""
    blocks.check_experts(block, experts.facts["moe.shard"], experts.facts["moe.intermediate"],
                         experts.context.deployment.tp, (experts.prefix, SHAPE_SOURCE))
