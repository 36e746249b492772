"""quant_method quark: AMD Quark's schemes for linear layers, and its KV cache
(model_executor/layers/quantization/quark/)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from quantplan.dispatch.shard import whole_pieces
from quantplan.dispatch.trace import Selection, refuse
from quantplan.dispatch.vllm import fp8, nvfp4
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.ct_layers import check_capability, mxfp4_quant
from quantplan.dispatch.vllm.fields import Config
from quantplan.dispatch.vllm.ignore import is_ignored
from quantplan.dispatch.vllm.integers import integer_quant
from quantplan.dispatch.vllm.quark_config import QuarkFields, read_quark, rule_of
from quantplan.dispatch.vllm.quark_schemes import scheme_of

Row = Mapping[str, Any]
Facts = Mapping[str, Any]
Scheme = Callable[[Row, Facts, Context, Site], Assignment]
METHOD = "QuarkLinearMethod"
KV_METHOD = "QuarkKVCacheMethod"
FOLDER = "model_executor/layers/quantization/quark"
BLOCK = (128, 128)
MX_GROUP = 32
"""utils/ocp_mx_utils.py:OCP_MX_BLOCK_SIZE."""
MX_ACTIVATIONS = ("mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8_e4m3")
"""utils/ocp_mx_utils.py:_ACTIVATION_QUANT_KEY_MAP."""


def read(config: Config, context: Context) -> QuarkFields:
    """Return the fields of a Quark checkpoint, or refuse as its constructor does."""
    return read_quark(config)


def assign(fields: QuarkFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; None for embeddings and lm_head, which stay 16-bit
    whatever the config says."""
    skipped = is_excluded(fields, context, site)
    if site.module.split == "vocab":
        return None
    if skipped:
        return Assignment("UnquantizedLinearMethod", why="named in exclude")
    rule = rule_of(fields, context.structure.packed, site.path)
    row, facts = scheme_of(rule, fields.pack_method, context.table, site.path)
    if not row.get("kernel_first"):
        check_capability(row, context, site)
    return SCHEMES[row["id"]](row, facts, context, site)._replace(scheme=row["id"])


def is_excluded(fields: QuarkFields, context: Context, site: Site) -> bool:
    """Return whether exclude names a layer; refuses a config without that list."""
    if fields.ignore is None:
        raise refuse("layer assignment", "TypeError", "'NoneType' object is not iterable",
                     site.module_path, f"{FOLDER}/utils.py:should_ignore_layer",
                     hint="The config lacks exclude; an empty list says nothing is left out.")
    return is_ignored(context.table, site.path, fields.ignore, context.structure.packed)


def _fp8(row: Row, facts: Facts, context: Context, site: Site) -> Assignment:
    static, per_token = not facts["input.is_dynamic"], facts["input.qscheme"] == "per_channel"
    weight = "channel" if facts["weight.qscheme"] == "per_channel" else "tensor"
    quant = fp8.scale_quant(weight, "token" if per_token and not static else "tensor", static)
    return Assignment(METHOD, None, "fp8_w8a8", quant, fp8.act_name(quant))


def _fp8_block(row: Row, facts: Facts, context: Context, site: Site) -> Assignment:
    fp8.check_block_shape(site, BLOCK, context.deployment.tp)
    return Assignment(METHOD, None, "fp8_block_w8a8", fp8.block_quant(BLOCK), "group")


def _int8(row: Row, facts: Facts, context: Context, site: Site) -> Assignment:
    return Assignment(METHOD, None, "int8_w8a8", {},
                      "per_token" if facts["input.is_dynamic"] else "static")


def int4_weights(facts: Facts, path: str) -> tuple[int, bool]:
    """Return group size and symmetry of 4-bit integer weights; refuses where one is absent."""
    size, symmetric = facts["weight.group_size"], facts["weight.symmetric"]
    absent = [name for name in ("group_size", "symmetric") if name not in facts["weight.keys"]]
    words = None
    if absent:
        words = f"Quark W4A16 INT4/UINT4 configs must specify weight.{absent[0]}"
    elif not isinstance(size, int) or size <= 0:
        words = f"Quark W4A16 weight.group_size must be a positive int, got {size!r}"
    elif not isinstance(symmetric, bool):
        words = f"Quark W4A16 weight.symmetric must be a bool, got {symmetric!r}"
    if words:
        raise refuse("layer assignment", "ValueError", words, path,
                     f"{FOLDER}/utils.py:parse_w4a16_int4_weight_config")
    return size, symmetric


def _int4(row: Row, facts: Facts, context: Context, site: Site) -> Assignment:
    size, symmetric = int4_weights(facts, site.path)
    if site.shard.k % size:
        raise refuse("shapes under TP", "ValueError",
                     "The input size is not aligned with the quantized weight shape. This can be "
                     "caused by too large tensor parallel size. input_size_per_partition="
                     f"{site.shard.k}, group_size={size}.", site.path, row["source"],
                     hint=f"Use a tensor parallel size that leaves whole groups of {size}.")
    quant = integer_quant(site, "uint4b8" if symmetric else "uint4", 4, size, not symmetric,
                          context.dtype)
    return Assignment(METHOD, None, "mixed_precision", quant, "none")


