"""The rows of a family read with one config: kinds of layers, sizes, and the modules that stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantplan.dispatch.layer_kinds import layer_kinds
from quantplan.dispatch.layer_sizes import layer_sizes
from quantplan.dispatch.model_sizes import model_sizes
from quantplan.dispatch.structure import TEXT, Groups, Heads, Leaf, Module
from quantplan.tables.errors import CheckpointError

Row = Mapping[str, Any]
QKV_HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim")
EXPERTS_NEED = ("experts", "top_k", "hidden", "intermediate")
TEXT_STACK = {"id": TEXT, "count": "num_hidden_layers"}


class ModuleRows:
    """One family's rows with one config: `config` holds the language model's fields, `root` is the
    whole config.json."""

    def __init__(self, family: Row, config: Row, root: Row) -> None:
        self.family, self.config, self.root = family, config, root
        self._sized: dict[tuple[Any, ...], dict[str, int]] = {}
        counts = model_sizes(family["sizes"], config, root)
        stacks = {stack["id"]: stack for stack in (TEXT_STACK, *family.get("stacks", ()))}
        self.kinds = {
            name: layer_kinds(row.get("layer_kinds", ()), config, counts[row["count"]])
            for name, row in stacks.items() if row["count"] in counts}
        self.common = frozenset.intersection(*(self.kinds.get(TEXT) or (frozenset(),)))
        self.each = layer_sizes(family["sizes"], config, counts["num_hidden_layers"])

    def sizes(self, at: Sequence[str] = (), layer: int | None = None) -> Mapping[str, int]:
        """Return the sizes of layers of kinds `at`: those of one layer, or the model's, for which
        the largest stands where layers differ."""
        own = {name: max(filter(None, each), default=None) if layer is None else each[layer]
               for name, each in self.each.items()}
        key = (*at, *own.values())
        if key not in self._sized:
            self._sized[key] = model_sizes(self.family["sizes"], self.config, self.root,
                                           (*self.common, *at), own)
        return self._sized[key]

    def modules(self) -> Iterator[Module]:
        """Yield the module of every row that this config has layers for, as they are built."""
        for row in _in_order(self.family):
            for layers, sizes in self._places(row):
                present = "has" not in row or sizes.get(row["has"])
                if present and not sizes.get(row.get("lacks", "")):
                    yield from self._copies(row, sizes, layers)

    def _copies(
        self, row: Row, sizes: Mapping[str, int], layers: tuple[int, ...]
    ) -> Iterator[Module]:
        """Yield the row's module, as often as it says."""
        for number in range(sizes.get(row["times"], 0) if "times" in row else 1):
            named = {key: row[key].replace("#", str(number))
                     for key in ("path", "known_as") if key in row}
            yield _module({**row, **named}, sizes, self.config, self.family, layers)

    def _places(self, row: Row) -> Iterator[tuple[tuple[int, ...], Mapping[str, int]]]:
        """Yield the layers at which a row stands, those of the same sizes together."""
        at, stack = tuple(row.get("at", ())), row.get("stack", TEXT)
        if "*" not in row["path"]:
            yield (), self.sizes(at)
            return
        layers = [i for i, kinds in enumerate(self.kinds.get(stack, ())) if kinds.issuperset(at)]
        alike: dict[tuple[int | None, ...], list[int]] = {}
        for layer in layers:
            own = tuple(each[layer] for each in self.each.values()) if stack == TEXT else ()
            alike.setdefault(own, []).append(layer)
        for group in alike.values():
            yield tuple(group), self.sizes(at, group[0] if stack == TEXT else None)


