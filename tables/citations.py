"""What a version's table cites, and whether the engine's files have it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from quantplan.tables.coverage_rows import is_base_row
from quantplan.tables.engine_source import EngineSource
from quantplan.tables.overlay import item_name
from quantplan.tables.record import NamedTuple
from quantplan.tables.symbols import definitions, symbol_hash, text_hash

CLASS_NAME = re.compile(r"[A-Z]\w*[a-z]\w*")
CITED_IN_TEXT = re.compile(r"(?:\b(\w+) [\d.]+ )?\b([\w/]+\.py):([A-Za-z_](?:[\w.]*\w)?)")
"""file.py:symbol in a sentence; after the name and version of another package it is that one's."""


class Citation(NamedTuple):
    """One place of the engine (`symbol` None: the file), and the first of ours that cites it."""

    path: str
    symbol: str | None
    by: str

    @property
    def text(self) -> str:
        """Return it as the tables write it."""
        return f"{self.path}:{self.symbol}" if self.symbol else self.path


def table_citations(table: Mapping[str, Any]) -> Iterator[Citation]:
    """Yield every citation of a table: its sources, and the classes that rows are named after."""
    for where, source in sources(table):
        if not source.startswith("cuobjdump") and not is_base_row(table, where):
            path, _, symbol = source.partition(":")
            yield Citation(path, symbol or None, where)


def sources(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield the place and the text of every source in a table or a part of one."""
    if isinstance(value, dict):
        for key, item in value.items():
            place = f"{at}.{key}" if at else str(key)
            if (key == "source" or key.endswith("_source")) and isinstance(item, str):
                yield place, item
            else:
                yield from sources(item, place)
        if "id" in value and str(value.get("file", "")).endswith(".py"):
            named = CLASS_NAME.fullmatch(value["id"])
            yield at, f"{value['file']}:{value['id']}" if named else value["file"]
    elif isinstance(value, list):
        for position, item in enumerate(value):
            name = item_name(item) if isinstance(item, dict) else None
            yield from sources(item, f"{at}[{name or position}]")


def code_citations(engine: str, name: str, text: str) -> Iterator[Citation]:
    """Yield what the texts and docstrings of one Python file of ours cite of the engine. A text
    with placeholders is read where all of them are constants of the file."""
    tree = ast.parse(text)
    constants = _constants(tree)
    for line, found in _texts(tree, constants):
        yield from text_citations(engine, f"{name}:{line}", found)


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts that a file gives names to."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _text(node.value, found)
            if text is not None:
                found[node.targets[0].id] = text
    return found


def _text(node: ast.AST, constants: Mapping[str, str]) -> str | None:
    """Return the text that an expression stands for, None where that is not known."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, constants)
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part, constants) for part in node.values]
        return None if None in parts else "".join(map(str, parts))
    return None


def _texts(node: ast.AST, constants: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every text of a tree."""
    if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)):
        text = _text(node, constants)
        if text is not None:
            yield node.lineno, text
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child, constants)


def text_citations(engine: str, by: str, text: str) -> Iterator[Citation]:
    """Yield what a sentence cites of the engine."""
    for package, path, symbol in CITED_IN_TEXT.findall(text):
        if package in ("", engine):
            yield Citation(path, symbol, by)


def completed(citation: Citation, source: EngineSource) -> Citation:
    """Return the citation with its path from the package on, where only one file can be meant."""
    fitting = [path for path in source.files if path.endswith("/" + citation.path)]
    whole = citation.path in source.files or len(fitting) != 1
    return citation if whole else citation._replace(path=fitting[0])


def distinct(citations: Iterable[Citation]) -> list[Citation]:
    """Return each cited place once, cited by its first."""
    found: dict[str, Citation] = {}
    for citation in citations:
        found.setdefault(citation.text, citation)
    return list(found.values())


def problem(citation: Citation, source: EngineSource) -> str | None:
    """Return what is wrong with a citation, in words, or None."""
    if citation.path not in source.files:
        return "no such file"
    if cited_hash(citation, source) is None:
        return "no such symbol in that file"
    return None


def cited_hash(citation: Citation, source: EngineSource) -> str | None:
    """Return the hash of the cited code, or None where the engine's files do not have it."""
    if citation.path not in source.files:
        return None
    text = source.read(citation.path)
    if not citation.path.endswith(".py"):
        return None if citation.symbol else text_hash(text)
    tree = module_tree(text)
    found = definitions(tree, citation.symbol) if citation.symbol else [tree]
    return symbol_hash(found) if found else None


@cache
def module_tree(text: str) -> ast.Module:
    """Return the parsed module of a Python file."""
    return ast.parse(text)
