"""The laws of model families: names that rows point at exist, and sources say where from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.tables.engine_check import SHARED_TABLES_CITE, engine_of_table
from quantplan.tables.family_index import table_rows
from quantplan.tables.family_loading import (
    families_by_architecture,
    families_of,
    own_architectures,
)
from quantplan.tables.module_facts import ATTENTION_FACTS, EXPERTS_FACTS

Family = Mapping[str, Any]
SIZE_WORDS = ("has", "lacks", "groups", "bias_when", "replicated_unless", "most_ranks")
QKV_HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim")
OPERATIONS = ("product", "sum", "quotient", "rounded")
"""What works a size out from others; rounded: up to a multiple."""


def sizes_are_known(family: Family) -> Iterator[str]:
    """Every size that a module or another size names is a size of the family."""
    known = {row["id"] for row in family["sizes"]}
    named = {(m["path"], size) for m in family["modules"] for size in _named(m)}
    named |= {(f"sizes[{row['id']}]", term) for row in family["sizes"] for term in _terms(row)}
    yield from (f"{where}: no size {size}" for where, size in sorted(named) if size not in known)


def sizes_say_one_thing(family: Family) -> Iterator[str]:
    """Every size is read from fields or worked out by one operation."""
    for row in family["sizes"]:
        said = [k for k in ("fields", *OPERATIONS, "length", "each") if k in row]
        if len(said) != 1:
            yield f"sizes[{row['id']}]: {' and '.join(said) or 'nothing'} says what it is"


def stacks_are_known(family: Family) -> Iterator[str]:
    """Every module stands in a stack of the family, under kinds that its rules name."""
    stacks = {"text", *(row["id"] for row in family.get("stacks", ()))}
    yield from (f"{m['path']}: no stack {m['stack']}" for m in family["modules"]
                if m.get("stack", "text") not in stacks)


def model_types_have_one_class(family: Family) -> Iterator[str]:
    """No two rows say what the config class of one model type fills in."""
    types = [name for row in family.get("defaults", ()) for name in row["model_types"]]
    yield from (f"defaults: {name} twice" for name in sorted(set(types)) if types.count(name) > 1)


def biases_are_known(family: Family) -> Iterator[str]:
    """Every bias rule that a module names is one of the family's, or always."""
    yield from (f"{m['path']}: no bias rule {m['bias']}" for m in family["modules"]
                if m.get("bias", "always") not in ("always", *family.get("biases", {})))


def facts_have_a_meaning(family: Family) -> Iterator[str]:
    """Every fact of a module that attends, holds a cache or is experts has its meaning written
    down."""
    for module in family["modules"]:
        known = MEANINGS.get(module.get("kind", "linear"))
        if known is not None:
            given = {name for word in ("sizes", "reads", "equals", "facts")
                     for name in module.get(word, {})}
            yield from (f"{module['path']}: no meaning of the fact {name}"
                        for name in sorted(given - set(known)))


MEANINGS = {**dict.fromkeys(("attention", "mla", "part"), ATTENTION_FACTS),
            "experts": EXPERTS_FACTS}
"""Kind of module -> the meaning of its facts."""


def _named(module: Family) -> Iterator[str]:
    for leaf in module.get("leaves", ()):
        yield from (leaf["n"], leaf.get("k", leaf["n"]))
    yield from (*module.get("parts", ()), *module.get("sizes", {}).values())
    yield from (module[word] for word in SIZE_WORDS if word in module)
    if module.get("split") in ("qkv", "qkv_index"):
        yield from module.get("heads", QKV_HEADS)


def _terms(row: Family) -> Iterator[str]:
    terms = [t for word in OPERATIONS for t in row.get(word, ())]
    yield from (t for t in terms if isinstance(t, str))
    yield from (row[word] for word in ("default_size", "depth_of") if word in row)


def engines_own_stand_apart(table: str, family: Family) -> Iterator[str]:
    """A family of one engine stands in a file that is named after the engine, and only there:
    what that file cites is that engine's."""
    cited, served = engine_of_table(table), family.get("engine", SHARED_TABLES_CITE)
    if cited != served:
        yield f"a family of {served} in a table that cites {cited}"


LAWS: tuple[Callable[[Family], Iterator[str]], ...] = (
    sizes_are_known, sizes_say_one_thing, stacks_are_known, biases_are_known,
    model_types_have_one_class, facts_have_a_meaning)


def family_violations() -> list[str]:
    """Return every violation of every family."""
    architectures = [*((a, None) for a in families_by_architecture()),
                     *((a, engine) for engine, a in own_architectures())]
    families = {family["id"]: family for architecture, engine in architectures
                for family in families_of(architecture, engine, weighed=True)}
    found = [f"tables/families: families[{name}]: {said}" for name, family in families.items()
             for law in LAWS for said in law(family)]
    return found + [f"tables/{table}.yaml: families[{family['id']}]: {said}"
                    for table, family in table_rows("families")
                    for said in engines_own_stand_apart(table, family)]
