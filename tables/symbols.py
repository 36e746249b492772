"""Symbols of Python source: where a dotted name is defined, and a hash of what it does."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator

_Scope = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def definitions(tree: ast.AST, symbol: str) -> list[ast.AST]:
    """Return every node of a module that defines `symbol`, such as Class.method: functions,
    classes, assigned names, and keys of a dict that is assigned (a registry's entry).

    Names that are only imported are not defined there.
    """
    found = [tree]
    for name in symbol.split("."):
        found = [node for scope in found for node in _named(scope, name)]
    return found


def symbol_hash(nodes: Iterable[ast.AST]) -> str:
    """Return a hash of what definitions say: without comments, docstrings and layout."""
    return text_hash("\n".join(ast.unparse(_Undocumented().visit(node)) for node in nodes))


def text_hash(text: str) -> str:
    """Return the hash of a text: the first 16 digits of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _named(scope: ast.AST, name: str) -> Iterator[ast.AST]:
    for statement in _statements(scope):
        if isinstance(statement, _Scope):
            if statement.name == name:
                yield statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = (statement.targets if isinstance(statement, ast.Assign)
                       else [statement.target])
            if any(name in _names(target) for target in targets):
                yield statement
            yield from _entries(statement.value, name)


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a scope, those inside its conditions and try blocks too."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.stmt):
            yield child
            if not isinstance(child, _Scope):
                yield from _statements(child)
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            yield from _statements(child)


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _names(item)


def _entries(value: ast.expr | None, name: str) -> Iterator[ast.AST]:
    if isinstance(value, ast.Dict):
        yield from (item for key, item in zip(value.keys, value.values, strict=True)
                    if isinstance(key, ast.Constant) and key.value == name)


class _Undocumented(ast.NodeTransformer):
    """Drops docstrings."""

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node, (*_Scope, ast.Module)) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
        return node
