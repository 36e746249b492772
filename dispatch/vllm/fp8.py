"""quant_method fp8: Fp8Config and Fp8LinearMethod
(model_executor/layers/quantization/fp8.py)."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch import blocks
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.fields import Config, bad_config, names, need
from quantplan.dispatch.vllm.ignore import is_skipped
from quantplan.dispatch.vllm.integers import marlin_input_dtype
from quantplan.tables.record import NamedTuple

SOURCE = "model_executor/layers/quantization/fp8.py:Fp8Config"
SHAPE_SOURCE = (
    "model_executor/layers/quantization/utils/fp8_utils.py:validate_fp8_block_shape")
CUTLASS_FP8_MIN = 89
"""Below it dynamic per-tensor checkpoints keep a per-tensor activation scale
(w8a8_utils.py:cutlass_fp8_supported)."""


class Fp8Fields(NamedTuple):
    """Fp8Config after construction; `block` is [n, k] of a weight block. `serialized` is false
    where the class quantizes a 16-bit checkpoint while it loads."""

    static: bool
    ignored: tuple[str, ...]
    block: tuple[int, int] | None
    store_dtype: str | None
    serialized: bool = True


def default(context: Context) -> Fp8Fields:
    """Return the fields without a checkpoint's config."""
    return Fp8Fields(False, (), None, None, serialized=False)


def read(config: Config, context: Context) -> Fp8Fields:
    """Return the fields of an fp8 checkpoint, or refuse as Fp8Config.from_config does."""
    scheme = need(config, "activation_scheme")
    if scheme not in ("static", "dynamic"):
        raise bad_config(f"Unsupported activation scheme {scheme}", SOURCE,
                         "activation_scheme is static or dynamic.")
    block = config.get("weight_block_size")
    if block is not None:
        _check_block(block, scheme)
    ignored = names(config, "ignored_layers", "modules_to_not_convert")
    return Fp8Fields(scheme == "static", ignored, tuple(block) if block else None,
                     config.get("store_dtype"))


def _check_block(block: Any, scheme: str) -> None:
    if len(block) != 2:
        raise bad_config("The quantization block size of weight must have 2 dimensions, but got "
                         f"{len(block)} dimensions", SOURCE,
                         "weight_block_size is [rows, columns], as [128, 128].")
    if scheme != "dynamic":
        raise bad_config("The block-wise quantization only supports dynamic activation scheme "
                         f"for now, but got {scheme} activation scheme.", SOURCE,
                         "Block scales go with activation_scheme dynamic; re-quantize, or set it "
                         "where no input scales are stored.")


def assign(fields: Fp8Fields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; None for layers that fp8 never touches."""
    if site.module.split == "vocab":
        return None
    if is_skipped(site.path, fields.ignored, context.structure.packed, substring=False):
        return Assignment("UnquantizedLinearMethod", why="named in ignored_layers")
    marlin_input_dtype(context, site)
    if fields.block:
        if not merged_mismatch(site, fields.block):
            check_block_shape(site, fields.block, context.deployment.tp)
        quant = block_quant(fields.block)
        return Assignment("Fp8LinearMethod", None, "fp8_block_w8a8", quant, "group")
    quant = scale_quant("tensor", activation_scale(fields.static, context), fields.static)
    method = "Fp8LinearMethod" if fields.serialized else "Fp8PerTensorOnlineLinearMethod"
    return Assignment(method, None, "fp8_w8a8", quant, act_name(quant))


def activation_scale(static: bool, context: Context) -> str:
    """Return "tensor" or "token": dynamic scales are per token where CUTLASS FP8 runs."""
    per_token = not static and context.gpu.capability >= CUTLASS_FP8_MIN
    return "token" if per_token else "tensor"


def scale_quant(weight: str, act: str, static: bool) -> dict[str, Any]:
    """Return the facts of an unblocked FP8 layer: weight and activation scale granularity."""
    return {"quant.weight_scale": weight, "quant.act_scale": act, "quant.act_static": static}


def block_quant(block: tuple[int, int]) -> dict[str, Any]:
    """Return the facts of a block FP8 layer; activations are grouped by the block's first size
    (Fp8LinearMethod.__init__ builds GroupShape(1, weight_block_size[0]))."""
    return {**scale_quant(f"block{block[0]}x{block[1]}", f"group{block[0]}", static=False),
            **block_facts(block)}


def block_facts(block: tuple[int, int]) -> dict[str, int]:
    """Return the facts of a block's sizes."""
    return {"quant.block_n": block[0], "quant.block_k": block[1]}


def act_name(quant: dict[str, Any]) -> str:
    """Return how activations are quantized, in words of the JSON contract."""
    if quant["quant.act_static"]:
        return "static"
    return {"token": "per_token", "tensor": "per_tensor"}.get(quant["quant.act_scale"], "group")


def merged_mismatch(site: Site, block: tuple[int, int]) -> bool:
    """Return whether a fused layer has a part that the block does not divide: fp8 checkpoints then
    skip the shape check (model_executor/layers/linear.py:
    ColumnParallelLinear._maybe_allow_fp8_block_shape_mismatch)."""
    parts = site.shard.parts
    return len(parts) > 1 and any(part % block[0] for part in parts)


def check_block_shape(site: Site, block: tuple[int, int], tp: int) -> None:
    """Refuse a block that does not divide what one rank holds
    (validate_fp8_block_shape: row split, then column split or merged parts)."""
    shard = site.shard
    merged = shard.parts[:-1] if len(shard.parts) > 1 else ()
    parts = shard.parts if blocks.is_split(shard, tp) else merged
    blocks.check_linear(block, shard, parts, tp, (site.path, SHAPE_SOURCE))
