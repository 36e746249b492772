"""FP8 checkpoints and FP8 made while loading (layers/quantization/fp8.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch import blocks
from quantplan.dispatch.predicates import FAIL, evaluate
from quantplan.dispatch.sglang.context import BLACKWELL, Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.expert_formats import MXFP4
from quantplan.dispatch.sglang.experts import PADDED_UNDER, Experts, unquantized_experts
from quantplan.dispatch.sglang.fields import Config, given, names, need, whole
from quantplan.dispatch.sglang.fp4_experts import packed_experts
from quantplan.dispatch.sglang.gptq import odd_scales
from quantplan.dispatch.sglang.ignore import both_forms, is_skipped
from quantplan.dispatch.sglang.modelopt import is_excluded
from quantplan.dispatch.sglang.nvfp4_experts import nvfp4_experts
from quantplan.dispatch.sglang.operators import chosen, unfit
from quantplan.dispatch.sglang.renames import all_renamed
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/fp8.py:Fp8Config"
SHAPES = "layers/quantization/fp8.py:Fp8LinearMethod.validate_block_quant_shapes"
EXPERTS = "layers/quantization/fp8.py:Fp8MoEMethod.__init__"
CREATED = "layers/quantization/fp8.py:Fp8MoEMethod.create_fp8_moe_weight_"
ALIGNED = ("layers/moe/moe_runner/flashinfer_trtllm.py:"
           "align_fp8_moe_weights_for_flashinfer_trtllm")
HPC_OPS = "layers/quantization/fp8.py:Fp8MoEMethod._prepare_hpc_ops_weights"
MARLIN = "apply_fp8_marlin_linear"
SCHEMES = ("static", "dynamic")
NVFP4_GROUP = 16
NVFP4_DRAFTS = ("model.decoder.*", "stages.*")
"""Draft models' experts, which stay as they are stored."""


class Fp8Fields(NamedTuple):
    """What Fp8Config keeps: whether weights are stored as FP8, the activation scheme, the names it
    leaves alone, the block, the form of block scales, and the KV cache's algorithm; of a hybrid
    config with NVFP4 experts, the names that these leave alone."""

    serialized: bool
    act: str
    ignored: tuple[str, ...]
    block: tuple[int, int] | None = None
    scale_format: str | None = None
    kv_algo: str | None = None
    nvfp4_left: tuple[str, ...] | None = None


def read(config: Config | None, context: Context) -> Fp8Fields:
    """Return the fields, or refuse as Fp8Config does; without a config all is made on loading."""
    more = tuple(filter(None, map(str.strip, context.facts[
        "env.SGLANG_FP8_IGNORED_LAYERS"].split(","))))
    if config is None:
        return Fp8Fields(False, "dynamic", all_renamed(context, more))
    need(config, "quant_method")
    act = need(config, "activation_scheme")
    check_scheme(act, SOURCE)
    ignored = names(given(config, "ignored_layers", "modules_to_not_convert"), "ignored_layers")
    kv_algo = given(config, "kv_cache_quant_algo")
    return Fp8Fields(True, act, all_renamed(context, (*both_forms(ignored), *more)),
                     read_block(given(config, "weight_block_size"), act, SOURCE),
                     given(config, "scale_fmt"), None if kv_algo is None else str(kv_algo),
                     _nvfp4_left(config, context))


def _nvfp4_left(config: Config, context: Context) -> tuple[str, ...] | None:
    """Return the names that NVFP4 experts beside FP8 leave alone, None without such experts
    (model_loader/loader.py:_get_quantization_config)."""
    if context.facts["experts.format"] != "nvfp4":
        return None
    if whole(config["group_size"], "group_size") != NVFP4_GROUP:
        raise NotKnownError(f"NVFP4 experts in groups of {config['group_size']}",
                            wanted=str(NVFP4_GROUP))
    return (*names(config.get("ignore"), "ignore"), *NVFP4_DRAFTS)


def config_class(fields: Fp8Fields) -> str | None:
    """Return the class where it is not the method's own."""
    return None if fields.nvfp4_left is None else "HybridFp8NvFp4Config"


def check_scheme(act: Any, source: str) -> None:
    """Refuse an activation scheme that the class at `source` does not know."""
    if act not in SCHEMES:
        raise refuse("config fields", "ValueError", f"Unsupported activation scheme {act}", None,
                     source, hint="activation_scheme is static or dynamic.")


