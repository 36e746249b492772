"""Entries of ignore lists and dynamic rules that do not do what they look like: those that match
nothing, and those that name one leaf of a fused layer and take all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm.context import Context
from quantplan.dispatch.vllm.ignore import is_excluded, matches
from quantplan.dispatch.vllm.quant_config import quantization_config

SOURCE = "quantization config"
DYNAMIC_SOURCE = "model_executor/layers/quantization/utils/gptq_utils.py:get_dynamic_override"
EXCLUDED_SOURCE = ("model_executor/layers/quantization/modelopt.py:"
                   "ModelOptQuantConfigBase.is_layer_excluded")

NORM = "norm"
"""What the names of norms hold in every model class; no method quantizes them."""

Fits = Callable[[str, str], bool]


class Built(NamedTuple):
    """The path of one engine layer, those of the checkpoint modules fused into it, if any, and
    whether it holds weights."""

    path: str
    leaves: tuple[str, ...]
    weighted: bool


def ignore_findings(context: Context, ignore: Sequence[str], exact: bool) -> Iterator[Finding]:
    """Yield what an ignore list only seems to say. `exact` entries are whole paths, or expressions
    after re:; others are words that a path contains."""
    if not ignore:
        return
    fits: Fits = _fits_exactly if exact else _contains
    built = list(_built(context))
    paths = _paths(built)
    weighted = _paths(layer for layer in built if layer.weighted)
    # A wrapper's head has another path, but no list is needed to leave it in 16 bits.
    heads = {m.name for m in context.structure.modules if m.split == "vocab"}
    dead = [entry for entry in ignore if entry not in heads and not (
        entry in paths if exact and not entry.startswith("re:")
        else any(fits(entry, path) for path in paths)) and _means_a_layer(context, entry, weighted)]
    if dead:
        yield Finding(
            "layer assignment", "warning", "ignore-matches-nothing",
            f"{len(dead)} of {len(ignore)} ignore entries match no layer: {_shown(dead)}",
            "This method compares whole module paths; short names match nothing." if exact
            else None, SOURCE)
    vague = [entry for entry in ignore if not exact or entry.startswith("re:")]
    for entry, name in _takes_all(built, vague, fits):
        yield Finding(
            "layer assignment", "warning", "ignore-takes-whole-fused-layer",
            f"{entry!r} names a part of {name} and fits that name too: all of it stays in 16 bits",
            "Name every leaf of the fused layer, or none.", SOURCE)


def _paths(built: Iterable[Built]) -> frozenset[str]:
    return frozenset(path for layer in built for path in (layer.path, *layer.leaves))


def _means_a_layer(context: Context, entry: str, weighted: frozenset[str]) -> bool:
    """Return whether an entry can be meant for a layer that is built: quantizers also list norms,
    the other parameters of a layer, and the layers of multi-token prediction, past the last."""
    parts, last = entry.split("."), context.structure.num_layers - 1
    beyond = any(part.isdecimal() and int(part) > last for part in parts)
    return not (NORM in parts[-1] or NORM in parts[-2:][0] or beyond
                or entry.rpartition(".")[0] in weighted)


def wildcard_findings(
    context: Context, layers: Sequence[Layer], excluded: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield ModelOpt's wildcards that fit a part of a fused layer which stays quantized all the
    same: the engine compares parts with whole names only."""
    quantized = {x.path for x in layers if x.method == "ModelOptLinearMethod"} if excluded else ()
    missed = {(entry, built.path.rsplit(".", 1)[-1]) for built in _built(context)
              if built.path in quantized for leaf in built.leaves
              for entry in excluded if is_excluded(leaf, (entry,), {})}
    for entry, name in sorted(missed):
        yield Finding(
            "layer assignment", "warning", "exclusion-misses-fused-layer",
            f"{entry!r} fits a part of {name} but not that name, which the engine looks at: all "
            "of it stays quantized", "Name every part of the fused layer in full, or the fused "
            "name.", EXCLUDED_SOURCE)


def dynamic_findings(context: Context) -> Iterator[Finding]:
    """Yield GPTQ `dynamic` rules that the engine reads otherwise than their author: it matches them
    with the fused names only."""
    config = quantization_config(context.checkpoint)[0] or {}
    dynamic = config.get("dynamic")
    if config.get("quant_method") != "gptq" or not dynamic:
        return
    rules = [f"re:{rule.removeprefix('+:').removeprefix('-:')}" for rule in dynamic]
    built = list(_built(context))
    dead = [rule[3:] for rule in rules
            if not any(_fits_exactly(rule, layer.path) for layer in built)]
    if dead:
        yield Finding(
            "layer assignment", "warning", "dynamic-rule-matches-nothing",
            f"{len(dead)} of {len(rules)} dynamic rules match no layer: {_shown(dead)}",
            "Rules are matched with fused names (qkv_proj, gate_up_proj), from the path's start.",
            DYNAMIC_SOURCE)
    for rule, name in _takes_all(built, rules, _fits_exactly):
        yield Finding(
            "layer assignment", "warning", "dynamic-rule-takes-whole-fused-layer",
            f"the dynamic rule {rule[3:]!r} names a part of {name} and fits that name too: it "
            "applies to all of it", "Write one rule for the fused name.", DYNAMIC_SOURCE)


def _takes_all(
    built: Sequence[Built], entries: Sequence[str], fits: Fits
) -> Iterator[tuple[str, str]]:
    """Yield (entry, name) of the fused layers that an entry takes while it fits a part of them."""
    for entry in entries:
        for layer in built:
            fitting = sum(fits(entry, leaf) for leaf in layer.leaves)
            if 0 < fitting < len(layer.leaves) and fits(entry, layer.path):
                yield entry, layer.path.rsplit(".", 1)[-1]
                break


def _fits_exactly(entry: str, path: str) -> bool:
    return matches(path, entry)


def _contains(entry: str, path: str) -> bool:
    return entry in path


def _shown(entries: Sequence[str]) -> str:
    return ", ".join(repr(e) for e in entries[:3]) + (" ..." if len(entries) > 3 else "")


def _built(context: Context) -> Iterator[Built]:
    structure = context.structure
    for module in structure.modules:
        leaves = tuple(module.leaf_path(leaf.name) for leaf in module.leaves)
        fused = leaves if len(leaves) > 1 else ()
        yield from (Built(module.path.replace("*", str(i), 1),
                          tuple(leaf.replace("*", str(i), 1) for leaf in fused), bool(leaves))
                    for i in module.layers or (0,))
