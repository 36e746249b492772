"""What kind each decoder layer is: dense or sparse, sliding or full, as the config lays them out.

Each rule returns one kind per layer. A row of tables/families names the rule and, by the rule's own
words, the config fields, their defaults and the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quantplan.tables.errors import CheckpointError, NotKnownError

Config = Mapping[str, Any]
Row = Mapping[str, Any]


def layer_kinds(rows: Sequence[Row], config: Config, count: int) -> tuple[frozenset[str], ...]:
    """Return the kinds of each of `count` layers. Raises CheckpointError for a layout that does not
    fit the layers, NotKnownError for a layer type without a row."""
    named = [RULES[row["rule"]](row, config, count) for row in rows]
    return tuple(frozenset(kinds[index] for kinds in named) for index in range(count))


def _given(row: Row, config: Config, word: str) -> Any:
    """Return what the config says for one of the rule's words, else its default."""
    found = config.get(row.get("fields", {}).get(word, word))
    return row.get("defaults", {}).get(word) if found is None else found


def _number(row: Row, config: Config, word: str) -> int:
    value = _given(row, config, word)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        field = row.get("fields", {}).get(word, word)
        raise CheckpointError(f"config.json: {field}", wanted="a whole number",
                              found="nothing" if value is None else repr(value)[:60])
    return value


def first_dense(row: Row, config: Config, count: int) -> list[str]:
    """DeepSeek: `dense` leading layers, then every `step`-th is sparse; none without `experts`."""
    dense, step = _number(row, config, "dense"), max(1, _number(row, config, "step"))
    sparse = _given(row, config, "experts") is not None
    return ["moe" if sparse and index >= dense and index % step == 0 else "dense"
            for index in range(count)]


def sparse_step(row: Row, config: Config, count: int) -> list[str]:
    """Qwen: every `step`-th layer is sparse unless `dense_layers` lists it."""
    step, experts = max(1, _number(row, config, "step")), _number(row, config, "experts")
    dense = _given(row, config, "dense_layers") or ()
    return ["moe" if index not in dense and experts and (index + 1) % step == 0 else "dense"
            for index in range(count)]


def listed(row: Row, config: Config, count: int) -> list[str]:
    """A list `types` in the config names each layer's type; `kinds` says what each type is here."""
    types, kinds = _given(row, config, "types"), row["kinds"]
    if not isinstance(types, (list, tuple)) or len(types) != count:
        field = row.get("fields", {}).get("types", "types")
        raise CheckpointError(f"config.json: {field}", wanted=f"a list of {count} names",
                              found=repr(types)[:60])
    strange = next((t for t in types if t not in kinds), None)
    if strange is not None:
        raise NotKnownError(f"layer type {strange!r}", wanted="one of " + ", ".join(kinds))
    return [kinds[t] for t in types]


def listed_or_every(row: Row, config: Config, count: int) -> list[str]:
    """As `listed`; without a list every `interval`-th layer has full attention."""
    if _given(row, config, "types") is not None:
        return listed(row, config, count)
    interval = max(1, _number(row, config, "interval"))
    sliding, full = row["kinds"].values()
    return [sliding if (index + 1) % interval else full for index in range(count)]


def first_flag(row: Row, config: Config, count: int) -> list[str]:
    """Every layer has the kind of the first of `kinds` that the config sets, else `none` says."""
    named = next((kind for flag, kind in row["kinds"].items() if config.get(flag)),
                 row["defaults"]["none"])
    return [named] * count


def flag(row: Row, config: Config, count: int) -> list[str]:
    """Every layer has the kind `set` or `unset` of a config flag."""
    return [row["kinds"]["set" if _given(row, config, "flag") else "unset"]] * count


def last_layers(row: Row, config: Config, count: int) -> list[str]:
    """The last `last` layers have one kind, those before them another."""
    first = count - _number(row, config, "last")
    own, shared = row["kinds"]["own"], row["kinds"]["shared"]
    return [shared if index >= first > 0 else own for index in range(count)]


RULES: Mapping[str, Callable[[Row, Config, int], list[str]]] = {
    "first_dense": first_dense, "sparse_step": sparse_step, "listed": listed,
    "listed_or_every": listed_or_every, "first_flag": first_flag, "flag": flag,
    "last_layers": last_layers,
}
