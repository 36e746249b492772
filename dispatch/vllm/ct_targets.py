"""The fields of a compressed-tensors config, and which of its groups serves a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.vllm.context import Context
from quantplan.dispatch.vllm.ct_schemes import Group
from quantplan.dispatch.vllm.ct_transforms import Transform
from quantplan.dispatch.vllm.ignore import find_target, is_ignored
from quantplan.tables.record import NamedTuple


class CtFields(NamedTuple):
    """CompressedTensorsConfig after construction: target -> group, in the config's order."""

    targets: Mapping[str, Group]
    ignore: tuple[str, ...]
    kv_scheme: Mapping[str, Any] | None
    transforms: tuple[Transform, ...] = ()


def group_of(
    fields: CtFields, context: Context, path: str, module: str
) -> tuple[Group | None, bool]:
    """Return the config group that serves a layer of class `module`, None where there is none, and
    whether `ignore` names the layer (CompressedTensorsConfig.get_scheme_dict)."""
    packed = context.structure.packed
    if is_ignored(context.table, path, fields.ignore, packed):
        return None, True
    target = find_target(path, module, list(fields.targets), packed)
    return (None if target is None else fields.targets[target]), False