def read_block(value: Any, act: str, source: str) -> tuple[int, int] | None:
    """Return weight_block_size as a pair, or refuse as the class at `source` does."""
    if isinstance(value, list) and len(value) != 2:
        raise refuse("config fields", "ValueError", "The quantization block size of weight must "
                     f"have 2 dimensions, but got {len(value)} dimensions.", None, source,
                     hint="weight_block_size is [rows, columns].")
    if value is not None and act != "dynamic":
        raise refuse("config fields", "ValueError", "The block-wise quantization only supports "
                     f"dynamic activation scheme for now, but got {act} activation scheme.", None,
                     source, hint="Block scales go with activation_scheme dynamic.")
    return block_size(value)


def block_size(value: Any) -> tuple[int, int] | None:
    """Return [rows, columns] as a pair, None for null. Raises CheckpointError for anything else."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise CheckpointError("quantization config: weight_block_size", wanted="[rows, columns]",
                              found=repr(value)[:60])
    rows, columns = (whole(size, "weight_block_size") for size in value)
    if min(rows, columns) < 1:
        raise CheckpointError("quantization config: weight_block_size",
                              wanted="positive whole numbers", found=repr(value)[:60])
    return rows, columns


def kv_algo(fields: Fp8Fields) -> str | None:
    """Return what the checkpoint says of the KV cache."""
    return fields.kv_algo


def assign(fields: Fp8Fields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; embeddings and lm_head are none of Fp8Config's."""
    if site.module.split == "vocab":
        return None
    if is_skipped(context, site.path, fields.ignored):
        return unquantized("named in the layers that Fp8Config leaves alone")
    return linear(fields, context, site)


def linear(fields: Fp8Fields, context: Context, site: Site) -> Assignment:
    """Return the assignment of a layer that has Fp8LinearMethod, or refuse as that does."""
    facts = _facts(fields)
    if fields.block is None or fields.block[1] == 128:  # other blocks leave no choice
        check_backend(context, facts, site)
    if fields.block is None:
        kernel = chosen(context, "fp8", {**site.facts, **facts}).text("kernel")
        refusal = unfit(context.table, "fp8_marlin", site) if kernel == MARLIN else None
        return Assignment("Fp8LinearMethod", None, "fp8", facts, refusal=refusal)
    _check_mxfp8_view(facts, context, site)
    check_block(fields.block, context, site, site.shard.parts)
    if fields.act != "dynamic":
        raise refuse("layer assignment", "AssertionError", "", site.path, SHAPES,
                     hint="Block scales go with activation_scheme dynamic.")
    kernel = chosen(context, "fp8_block", {**site.facts, **facts}).text("kernel")
    return Assignment("Fp8LinearMethod", None, "fp8_block", facts,
                      refusal=unfit_block(fields.block, site) if kernel == MARLIN else None)


