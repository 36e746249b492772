"""transform_config of compressed-tensors: rotations around a linear layer, and what it refuses
(model_executor/layers/quantization/compressed_tensors/transform/)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from quantplan.dispatch.expressions import search
from quantplan.dispatch.trace import Finding, refuse
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.record import NamedTuple

FOLDER = "model_executor/layers/quantization/compressed_tensors/transform"
SOURCE = f"{FOLDER}/linear.py:CompressedTensorsLinearTransformMethod"
LOCATIONS = ("input", "weight_input", "weight_output", "output", "k_cache", "q_attn")
OFFLINE = ("weight_input", "weight_output")
"""compressed_tensors 0.17.0 transform/transform_args.py:TransformLocation."""


class Transform(NamedTuple):
    """One TransformArgs with the scheme it belongs to."""

    scheme: str
    head_dim: int | None
    targets: tuple[str, ...]
    location: str
    inverse: bool
    ignore: tuple[str, ...]


def read_transforms(config: Any) -> tuple[Transform, ...]:
    """Return the transforms of a transform_config; CheckpointError for what is none."""
    if not config:
        return ()
    groups = config.get("config_groups") if isinstance(config, Mapping) else None
    if not isinstance(groups, Mapping):
        raise _bad("config_groups", "an object", groups)
    return tuple(found for name, scheme in groups.items() for found in _scheme(name, scheme))


def _scheme(name: str, scheme: Any) -> Iterator[Transform]:
    if not isinstance(scheme, Mapping) or not isinstance(scheme.get("type"), str):
        raise _bad(f"{name}: type", "text", scheme)
    size, applied = scheme.get("head_dim"), scheme.get("apply", [])
    if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
        raise _bad(f"{name}: head_dim", "a whole number", size)
    if not isinstance(applied, list):
        raise _bad(f"{name}: apply", "a list", applied)
    for args in applied:
        where = f"{name}: apply"
        if not isinstance(args, Mapping) or args.get("location") not in LOCATIONS:
            raise _bad(f"{where}: location", "one of " + ", ".join(LOCATIONS), args)
        yield Transform(name, size, _names(args, "targets", where), args["location"],
                        bool(args.get("inverse", False)), _names(args, "ignore", where))


def _names(args: Mapping[str, Any], field: str, where: str) -> tuple[str, ...]:
    value = args.get(field, [] if field == "ignore" else None)
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise _bad(f"{where}: {field}", "a list of names", value)
    return tuple(found)


def _bad(where: str, wanted: str, found: Any) -> CheckpointError:
    return CheckpointError(f"quantization_config: transform_config: {where}", wanted=wanted,
                           found="nothing" if found is None else repr(found)[:60])


def wrap(
    transforms: tuple[Transform, ...], context: Context, site: Site, assignment: Assignment
) -> Assignment:
    """Return the assignment with the transforms of the layer around it, or refuse as they do."""
    found = _online(transforms, context, site)
    inputs, outputs = found["input"], found["output"]
    if not inputs and not outputs:
        return assignment
    late = partial(_check, context, site, inputs, outputs)
    if assignment.family is None:
        late()
    instead = assignment.otherwise
    return assignment._replace(
        method=_method(context, assignment, inputs), late=late, note=_note(site),
        why=assignment.why or "the checkpoint rotates its inputs or outputs",
        otherwise=instead and (lambda: wrap(transforms, context, site, instead())))


def _note(site: Site) -> Finding | None:
    """Return what becomes of a bias: the rotated layer asserts that there is none."""
    return Finding(
        "first forward", "error", "bias-in-rotated-layer",
        f"{site.path}: it has a bias, and a rotated layer asserts that there is none",
        "Leave layers with a bias out of transform_config.", f"{SOURCE}.apply",
    ) if site.module.bias else None


Parts = Mapping[int, Transform]


def _check(context: Context, site: Site, inputs: Parts, outputs: Parts) -> None:
    """Refuse what create_weights refuses."""
    _check_parts(site, inputs, outputs)
    if context.deployment.tp > 1:
        raise refuse("shapes under TP", "NotImplementedError",
                     "Online transforms with tensor parallelism is not supported", site.path,
                     f"{FOLDER}/module.py:HadamardTransform", hint="Use --tp 1.")


def _online(
    transforms: tuple[Transform, ...], context: Context, site: Site
) -> dict[str, dict[int, Transform]]:
    """Return the transforms at run time by location and part of the fused layer."""
    found: dict[str, dict[int, Transform]] = {"input": {}, "output": {}}
    classes = _classes(context, site.module.module)
    parts = _parts(context, site.path)
    for transform in transforms:
        for index, part in enumerate(parts):
            if transform.location in OFFLINE or not _targets(transform, part, classes):
                continue
            if transform.location not in found:
                raise refuse("layer assignment", "ValueError",
                             f"Cannot apply `{transform.location}` transform to `{site.path}`",
                             site.path, f"{FOLDER}/linear.py:get_linear_transform_schemes")
            found[transform.location][index] = transform
    return found


def _classes(context: Context, module: str) -> frozenset[str]:
    """Return the names that a target may give a linear layer of class `module`."""
    parents = context.table["compressed_tensors"]["module_parents"].get(module)
    if parents is None:
        raise NotKnownError(f"the classes that {module} derives from",
                            hint="A transform's target may name one of them.")
    return frozenset((module, "Linear", "Module", *parents))


def _parts(context: Context, path: str) -> list[str]:
    for fused, leaves in context.structure.packed.items():
        if path.endswith(fused):
            return [path.removesuffix(fused) + leaf for leaf in leaves]
    return [path]


def _targets(transform: Transform, path: str, classes: frozenset[str]) -> bool:
    def matches(name: str) -> bool:
        return name in classes or (
            search(name[3:], path) if name.startswith("re:") else name == path)

    return any(map(matches, transform.targets)) and not any(map(matches, transform.ignore))


def _check_parts(site: Site, inputs: Parts, outputs: Parts) -> None:
    """Refuse inputs that are not one transform for all parts, outputs of several schemes."""
    words: tuple[str, str] | None = None
    for index in range(len(site.shard.parts) if inputs else 0):
        if 0 not in inputs or (index in inputs and inputs[index] != inputs[0]):
            words = ("ValueError", "Must have same input")
        elif index not in inputs:
            words = ("KeyError", str(index))
        if words:
            break
    if words is None and len({transform.scheme for transform in outputs.values()}) > 1:
        words = ("ValueError", "Must have same scheme name")
    if words:
        raise refuse("layer assignment", words[0], words[1], site.path, SOURCE,
                     hint="Give every part of a fused layer the same transform.")


def _method(context: Context, assignment: Assignment, inputs: Parts) -> str:
    """Return the method class: QuTLASS fuses rotation and NVFP4 quantization where it can."""
    rules = context.table["compressed_tensors"]["fused_transform"]
    fused = (assignment.scheme == rules["scheme"] and inputs
             and all(t.head_dim in rules["head_dims"] for t in inputs.values())
             and context.gpu.capability >= rules["min_capability"])
    return rules["method"] if fused else "CompressedTensorsLinearTransformMethod"
