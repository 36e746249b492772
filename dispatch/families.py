"""From a checkpoint's config to the engine's layers: whole-model sizes, before any sharding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.layer_kinds import layer_kinds
from quantplan.dispatch.model_sizes import model_sizes, nested
from quantplan.dispatch.renames import read_renames
from quantplan.dispatch.routing import routing_method
from quantplan.dispatch.structure import TEXT, Heads, Leaf, Module, Structure
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.family_rows import families_by_architecture

QKV_HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim")
Kinds = Mapping[str, tuple[frozenset[str], ...]]
"""Stack -> the kinds of each of its layers."""
TEXT_STACK = {"id": TEXT, "count": "num_hidden_layers"}


def model_structure(checkpoint: Checkpoint) -> Structure:
    """Return the structure of a checkpoint's model.

    Raises NotKnownError for an architecture without a family row, CheckpointError for a config
    that lacks a size.
    """
    root = checkpoint.config
    architecture = _architecture(root)
    family = families_by_architecture()[architecture]
    config = _filled(_text_config(family, root), family)
    _check_covered(config, root, family)
    kinds = _stack_kinds(family, config, root)
    sizes = model_sizes(family["sizes"], config, root, _common(kinds))
    _check_heads(sizes, config.get("model_type"), family)
    modules = tuple(_modules(family, config, root, kinds))
    layers = sizes["num_hidden_layers"]
    window, types = _window(config, family) or None, _layer_types(config, family, layers)
    return Structure(
        architecture, family["id"], str(root.get("model_type", "")), layers, sizes,
        bool(config.get("tie_word_embeddings", root.get("tie_word_embeddings", False))),
        modules, _packed(modules, family), str(config.get("hidden_act", "silu")),
        tuple(family.get("hidden_act", ())), family["source"],
        window if types is None or set(types) == {"sliding_attention"} else None,
        types, config.get("max_window_layers", family.get("max_window_layers")),
        bool(family.get("complete")), read_renames(family.get("renames", ())),
    )


def _filled(config: Mapping[str, Any], family: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with what the config class of its model type fills in."""
    model_type = config.get("model_type")
    own = next((row["fields"] for row in family.get("defaults", ())
                if model_type in row["model_types"]), {})
    return {**own, **config}