def unfit_block(block: tuple[int, int], site: Site) -> Exception | None:
    """Return the refusal of block scales that Marlin cannot order once they are groups of input
    features (layers/quantization/marlin_utils_fp8.py:prepare_fp8_layer_for_marlin)."""
    cut, size = site.shard, block[1]
    return odd_scales(-(-cut.k // size) * cut.n, size < cut.k, site)


def experts(fields: Fp8Fields, context: Context, site: Site, held: Experts) -> Assignment | None:
    """Return the assignment of routed experts, or refuse as their method does."""
    if fields.nvfp4_left is not None:
        if is_excluded(site.path, fields.nvfp4_left):
            raise NotKnownError("experts that a hybrid of FP8 and NVFP4 leaves alone",
                                hint="Their method is not in the table yet.")
        return nvfp4_experts(context, site, held)
    if is_skipped(context, site.path, fields.ignored):
        return unquantized_experts("named in the layers that Fp8Config leaves alone", "trtllm")
    packed = context.facts["experts.format"] == MXFP4
    if packed and fields.block is None:
        raise NotKnownError("packed MXFP4 experts without block scales",
                            hint="The engine fails after it loaded such weights.")
    return (packed_experts(context, site, held) if packed else None) or _own_experts(
        fields, context, site, held, "experts_packed" if packed else "experts_fp8")


def _own_experts(
    fields: Fp8Fields, context: Context, site: Site, held: Experts, operators: str
) -> Assignment:
    """Return the assignment of experts under Fp8MoEMethod."""
    facts = {**_facts(fields), "moe.act": "group" if fields.block else "static" if (
        fields.act == "static") else "per_tensor"}
    backend = context.facts["moe.backend"]
    _check(context.table["moe_backends"][backend].get("fp8_asserts", ()), "AssertionError",
           {**context.facts, **facts}, site, EXPERTS)
    if fields.block is not None:
        check_experts_block(fields.block, held, site)
    unscaled = (backend in PADDED_UNDER and fields.serialized and fields.block is None
                and fields.act == "dynamic")
    refusal = refuse("weight loading", "AssertionError", "", site.path, ALIGNED, hint="The backend "
                     "needs activation scales in the checkpoint: pass --moe-backend triton."
                     ) if unscaled else None
    if backend == "hpc_ops" and fields.block is None and fields.act == "dynamic":
        refusal = refuse("weight loading", "ValueError", "The hpc_ops MoE runner backend requires "
                         "static activation scales for per-tensor FP8 models (activation_scheme="
                         "'static' in the checkpoint quantization config).", site.path,
                         HPC_OPS, hint="Drop --moe-backend.")
    return Assignment("Fp8MoEMethod", None, operators, facts, refusal=refusal)


def check_experts_block(block: tuple[int, int], held: Experts, site: Site) -> None:
    """Refuse a block that does not divide what one rank holds of an expert."""
    blocks.check_experts(block, held.intermediate, held.intermediate * held.tp, held.tp,
                         (site.path, CREATED))


def _facts(fields: Fp8Fields) -> dict[str, Any]:
    block = fields.block
    return {"fp8.serialized": fields.serialized,
            "fp8.act": "static" if fields.act == "static" else "per_token",
            "fp8.block": "none" if block is None else f"{block[0]}/{block[1]}",
            "fp8.block_k": 128 if block is None else block[1],
            "fp8.scale_format": str(fields.scale_format),
            "fp8.mxfp8_view": block is not None and block[1] == 32 and (
                fields.scale_format == "ue8m0")}


def check_backend(context: Context, facts: Mapping[str, Any], site: Site) -> None:
    """Refuse a backend that this GPU does not have: asked for every layer, block or not, Marlin or
    not."""
    backend = context.table["fp8_backends"][context.facts["fp8.backend"]]
    _check(backend.get("requires", ()), backend.get("type", ""), {**context.facts, **facts}, site,
           context.table["fp8_backends_source"])


def _check(
    rows: Sequence[Mapping[str, Any]], kind: str, facts: Mapping[str, Any], site: Site, source: str
) -> None:
    """Refuse with the words of the first requirement that fails."""
    for row in rows:
        check = evaluate(row, facts, row["fact"], source)
        if check is not None and check.verdict == FAIL:
            raise refuse("kernel selection", kind, str(check.says), site.path, source,
                         hint="Drop the flag, or choose a backend that this GPU has.")


def check_mxfp8_backend(context: Context, site: Site) -> None:
    """Refuse a backend whose MXFP8 kernel this GPU does not have; others mean auto."""
    row = context.table["mxfp8_backends"].get(context.facts["fp8.backend"], {})
    _check(row.get("requires", ()), "RuntimeError", context.facts, site,
           context.table["mxfp8_backends_source"])


def _check_mxfp8_view(facts: Mapping[str, Any], context: Context, site: Site) -> None:
    """Refuse the CuTe DSL for blocks of 32 columns that are MXFP8 operands, where it is asked for
    and only other GPUs of the generation have it (resolve_block_fp8_mxfp8_backend)."""
    if facts["fp8.mxfp8_view"] and context.gpu.capability >= BLACKWELL and (
            context.facts["fp8.backend"] == "flashinfer_cutedsl"
            and context.facts["lib.flashinfer"] is True):
        check_mxfp8_backend(context, site)


def check_block(
    block: tuple[int, int], context: Context, site: Site, parts: tuple[int, ...]
) -> None:
    """Refuse a block that does not divide what one rank holds: its input features, and each of the
    output `parts` of a layer that is cut or fused."""
    cut, tp = site.shard, context.deployment.tp
    if site.module.facts.get("unchecked_blocks"):
        return
    asked = parts if blocks.is_split(cut, tp) or len(cut.parts) > 1 else ()
    blocks.check_linear(block, cut, asked, tp, (site.path, SHAPES))