def _module(
    row: Row, sizes: Mapping[str, int], config: Row, family: Row, layers: tuple[int, ...]
) -> Module:
    leaves = tuple(
        Leaf(leaf["name"], sizes[leaf["n"]], sizes[leaf["k"]] if "k" in leaf else None)
        for leaf in row.get("leaves", ()))
    split = row.get("split", "none")
    how = family.get(HOW_BUILT.get(row["module"], ""))
    unnamed = how is not None and row["module"] == "VocabParallelEmbedding"
    return Module(
        row["path"], row["module"], split,
        bool(sizes.get(row["bias_when"])) if "bias_when" in row else _bias(row, config, family),
        leaves,
        row.get("kind", "embedding" if split == "vocab" else "linear"), layers,
        _is_quantized(row, sizes, how != "plain"),
        tuple(sizes[name] for name in row.get("parts", ())),
        _heads(row, sizes) if split.startswith("qkv") else None, _facts(row, sizes, config),
        row.get("stack", TEXT), "" if unnamed else _known_as(row),
        tuple(row.get("quantized_when", {}).get("except", ())),
        tuple(row.get("plain_under", ())), tuple(row.get("replicated_under", ())),
        _groups(row, sizes), _whole(row), tuple(row.get("before", ())),
        tuple(row.get("after", ())), sizes.get(row.get("known_from", ""), 0),
        bool(row.get("sequence_parallel")), row.get("aligned", 1),
        bool(row.get("whole_blocks")), sizes.get(row.get("replicated_unless", "")),
        sizes.get(row.get("most_ranks", "")),
        row.get("known_under", {}), row.get("kind") in family.get("built_last", ()),
        row.get("dtype"))


def _in_order(family: Row) -> list[Row]:
    """Return the family's rows, those of the kinds in `built_last` after all other layers'."""
    kinds = family.get("built_last", ())
    last = [row for row in family["modules"] if row.get("kind") in kinds]
    rows = [row for row in family["modules"] if row.get("kind") not in kinds]
    end = 1 + max((i for i, row in enumerate(rows) if "*" in row["path"]), default=-1)
    return [*rows[:end], *last, *rows[end:]]


HOW_BUILT = {"VocabParallelEmbedding": "embedding", "ParallelLMHead": "head"}
"""Class -> the field of a family that says how the engine builds it."""


def _known_as(row: Row) -> str:
    return str(row.get("known_as", row["path"].removesuffix(".routed_experts")))


def _is_quantized(row: Row, sizes: Mapping[str, int], default: bool) -> bool:
    rule = row.get("quantized_when")
    fits = rule is None or all(sizes[name] % rule["multiple_of"] == 0 for name in rule["sizes"])
    return bool(row.get("quantized", default)) and fits


def _heads(row: Row, sizes: Mapping[str, int]) -> Heads:
    query, kv, dim, *value = [sizes[name] for name in row.get("heads", QKV_HEADS)]
    return Heads(query, kv, dim, value[0] if value else dim)


def _groups(row: Row, sizes: Mapping[str, int]) -> Groups | None:
    if "groups" not in row:
        return None
    parts = enumerate(row["parts"])
    return Groups(sizes[row["groups"]], tuple(i for i, name in parts if name in row["per_group"]))


def _whole(row: Row) -> tuple[int, ...]:
    return tuple(i for i, name in enumerate(row.get("parts", ())) if name in row.get("whole", ()))


def _facts(row: Row, sizes: Mapping[str, int], config: Row) -> Mapping[str, Any]:
    """Return the module's facts. Raises CheckpointError for experts without one of their sizes."""
    own = row.get("sizes", {})
    needed = EXPERTS_NEED if row.get("kind") == "experts" else ()
    lost = next((own[fact] for fact in needed if fact in own and own[fact] not in sizes), None)
    if lost is not None:
        raise CheckpointError(f"config.json: {lost}", wanted="a positive integer", found="nothing")
    return {**row.get("facts", {}),
            **{fact: sizes.get(size) for fact, size in own.items()},
            **{fact: _engine_value(row, fact, config[field])
               for fact, field in row.get("reads", {}).items() if field in config},
            **{fact: config.get(rule["field"]) == rule["value"]
               for fact, rule in row.get("equals", {}).items()}}


def _engine_value(row: Row, fact: str, value: Any) -> Any:
    known = row.get("values", {}).get(fact, {})
    return known.get(value, value) if isinstance(value, str) else value


def _bias(
    row: Mapping[str, Any], config: Mapping[str, Any], family: Mapping[str, Any]
) -> bool:
    rule = family.get("biases", {}).get(row["bias"], ("always",)) if "bias" in row else ()
    alone = family.get("bias_fields", {}).get(row.get("bias"))
    return bool(config[alone]) if alone in config else any(
        field == "always" or bool(config.get(field)) for field in rule)