def _text_config(family: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of config.json that holds the language model's fields."""
    path = family.get("config", ())
    absent = family.get("config_optional") and path[0] not in root
    return nested(root, () if absent else path)


def _check_covered(
    config: Mapping[str, Any], root: Mapping[str, Any], family: Mapping[str, Any]
) -> None:
    for field, what in family.get("not_covered", {}).items():
        if config.get(field) or root.get(field):
            raise NotKnownError(f"{what} ({field})", hint="Its layers are not in the tables yet.")
    if config.get("is_causal") is False:
        raise NotKnownError("a model with is_causal false",
                            hint="Encoder-only attention is not in this version's table yet.")
    if config.get("dual_chunk_attention_config"):
        raise NotKnownError("dual_chunk_attention_config",
                            hint="Dual chunk attention is not in this version's table yet.")


def _packed(
    modules: Iterable[Module], family: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    unpacked = {row["path"] for row in family["modules"] if row.get("unpacked")}
    found = {m.name: tuple(leaf.name for leaf in m.leaves)
             for m in modules if len(m.leaves) > 1 and m.path not in unpacked}
    return found | {name: tuple(leaves) for name, leaves in family.get("packed", {}).items()}


def _window(config: Mapping[str, Any], family: Mapping[str, Any]) -> int | None:
    """Return the config's window in tokens, None where it has none or does not use it."""
    flag = family.get("window_flag")
    if flag and not config.get(flag, False):
        return None
    default = family.get("default_windows", {}).get(str(config.get("model_type")))
    found: int | None = config.get("sliding_window", default)
    return found


def _layer_types(
    config: Mapping[str, Any], family: Mapping[str, Any], layers: int
) -> tuple[str, ...] | None:
    """Return the attention type of every layer, None where the config class has no such field."""
    given = config.get("layer_types")
    if given is not None:
        names = isinstance(given, list) and all(isinstance(name, str) for name in given)
        if not names or len(given) != layers:
            raise CheckpointError("config.json: layer_types", wanted=f"a list of {layers} names",
                                  found=repr(given)[:60])
        return tuple(given)
    if "max_window_layers" not in family:
        return None
    first = config.get("max_window_layers", family["max_window_layers"])
    sliding = _window(config, family) is not None
    return tuple("sliding_attention" if sliding and index >= first else "full_attention"
                 for index in range(layers))


def _architecture(config: Mapping[str, Any]) -> str:
    known = families_by_architecture()
    named = config.get("architectures") or []
    model_type = config.get("model_type")
    if not named:
        by_type = {t: a for f in known.values() for t, a in f.get("model_types", {}).items()}
        named = [by_type[model_type]] if model_type in by_type else []
    # The engine takes the first that it has registered; only of ours is that known here.
    if named and named[0] in known:
        return str(named[0])
    what = named[0] if named else f"model_type {model_type}"
    raise NotKnownError(f"no family row for the architecture {what}",
                        wanted="one of " + ", ".join(sorted(known)),
                        hint="Its layers are not guessed; a row in tables/families/ teaches it.")


def _check_heads(
    sizes: Mapping[str, int], model_type: Any, family: Mapping[str, Any]
) -> None:
    """Refuse what transformers' config class of the model type refuses."""
    if "head_dim" not in sizes:
        return
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    head_dim = sizes["head_dim"]
    whole = model_type in family.get("whole_heads", ())
    if head_dim < 1 or (whole and hidden % heads):
        least = "a multiple of" if whole else "at least"
        raise CheckpointError("config.json: hidden_size", found=str(hidden),
                              wanted=f"{least} num_attention_heads ({heads})")
    if model_type in family.get("even_heads", ()) and head_dim % 2:
        raise CheckpointError("config.json: head_dim", found=str(head_dim),
                              wanted="an even size, for rotary embeddings")


def _stack_kinds(
    family: Mapping[str, Any], config: Mapping[str, Any], root: Mapping[str, Any]
) -> Kinds:
    """Return the kinds of every layer of every stack."""
    sizes = model_sizes(family["sizes"], config, root)
    rows = {stack["id"]: stack for stack in (TEXT_STACK, *family.get("stacks", ()))}
    return {name: layer_kinds(row.get("layer_kinds", ()), config, sizes[row["count"]])
            for name, row in rows.items() if row["count"] in sizes}


def _common(kinds: Kinds) -> frozenset[str]:
    """Return the kinds that every layer of the text stack has: they hold for the whole model."""
    layers = kinds.get(TEXT) or (frozenset(),)
    return frozenset.intersection(*layers)


def _modules(
    family: Mapping[str, Any], config: Mapping[str, Any], root: Mapping[str, Any], kinds: Kinds
) -> Iterator[Module]:
    """Yield the module of every row that this config has layers for."""
    common, sized = tuple(_common(kinds)), dict[tuple[str, ...], dict[str, int]]()
    for row in family["modules"]:
        at = tuple(row.get("at", ()))
        if at not in sized:
            sized[at] = model_sizes(family["sizes"], config, root, (*common, *at))
        own, stack = sized[at], row.get("stack", TEXT)
        if ("has" in row and not own.get(row["has"])) or own.get(row.get("lacks", "")):
            continue
        layers = tuple(i for i, kind in enumerate(kinds.get(stack, ())) if kind.issuperset(at))
        if layers or "*" not in row["path"]:
            for number in range(own.get(row["times"], 0) if "times" in row else 1):
                path = row["path"].replace("#", str(number))
                yield _module({**row, "path": path}, own, config, family, layers)


def _module(
    row: Mapping[str, Any], sizes: Mapping[str, int], config: Mapping[str, Any],
    family: Mapping[str, Any], layers: tuple[int, ...],
) -> Module:
    leaves = tuple(
        Leaf(leaf["name"], sizes[leaf["n"]], sizes[leaf["k"]] if "k" in leaf else None)
        for leaf in row.get("leaves", ()))
    split = row.get("split", "none")
    heads = Heads(*(sizes[name] for name in row.get("heads", QKV_HEADS))) if split == "qkv" else (
        None)
    facts = {**row.get("facts", {}),
             **{fact: sizes.get(size) for fact, size in row.get("sizes", {}).items()},
             **{fact: config.get(field) for fact, field in row.get("reads", {}).items()
                if config.get(field) is not None}}
    how = family.get("embedding") if row["module"] == "VocabParallelEmbedding" else None
    if row.get("kind") == "experts":
        facts.setdefault("routing", routing_method(facts))
    return Module(
        row["path"], row["module"], split, _bias(row, config, family), leaves,
        row.get("kind", "embedding" if split == "vocab" else "linear"),
        layers if "*" in row["path"] else (), _is_quantized(row, sizes, how != "plain"),
        tuple(sizes[name] for name in row.get("parts", ())), heads, facts,
        row.get("stack", TEXT), "" if how == "unnamed" else row.get(
            "known_as", row["path"].removesuffix(".routed_experts")),
        tuple(row.get("quantized_when", {}).get("except", ())),
        tuple(row.get("plain_under", ())), tuple(row.get("replicated_under", ())))


def _is_quantized(row: Mapping[str, Any], sizes: Mapping[str, int], default: bool) -> bool:
    rule = row.get("quantized_when")
    fits = rule is None or all(sizes[name] % rule["multiple_of"] == 0 for name in rule["sizes"])
    return bool(row.get("quantized", default)) and fits


def _bias(
    row: Mapping[str, Any], config: Mapping[str, Any], family: Mapping[str, Any]
) -> bool:
    rule = family["biases"][row["bias"]] if "bias" in row else ()
    alone = family.get("bias_fields", {}).get(row.get("bias"))
    return bool(config[alone]) if alone in config else any(
        field == "always" or bool(config.get(field)) for field in rule)
