"""Citations against an engine's files: what is found, what is not, what a new version changed."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path
from typing import Any

import pytest
from quantplan.reports.bump_text import bump_data, bump_text
from quantplan.tables import engine_check
from quantplan.tables.citations import (
    Citation,
    cited_hash,
    code_citations,
    completed,
    distinct,
    problem,
    sources,
    table_citations,
)
from quantplan.tables.engine_check import bumps, engine_of_table, wrong_citations
from quantplan.tables.engine_source import EngineSource, open_source
from quantplan.tables.errors import UsageError
from quantplan.tables.family_laws import engines_own_stand_apart
from quantplan.tables.load import read_table
from quantplan.tables.symbols import definitions, symbol_hash

MODULE = '''
"""A module."""
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    FLAG: bool = True
else:
    try:
        from fast import thing
    except ImportError:
        fallback = 1

A, (B, C) = 1, (2, 3)
registry: dict[str, object] = {"FLAG": lambda: os.environ.get("FLAG"), "OTHER": 2}


class Kernel:
    """A kernel."""

    minimum = 80
    limit: int = 3

    @classmethod
    async def can(cls):
        def inner():
            return 1
        return inner


def plain():
    return 1
'''


@pytest.mark.parametrize("symbol, count", [
    ("plain", 1), ("Kernel", 1), ("Kernel.can", 1), ("Kernel.can.inner", 1), ("Kernel.minimum", 1),
    ("Kernel.limit", 1), ("A", 1), ("B", 1), ("C", 1), ("registry", 1), ("fallback", 1),
    ("OTHER", 1), ("FLAG", 2),
    ("os", 0), ("thing", 0), ("can", 0), ("Kernel.plain", 0), ("minimum", 0), ("Kern", 0),
])
def test_definitions(symbol: str, count: int) -> None:
    """Functions, classes, methods, names and registry entries; not what is only imported."""
    assert len(definitions(ast.parse(MODULE), symbol)) == count


def hashed(text: str, symbol: str = "f") -> str:
    return symbol_hash(definitions(ast.parse(text), symbol))


@pytest.mark.parametrize("text", [
    "def f():\n    '''Words.'''\n    return 1\n",
    "# why\n\n\ndef f( ):\n    # because\n    return (1)\n",
])
def test_comments_docstrings_and_layout_do_not_change_a_hash(text: str) -> None:
    assert hashed(text) == hashed("def f():\n    return 1\n")


@pytest.mark.parametrize("text", [
    "def f():\n    return 2\n", "def f(x):\n    return 1\n", "@cache\ndef f():\n    return 1\n",
    "def f():\n    return 1\ndef f():\n    return 1\n",
])
def test_code_changes_a_hash(text: str) -> None:
    assert hashed(text) != hashed("def f():\n    return 1\n")


def test_a_body_of_only_a_docstring() -> None:
    assert hashed("class f:\n    '''Words.'''\n") == hashed("class f:\n    pass\n")


# An engine's files.


def package(folder: Path, files: dict[str, str], version: str = "1.0") -> str:
    """Write a package `vllm` and the folder that says its version; return where it lies."""
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / f"vllm-{version}.dist-info").mkdir()
    (folder / f"vllm-{version}.dist-info" / "METADATA").write_text("Name: vllm")
    return str(folder)


def wheel(folder: str, path: Path) -> str:
    """Pack what lies in FOLDER as a wheel."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(Path(folder).rglob("*")):
            archive.write(file, file.relative_to(folder))
    return str(path)


FILES = {"a.py": "def f():\n    return 1\n", "deep/b.py": "class K:\n    x = 1\n", "c.so": "code"}


@pytest.fixture
def engine(tmp_path: Path) -> EngineSource:
    return open_source("vllm", package(tmp_path / "old", FILES))


def test_a_folder_the_package_and_a_wheel_are_read_alike(tmp_path: Path) -> None:
    folder = package(tmp_path / "old", FILES)
    for where in (folder, f"{folder}/vllm", f"{folder}/vllm/", wheel(folder, tmp_path / "x.whl")):
        source = open_source("vllm", where)
        assert source.version == "1.0"
        assert source.files == {"__init__.py", *FILES}
        assert source.read("deep/b.py") == FILES["deep/b.py"]


