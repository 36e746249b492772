"""SGLang's data-parallel attention: groups of ranks that share its weights, who has the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import MemoryFlags
from quantplan.dispatch.structure import Module, Structure
from quantplan.planner.cuts import uneven
from quantplan.tables.errors import NotKnownError

Rules = Mapping[str, Any]
ATTENTION = (".self_attn.", ".attn.")
SHARED_EXPERTS = ".shared_expert"


def grouped(rules: Rules, structure: Structure, tp: int, flags: MemoryFlags) -> Structure:
    """Return the structure with attention and embeddings cut over the ranks of one attention group,
    and shared experts whole with the backends that want them so.

    Raises UsageError for groups that do not divide the ranks, NotKnownError for a model class whose
    shares are not in the table.
    """
    groups, backend = flags.attention_groups, flags.moe_a2a_backend
    shared = backend != "none" and any(SHARED_EXPERTS in m.path for m in structure.modules)
    if groups == 1 and not shared:
        return structure
    if tp % groups:
        raise uneven("--tp", groups, str(tp))
    row = next((row for row in rules["attention_groups"]
                if structure.architecture in row["architectures"]), None)
    if row is None:
        raise NotKnownError(f"SGLang's weights of {structure.architecture} in several attention "
                            "groups or with an all-to-all backend",
                            hint="Drop --attn-dp-size and --moe-a2a-backend.")
    whole = backend in row["shared_experts_whole"]
    return structure._replace(modules=tuple(
        _shared(module, tp // groups, groups, whole) for module in structure.modules))


def _shared(module: Module, ranks: int, groups: int, whole: bool) -> Module:
    """Return a module with the most ranks that share it (layers/vocab_parallel_embedding.py:
    get_embedding_tp_kwargs)."""
    if whole and SHARED_EXPERTS in module.path:
        return module._replace(most_ranks=1)
    if groups == 1:
        return module
    if any(name in module.path for name in ATTENTION):
        return module._replace(most_ranks=ranks)
    embeds = module.kind == "embedding" and "lm_head" not in module.path
    return module._replace(most_ranks=ranks) if embeds else module
