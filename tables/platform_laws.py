"""The laws of the platform rows that their schema cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Engine = Mapping[str, Any]
CONFIG_FACTS = frozenset({
    "block", "format", "inputs.given",
    *(f"weights.{name}" for name in ("type", "num_bits", "strategy", "symmetric"))})
"""Facts of a quantization config: dispatch/platforms.py:config_facts."""


def platform_methods_are_known(engine: Engine) -> Iterator[str]:
    """Every method that a platform names is registered, everywhere or there."""
    known = {row["id"] for row in engine["methods"]}
    for row in engine["platforms"]:
        where = f"platforms[{row['id']}]"
        here = known | {own["id"] for own in row.get("registers", ())}
        named = [*row.get("drops", ()), *row.get("supported", {}).get("methods", ())]
        named += [name for part in row["lists"] for name in part["methods"]]
        yield from (f"{where}: {name} is no method" for name in sorted(set(named) - here))


def platform_gpus_are_known(engine: Engine) -> Iterator[str]:
    """Every architecture that a row names is one of its platform."""
    for row in engine["platforms"]:
        known = {gpu["id"] for gpu in row.get("gpus", ())}
        named = {name for own in row.get("registers", ()) for name in own.get("gpus", ())}
        named |= {name for gpus in row.get("drops", {}).values() for name in gpus}
        yield from (f"platforms[{row['id']}]: no GPU {name}" for name in sorted(named - known))


def platform_lists_read_facts(engine: Engine) -> Iterator[str]:
    """Every condition of a list is a fact of a quantization config."""
    for row in engine["platforms"]:
        for part in row["lists"]:
            facts = {name for when in part.get("when", ()) for name in when}
            yield from (f"platforms[{row['id']}].lists[{part['id']}]: unknown fact {name}"
                        for name in sorted(facts - CONFIG_FACTS))


def platforms_differ(engine: Engine) -> Iterator[str]:
    """No platform has two rows, and each that has GPUs says what stands for one of them."""
    ids = [row["id"] for row in engine["platforms"]]
    yield from (f"platforms: {i} twice" for i in sorted({x for x in ids if ids.count(x) > 1}))
    yield from (f"platforms[{row['id']}]: wanted either fp8_dtype or gpus"
                for row in engine["platforms"] if ("fp8_dtype" in row) is ("gpus" in row))


PLATFORM_LAWS = (platform_methods_are_known, platform_gpus_are_known, platform_lists_read_facts,
                 platforms_differ)
