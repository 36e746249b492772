"""Citations of a version against that engine's own files, and against those of the next version."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from quantplan.tables.citations import (
    Citation,
    cited_hash,
    code_citations,
    completed,
    distinct,
    module_tree,
    problem,
    sources,
    table_citations,
    text_citations,
)
from quantplan.tables.engine_source import EngineSource
from quantplan.tables.load import read_table, table_names
from quantplan.tables.record import NamedTuple
from quantplan.tables.symbols import definitions
from quantplan.tables.tuned_rows import wrong_tuned_files
from quantplan.tables.versions import default_version, engines

SHARED_TABLES = ("families/", "formats/")
"""Tables of all versions; what they cite is of the default one."""
SHARED_TABLES_CITE = "vllm"
"""The engine that they cite, but for families/ENGINE-NAME, and that the code of no engine's own
folder cites."""


class Bump(NamedTuple):
    """What became of one cited place: unchanged, changed, moved or gone. `now` is where it is."""

    citation: Citation
    state: str
    now: tuple[str, ...] = ()
    old_hash: str | None = None
    new_hash: str | None = None


def wrong_citations(engine: str, version: str, source: EngineSource, code: str) -> list[str]:
    """Return every citation that the engine's files do not have, with who cites it, and every
    tuned file that only they or only the table has. The default version answers also for shared
    tables and for the Python files under the folder `code`."""
    table = read_table(f"engines/{engine}/{version}")
    found = list(table_citations(table))
    if version == default_version(engine):
        found += shared_citations(engine, source, code)
    problems = ((citation, problem(citation, source)) for citation in distinct(found))
    return [f"{citation.text}: {words}; cited by {citation.by}"
            for citation, words in problems if words] + list(wrong_tuned_files(table, source))


def shared_citations(engine: str, source: EngineSource, code: str) -> list[Citation]:
    """Return what shared tables and the Python files under the folder `code` cite of an engine."""
    found: list[Citation] = []
    for name in table_names():
        if name.startswith(SHARED_TABLES) and engine == engine_of_table(name):
            for at, text in sources(read_table(name)):
                found += text_citations(engine, f"tables/{name}.yaml: {at}", text)
    for path in _python_files(code):
        if _engine_of(path, code) != engine:
            continue
        with open(path, encoding="utf-8") as file:
            found += code_citations(engine, os.path.relpath(path, os.path.dirname(code)),
                                    file.read())
    return [completed(citation, source) for citation in found]


def bumps(
    engine: str, version: str, old: EngineSource, new: EngineSource, code: str
) -> list[Bump]:
    """Return what became, in the files `new`, of everything that `version` and code cite in the
    files `old`; citations that `old` does not have are left to wrong_citations."""
    cited = distinct([*table_citations(read_table(f"engines/{engine}/{version}")),
                      *shared_citations(engine, old, code)])
    return [_bump(citation, old, new) for citation in cited if not problem(citation, old)]


def _bump(citation: Citation, old: EngineSource, new: EngineSource) -> Bump:
    before, now = cited_hash(citation, old), cited_hash(citation, new)
    if now is not None:
        state = "unchanged" if now == before else "changed"
        return Bump(citation, state, (citation.text,), before, now)
    places = tuple(_elsewhere(citation, new))
    return Bump(citation, "moved" if places else "gone", places, before)


def _elsewhere(citation: Citation, source: EngineSource) -> Iterator[str]:
    """Yield where else the symbol is defined; a file without a symbol moves by its name."""
    if citation.symbol is None:
        name = "/" + os.path.basename(citation.path)
        yield from sorted(path for path in source.files if path.endswith(name))
        return
    first = citation.symbol.split(".")[0]
    defined = re.compile(rf"^\s*(?:(?:async )?def|class) {first}\b|^{first}\s*[:=]", re.MULTILINE)
    for path in sorted(path for path in source.files if path.endswith(".py")):
        text = source.read(path)
        if defined.search(text) and definitions(module_tree(text), citation.symbol):
            yield f"{path}:{citation.symbol}"


def engine_of_table(name: str) -> str:
    """Return the engine that a shared table cites: the one that its file is named after, if any."""
    return _engine_named(name.split("/")[1].split("-", maxsplit=1)[0])


def _engine_of(path: str, code: str) -> str:
    """Return the engine that a file under the folder `code` cites: its own folder's, if any."""
    return _engine_named(os.path.relpath(path, code).split(os.sep)[0])


def _engine_named(word: str) -> str:
    return word if word in engines() else SHARED_TABLES_CITE


def _python_files(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in sorted(names) if name.endswith(".py"))
