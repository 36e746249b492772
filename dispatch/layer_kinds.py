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
    fields = row.get("fields", {}).get(word, word)
    said = (config.get(name) for name in ([fields] if isinstance(fields, str) else fields))
    return next((value for value in said if value is not None),
                row.get("defaults", {}).get(word))


def _place(row: Row, config: Config) -> Config:
    """Return the object of the config that holds the rule's fields, the config itself without."""
    field = row.get("fields", {}).get("within")
    found = config.get(field, config if field is None else {})
    return found if isinstance(found, Mapping) else {}


def _number(row: Row, config: Config, word: str) -> int:
    value = _given(row, config, word)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        field = row.get("fields", {}).get(word, word)
        raise CheckpointError(f"config.json: {field}", wanted="a whole number",
                              found="nothing" if value is None else repr(value)[:60])
    return value


def first_dense(row: Row, config: Config, count: int) -> list[str]:
    """DeepSeek: `dense` leading layers, then every `step`-th is sparse, counted from the first
    layer or, with `after`, from the dense ones; none without `experts`."""
    dense, step = _number(row, config, "dense"), max(1, _number(row, config, "step"))
    start = dense if _given(row, config, "after") else 0
    sparse = _given(row, config, "experts") is not None
    return ["moe" if sparse and index >= dense and (index - start) % step == 0 else "dense"
            for index in range(count)]


def sparse_step(row: Row, config: Config, count: int) -> list[str]:
    """Qwen: every `step`-th layer is sparse unless `dense_layers` lists it."""
    step, experts = max(1, _number(row, config, "step")), _number(row, config, "experts")
    dense = _given(row, config, "dense_layers") or ()
    return ["moe" if index not in dense and experts and (index + 1) % step == 0 else "dense"
            for index in range(count)]


def listed(row: Row, config: Config, count: int) -> list[str]:
    """A list `types` in the config (or a string with a letter each) names each layer's type;
    `kinds` says what each type is here, its `other` what any type besides is, its `unlisted` what
    every layer is without a list."""
    types, kinds = _given(row, config, "types"), row["kinds"]
    if not isinstance(types, (list, tuple, str)) and "unlisted" in kinds:
        return [kinds["unlisted"]] * count
    if not isinstance(types, (list, tuple, str)) or len(types) != count:
        field = row.get("fields", {}).get("types", "types")
        raise CheckpointError(f"config.json: {field}", wanted=f"a list of {count} names",
                              found=repr(types)[:60])
    strange = next((t for t in types if str(t) not in kinds), None)
    if strange is not None and "other" not in kinds:
        raise NotKnownError(f"layer type {strange!r}", wanted="one of " + ", ".join(kinds))
    return [kinds.get(str(t), kinds.get("other")) for t in types]


def listed_or_named(row: Row, config: Config, count: int) -> list[str]:
    """As `listed`; without a list the layers of the `indices` are `named`, all without these, and
    the rest `other`."""
    if _given(row, config, "types") is not None:
        return listed(row, config, count)
    indices, kinds = _given(row, config, "indices"), row["kinds"]
    return [kinds["named" if indices is None or index in indices else "other"]
            for index in range(count)]


def listed_or_every(row: Row, config: Config, count: int) -> list[str]:
    """As `listed`; without a list every `interval`-th layer has full attention (the first one
    `shift` layers earlier), and of `first` layers, which are counted alone, every
    `first_interval`-th."""
    if _given(row, config, "types") is not None:
        return listed(row, config, count)
    interval, first = max(1, _number(row, config, "interval")), _given(row, config, "first") or 0
    short = max(1, _given(row, config, "first_interval") or 1)
    shift = _given(row, config, "shift") or 0
    sliding, full = row["kinds"].values()
    return [sliding if (index + 1 + shift) % every else full
            for every, layers in ((short, first), (interval, count - first))
            for index in range(layers)]


def first_flag(row: Row, config: Config, count: int) -> list[str]:
    """Every layer has the kind of the first of `kinds` that the config sets, else `none` says."""
    named = next((kind for flag, kind in row["kinds"].items() if config.get(flag)),
                 row["defaults"]["none"])
    return [named] * count


def flag(row: Row, config: Config, count: int) -> list[str]:
    """Every layer has the kind `set` or `unset` of a config flag, in the object `within`."""
    set_there = _given(row, _place(row, config), "flag")
    return [row["kinds"]["set" if set_there else "unset"]] * count


def said(row: Row, config: Config, count: int) -> list[str]:
    """Every layer has the kind that `kinds` names for the `value` of a config field, else its
    `other`."""
    kinds = row["kinds"]
    return [kinds.get(str(_given(row, config, "value")), kinds["other"])] * count


def last_layers(row: Row, config: Config, count: int) -> list[str]:
    """The last `last` layers have one kind, those before them another."""
    first = count - _number(row, config, "last")
    own, shared = row["kinds"]["own"], row["kinds"]["shared"]
    return [shared if index >= first > 0 else own for index in range(count)]


def marked(row: Row, config: Config, count: int) -> list[str]:
    """A list `marks` of the config has 1 for the layers that are `set` and 0 for the others; the
    object `within` holds it where there is one. Without it all are `unlisted`, where the row says
    so."""
    place = config.get(row.get("fields", {}).get("within", ""), config)
    marks = _given(row, place if isinstance(place, Mapping) else {}, "marks")
    if marks is None and "unlisted" in row["kinds"]:
        return [row["kinds"]["unlisted"]] * count
    if not isinstance(marks, list) or len(marks) != count:
        raise CheckpointError(f"config.json: {row['fields']['marks']}", found=repr(marks)[:60],
                              wanted=f"a list of {count} numbers")
    return [row["kinds"]["set" if mark else "unset"] for mark in marks]


