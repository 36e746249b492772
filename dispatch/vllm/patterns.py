"""Entries of ignore lists and dynamic rules that do not do what they look like: those that match
nothing, and those that name one leaf of a fused layer and take all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from quantplan.dispatch.structure import Module
from quantplan.dispatch.targets import matches
from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm.context import Context
from quantplan.dispatch.vllm.ignore import is_excluded
from quantplan.dispatch.vllm.quant_config import quantization_config
from quantplan.tables.record import NamedTuple

SOURCE = "quantization config"
DYNAMIC_SOURCE = "model_executor/layers/quantization/utils/gptq_utils.py:get_dynamic_override"
TARGET_SOURCE = ("model_executor/layers/quantization/compressed_tensors/utils.py:"
                 "find_matched_target")
LISTED_SOURCE = ("model_executor/layers/quantization/auto_gptq.py:"
                 "AutoGPTQConfig.apply_vllm_mapper")
EXPERTS_SOURCE = "model_executor/layers/quantization/utils/quant_utils.py:is_layer_skipped"
EXCLUDED_SOURCE = ("model_executor/layers/quantization/modelopt.py:"
                   "ModelOptQuantConfigBase.is_layer_excluded")

WHOLE_NAMES = "This method compares whole module paths; short names match nothing."
PARTS = "This method looks for the entry inside module paths (-v shows them): write it as they do."
WILDCARDS = ("This method fits wildcards to whole module paths, and looks for names without one "
             "inside them: write it as the paths are (-v shows them).")
NORM = "norm"
"""What the names of norms hold in every model class; no method quantizes them."""
EXPERT_LEAVES = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
"""How checkpoints call the matrices of an expert."""
DRAFT = "mtp"
"""The part of a path below which checkpoints keep the layers of multi-token prediction."""

Fits = Callable[[str, str], bool]


class Built(NamedTuple):
    """The path of one engine layer, those of the checkpoint modules fused into it, if any, and
    whether it holds weights."""

    path: str
    leaves: tuple[str, ...]
    weighted: bool


def ignore_findings(
    context: Context, layers: Sequence[Layer], ignore: Sequence[str], exact: bool
) -> Iterator[Finding]:
    """Yield what an ignore list only seems to say. `exact` entries are whole paths, or expressions
    after re:; others are words that a path contains."""
    if not ignore:
        return
    fits: Fits = _fits_exactly if exact else _contains
    built = list(_built(context))
    paths = _paths(built)
    of_experts = _of_plain_experts(context, layers, ignore) if exact else {}
    yield from _dead(context, built, [e for e in ignore if e not in of_experts], lambda entry: (
        entry in paths if exact and not entry.startswith("re:")
        else any(fits(entry, path) for path in paths)), WHOLE_NAMES if exact else PARTS)
    yield from _takes_all_experts(context, of_experts)
    vague = [entry for entry in ignore if not exact or entry.startswith("re:")]
    for entry, name in _takes_all(built, vague, fits):
        yield Finding(
            "layer assignment", "warning", "ignore-takes-whole-fused-layer",
            f"{entry!r} names a part of {name} and fits that name too: all of it stays in 16 bits",
            "Name every leaf of the fused layer, or none.", SOURCE)


def _of_plain_experts(
    context: Context, layers: Sequence[Layer], ignore: Sequence[str]
) -> dict[str, str]:
    """Return the entries that name one expert of a layer whose experts stay in 16 bits, each with
    the layer's name: a name inside an entry leaves all of them."""
    plain = {(x.path, x.layer_index) for x in layers if x.method == "UnquantizedFusedMoEMethod"}
    names = {m.known_at(i) for m in context.structure.modules if m.kind == "experts"
             for i in m.layers or (None,) if (m.path_at(i), i) in plain}
    return {entry: name for entry in ignore for name in names if entry.startswith(f"{name}.")}


