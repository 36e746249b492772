"""From a checkpoint's config to the engine's layers: whole-model sizes, before any sharding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from quantplan.dispatch.class_defaults import filled, left_out, parts_filled
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.model_sizes import nested
from quantplan.dispatch.module_rows import ModuleRows
from quantplan.dispatch.renames import read_renames
from quantplan.dispatch.structure import Module, Structure
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.family_index import family_index, own_name
from quantplan.tables.family_loading import (
    family_of,
    family_row,
    languages,
    with_language,
)


def model_structure(
    checkpoint: Checkpoint, chosen: str | None = None, engine: str | None = None, *,
    weighed: bool = False,
) -> Structure:
    """Return the structure of a checkpoint's model, of its architecture `chosen` or its first, as
    `engine` builds it where it has families of its own; with `weighed`, the weights that are no
    layers are modules too, and the structure is `complete` if every weight is one's leaf.

    Raises NotKnownError for an architecture without a family row, CheckpointError for a config
    that lacks a size.
    """
    root = checkpoint.config
    architecture = _architecture(root, chosen, engine)
    whole = root
    root = nested(root, family_row(architecture, engine).get("root", ()))
    family = _family(architecture, root, engine, weighed)
    given = _text_config(family, root)
    config, root = filled(given, family), parts_filled(root, family)
    _check_covered(config, root, family)
    rows = ModuleRows(family, config, root)
    sizes = rows.sizes()
    _check_heads(sizes, config.get("model_type"), family)
    modules = tuple(rows.modules())
    layers = sizes["num_hidden_layers"]
    window, types = _window(config, family) or None, _layer_types(config, family, layers)
    return Structure(
        architecture, family["id"], str(whole.get("model_type", "")), layers, sizes,
        _tied(config, root, family if weighed else {}),
        modules, _packed(modules, family, config), _activation(config, family),
        tuple(family.get("hidden_act", ())), family["source"],
        window if types is None or set(types) == {"sliding_attention"} else None,
        types, _first_window(config, family),
        bool(family.get("complete")), "config" in family, read_renames(family.get("renames", ())),
        tuple(family.get("replaced", ())), family.get("mapper", True),
        bool(family.get("sequence_parallel")), family.get("packed_outside"),
        family.get("act_says", Structure._field_defaults["acts_said"]),
        left_out(given, family), bool(family.get("kv_heads_said")),
    )


def _family(
    architecture: str, root: Mapping[str, Any], engine: str | None, weighed: bool
) -> Mapping[str, Any]:
    """Return the architecture's family, around that of its language model where it has one."""
    family = family_row(architecture, engine)
    known = languages(family)
    if not known:
        return family_of(architecture, engine, weighed)
    named = None if "language" in family else _named_language(family, root)
    language = named or known[0]
    if language not in known or (named is None and "language" not in family):
        raise NotKnownError(f"{architecture} around {language if named else 'no named model'}",
                            wanted="one of " + ", ".join(known),
                            hint="text_config: architectures or model_type say which.")
    return with_language(architecture, language, engine, weighed)


def _named_language(family: Mapping[str, Any], root: Mapping[str, Any]) -> str | None:
    """Return the language model's architecture that the config says, None where it says none."""
    by: Mapping[str, Any] | None = family.get("language_by")
    if by is None:
        return _named(_text_config(family, root))
    text = str(root.get(by["field"]))
    named: str | None = by["says"].get(text)
    if named is None:
        raise NotKnownError(f"{family['title']} with {by['field']} {text}",
                            wanted="one of " + ", ".join(by["says"]),
                            hint=f"config.json: {by['field']} says which model this is.")
    return named


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


def _tied(
    config: Mapping[str, Any], root: Mapping[str, Any], family: Mapping[str, Any]
) -> bool:
    if "head_weight" in family:
        return bool(family["head_weight"] == "embedding")
    return bool(config.get("tie_word_embeddings", root.get("tie_word_embeddings", False)))


def _activation(config: Mapping[str, Any], family: Mapping[str, Any]) -> str:
    return str(config.get(family.get("act_field", "hidden_act"), "silu"))


def _packed(
    modules: Iterable[Module], family: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    unpacked = {row["path"] for row in family["modules"] if row.get("unpacked")}
    found = {m.name: tuple(leaf.name for leaf in m.leaves)
             for m in modules if len(m.leaves) > 1
             and unpacked.isdisjoint((m.path, re.sub(r"\.\d+\.", ".#.", m.path)))}
    found |= {name: tuple(leaves) for name, leaves in family.get("packed", {}).items()}
    needs = family.get("packed_if", {})
    return {name: leaves for name, leaves in found.items()
            if name not in needs or config.get(needs[name])}


def _window(config: Mapping[str, Any], family: Mapping[str, Any]) -> int | None:
    """Return the config's window in tokens, None where it has none or does not use it."""
    flag = family.get("window_flag")
    if flag and not config.get(flag, False):
        return None
    default = family.get("default_windows", {}).get(str(config.get("model_type")))
    found: int | None = config.get("sliding_window", default)
    return found


def _first_window(config: Mapping[str, Any], family: Mapping[str, Any]) -> int | None:
    """Return max_window_layers where the model class reads it."""
    default: int | None = family.get("max_window_layers")
    return default if default is None else config.get("max_window_layers", default)


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
    return _windowed_layers(config, family, layers)


def _windowed_layers(
    config: Mapping[str, Any], family: Mapping[str, Any], layers: int
) -> tuple[str, ...] | None:
    """Return the attention types that the config class fills in: a window from max_window_layers
    on, or in every other layer before it."""
    alternate = "alternate_windows" in family
    default = family.get("alternate_windows" if alternate else "max_window_layers")
    if default is None:
        return None
    sliding = range(0)
    if _window(config, family) is not None:
        first = config.get("max_window_layers", default)
        sliding = range(0, min(first, layers), 2) if alternate else range(first, layers)
    return tuple("sliding_attention" if index in sliding else "full_attention"
                 for index in range(layers))


def _architecture(config: Mapping[str, Any], chosen: str | None, engine: str | None) -> str:
    known, named = family_index()["architectures"], chosen or _named(config)
    if named in known or own_name(engine, str(named)) in family_index()["own"]:
        return str(named)
    what = named or f"model_type {config.get('model_type')}"
    raise NotKnownError(f"no family row for the architecture {what}",
                        wanted="one of " + ", ".join(sorted(known)),
                        hint="Its layers are not guessed; a row in tables/families/ teaches it.")


def _named(config: Mapping[str, Any]) -> str | None:
    """Return the architecture that a config names, or that its model_type stands for."""
    given, model_type = config.get("architectures"), config.get("model_type")
    if given:
        return str(given[0])
    return family_index()["model_types"].get(str(model_type))


def _check_heads(
    sizes: Mapping[str, int], model_type: Any, family: Mapping[str, Any]
) -> None:
    """Refuse what transformers' config class of the model type refuses."""
    if "head_dim" not in sizes:
        return
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    head_dim = sizes["head_dim"]
    if head_dim < 1:
        raise CheckpointError("config.json: hidden_size", found=str(hidden),
                              wanted=f"at least num_attention_heads ({heads})")
    if model_type in family.get("even_heads", ()) and head_dim % 2:
        raise CheckpointError("config.json: head_dim", found=str(head_dim),
                              wanted="an even size, for rotary embeddings")
