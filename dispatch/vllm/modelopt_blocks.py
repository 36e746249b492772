"""Layers stored as packed blocks (q8_0, iq2_xs, iq2_xxs), which only b12x computes
(model_executor/layers/quantization/modelopt_block_quant.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import PASS, UNKNOWN, evaluate
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.tables.errors import NotKnownError

METHOD = "ModelOptBlockQuantLinearMethod"
SOURCE = f"model_executor/layers/quantization/modelopt_block_quant.py:{METHOD}"


def block_layer(context: Context, site: Site, codec: Mapping[str, Any]) -> Assignment:
    """Return the assignment of a linear layer of one codec, or refuse as its method does."""
    facts = {**context.facts, "layer.k": site.shard.k, "layer.n": site.shard.n,
             "flag.linear_backend": context.deployment.backend_of(codec["id"]),
             "quant.codec": codec["id"].upper(), "quant.block": codec["block"]}
    for row in context.table["modelopt"]["codec_requires"]:
        check = evaluate(row, facts, codec["id"], SOURCE)
        if check is None or check.verdict == PASS:
            continue
        if check.verdict == UNKNOWN:
            raise NotKnownError(f"{site.path}: {check.text}", wanted="a known library",
                                hint="--lib b12x=on or off decides it.")
        raise refuse("layer assignment", "ValueError", str(check.says), site.path, check.source)
    return Assignment(METHOD, act="none", why=f"packed {codec['id']} blocks, 16-bit activations")
