"""What a Humming kernel computes: the activation format that it picks for a layer's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.humming_numbers import Input, Weight, number
from quantplan.dispatch.predicates import fill
from quantplan.dispatch.vllm.humming_activation import Asked, activation

Row = Mapping[str, Any]
Facts = Mapping[str, Any]


def humming_mode(kernel: Row, rules: Row, facts: Facts, act: str | None
                 ) -> tuple[str | None, str | None]:
    """Return the mode of one layer on a Humming kernel and how its activations are quantized, mode
    None where no activation format goes with its weights."""
    asked = kernel["humming"]
    weight = Weight(fill(asked["weight"], facts), _group(asked, facts), asked.get("scale"),
                    bool(facts.get("quant.zero_points")))
    key = asked.get("input") or facts["quant.act_key"]
    given = rules["inputs"][key]
    size = given.get("group", facts.get("quant.act_group", 0))
    question = Asked(weight, facts["gpu.capability"], facts["dtype.model"], rules)
    name = activation(question, Input(given.get("dtype"), size, given.get("scale")),
                      key not in asked.get("keeps", ()))
    if name is None:
        return None, act
    bits = number(name).bits
    if bits == 16:
        return fill(kernel["mode"], {**facts, "humming.act": "A16"}), "none"
    mode = fill(kernel["mode"], {**facts, "humming.act": f"A{bits}_{name}"})
    return mode, act if act not in (None, "none") else "group" if size else "per_token"


def _group(asked: Row, facts: Facts) -> int:
    """Return the features of one weight scale, 0 for all of K."""
    return max(int(asked.get("group", facts.get("quant.group_size", 0))), 0)