def indexed(row: Row, config: Config, count: int) -> list[str]:
    """DeepSeek sparse attention: which layers have an indexer (those that `types` does not call
    shared, F in the pattern, or each freq-th from the offset on); the others `reuse` the indices
    of the layer before."""
    types = _given(row, config, "types")
    if types is not None:
        return ["reuses" if index < len(types) and types[index] == "shared" else "indexed"
                for index in range(count)]
    pattern = _given(row, config, "pattern")
    if pattern is not None:
        return ["reuses" if index < len(pattern) and pattern[index] == "S" else "indexed"
                for index in range(count)]
    step = max(1, _number(row, config, "freq"))
    offset = _number(row, config, "offset")
    return ["reuses" if max(index - offset + 1, 0) % step else "indexed" for index in range(count)]


def every(row: Row, config: Config, count: int) -> list[str]:
    """Llama 4: every `step`-th layer is `at`, those before it `between`."""
    step, kinds = _number(row, config, "step"), row["kinds"]
    if not step:
        raise CheckpointError(f"config.json: {row['fields']['step']}", found="0",
                              wanted="a positive number")
    return [kinds["between"] if (index + 1) % step else kinds["at"] for index in range(count)]


def every_other(row: Row, config: Config, count: int) -> list[str]:
    """gpt-oss: layers of `even` index, and the others."""
    kinds = row["kinds"]
    return [kinds["odd"] if index % 2 else kinds["even"] for index in range(count)]


def chunked(row: Row, config: Config, count: int) -> list[str]:
    """Llama 4: layers with rotary embeddings attend in chunks; `rope` has 0 for the others, which
    are every `step`-th without it."""
    rope, step = _given(row, config, "rope"), max(1, _number(row, config, "step"))
    marks = rope or [(index + 1) % step for index in range(count)]
    if not isinstance(marks, (list, tuple)) or len(marks) < count:
        raise CheckpointError(f"config.json: {row['fields']['rope']}", found=repr(rope)[:60],
                              wanted=f"a list of {count} numbers")
    chunk = _given(row, config, "chunk")
    return ["chunked" if chunk and marks[index] else "full" for index in range(count)]


def ratios(row: Row, config: Config, count: int) -> list[str]:
    """DeepSeek V4: the compression of each layer's cache: `kinds` names some ratios; `more` are the
    others above 1, `none` is for 0 and 1. The list may go on with layers of another stack."""
    given, kinds = _given(row, config, "ratios"), row["kinds"]
    if (not isinstance(given, (list, tuple)) or len(given) < count
            or not all(type(ratio) is int for ratio in given)):
        raise CheckpointError(f"config.json: {row['fields']['ratios']}", found=repr(given)[:60],
                              wanted=f"a list of {count} numbers")
    return [kinds.get(str(ratio), kinds["more"] if ratio > 1 else kinds["none"])
            for ratio in given[:count]]


def leading(row: Row, config: Config, count: int) -> list[str]:
    """As `listed`; without a list the first `count` layers have one kind, the rest another."""
    if _given(row, config, "types") is not None:
        return listed(row, config, count)
    first, kinds = _number(row, config, "count"), row["kinds"]
    return [kinds["first"] if index < first else kinds["rest"] for index in range(count)]


def between(row: Row, config: Config, count: int) -> list[str]:
    """Ernie: every `step`-th of the layers from `first` to `last` is sparse, if there are
    `experts`."""
    first, step = _number(row, config, "first"), max(1, _number(row, config, "step"))
    last, experts = _given(row, config, "last"), _given(row, config, "experts")
    stop = count if last is None else _number(row, config, "last") + 1
    return ["moe" if experts and first <= index < stop and (index + 1) % step == 0 else "dense"
            for index in range(count)]


def numbered(row: Row, config: Config, count: int) -> list[str]:
    """Step: sparse layers by their `numbers` in a text, joined by commas; without it all but the
    first."""
    given = _given(row, config, "numbers")
    try:
        sparse = {int(n) for n in given.split(",")} if given is not None else set(range(1, count))
    except (AttributeError, ValueError):
        raise CheckpointError(f"config.json: {row['fields']['numbers']}", found=repr(given)[:60],
                              wanted="numbers joined by commas") from None
    return ["moe" if index in sparse else "dense" for index in range(count)]


def counted(row: Row, config: Config, count: int) -> list[str]:
    """Kimi: a list `numbers` in the object `within` counts the `named` layers, from 1 on; the
    others are `other`."""
    numbers, kinds = _given(row, _place(row, config), "numbers") or (), row["kinds"]
    return [kinds["named" if index + 1 in numbers else "other"] for index in range(count)]


def offset(row: Row, config: Config, count: int) -> list[str]:
    """Jamba: layers whose index is `offset` in every period of `step` layers, and the others; all
    are others with a single expert, where the row reads `experts`."""
    step, start, kinds = (max(1, _number(row, config, "step")), _number(row, config, "offset"),
                          row["kinds"])
    single = "experts" in row["fields"] and _number(row, config, "experts") <= 1
    return [kinds["at"] if index % step == start and not single else kinds["other"]
            for index in range(count)]


RULES: Mapping[str, Callable[[Row, Config, int], list[str]]] = {
    "first_dense": first_dense, "sparse_step": sparse_step, "listed": listed,
    "listed_or_every": listed_or_every, "listed_or_named": listed_or_named,
    "first_flag": first_flag, "flag": flag, "said": said, "last_layers": last_layers,
    "marked": marked,
    "indexed": indexed, "every": every, "every_other": every_other, "chunked": chunked,
    "ratios": ratios, "leading": leading, "between": between, "numbered": numbered,
    "offset": offset, "counted": counted,
}