@pytest.mark.parametrize("names, version", [
    (["vllm-0.33.0.dist-info"], "0.33.0"), (["vllm-0.33.0+cu130.dist-info"], "0.33.0"),
    (["vllm_x-1.0.dist-info"], None), ([], None),
    (["vllm-1.0.dist-info", "vllm-2.0.dist-info"], None),
])
def test_the_version_is_that_of_the_distribution(
    tmp_path: Path, names: list[str], version: str | None
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    for name in names:
        (tmp_path / name).mkdir()
    assert open_source("vllm", str(tmp_path)).version == version


def test_what_holds_no_package(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.txt").write_text("")
    other = wheel(str(tmp_path / "x"), tmp_path / "x.whl")
    for where, words in ((str(tmp_path), "no package vllm; wanted a folder that holds vllm/"),
                         (other, "no package vllm; wanted a wheel of vllm"),
                         (str(tmp_path / "x" / "a.txt"), "no wheel and no folder")):
        with pytest.raises(UsageError) as raised:
            open_source("vllm", where)
        assert words in str(raised.value)


# What is cited.


def test_sources_and_classes_of_a_table_are_citations() -> None:
    table = {
        "methods_source": "a.py:METHODS", "machine_code_source": "cuobjdump of _C in the wheel",
        "kernels": [{"id": "MarlinKernel", "file": "m.py",
                     "supported": [{"fact": "layer.k", "source": "m.py:limit"}]}],
        "backends": [{"id": "FLASH_ATTN", "file": "f.py"}], "wheel": {"file": "x.whl"},
    }
    assert list(table_citations(table)) == [
        Citation("a.py", "METHODS", "methods_source"),
        Citation("m.py", "limit", "kernels[MarlinKernel].supported[layer.k].source"),
        Citation("m.py", "MarlinKernel", "kernels[MarlinKernel]"),
        Citation("f.py", None, "backends[FLASH_ATTN]")]


def test_code_cites_in_its_texts() -> None:
    text = ('"""Rules (config/model.py:ModelConfig.verify)."""\n'
            'SOURCE = ("config/cache.py:"\n    "Cache")\n'
            'x = f"{SOURCE}:y", "other 1.2 z.py:Z", "vllm 0.32.0 v1/utils.py:f", "see a.py"\n')
    assert list(code_citations("vllm", "x.py", text)) == [
        Citation("config/model.py", "ModelConfig.verify", "x.py:1"),
        Citation("config/cache.py", "Cache", "x.py:2"),
        Citation("config/cache.py", "Cache", "x.py:4"), Citation("v1/utils.py", "f", "x.py:4")]


def test_code_cites_in_texts_with_placeholders() -> None:
    text = ('FOLDER = "layers/quantization"\nWHERE = f"{FOLDER}/utils"\n'
            'a = f"{WHERE}.py:first"\nb = f"{FOLDER}/x.py:second of {layer}"\n'
            'def f(path):\n    return f"{path}/y.py:third", f"{FOLDER}/z.py:fourth"\n')
    assert list(code_citations("vllm", "x.py", text)) == [
        Citation("layers/quantization/utils.py", "first", "x.py:3"),
        Citation("layers/quantization/z.py", "fourth", "x.py:6")]


@pytest.mark.parametrize("citation, words", [
    (Citation("a.py", "f", ""), None), (Citation("deep/b.py", "K.x", ""), None),
    (Citation("c.so", None, ""), None), (Citation("a.py", None, ""), None),
    (Citation("a.py", "g", ""), "no such symbol in that file"),
    (Citation("c.so", "g", ""), "no such symbol in that file"),
    (Citation("deep", "K", ""), "no such file"), (Citation("b.py", "K", ""), "no such file"),
])
def test_a_citation_is_there_or_not(
    engine: EngineSource, citation: Citation, words: str | None
) -> None:
    assert problem(citation, engine) == words


def test_a_short_path_of_code_is_completed_where_one_file_has_it(engine: EngineSource) -> None:
    assert completed(Citation("b.py", "K", "x"), engine) == Citation("deep/b.py", "K", "x")
    assert completed(Citation("z.py", "K", "x"), engine) == Citation("z.py", "K", "x")


def test_each_place_counts_once_and_its_first_citer_is_named() -> None:
    assert distinct([Citation("a.py", "f", "one"), Citation("a.py", "f", "two")]) == [
        Citation("a.py", "f", "one")]


def test_every_source_of_every_engine_table_is_collected() -> None:
    for version in ("0.32.0", "0.33.0"):
        table = read_table(f"engines/vllm/{version}")
        texts = {text for _, text in sources(table)}
        assert table["methods_source"] in texts
        assert {row["source"] for row in table["config_classes"]} <= texts


# A table against its engine, and against the next one.

TABLE: dict[str, Any] = {
    "rows": [{"id": "a", "source": "a.py:f"}, {"id": "b", "source": "a.py:g"},
             {"id": "c", "source": "deep/b.py:K.x"}, {"id": "d", "source": "deep/b.py"}],
}


@pytest.fixture
def tabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let TABLE be the only table."""
    monkeypatch.setattr(engine_check, "read_table", lambda name: TABLE)
    monkeypatch.setattr(engine_check, "table_names", lambda: ["engines/vllm/1.0"])
    monkeypatch.setattr(engine_check, "default_version", lambda engine: "1.0")


def test_a_wrong_citation_names_who_cites_it(
    tabled: None, engine: EngineSource, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "rule.py").write_text('"""b.py:K is right, b.py:Q is not."""\n')
    assert wrong_citations("vllm", "1.0", engine, str(code)) == [
        "a.py:g: no such symbol in that file; cited by rows[b].source",
        "deep/b.py:Q: no such symbol in that file; cited by code/rule.py:1"]


def test_only_the_default_version_answers_for_code(
    tabled: None, engine: EngineSource, tmp_path: Path
) -> None:
    (tmp_path / "rule.py").write_text('"""b.py:Q"""\n')
    assert len(wrong_citations("vllm", "2.0", engine, str(tmp_path))) == 1


@pytest.mark.parametrize("table, cites", [
    ("families/dense", "vllm"), ("families/sglang-mla", "sglang"), ("formats/formats", "vllm"),
])
def test_a_shared_table_cites_the_engine_that_it_is_named_after(table: str, cites: str) -> None:
    assert engine_of_table(table) == cites


@pytest.mark.parametrize("table, family, said", [
    ("families/dense", {}, []), ("families/sglang-mla", {"engine": "sglang"}, []),
    ("families/dense", {"engine": "sglang"}, ["a family of sglang in a table that cites vllm"]),
    ("families/sglang-mla", {}, ["a family of vllm in a table that cites sglang"]),
])
def test_families_of_one_engine_stand_in_its_files(
    table: str, family: dict[str, Any], said: list[str]
) -> None:
    assert [*engines_own_stand_apart(table, family)] == said


@pytest.mark.parametrize("files, states", [
    (FILES, ["unchanged", "unchanged", "unchanged"]),
    ({**FILES, "a.py": "# new\ndef f():\n    return 1\n"}, ["unchanged"] * 3),
    ({**FILES, "a.py": "def f():\n    return 2\n"}, ["changed", "unchanged", "unchanged"]),
    ({**FILES, "deep/b.py": "class K:\n    y = 1\n"}, ["unchanged", "gone", "changed"]),
    ({"a.py": FILES["a.py"], "other/b.py": FILES["deep/b.py"]}, ["unchanged", "moved", "moved"]),
    ({"z.py": "if True:\n    def f():\n        return 1\n"}, ["moved", "gone", "gone"]),
    ({"z.py": "from a import f\nf()\n"}, ["gone", "gone", "gone"]),
])
def test_what_became_of_each_place(
    tabled: None, engine: EngineSource, tmp_path: Path, files: dict[str, str], states: list[str]
) -> None:
    """a.py:g, which the old files do not have either, is not asked about."""
    new = open_source("vllm", package(tmp_path / "new", files, "2.0"))
    (tmp_path / "code").mkdir()
    found = bumps("vllm", "1.0", engine, new, str(tmp_path / "code"))
    assert [bump.citation.by for bump in found] == ["rows[a].source", "rows[c].source",
                                                    "rows[d].source"]
    assert [bump.state for bump in found] == states


def test_the_checklist(tabled: None, engine: EngineSource, tmp_path: Path) -> None:
    new = open_source("vllm", package(tmp_path / "new", {
        "a.py": "def f():\n    return 2\n", "other/b.py": FILES["deep/b.py"]}, "2.0"))
    (tmp_path / "code").mkdir()
    found = bumps("vllm", "1.0", engine, new, str(tmp_path / "code"))
    assert bump_text("vllm", "1.0", "2.0", found) == """\
vllm 1.0 -> 2.0: 3 cited places: 0 unchanged, 1 changed, 2 moved, 0 gone
changed  a.py:f  (cited by rows[a].source)
moved    deep/b.py:K.x -> other/b.py:K.x  (cited by rows[c].source)
moved    deep/b.py -> other/b.py  (cited by rows[d].source)
"""
    data = bump_data("vllm", "1.0", "2.0", found)["cited"]
    assert data[0]["old_hash"] == cited_hash(Citation("a.py", "f", ""), engine)
    assert data[0]["old_hash"] != data[0]["new_hash"]
    assert (data[1]["now"], data[1]["new_hash"]) == (["other/b.py:K.x"], None)
