"""Which layers --quantization-config quantizes, and as what
(model_executor/layers/quantization/online/base.py:OnlineQuantizationConfig)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from quantplan.dispatch.expressions import search
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Context, Table
from quantplan.dispatch.vllm.ignore import different_schemes
from quantplan.dispatch.vllm.online_args import OnlineArgs, Spec

SOURCE = "model_executor/layers/quantization/online/base.py:OnlineQuantizationConfig"
KINDS = {"linear": "linear", "experts": "moe"}
"""Kind of layer -> the field of the args that is for it."""


def method_class(
    args: OnlineArgs, context: Context, path: str, module: str, layer: str | None
) -> str | None:
    """Return the online method class of the layer at `path`, an engine class `module`; None where
    it keeps the method that it has. `layer` is its kind, None for what is never quantized."""
    if args.targets is not None:
        spec = _targeted(args, args.targets, context, path, (module, layer))
    elif layer is None or is_ignored(args, context, path):
        return None
    else:
        spec = getattr(args, KINDS[layer])
    return None if layer is None or spec is None else _class(context.table, spec, module, layer,
                                                             path)


def is_ignored(args: OnlineArgs, context: Context, path: str) -> bool:
    """Return whether `ignore` names all of a layer; refuses where it names some of its leaves."""
    verdicts = [bool(found) for found in _matching(path, args.ignore, context)]
    if any(verdicts) and not all(verdicts):
        leaves = context.structure.packed[path.rsplit(".", 1)[-1]]
        raise different_schemes(context.table, path, leaves)
    return all(verdicts)


def _class(table: Table, spec: Spec, module: str, layer: str, path: str) -> str | None:
    """Return the class that serves a spec (_get_method_cls)."""
    keys: Mapping[str, Any] = table["online_keys"]
    if spec.weight is None or keys[spec.weight].get("passes"):
        return None
    texts = table["quant_keys"]
    if layer not in keys[spec.weight]:
        known = sorted(texts[name] for name, row in keys.items() if layer in row)
        raise _refused(f"online quantization for {module} with weight={texts[spec.weight]} is not "
                       f"supported; supported weight keys: {known}", path)
    found = str(keys[spec.weight][layer])
    if spec.activation is not None:
        raise _refused(f"activation override (activation={texts[spec.activation]}) is not yet "
                       f"supported for online {found}", path)
    return found


def _targeted(
    args: OnlineArgs, targets: Mapping[str, str], context: Context, path: str,
    built: tuple[str, str | None],
) -> Spec | None:
    """Return the spec of the target that names a layer, None where none does
    (_resolve_targets_quant_method_metadata)."""
    ignored, target = is_ignored(args, context, path), _target(path, targets, context)
    if ignored and target is not None:
        raise _refused(f"Layer {path} matches both quantization_config.ignore and "
                       f"quantization_config.targets ({[target]}); a layer may not be referenced "
                       "by both.", path)
    if target is None:
        return None
    module, layer = built
    if layer is None:
        raise _refused(f"Layer {path} was matched by quantization_config.targets ({target}), but "
                       f"online quantization is not supported for {module}.", path or None)
    row = context.table["online_methods"][targets[target]]
    if layer not in row:
        raise _refused(f"targets pattern {target} = {row['id']} does not define a QuantSpec for "
                       f"{module} layers (matched at {path}).", path)
    return Spec(row[layer])


def _target(path: str, targets: Mapping[str, str], context: Context) -> str | None:
    """Return the one target of a layer and of all its leaves (_find_matching_targets)."""
    found = _matching(path, targets, context)
    if not any(found):
        return None
    if not all(found):
        raise _refused(f"Found unmatched shards for {path}: {_shown(found)}. vLLM requires all "
                       "shards of a fused layer to match a target.", path)
    if any(len(names) > 1 for names in found):
        raise _refused("Found multiple quantization_config.targets matches for the shards of "
                       f"{path}: {_shown(found)}. Each shard may match at most one target.", path)
    if len({targets[name] for names in found for name in names}) > 1:
        raise _refused("Found different quantization_config.targets values for the shards of "
                       f"{path}: {[names[0] for names in found]}. vLLM requires all shards of a "
                       "fused layer to use the same target.", path)
    return found[0][0]


def _matching(path: str, patterns: Iterable[str], context: Context) -> list[list[str]]:
    """Return the patterns that name a layer, or those of each leaf where none names the fused one
    (utils/config_utils.py:find_matching_patterns)."""
    direct = [pattern for pattern in patterns if _matches(path, pattern)]
    name = path.rsplit(".", 1)[-1]
    leaves = context.structure.packed.get(name)
    if direct or leaves is None:
        return [direct]
    return [[pattern for pattern in patterns if _matches(path.replace(name, leaf), pattern)]
            for leaf in leaves]


def _matches(path: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return search(pattern[3:], path)
    return pattern == path or fnmatchcase(path, pattern)


def _shown(found: list[list[str]]) -> str:
    """Return the patterns of each leaf as the engine prints its sets, each in order."""
    sets = ("{" + ", ".join(map(repr, sorted(names))) + "}" if names else "set()"
            for names in found)
    return f"[{', '.join(sets)}]"


def _refused(message: str, path: str | None) -> Exception:
    return refuse("layer assignment", "ValueError", message, path, SOURCE)
