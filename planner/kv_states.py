"""Bytes of the state that a recurrent layer keeps for one request on one rank
(vllm model_executor/layers/mamba/mamba_utils.py:MambaStateShapeCalculator)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.structure import Module, Structure
from quantplan.planner.cuts import uneven
from quantplan.planner.parts import model_bits
from quantplan.tables.errors import NotKnownError
from quantplan.tables.kv_cache_rows import kv_table
from quantplan.tables.record import NamedTuple

Facts = Mapping[str, Any]


class Conv(NamedTuple):
    """The convolution of a mixer: channels of the whole model, and taps."""

    channels: int
    taps: int


class Sharing(NamedTuple):
    """What cuts and lengthens states: the model's dtype, ranks, and tokens that a draft
    proposes."""

    dtype: str
    tp: int
    draft_tokens: int


def state_bytes(
    structure: Structure, module: Module, row: Mapping[str, Any], config: Facts, shared: Sharing
) -> int:
    """Return the bytes of one state of `module` on one rank; `row` is its class' row of caches.
    Raises NotKnownError for sizes that the family's row lacks, UsageError for
    ones that do not divide over the ranks."""
    conv_rows, elements = _elements(structure, module, row, shared)
    own = row.get("state_dtype") or _config_dtype(structure, config) or shared.dtype
    return (conv_rows * model_bits(shared.dtype) + elements * model_bits(own)) // 8


def _elements(
    structure: Structure, module: Module, row: Mapping[str, Any], shared: Sharing
) -> tuple[int, int]:
    """Return the elements of the convolution's state and of the recurrent one."""
    facts = module.facts
    try:
        conv = None if row["holds"] == "linear" else _conv(structure, module)
        channels, state = RULES[row["holds"]](facts, conv, shared.tp)
    except KeyError as missing:
        raise NotKnownError(f"the state of {module.module}: {missing}",
                            hint="A size in its family's row teaches it.") from None
    if channels % shared.tp or state % shared.tp:
        raise uneven(module.path, shared.tp, f"{channels} channels, {state} elements of state")
    length = conv.taps - 1 + _drafts(row, shared) if conv else 0
    return channels // shared.tp * length, state // shared.tp


def _drafts(row: Mapping[str, Any], shared: Sharing) -> int:
    return 0 if row["holds"] == "mamba1" else shared.draft_tokens


def _conv(structure: Structure, module: Module) -> Conv:
    """Return the convolution that stands beneath a mixer, in all its leaves."""
    names = (f"{module.path}.conv1d", f"{module.path}.conv")
    index = module.layers[0] if module.layers else None
    found = next((m for m in structure.modules if m.path in names
                  and (index is None or index in m.layers)), None)
    if found is None:
        raise NotKnownError(f"the convolution of {module.module}",
                            hint="A conv1d in its family's row teaches it.")
    return Conv(sum(leaf.n for leaf in found.leaves), found.leaves[0].k or 1)


def _config_dtype(structure: Structure, config: Facts) -> str | None:
    """Return the dtype that the model's config wants for its states, or None."""
    row = next((row for row in kv_table()["state_dtypes"]
                if structure.architecture in row["architectures"]), None)
    if row is None:
        return None
    found = config.get(row["field"], row.get("otherwise"))
    return None if found in {None, "auto"} else str(found)


def _mamba1(facts: Facts, conv: Conv | None, tp: int) -> tuple[int, int]:
    channels = conv.channels if conv else 0
    return channels, channels * facts["state"]


def _mamba2(facts: Facts, conv: Conv | None, tp: int) -> tuple[int, int]:
    """Groups that ranks do not divide are completed to one for every rank."""
    more = 0 if facts["groups"] % tp == 0 else tp - facts["groups"]
    channels = (conv.channels if conv else 0) + 2 * more * facts["state"]
    return channels, facts["heads"] * facts["head_dim"] * facts["state"]


def _gated_delta_net(facts: Facts, conv: Conv | None, tp: int) -> tuple[int, int]:
    channels = conv.channels if conv else 0
    return channels, facts["heads"] * facts["head_dim"] * facts["key_head_dim"]


def _kda(facts: Facts, conv: Conv | None, tp: int) -> tuple[int, int]:
    return (conv.channels if conv else 0), facts["heads"] * facts["head_dim"] ** 2


def _linear(facts: Facts, conv: Conv | None, tp: int) -> tuple[int, int]:
    return 0, facts["heads"] * facts["head_dim"] ** 2


def _short_conv(facts: Facts, conv: Conv | None, tp: int) -> tuple[int, int]:
    return (conv.channels if conv else 0), 0


RULES: Mapping[str, Callable[[Facts, Conv | None, int], tuple[int, int]]] = {
    "mamba1": _mamba1, "mamba2": _mamba2, "gated_delta_net": _gated_delta_net, "kda": _kda,
    "linear": _linear, "short_conv": _short_conv,
}
"""What a row of caches holds -> channels of the convolution's state and elements of the recurrent
one, of all ranks together."""