def _takes_all_experts(context: Context, of_experts: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the first layer of which fewer experts are named than it has."""
    counts = {m.known_at(i): m.facts.get("experts", 0) for m in context.structure.modules
              if m.kind == "experts" for i in m.layers or (None,)}
    for entry, name in of_experts.items():
        if sum(other == name for other in of_experts.values()) < counts[name]:
            yield Finding(
                "layer assignment", "warning", "ignore-takes-whole-fused-layer",
                f"{entry!r} names a part of {name}: all of its experts stay in 16 bits",
                "Name every expert of the layer, or none.", EXPERTS_SOURCE)
            return


def _dead(
    context: Context, built: Sequence[Built], ignore: Sequence[str], fits: Callable[[str], bool],
    hint: str,
) -> Iterator[Finding]:
    """Yield that entries fit nothing; `fits` says whether one fits a layer that is built."""
    weighted = _paths(layer for layer in built if layer.weighted)
    # A wrapper's head has another path, but no list is needed to leave it in 16 bits.
    heads = {m.name for m in context.structure.modules if m.split == "vocab"}
    dead = [entry for entry in ignore if entry.lstrip("*.") not in heads and not fits(entry)
            and _means_a_layer(context, entry, weighted)]
    if dead:
        yield Finding(
            "layer assignment", "warning", "ignore-matches-nothing",
            f"{len(dead)} of {len(ignore)} ignore entries match no layer: {_shown(dead)}",
            hint, SOURCE)


def _paths(built: Iterable[Built]) -> frozenset[str]:
    return frozenset(path for layer in built for path in (layer.path, *layer.leaves))


def _means_a_layer(context: Context, entry: str, weighted: frozenset[str]) -> bool:
    """Return whether an entry can be meant for a layer that is built: quantizers also list norms,
    the other parameters of a layer, and the layers of multi-token prediction, by name or past the
    last."""
    parts, last = entry.split("."), context.structure.num_layers - 1
    numbers = [part.rstrip("*") for part in parts]
    beyond = any(part.isdecimal() and int(part) > last for part in numbers)
    return not (any(NORM in part for part in parts[-2:]) or beyond or DRAFT in numbers
                or entry.rpartition(".")[0] in weighted)


def wildcard_findings(
    context: Context, layers: Sequence[Layer], excluded: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield ModelOpt's wildcards that fit nothing, and those that fit a part of a fused layer
    which stays quantized all the same: the engine compares parts with whole names only."""
    if not excluded:
        return
    modules = list(_built(context))
    yield from _takes_all_experts(context, _of_plain_experts(context, layers, excluded))
    paths, trees = _paths(modules), {e for e in excluded if e.removesuffix(".*") in excluded}
    yield from _dead(context, modules, [e for e in excluded if e not in trees or e[-2:] != ".*"],
                     lambda entry: any(is_excluded(path, (entry, f"{entry}.*"), {})
                                       for path in paths), WILDCARDS)
    quantized = {x.path for x in layers if x.method == "ModelOptLinearMethod"}
    missed = {(entry, built.path.rsplit(".", 1)[-1]) for built in modules
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


def target_findings(context: Context) -> Iterator[Finding]:
    """Yield targets of compressed-tensors' config groups that serve no layer."""
    config = quantization_config(context.checkpoint)[0] or {}
    if config.get("quant_method") != "compressed-tensors":
        return
    targets = [target for group in (config.get("config_groups") or {}).values()
               for target in group.get("targets") or ()]
    classes = {module.module for module in context.structure.modules}
    named = [t for t in targets if not any(matches(name, t, contains=True) for name in classes)]
    paths = _paths(_built(context)) if named else ()
    dead = [t for t in named if not any(_fits_exactly(t, path) for path in paths)]
    yield from _unserved("targets", dead, len(targets), TARGET_SOURCE)


def listed_findings(context: Context) -> Iterator[Finding]:
    """Yield modules that a GPTQ config lists as quantized and that are none."""
    config = quantization_config(context.checkpoint)[0] or {}
    blocks = config.get("modules_in_block_to_quantize")
    if config.get("quant_method") != "gptq" or not blocks:
        return
    paths = _paths(_built(context))
    listed = [name for names in blocks for name in ([names] if isinstance(names, str) else names)]
    dead = [name for name in listed if not any(name in path for path in paths)]
    yield from _unserved("modules_in_block_to_quantize entries", dead, len(listed), LISTED_SOURCE)


def _unserved(what: str, dead: Sequence[str], count: int, source: str) -> Iterator[Finding]:
    if dead:
        yield Finding(
            "layer assignment", "warning", "target-matches-nothing",
            f"{len(dead)} of {count} {what} match no layer: {_shown(dead)}; what they were meant "
            "for is built as the rest of the config says, in 16 bits where it says nothing",
            "Write them as the module paths are (-v shows them).", source)


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
        if module.kind == "experts":
            yield from _experts(context, module)
            continue
        leaves = tuple(module.leaf_path(leaf.name) for leaf in module.leaves)
        fused = leaves if len(leaves) > 1 else ()
        yield from (Built(module.path.replace("*", str(i), 1),
                          tuple(leaf.replace("*", str(i), 1) for leaf in fused), bool(leaves))
                    for i in module.layers or (0,))


def _experts(context: Context, module: Module) -> Iterator[Built]:
    """Yield the experts of each layer, under the names that the engine asks its lists for:
    compressed-tensors' by the first expert's matrices."""
    config = quantization_config(context.checkpoint)[0] or {}
    asked = EXPERT_LEAVES if config.get("quant_method") == "compressed-tensors" else ()
    for name in (module.known_at(i) for i in module.layers or (None,)):
        yield Built(name, tuple(f"{name}.0.{leaf}" for leaf in asked), False)
