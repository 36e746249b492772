"""Layers of several engines' traces that are the same place of the model. Engines call some places
by other names: those are joined by what they are in their decoder layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantplan.dispatch.summary import VOCABULARY
from quantplan.dispatch.trace import Layer, Trace
from quantplan.tables.record import NamedTuple

Place = list[Layer | None]
Name = tuple[object, ...]


class Joined(NamedTuple):
    """One place of the model: each trace's layer there, None where the engine has none."""

    layers: tuple[Layer | None, ...]

    @property
    def first(self) -> Layer:
        """Return the layer of the first trace that has one."""
        return next(layer for layer in self.layers if layer is not None)


def joined(traces: Sequence[Trace]) -> Iterator[Joined]:
    """Yield the places in the first trace's order; a place that only later traces have stands
    behind the one that it follows there."""
    order: list[Place] = []
    for position, trace in enumerate(traces):
        known = _known_by(order)
        behind: dict[int, list[Place]] = {}
        last: Place | None = None
        for layer in trace.layers:
            place = next((known[name] for name in _names(layer) if name in known
                          and known[name][position] is None), None) if known else None
            if place is None:
                place = [None] * len(traces)
                behind.setdefault(id(last), []).append(place)
            else:
                last = place
            place[position] = layer
        order = [*behind.get(id(None), ()), *(each for place in order
                                              for each in (place, *behind.get(id(place), ())))]
    for place in order:
        yield Joined(tuple(place))


def _known_by(order: Sequence[Place]) -> dict[Name, Place]:
    """Return what the places so far are known by; a name that two share is none."""
    found: dict[Name, Place] = {}
    shared: set[Name] = set()
    for place in order:
        for name in _names(next(layer for layer in place if layer is not None)):
            if name in found:
                shared.add(name)
            found[name] = place
    return {name: place for name, place in found.items() if name not in shared}


def _names(layer: Layer) -> Iterator[Name]:
    """Yield what a place is known by: its path, its end within a decoder layer, what it is there,
    its last name and its size beside its neighbours."""
    index, size = layer.layer_index, (layer.n, layer.k)
    yield ("path", layer.path, *size)
    if layer.module in VOCABULARY:
        yield ("vocabulary", layer.module, *size)
    if index is None:
        return
    _, _, end = layer.path.partition(f".{index}.")
    inside = end or layer.path
    yield ("end", index, inside, *size)
    if layer.moe_backend is not None:
        yield ("experts", index)
    elif not layer.weighted:
        yield ("attention", index, layer.kv_cache_dtype is None)
    else:
        yield ("last", index, inside.rpartition(".")[2], *size)
        yield ("size", index, inside.rpartition(".")[0], *size)
