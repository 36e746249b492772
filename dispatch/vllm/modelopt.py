"""ModelOpt checkpoints: modelopt, modelopt_fp4, modelopt_mxfp8 and modelopt_mixed
(model_executor/layers/quantization/modelopt.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import FAIL, evaluate
from quantplan.dispatch.shard import whole_pieces
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Assignment, Context, Site, Table, trait
from quantplan.dispatch.vllm.fields import Config
from quantplan.dispatch.vllm.ignore import Packed, is_excluded
from quantplan.dispatch.vllm.modelopt_blocks import block_layer
from quantplan.dispatch.vllm.modelopt_config import check_owned, declared
from quantplan.dispatch.vllm.modelopt_mixed import Mixed, mixed_algo, read_mixed
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

GROUP_SIZE = 16
SOURCE = "model_executor/layers/quantization/modelopt.py:ModelOptLinearMethod.create_weights"
VISION = ("vision_tower", "vision_model", "vit_large_projector")
"""Path parts that a config of one algorithm leaves unquantized
(ModelOptQuantConfigBase.get_quant_method)."""


class ModelOptFields(NamedTuple):
    """A ModelOpt config class after construction: one algorithm for the model (in capitals), or
    `mixed`, which names one per layer. `excluded` are the wildcards of modules left in 16 bits."""

    algo: str | None
    mixed: Mixed | None
    excluded: tuple[str, ...]
    group_size: int
    kv_method: str | None


KV_METHOD = "ModelOptKVCacheMethod"


class Reader(NamedTuple):
    """The config class `config_class`: reads its fields and assigns its layers."""

    config_class: str

    @staticmethod
    def check(config: Config) -> Config:
        """Return the config: its fields' types are checked where each is read."""
        return config

    def read(self, config: Config, context: Context) -> ModelOptFields:
        """Return the fields of a ModelOpt checkpoint, or refuse as from_config does."""
        table = context.table
        if self.config_class == table["modelopt"]["mixed_class"]:
            return _read_mixed(config, context)
        if self.config_class == "ModelOptMxFp8Config":
            config = mxfp8_config(config)
        found = declared(table, config)
        check_owned(table, self.config_class, found.algo, config)
        algo = "W4A16_NVFP4" if found.algo == "NVFP4" and _weights_only(table, config) else (
            found.algo)
        group = GROUP_SIZE if found.group_size is None else found.group_size
        if group < 1:
            raise CheckpointError("quantization config: group_size", wanted="a positive number",
                                  found=str(group))
        return ModelOptFields(algo, None, rewritten(found.excluded, context), group, KV_METHOD)

    def assign(self, fields: ModelOptFields, context: Context, site: Site) -> Assignment | None:
        """Return the assignment of a linear layer or lm_head; None for embeddings."""
        if site.module.split == "vocab" and not site.is_head:
            return None
        algo, why = algo_of(fields, context, site.path)
        if algo is None:
            return Assignment("UnquantizedLinearMethod", why=why)
        codec = codec_of(context, algo)
        if codec is not None:
            return block_layer(context, site, codec)
        return linear(context.table, site, algo)


def codec_of(context: Context, algo: str) -> Mapping[str, Any] | None:
    """Return the row of an algorithm that packs blocks, None for another one."""
    codecs = context.table["modelopt"]["codecs"]
    return next((row for row in codecs if row["id"] == algo.lower()), None)


def _weights_only(table: Table, config: Config) -> bool:
    """Return whether every config group of an NVFP4 checkpoint leaves activations alone."""
    groups = config.get("config_groups")
    told = bool(trait(table, "nvfp4_groups_tell_activations"))
    return told and isinstance(groups, Mapping) and bool(groups) and all(
        isinstance(group, Mapping) and group.get("input_activations") is None
        for group in groups.values())


def mxfp8_config(config: Config) -> Config:
    """Return the config of a checkpoint tagged mxfp8 in ModelOpt's form; others as they are."""
    if "quantization" in config or config.get("quant_algo"):
        return config
    return {"quantization": {
        "quant_algo": "MXFP8", "kv_cache_quant_algo": config.get("kv_cache_quant_algo"),
        "exclude_modules": config.get("ignored_layers", []) or []}}


def rewritten(excluded: tuple[str, ...], context: Context) -> tuple[str, ...]:
    """Return the wildcards as apply_vllm_mapper rewrites them: module* stands for a module and all
    below it, so it becomes module and module.*. Model classes without a mapper do not call it."""
    if not context.structure.mapped:
        return excluded
    found: list[str] = []
    for name in excluded:
        tree = len(name) >= 2 and name[-1] == "*" and name[-2] != "."
        found += [name[:-1], f"{name[:-1]}.*"] if tree else [name]
    return tuple(found)


def _read_mixed(config: Config, context: Context) -> ModelOptFields:
    found = declared(context.table, config)
    mixed = read_mixed(context.table, config, found.group_size)
    kv_method = KV_METHOD if found.kv_algo else None
    return ModelOptFields(None, mixed, rewritten(found.excluded, context), mixed.group_size,
                          kv_method)


def algo_of(
    fields: ModelOptFields, context: Context, path: str
) -> tuple[str | None, str | None]:
    """Return the algorithm that serves the layer at `path`, linear or experts, and None; or None
    and why it stays in 16 bits. Refuses a fused layer whose parts disagree."""
    packed: Packed = context.structure.packed
    if is_excluded(path, fields.excluded, packed):
        return None, "named in the excluded modules"
    if fields.mixed is not None:
        algo = mixed_algo(fields.mixed, path, packed)
        return algo, None if algo else "not named in quantized_layers"
    if any(part in path for part in VISION):
        return None, "part of a vision tower"
    return fields.algo, None


def linear(table: Table, site: Site, algo: str) -> Assignment:
    """Return the assignment of a linear layer under `algo`, or refuse its shape."""
    row = next((row for row in table["modelopt"]["algos"] if row["id"] == algo), None)
    if row is None:
        return Assignment("UnquantizedLinearMethod", why=f"{algo} is no algorithm of linear layers")
    facts = {"layer.k": site.shard.k, "layer.n": site.shard.n}
    for requirement in row.get("requires", ()):
        check = evaluate(requirement, facts, algo, SOURCE)
        if check is not None and check.verdict == FAIL:
            raise refuse("shapes under TP", "ValueError", str(check.says), site.path, check.source,
                         hint=whole_pieces(site.shard.k_full, requirement["multiple_of"], "groups"))
    quant: Mapping[str, Any] = row["quant"]
    if "pads_n" in row:
        quant = {**quant, "layer.n": -(-site.shard.n // row["pads_n"]) * row["pads_n"]}
    why = "the checkpoint quantizes weights only" if row["act"] == "none" else None
    return Assignment(row["method"], None, row["family"], quant, row["act"], why=why)
