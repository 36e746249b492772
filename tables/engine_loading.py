"""An engine version's table as rules read it: its lists of rows as maps keyed by id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from quantplan.tables.load import read_table
from quantplan.tables.versions import engine_versions, known_version

KEYED: Mapping[str, tuple[str, ...]] = {
    "vllm": ("traits", "libraries", "environment", "methods", "moved_methods", "online_methods",
             "online_keys", "config_classes", "schemes", "quark_schemes", "families", "kernels",
             "tuned_configs", "activation_sets", "experts_lists", "experts_classes",
             "ct_experts", "quark_experts", "platforms"),
    "sglang": ("traits", "libraries", "environment", "methods", "operators", "fp8_backends",
               "mxfp8_backends", "fp4_backends", "ct_schemes", "moe_backends", "slim_schemes",
               "platforms"),
}
"""Engine -> the lists of its tables that rules read by id."""


@cache
def load_engine(engine: str, version: str | None = None) -> Mapping[str, Any]:
    """Return the table of one engine version, its lists of rows keyed by id.

    `version` None means the engine's default version. Raises NotKnownError naming the nearest
    versions that have a table.
    """
    return keyed(read_table(f"engines/{engine}/{known_version(engine, version)}"))


def versions_with(engine: str, trait: str) -> list[str]:
    """Return the versions of `engine` whose row `trait` of traits is true, oldest first."""
    return [version for version in engine_versions(engine)
            if load_engine(engine, version)["traits"][trait]["value"] is True]


def keyed(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an engine version's table as rules read it: lists of rows as maps by id."""
    lists = {name: {row["id"]: row for row in whole_rows(content[name])}
             for name in KEYED[content["engine"]]}
    parts = {"attention": keyed_attention(content["attention"])} if "backends" in content.get(
        "attention", ()) else {}
    return {**content, **lists, **parts}


def whole_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows, each that is like another with that one's fields where it has none."""
    known: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        whole = {**known[row["like"]], **row} if "like" in row else row
        known[row["id"]] = whole
        yield whole


def keyed_attention(attention: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attention part with its modules and backends keyed by id, `like` applied."""
    return {**attention, "modules": {row["id"]: row for row in attention["modules"]},
            "backends": {row["id"]: row for row in whole_rows(attention["backends"])},
            "config": {**attention["config"],
                       "options": {row["id"]: row for row in attention["config"]["options"]}}}
