"""ModelOpt checkpoints whose layers have algorithms of their own
(layers/quantization/modelopt_quant.py:ModelOptMixedPrecisionConfig)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.dispatch.sglang import fp8, modelopt, modelopt_fp4, mxfp8
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts, unquantized_experts
from quantplan.dispatch.sglang.fields import Config, is_fp8_scheme, names, need, whole
from quantplan.dispatch.sglang.fp8 import Fp8Fields
from quantplan.dispatch.sglang.ignore import is_skipped
from quantplan.dispatch.sglang.modelopt import ModelOptFields, excluded_names, is_excluded
from quantplan.dispatch.sglang.modelopt_fp4 import Fp4Fields
from quantplan.dispatch.sglang.renames import renamed
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/modelopt_quant.py:ModelOptMixedPrecisionConfig"
EMBEDDING = "layers/quantization/modelopt_quant.py:ModelOptNvFp4EmbeddingMethod"
FILE = "hf_quant_config.json"
MIXED = "MIXED_PRECISION"
BLOCK_FP8 = ("FP8_PB_WO", "FP8_BLOCK_SCALES")
NVFP4 = ("NVFP4", "W4A16_NVFP4")
OUTER, INNER = "language_model.model.", "model.language_model."
"""Where a language model stands in engine and checkpoint, or the other way round."""


class MixedFields(NamedTuple):
    """What the class keeps: layer -> algorithm, the names that it leaves alone, the KV cache's
    algorithm, the group size of NVFP4 and the block of block FP8."""

    algos: Mapping[str, str]
    excluded: tuple[str, ...]
    kv_algo: str | None
    group_size: int
    block: int


def read(config: Config | None, context: Context) -> MixedFields:
    """Return the fields, or refuse as the class does."""
    served = _served(context)
    flat = served if served.get("quant_algo") is not None else need(served, "quantization")
    if not isinstance(flat, Mapping):
        raise CheckpointError("quantization config: quantization", wanted="an object",
                              found=repr(flat)[:60])
    if flat.get("quant_algo") != MIXED:
        raise _refused("ModelOptMixedPrecisionConfig only supports MIXED_PRECISION checkpoints.")
    layers = flat.get("quantized_layers") or {}
    if not layers:
        raise _refused("MIXED_PRECISION quantization requires a non-empty quantized_layers map.")
    rows = _rows(layers)
    listed = flat.get("ignore", flat.get("exclude_modules")) if flat is served else flat.get(
        "exclude_modules")
    return MixedFields(
        {renamed(context, name): algo for name, (algo, _) in rows.items()},
        excluded_names(context, names(listed, "exclude_modules")),
        _kv_algo(flat) if flat is served else flat.get("kv_cache_quant_algo"),
        next((whole(row.get("group_size", 16), "group_size") for algo, row in rows.values()
              if algo in NVFP4), 16), _block(rows))


def _served(context: Context) -> Config:
    """Return config.json's own config, or the file where that lacks the layers or what is said of
    the KV cache (model_loader/weight_utils.py:get_quant_config)."""
    own = context.checkpoint.config.get("quantization_config")
    if isinstance(own, Mapping) and "quantized_layers" in own and (
            "kv_cache_quant_algo" in own or "kv_cache_scheme" in own):
        return own
    found = context.checkpoint.side_files.get(FILE)
    if isinstance(found, Mapping):
        return found
    raise refuse("config fields", "ValueError", "Cannot find the config file for modelopt_mixed",
                 None, "model_loader/weight_utils.py:get_quant_config",
                 hint=f"{FILE} belongs beside config.json.")


def _rows(layers: Any) -> dict[str, tuple[str, Config]]:
    """Return layer -> its algorithm and all that is said of it. Raises CheckpointError for layers
    without one, at which the engine fails."""
    if not isinstance(layers, Mapping):
        raise CheckpointError("quantization config: quantized_layers", wanted="an object",
                              found=repr(layers)[:60])
    for name, row in layers.items():
        if not isinstance(row, Mapping) or not isinstance(row.get("quant_algo"), str):
            raise CheckpointError(f"quantization config: quantized_layers: {name}",
                                  wanted="an object with quant_algo", found=repr(row)[:60])
    return {name: (row["quant_algo"].upper(), row) for name, row in layers.items()}


def _block(rows: Mapping[str, tuple[str, Config]]) -> int:
    sizes = sorted({whole(row.get("group_size", 128), "group_size")
                    for algo, row in rows.values() if algo in BLOCK_FP8})
    if len(sizes) > 1:
        raise _refused("MIXED_PRECISION currently requires all block-FP8 layers to use one "
                       f"group_size, got {sizes}.")
    return sizes[0] if sizes else 128


def _kv_algo(config: Config) -> str | None:
    scheme = config.get("kv_cache_scheme")
    if not isinstance(scheme, Mapping):
        return config.get("kv_cache_quant_algo")
    fp4 = scheme.get("type") == "float" and scheme.get("num_bits") == 4
    return "FP8" if is_fp8_scheme(scheme) else "NVFP4" if fp4 else "auto"


def _refused(message: str) -> Exception:
    return refuse("config fields", "ValueError", message, None, f"{SOURCE}.from_config",
                  hint="Export the checkpoint with ModelOpt's mixed-precision recipe.")


def kv_algo(fields: MixedFields) -> str | None:
    """Return what the checkpoint says of the KV cache."""
    return fields.kv_algo


def kv_method(fields: MixedFields) -> str | None:
    """Return the method of attention layers: there is one where the checkpoint says anything."""
    return "ModelOptFp8KVCacheMethod" if fields.kv_algo else None


def assign(fields: MixedFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer, of lm_head or of an embedding."""
    algo = algo_of(fields, context, site.path)
    left = is_skipped(context, site.path, fields.excluded) or is_excluded(
        site.path, fields.excluded)
    if site.module.split == "vocab" and site.module.module != "ParallelLMHead":
        return _embedding(fields, site) if algo == "NVFP4" and not left else None
    if left:
        return unquantized("named in the excluded modules")
    if algo is None or algo not in LINEAR:
        return unquantized(f"no algorithm of this class is given for it: {algo}" if algo else
                           "no algorithm is given for it")
    return LINEAR[algo](fields, context, site)


