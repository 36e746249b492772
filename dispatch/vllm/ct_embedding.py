"""Embeddings and lm_head of compressed-tensors checkpoints
(compressed_tensors.py:CompressedTensorsConfig.get_quant_method)."""

from __future__ import annotations

from quantplan.dispatch.trace import Finding, Refusal, refuse
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.ct_layers import assign_group
from quantplan.dispatch.vllm.ct_schemes import Group
from quantplan.dispatch.vllm.ct_targets import CtFields, group_of

SOURCE = ("model_executor/layers/quantization/compressed_tensors/compressed_tensors_embedding.py:"
          "CompressedTensorsEmbeddingWNA16Int")


def assign(fields: CtFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of an embedding or lm_head; None where no target names it."""
    group, _ = group_of(fields, context, site.path, site.module.module)
    head = site.module.module == "ParallelLMHead"
    found = None if group is None else (
        _head(group, context, site) if head else _packed(group, site))
    if head and context.structure.tied and _embedding_is_packed(fields, context):
        raise refuse("layer assignment", "AttributeError",
                     "'VocabParallelEmbedding' object has no attribute 'weight'", site.path,
                     "model_executor/layers/quantization/base_config.py:QuantizeMethodBase."
                     "tie_weights", hint="A tied lm_head shares a weight that is stored plain.")
    return found


def _head(group: Group, context: Context, site: Site) -> Assignment:
    """Return the assignment of an lm_head: a linear layer, but what its scheme refuses with a
    ValueError is taken for an embedding."""
    try:
        return _or_packed(assign_group(group, context, site), group, context, site)
    except Refusal as refusal:
        if refusal.error.type != "ValueError":
            raise
        return _packed(group, site)


def _or_packed(
    assignment: Assignment, group: Group, context: Context, site: Site
) -> Assignment:
    """Return the assignment with the embedding as its way out, where the scheme's constructor
    chooses the kernel."""
    row, instead = context.table["schemes"][assignment.scheme], assignment.otherwise
    if not row.get("kernel_first"):
        return assignment
    return assignment._replace(otherwise=lambda: (
        _or_packed(instead(), group, context, site) if instead else _packed(group, site)))


def _packed(group: Group, site: Site) -> Assignment:
    """Return the assignment of an embedding whose rows are unpacked when they are looked up."""
    weights = group.weights
    if weights.strategy not in ("channel", "group") or weights.dynamic or weights.type != "int":
        raise refuse("layer assignment", "ValueError",
                     "compressed-tensors embeddings only support weight-only INT group/channel "
                     f"(WNA16) quantization, got: {weights}", site.module_path, SOURCE,
                     hint="Name embed_tokens and lm_head in ignore.")
    if weights.strategy == "group" and site.shard.k % (weights.group_size or 1):
        raise refuse("shapes under TP", "AssertionError", "", site.module_path, SOURCE)
    note = Finding(
        "first forward", "error", "head-as-embedding",
        f"{site.path}: CompressedTensorsEmbeddingWNA16Int supports embedding lookup only, but "
        "serves an lm_head here", "Name lm_head in ignore.", SOURCE)
    return Assignment("CompressedTensorsEmbeddingWNA16Int",
                      why="its rows are dequantized when they are looked up",
                      note=note if site.module.module == "ParallelLMHead" else None)


def _embedding_is_packed(fields: CtFields, context: Context) -> bool:
    """Return whether the embedding that a tied lm_head shares is quantized."""
    modules = (m for m in context.structure.modules if m.module == "VocabParallelEmbedding")
    embedding = next(modules, None)
    if embedding is None or not embedding.quantized:
        return False
    return group_of(fields, context, embedding.known_as, embedding.module)[0] is not None
