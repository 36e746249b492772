"""What an engine version builds otherwise than the tables of families say (its traits)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.structure import ROUTER, Structure
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Context, Table, trait
from quantplan.dispatch.vllm.quant_config import quantization_config
from quantplan.tables.errors import NotKnownError


def of_version(
    table: Table, checkpoint: Checkpoint, deployment: Deployment, structure: Structure
) -> Structure:
    """Return the structure as this version builds it; raise NotKnownError where it is not known."""
    if structure.architecture in trait(table, "fused_qkv_in_chunks"):
        _check_chunks(table, checkpoint, deployment)
    structure = _renamed(structure, trait(table, "module_classes"))
    default = trait(table, "head_is_the_tied_embedding").get(structure.architecture)
    if default is not None and checkpoint.text_config.get("tie_word_embeddings", default):
        return structure._replace(
            modules=tuple(m for m in structure.modules if m.path != "lm_head"))
    return structure


def _renamed(structure: Structure, classes: Mapping[str, Mapping[str, Any]]) -> Structure:
    """Return the structure with the classes that this version builds its modules of."""
    names = classes.get(structure.architecture)
    if names is None:
        return structure
    return structure._replace(modules=tuple(
        m._replace(module=names[m.module], facts={**m.facts, "router": m.module == ROUTER})
        if m.module in names else m for m in structure.modules
        if names.get(m.module, m.module) is not None))


def check_tied(context: Context) -> None:
    """Refuse a tie of lm_head and embedding, or its absence, where the model class asserts other.
    """
    tied = context.checkpoint.text_config.get("tie_word_embeddings")
    wanted = trait(context.table, TIES).get(context.structure.architecture)
    if None not in (tied, wanted) and tied is not wanted:
        raise refuse("config fields", "AssertionError", "", None,
                     context.table["traits"][TIES]["source"],
                     hint=f"Set tie_word_embeddings to {str(wanted).lower()} in config.json.")


TIES = "asserted_ties"


def check_sparse(context: Context) -> None:
    """Refuse a model without experts whose class looks for them once it is built."""
    structure, row = context.structure, context.table["traits"][SPARSE]
    says = row["value"].get(structure.architecture)
    if says and not any(module.kind == "experts" for module in structure.modules):
        raise refuse("config fields", "RuntimeError", says, None, row["source"],
                     hint="mlp_only_layers and decoder_sparse_step leave no layer with experts.")


SPARSE = "needs_experts"


def _check_chunks(table: Table, checkpoint: Checkpoint, deployment: Deployment) -> None:
    """Block-FP8 checkpoints that store qkv fused, for more ranks than there are here, keep the
    blocks of keys and values in chunks, in a layer of another class and size
    (model_executor/models/mimo_v2.py:MiMoV2Attention)."""
    config = checkpoint.text_config
    quant, _ = quantization_config(checkpoint)
    chunks = config.get("num_key_value_heads")
    fused = config.get("attention_projection_layout") == "fused_qkv"
    if fused and quant and quant.get("weight_block_size") and isinstance(chunks, int) and (
            chunks > deployment.tp and chunks % deployment.tp == 0):
        raise NotKnownError(
            f"a fused qkv_proj in blocks on {deployment.tp} ranks in {table['engine']} "
            f"{table['version']}", hint=f"With --tp {chunks} it is a plain qkv_proj.")