def _embedding(fields: MixedFields, site: Site) -> Assignment:
    """Return the assignment of an embedding in NVFP4, or refuse as its method does."""
    if site.shard.k % fields.group_size:
        raise refuse("layer assignment", "ValueError", "NVFP4 embedding needs embedding_dim "
                     f"divisible by {fields.group_size}, got {site.shard.k}.", site.path,
                     f"{EMBEDDING}.create_weights", hint="Leave the embedding in 16 bits.")
    return Assignment("ModelOptNvFp4EmbeddingMethod")


def experts(
    fields: MixedFields, context: Context, site: Site, held: Experts
) -> Assignment | None:
    """Return the assignment of routed experts. Raises NotKnownError for MXFP8."""
    if is_excluded(site.path, fields.excluded):
        return unquantized_experts("named in the excluded modules")
    algo = algo_of(fields, context, site.path)
    if algo == "FP8":
        return modelopt.experts(_fp8(fields), context, site, held)
    if algo in BLOCK_FP8:
        return fp8.experts(_block_fp8(fields), context, site, held)
    if algo in NVFP4:
        return modelopt_fp4.experts(_nvfp4(fields, "NVFP4"), context, site, held)
    if algo == "MXFP8":
        raise NotKnownError("SGLang's MXFP8 experts", hint="They are not in the table yet.")
    return unquantized_experts("no algorithm of this class is given for them")


def algo_of(fields: MixedFields, context: Context, path: str) -> str | None:
    """Return the algorithm of the module at a path: by its name, by its shards' names, or by that
    of the first layer in it. Refuses where shards have several."""
    forms = [*_forms(path)]
    named = next((fields.algos[form] for form in forms if form in fields.algos), None)
    if named is not None:
        return named
    name, base = path.rsplit(".", 1)[-1], path.rsplit(".", 1)[0]
    found = {fields.algos[shard] for form in _forms(base) for leaf in context.packed.get(name, ())
             if (shard := f"{form}.{leaf}") in fields.algos}
    if len(found) > 1:
        raise _mixed_shards(path, found)
    return found.pop() if found else next(
        (algo for form in forms for layer, algo in fields.algos.items()
         if layer.startswith(f"{form}.")), None)


def _mixed_shards(path: str, found: set[str]) -> Exception:
    """Return the refusal; the engine's words list a set, in an order that changes from run to run.
    """
    return refuse("layer assignment", "ValueError", f"Mixed quant_algo within fused layer {path}: "
                  f"{found}. All shards must use the same quantization.", path,
                  f"{SOURCE}._resolve_quant_algo", hint="Quantize all shards alike.")


def _forms(path: str) -> Iterator[str]:
    """Yield the names under which the map may hold a path."""
    yield path
    if path.endswith(".lm_head"):
        yield "lm_head"
    if path.startswith(OUTER):
        yield INNER + path.removeprefix(OUTER)
    elif path.startswith(INNER):
        yield OUTER + path.removeprefix(INNER)
        yield "model." + path.removeprefix(INNER)
    elif path.startswith("model."):
        yield INNER + path.removeprefix("model.")


def _fp8(fields: MixedFields) -> ModelOptFields:
    return ModelOptFields((), fields.kv_algo)


def _nvfp4(fields: MixedFields, algo: str) -> Fp4Fields:
    return Fp4Fields(algo, fields.group_size, (), fields.kv_algo or "")


def _block_fp8(fields: MixedFields) -> Fp8Fields:
    return Fp8Fields(True, "dynamic", (), (fields.block, fields.block))


Linear = Callable[[MixedFields, Context, Site], "Assignment | None"]
LINEAR: Mapping[str, Linear] = {
    "FP8": lambda fields, context, site: modelopt.assign(_fp8(fields), context, site),
    **dict.fromkeys(BLOCK_FP8, lambda fields, context, site: fp8.linear(
        _block_fp8(fields), context, site)),
    "MXFP8": lambda fields, context, site: mxfp8.linear(context, site),
    "NVFP4": lambda fields, context, site: modelopt_fp4.assign(
        _nvfp4(fields, "NVFP4"), context, site),
    "W4A16_NVFP4": lambda fields, context, site: modelopt_fp4.assign(
        _nvfp4(fields, "W4A16_NVFP4"), context, site),
}
"""Algorithm -> what its linear layers are."""
