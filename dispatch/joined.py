"""Layers of several engines' traces that are the same place of the model. Engines call some places
by other names: those are joined by what they are in their decoder layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quantplan.dispatch.trace import Layer, Trace

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
    its size beside its neighbours."""
    size = (layer.n, layer.k)
    yield ("path", layer.path, *size)
    _, inside, end = layer.path.partition(f".{layer.layer_index}.")
    if inside:
        yield ("end", layer.layer_index, end, *size)
        if layer.moe_backend is not None:
            yield ("experts", layer.layer_index)
        elif not layer.weighted:
            yield ("attention", layer.layer_index)
        else:
            yield ("size", layer.layer_index, end.rpartition(".")[0], *size)
