"""From a checkpoint's config to the engine's layers: whole-model sizes, before any sharding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.facts import Checkpoint
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.family_rows import families_by_architecture


class Leaf(NamedTuple):
    """One checkpoint module, whole: n output features, k input features (None for a vector)."""

    name: str
    n: int
    k: int | None


class Module(NamedTuple):
    """One engine module: its path (with * for the layer index), class, split and leaves."""

    path: str
    module: str
    split: str
    bias: bool
    leaves: tuple[Leaf, ...]

    @property
    def name(self) -> str:
        """Return the last part of the path: qkv_proj, lm_head."""
        return self.path.rsplit(".", 1)[-1]

    @property
    def per_layer(self) -> bool:
        """Return whether there is one of these in every decoder layer."""
        return "*" in self.path

    def leaf_path(self, leaf: str) -> str:
        """Return the checkpoint module path of `leaf`, with * for the layer index."""
        return ".".join((*self.path.split(".")[:-1], leaf)) if "." in self.path else leaf


class Structure(NamedTuple):
    """What the engine builds for a model; `packed` maps a fused layer's name to its leaves'."""

    architecture: str
    family: str
    model_type: str
    num_layers: int
    sizes: Mapping[str, int]
    tied: bool
    modules: tuple[Module, ...]
    packed: Mapping[str, tuple[str, ...]]
    hidden_act: str
    accepted_acts: tuple[str, ...]
    source: str
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    max_window_layers: int | None = None

    def module_of(self, path: str) -> Module:
        """Return the module that stands at a concrete or starred layer path."""
        name = path.rsplit(".", 1)[-1]
        return next(module for module in self.modules if module.name == name)


def model_structure(checkpoint: Checkpoint) -> Structure:
    """Return the structure of a checkpoint's language model.

    Raises NotKnownError for an architecture without a family row, CheckpointError for a config
    that lacks a size.
    """
    config = checkpoint.config
    architecture = _architecture(config)
    family = families_by_architecture()[architecture]
    sizes = model_sizes(config, family)
    if config.get("is_causal") is False:
        raise NotKnownError("a model with is_causal false",
                            hint="Encoder-only attention is not in this version's table yet.")
    if config.get("dual_chunk_attention_config"):
        raise NotKnownError("dual_chunk_attention_config",
                            hint="Dual chunk attention is not in this version's table yet.")
    window = _window(config, family) or None
    types = _layer_types(config, family, sizes["num_hidden_layers"])
    modules = tuple(_module(row, sizes, config, family) for row in family["modules"])
    packed = {m.name: tuple(leaf.name for leaf in m.leaves)
              for m in modules if len(m.leaves) > 1}
    return Structure(
        architecture, family["id"], str(config.get("model_type", "")),
        sizes["num_hidden_layers"], sizes, bool(config.get("tie_word_embeddings", False)),
        modules, packed, str(config.get("hidden_act", "silu")), tuple(family["hidden_act"]),
        family["source"], window if types is None or set(types) == {"sliding_attention"} else None,
        types, config.get("max_window_layers", family.get("max_window_layers")),
    )


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
        by_type = {t: a for f in known.values() for t, a in f["model_types"].items()}
        named = [by_type[model_type]] if model_type in by_type else []
    # The engine takes the first that it has registered; only of ours is that known here.
    if named and named[0] in known:
        return str(named[0])
    what = named[0] if named else f"model_type {model_type}"
    raise NotKnownError(f"no family row for the architecture {what}",
                        wanted="one of " + ", ".join(sorted(known)),
                        hint="Its layers are not guessed; a row in tables/families/ teaches it.")


def model_sizes(config: Mapping[str, Any], family: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes that family rows name: heads, head_dim, q_size, kv_size and the config's."""
    sizes = {name: _size(config, name) for name in (
        "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
        "vocab_size")}
    heads = sizes["num_attention_heads"]
    default = family.get("default_kv_heads", {}).get(str(config.get("model_type")), heads)
    sizes["num_key_value_heads"] = config.get("num_key_value_heads", default) or heads
    head_dim = config.get("head_dim") if family["head_dim"] == "config_or_derived" else None
    head_dim = head_dim or family.get("default_head_dim") or sizes["hidden_size"] // heads
    _check_heads(sizes["hidden_size"], heads, head_dim, config.get("model_type"), family)
    sizes["head_dim"] = head_dim
    sizes["q_size"] = heads * head_dim
    sizes["kv_size"] = sizes["num_key_value_heads"] * head_dim
    return sizes


def _check_heads(
    hidden: int, heads: int, head_dim: int, model_type: Any, family: Mapping[str, Any]
) -> None:
    """Refuse what transformers' config class of the model type refuses."""
    whole = model_type in family.get("whole_heads", ())
    if head_dim < 1 or (whole and hidden % heads):
        least = "a multiple of" if whole else "at least"
        raise CheckpointError("config.json: hidden_size", found=str(hidden),
                              wanted=f"{least} num_attention_heads ({heads})")
    if model_type in family.get("even_heads", ()) and head_dim % 2:
        raise CheckpointError("config.json: head_dim", found=str(head_dim),
                              wanted="an even size, for rotary embeddings")


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"config.json: {name}", wanted="a positive integer",
                              found="nothing" if value is None else repr(value))
    return value


def _module(
    row: Mapping[str, Any], sizes: Mapping[str, int], config: Mapping[str, Any],
    family: Mapping[str, Any],
) -> Module:
    leaves = tuple(
        Leaf(leaf["name"], sizes[leaf["n"]], sizes[leaf["k"]] if "k" in leaf else None)
        for leaf in row["leaves"])
    rule = family["biases"][row["bias"]] if "bias" in row else ()
    alone = family.get("bias_fields", {}).get(row.get("bias"))
    bias = bool(config[alone]) if alone in config else any(
        field == "always" or bool(config.get(field)) for field in rule)
    return Module(row["path"], row["module"], row["split"], bias, leaves)