def _mxfp4_fp8(row: Row, facts: Facts, context: Context, site: Site) -> Assignment:
    if site.shard.k % 2:
        raise refuse("shapes under TP", "AssertionError",
                     f"Dimension {site.shard.k} must be even for MXFP4 packing", site.path,
                     row["source"])
    return Assignment(METHOD, act="static", mode="emulated_mxfp4",
                      why="its kernel is AITER's, for AMD: here weights are dequantized and "
                      "activations rounded before a 16-bit product")


def _mx(row: Row, facts: Facts, context: Context, site: Site) -> Assignment:
    act, weight = _mx_activation(facts, row, site), facts["weight.dtype"].replace("fp", "mxfp")
    if site.shard.k % MX_GROUP:
        raise refuse("shapes under TP", "ValueError",
                     f"OCP MX linear layer {site.path!r} has an input size per partition of "
                     f"{site.shard.k}, which must be divisible by the OCP MX group size "
                     f"{MX_GROUP}. Choose a compatible tensor-parallel size or avoid "
                     "tensor-parallel sharding for this layer.", site.path, row["source"],
                     hint=whole_pieces(site.shard.k_full, MX_GROUP, "groups"))
    family = weight.partition("_")[0]
    quant = {} if family == "mxfp8" else mxfp4_quant(context, act, MX_GROUP)
    if family == "mxfp6":
        quant["quant.weight_type"] = f"float6{weight.partition('_')[2]}"
    return Assignment(METHOD, None, family, quant, "none" if act == "none" else "group")


def _mx_activation(facts: Facts, row: Row, site: Site) -> str:
    """Return the activation key, or refuse what is no MX format."""
    dtype = facts["input.dtype"]
    if facts["input.entries"] == 0:
        return "none"
    if not isinstance(dtype, str):
        raise refuse("layer assignment", "KeyError", "'dtype'", site.path, row["source"])
    grouped = facts["input.qscheme"] == "per_group" and facts["input.group_size"] == MX_GROUP
    name = dtype.replace("fp", "mxfp")
    words = None
    if dtype == "fp8_e4m3" and not grouped:
        words = ("Unsupported activation quant key: "
                 "QuantKey(f8e4m3fn,scale(f32,dynamic,per_tensor),symmetric)")
    elif name not in MX_ACTIVATIONS:
        words = (f"Unsupported input_dtype={name} in Quark's vLLM integration. Supported "
                 f"activation dtypes are dict_keys({list(MX_ACTIVATIONS)}), or None for "
                 "weight-only quantization.")
    if words:
        raise refuse("layer assignment", "ValueError", words, site.path, row["source"])
    return name.removesuffix("_e4m3")


def _nvfp4(row: Row, facts: Facts, context: Context, site: Site) -> Assignment:
    return nvfp4.layer(METHOD, weight_only=False)._replace(late=partial(_check_groups, row, site))


def _check_groups(row: Row, site: Site) -> None:
    if site.shard.k % 16:
        raise refuse("shapes under TP", "ValueError",
                     f"Input size per partition ({site.shard.k}) must be divisible by group size "
                     "(16)", site.path, row["source"],
                     hint=whole_pieces(site.shard.k_full, 16, "groups"))


SCHEMES: Mapping[str, Scheme] = {
    "QuarkNVFP4": _nvfp4, "QuarkW8A8Fp8PerBlock": _fp8_block, "QuarkW8A8Fp8": _fp8,
    "QuarkW8A8Int8": _int8, "QuarkW4A16Int4": _int4, "QuarkW4A8_MXFP4_FP8": _mxfp4_fp8,
    "QuarkOCP_MX": _mx,
}


def after_selection(
    context: Context, site: Site, assignment: Assignment, selection: Selection
) -> Assignment:
    """Refuse, once the kernel is known, what NVFP4 checks last."""
    row = context.table["quark_schemes"][assignment.scheme]
    if row.get("kernel_first"):
        check_capability(row, context, site)
    if assignment.late:
        assignment.late()
    return assignment


def kv_method_at(fields: QuarkFields, context: Context, site: Site) -> str | None:
    """Return the KV-cache method of an attention layer, None where exclude names it; refuses a KV
    cache that is not per-tensor FP8 (QuarkKVCacheMethod.validate_kv_cache_config)."""
    if is_excluded(fields, context, site):
        return None
    if fields.kv_config is not None:
        dtype, scheme = fields.kv_config.get("dtype"), fields.kv_config.get("qscheme")
        words = None
        if dtype != "fp8_e4m3":
            words = ("Currently supported kv cache quantization is dtype=fp8_e4m3, however "
                     f"received {dtype}")
        elif scheme != "per_tensor":
            words = ("Only support per-tensor scaling factor for quark KV cache. Expected "
                     f"qscheme: per_tensor, found qscheme: {scheme}")
        if words:
            raise refuse("layer assignment", "NotImplementedError", words, site.path,
                         f"{FOLDER}/quark.py:QuarkKVCacheMethod.validate_kv_cache_config")
    return KV_METHOD
