"""SGLang's model classes: the structure that the checkpoint has, under the engine's own names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.predicates import holds
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.sglang.registry import architectures, served_class
from quantplan.dispatch.structure import Module, Structure
from quantplan.tables.errors import NotKnownError
from quantplan.tables.family_index import family_index, own_name
from quantplan.tables.near_names import near_names

Change = Mapping[str, Any]
Row = Mapping[str, Any]
UNCHANGED: Change = {}
NO_CLASS: Mapping[str, Any] = {}
ENGINE = "sglang"
NEAR = 0.9
"""How alike the names of classes are that a refusal mentions; most end in ForCausalLM."""
HEAD = "ParallelLMHead"
UNCHECKED: Mapping[str, Any] = {"unchecked_blocks": True}
OWN_CLASSES: Mapping[str, str] = {
    "Attention": "RadixAttention", "RoutedExperts": "FusedMoE", "GateLinear": "ReplicatedLinear"}
"""Module class of the families -> SGLang's (layers/radix_attention.py, layers/moe)."""


def model_row(table: Table, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the row of the checkpoint's model class, an empty one where the engine has no class.
    Raises NotKnownError for classes without one, CheckpointError where the config names none."""
    name = served_class(table, checkpoint)
    found = NO_CLASS if name is None else _row(table, name)
    if found is not None:
        return found
    near = near_names(str(name), [other for row in table["models"]
                                  for other in row["architectures"]], cutoff=NEAR)
    raise NotKnownError(f"SGLang's {name}", hint="Its layers are not in SGLang's table yet" + (
        f"; those of {', '.join(near)} are." if near else "."))


def _row(table: Table, architecture: str) -> Mapping[str, Any] | None:
    """Return the row of an architecture over that of the class which it is like."""
    row: Mapping[str, Any] | None = next(
        (row for row in table["models"] if architecture in row["architectures"]), None)
    if row is None:
        return None
    like = _row(table, row.get("like", "")) or {}
    passed = _row(table, row.get("server_pass_of", "")) or {}
    passes = {name: passed[name] for name in ("server_pass",) if name in passed}
    return {**like, **passes, **row}


def lifted(table: Table, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with what its text config says of quantization as its own: values of
    the text config that the whole lacks become its own, unless the engine reads the file again with
    a config class of its own (utils/hf_transformers/config.py:get_config), which may take them too
    (configs/kimi_k25.py:KimiK25Config)."""
    config = checkpoint.config
    if isinstance(config.get("llm_config"), Mapping) and "text_config" not in config:
        config = {**config, "text_config": config["llm_config"]}
        checkpoint = checkpoint._replace(config=config)
    names, text = config.get("architectures"), config.get("text_config")
    row = _row(table, names[0]) if isinstance(names, list) and names else None
    if not isinstance(text, Mapping):
        return checkpoint
    if config.get("model_type") in table["model_types"]["own"]:
        takes = row is not None and row.get("quantized_text")
        keys = [key for key in LIFTED[:1] if takes and config.get(key) is None]
    else:
        keys = [key for key in LIFTED if key not in config]
    given = {key: text[key] for key in keys if text.get(key) is not None}
    return checkpoint._replace(config={**config, **given}) if given else checkpoint


LIFTED = ("quantization_config", "compression_config")


def language_class(checkpoint: Checkpoint) -> str | None:
    """Return the class of the language model that a wrapper's config names."""
    config = checkpoint.config
    part = config.get("text_config")
    names = part.get("architectures") if isinstance(part, Mapping) else None
    return str(names[0]) if isinstance(names, list) and names else None


def row_under(table: Table, row: Mapping[str, Any], method: str | None) -> Mapping[str, Any]:
    """Return the row of the class that serves the model under this method
    (model_loader/utils.py:get_model_architecture)."""
    if method is None or method in row.get("methods", (method,)):
        return row
    return _row(table, row["otherwise"]) or row


def built(checkpoint: Checkpoint, row: Mapping[str, Any]) -> Structure:
    """Return the structure of the checkpoint's family, `row` is the class' own. Raises
    NotKnownError for a head_dim that only SGLang's class reads."""
    if "reads" in row:
        checkpoint = checkpoint._replace(config=_as_read(checkpoint.config, row["reads"]))
    served = next(name for name in architectures(checkpoint) if name in row["architectures"])
    structure = model_structure(checkpoint, served, engine=ENGINE)
    given = checkpoint.config.get("head_dim")
    if row.get("reads_head_dim") and given not in (None, structure.sizes["head_dim"]):
        raise NotKnownError(f"SGLang's {structure.architecture} with head_dim {given}",
                            wanted=f"{structure.sizes['head_dim']}, hidden_size / heads",
                            hint="Sizes of its attention are not in the table then.")
    return structure


def _as_read(config: Mapping[str, Any], reads: Mapping[str, Row]) -> Mapping[str, Any]:
    """Return the config with each field of ours as what the class reads in its place."""
    others = {name: value for name, value in config.items() if name not in reads}
    values = {name: config.get(row.get("field", ""), row.get("default"))
              for name, row in reads.items()}
    return {**others, **{name: value for name, value in values.items() if value is not None}}


def changed(
    structure: Structure, row: Mapping[str, Any], checkpoint: Checkpoint, facts: Mapping[str, Any]
) -> Structure:
    """Return the structure with SGLang's module classes and paths; `facts` decide which changes
    of the row are made."""
    own = own_name(ENGINE, structure.architecture) in family_index()["own"]
    changes: dict[str, list[Change]] = {}
    for change in row.get("modules", ()):
        changes.setdefault(change["path"], []).append(change)
    shared = _shares_head(row, checkpoint, structure.tied)
    known: Mapping[str, str] = row.get("known_as", {})
    dropped = ("always", "shared_fused") if facts["model.shared_fused"] else ("always",)
    modules = _ordered([module for module in structure.modules
                        if not (shared and module.module == HEAD)], changes)
    return structure._replace(modules=tuple(
        _changed(module, change, known, own) for module in modules
        for change in _made(changes.get(module.path, ()), facts)
        if change.get("dropped") not in dropped))


def _made(changes: Sequence[Change], facts: Mapping[str, Any]) -> list[Change]:
    """Return the changes of one module: the first of those that need something and have it, else
    all that need nothing."""
    needed = next((c for c in changes if "needs" in c and holds(c, facts)), None)
    if needed is not None:
        return [needed]
    return [change for change in changes if "needs" not in change] or [UNCHANGED]


def _shares_head(row: Mapping[str, Any], checkpoint: Checkpoint, tied: bool) -> bool:
    when = row.get("shares_head")
    if when == "unless_untied":
        return checkpoint.text_config.get("tie_word_embeddings", True) is not False
    if when == "whole":
        return checkpoint.config.get("tie_word_embeddings") is True
    return when == "always" or (when == "tied" and tied)


def _ordered(modules: list[Module], changes: Mapping[str, list[Change]]) -> list[Module]:
    for path, (change, *_) in changes.items():
        places = [i for i, m in enumerate(modules) if m.path == change.get("before")]
        if places:
            moved = [module for module in modules if module.path == path]
            modules[places[0]:places[0]] = moved
            modules = [m for i, m in enumerate(modules) if m.path != path or (
                places[0] <= i < places[0] + len(moved))]
    return modules


def _changed(module: Module, change: Change, known: Mapping[str, str], own: bool) -> Module:
    """Return the module as the engine builds it; the names that `own` families give count, those
    of families for every engine are vLLM's."""
    built_as = change.get("module") or OWN_CLASSES.get(module.module, module.module)
    leaves = tuple(leaf for leaf in module.leaves
                   if leaf.name in change.get("leaves", (leaf.name,)))
    path = str(change.get("to", module.path.removesuffix(".routed_experts")))
    name = module.known_as if own else path
    default = module.quantized or (module.kind == "embedding" and not own)
    name = next((new + name[len(old):] for old, new in known.items() if name.startswith(old)), name)
    if not own:
        module = module._replace(plain_under=(), quantized_by=())
    return module._replace(module=built_as, path=path, leaves=leaves, known_from=0,
                           before=(*module.before, *change.get("rules", ())),
                           known_under={}, known_as=change.get("known_as", name),
                           facts={**module.facts, **UNCHECKED} if change.get(
                               "unchecked_blocks") else module.facts,
                           quantized=change.get("quantized", default))


def fused_experts(row: Row, sizes: Mapping[str, int]) -> int:
    """Return how many routed experts the shared ones of a layer become where they are fused."""
    return 1 if "equal" in row["shared_fused"] else sizes["shared_experts"]


def fuses_shared_experts(
    row: Row, checkpoint: Checkpoint, deployment: Deployment, sizes: Mapping[str, Any],
    served: Mapping[str, Any],
) -> bool:
    """Return whether shared experts are built as routed ones; `sizes` are the structure's, `served`
    the facts of the method, the GPU and the MoE runner backend
    (models/deepseek_v2.py:DeepseekV2ForCausalLM.shared_experts_fusion_disable_reason and
    arg_groups/overrides.py:_moe_runner_fusion_disable)."""
    rule, config = row.get("shared_fused"), checkpoint.text_config
    if rule is not None and "equal" in rule:
        equal = [config.get(field) for field in rule["equal"]]
        return len({*equal}) == 1 and bool(equal[0]) and not any(
            holds(apart, served) for apart in rule["apart"])
    shared, experts = sizes.get("shared_experts"), sizes.get("experts")
    if rule is not None and rule.get("shared_only") and shared not in (None, 0, rule["shared"]):
        raise NotKnownError(f"SGLang's {checkpoint.config['architectures'][0]} with {shared} "
                            "shared experts", hint="The class asserts that there is one.")
    spread = deployment.expert_parallel and deployment.tp > 1
    if rule is None or spread or shared != rule.get("shared", shared):
        return False
    return any(experts in fits.get("experts", (experts,)) and holds(fits, served)
               for fits in rule["fits"]) and not any(holds(a, served) for a in rule["apart"])
