"""Model families keyed by architecture, and those of wrappers around a language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from quantplan.tables.family_index import family_index, own_name
from quantplan.tables.load import read_table

LANGUAGE: Mapping[str, Any] = {"id": "language", "modules": ({"language": True},)}
"""The skeleton that stands for the modules of another family, the language model's."""


def own_architectures() -> Iterator[tuple[str, str]]:
    """Yield engine and architecture of every family that one engine has for itself."""
    for name in family_index()["own"]:
        engine, architecture = name.split()
        yield engine, architecture


def families_by_architecture() -> Mapping[str, Mapping[str, Any]]:
    """Return architecture -> family row, as its table has it."""
    return {name: family_row(name) for name in family_index()["architectures"]}


@cache
def family_row(architecture: str, engine: str | None = None) -> Mapping[str, Any]:
    """Return the row of an architecture that has one, as its table has it; the engine's own where
    it has one, over the row of all engines."""
    own = own_name(engine, architecture)
    if own in family_index()["own"]:
        row = _row(family_index()["own"][own], architecture, engine)
        first = row["architectures"][0]
        shared = family_row(first) if first in family_index()["architectures"] else {}
        return {**{field: shared[field] for field in shared if field != "weights"}, **row}
    return _row(family_index()["architectures"][architecture], architecture, None)


def _row(table: str, architecture: str, engine: str | None) -> Mapping[str, Any]:
    rows = read_table(table)["families"]
    found: Mapping[str, Any] = next(row for row in rows if row.get("engine") == engine
                                    and architecture in row["architectures"])
    return found


@cache
def family_of(
    architecture: str, engine: str | None = None, weighed: bool = False
) -> Mapping[str, Any]:
    """Return the architecture's family with the `modules` and `sizes` of its skeletons and its
    own; those of a family with `languages` are completed by `with_language`.

    When it is `weighed`, the modules of its `weights` are among them, and `complete` says whether
    they are every weight.
    """
    family = family_row(architecture, engine)
    parts = [_skeleton(name) for name in family["skeletons"]]
    further = [_skeleton(name) for name in family.get("weights", ()) if weighed]
    modules = [*_modules(family, parts)]
    if weighed:
        modules = _with_weights(modules, [*_modules(family, further)], family)
    return {**family, "modules": modules,
            "complete": family.get("complete", weighed and "weights" in family),
            "sizes": [size for part in (*parts, *further, family)
                      for size in part.get("sizes", ())]}


def _with_weights(
    modules: list[Mapping[str, Any]], weights: list[Mapping[str, Any]], family: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the layers' rows and the weights', those in layers behind the layer's other ones."""
    dtypes: Mapping[str, str] = family.get("weight_dtypes", {})
    found = [{**row, "dtype": dtypes[row["path"]]} if row.get("path") in dtypes else row
             for row in modules]
    for row in weights:
        alike = [at for at, other in enumerate(found) if _stack(other) == _stack(row)]
        found.insert(alike[-1] + 1 if alike else len(found), row)
    return found


def _stack(row: Mapping[str, Any]) -> tuple[str, bool]:
    return row.get("stack", "text"), "*" in row.get("path", "")


def _skeleton(name: str) -> Mapping[str, Any]:
    if name == LANGUAGE["id"]:
        return LANGUAGE
    rows = read_table(family_index()["skeletons"][name])["skeletons"]
    found: Mapping[str, Any] = next(row for row in rows if row["id"] == name)
    if "sizes_of" not in found:
        return found
    return {**found, "sizes": [*_skeleton(found["sizes_of"])["sizes"], *found.get("sizes", ())]}


def languages(family: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the architectures that a family's language model may have; none where the family's
    own rows say what it is."""
    return tuple(family.get("languages", [family["language"]] if "language" in family else []))


def families_of(
    architecture: str, engine: str | None = None, weighed: bool = False
) -> Iterator[Mapping[str, Any]]:
    """Yield the families that an architecture can be: one around each of its language models."""
    family = family_of(architecture, engine, weighed)
    for language in languages(family):
        whole = with_language(architecture, language, engine, weighed)
        yield {**whole, "id": f"{family['id']} with {language}"}
    yield from () if languages(family) else (family,)


@cache
def with_language(
    architecture: str, language: str, engine: str | None = None, weighed: bool = False
) -> Mapping[str, Any]:
    """Return the family of `architecture` around the family of its language model."""
    outer = family_of(architecture, engine, weighed)
    inner = family_of(language, engine, weighed)
    inside = [_moved(row, outer) for row in inner["modules"]]
    joined = {field: [*outer.get(field, ()), *inner.get(field, ())]
              for field in ("defaults", "stacks", "renames", "replaced")}
    merged = {field: {**inner.get(field, {}), **outer.get(field, {})}
              for field in ("biases", "not_covered", "packed")}
    mapper = outer.get("mapper", bool(outer.get("renames")) or inner.get("mapper", True))
    return {**inner, **outer, **joined, **merged, "mapper": mapper,
            "modules": [row for module in outer["modules"]
                        for row in (inside if "language" in module else [module])],
            "sizes": [*inner["sizes"], *outer["sizes"]],
            "complete": weighed and outer["complete"] and inner["complete"]}


def _moved(row: Mapping[str, Any], outer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a module row of a language model at its place in the family around it."""
    places: Mapping[str, str] = outer.get("paths", {"": outer.get("prefix", "")})

    def moved(path: str) -> str:
        old = next((old for old in places if path.startswith(old)), None)
        return path if old is None else places[old] + path[len(old):]

    return {**row, **{name: moved(row[name]) for name in ("path", "known_as") if row.get(name)}}


def _modules(
    family: Mapping[str, Any], skeletons: list[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of the family's modules, the text stack's under the family's prefix."""
    features = (None, *family.get("features", ()))
    for module in (m for skeleton in skeletons for m in skeleton["modules"]):
        if "language" in module:
            yield module
        elif module.get("only") in features:
            inner = module.get("stack", "text") == "text"
            prefix = family.get("prefix", "") if inner else ""
            yield {**module, **{name: prefix + module[name] for name in ("path", "known_as")
                                if module.get(name)}}
