"""What a quantization method decides for routed experts before any backend is looked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.vllm.context import Context, Site
from quantplan.tables.record import NamedTuple

Facts = Mapping[str, Any]
NO_KEY = "None"
"""The id of quant_keys that stands for 16-bit weights or activations."""


class Experts(NamedTuple):
    """Routed experts about to be built: `facts` are those of moe.*."""

    context: Context
    site: Site
    facts: Facts

    @property
    def prefix(self) -> str:
        """Return the layer's name: without the last part of its module's path."""
        return self.site.path


After = Callable[[Experts, "str | None", str], None]
"""Refuses experts by their chosen backend and class."""


class Plan(NamedTuple):
    """The experts' method class, the backend list it walks and the quantization keys it asks with.

    `quant` are the facts that the list's requirements read; `own_act` is the activation key of
    classes that do not take the one they are asked with; `after` refuses what the method refuses
    once its backend and class are known; `first_class` methods take the first class of the chosen
    backend, whichever of its classes passed; `weight_only` methods leave activations in 16 bits
    though they ask with a key for them, which is the checkpoint's wish where it `asks`; `source` is
    what the checkpoint plans for experts that are quantized again.
    """

    method: str
    list_id: str = "unquantized"
    weight: str = NO_KEY
    act: str = NO_KEY
    quant: Mapping[str, Any] = {}
    own_act: str = NO_KEY
    why: str | None = None
    after: After | None = None
    first_class: bool = False
    weight_only: bool = False
    asks: bool = True
    source: Plan | None = None


def unquantized(why: str | None = None) -> Plan:
    """Return the plan of experts that stay in 16 bits."""
    return Plan("UnquantizedFusedMoEMethod", why=why)
