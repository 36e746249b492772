"""Loading tables: what the strict loader refuses and names, and when compiled forms count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.tables import family_index as family_index_module
from quantplan.tables import load
from quantplan.tables.compiling import compile_table, write_compiled
from quantplan.tables.engine_loading import KEYED, load_engine, whole_rows
from quantplan.tables.engine_rows import ENGINE_DOCUMENT
from quantplan.tables.errors import TableError
from quantplan.tables.family_index import NAME, family_index, index_crc32, made_index
from quantplan.tables.load import (
    FOLDER,
    compiled_path,
    parse_table,
    read_sources,
    read_table,
    sources_crc32,
    table_names,
)
from quantplan.tables.strict_yaml import load_strict

VLLM = "engines/vllm/0.32.0"
HEAD, *PARTS = read_sources(VLLM)
MODES = (Path(FOLDER) / "modes" / "modes.yaml").read_bytes()
FAMILY = (Path(FOLDER) / "families" / "uneven.yaml").read_bytes()


def refusal(old: str, new: str) -> str:
    """Return what the loader says of the vLLM table with OLD, which one file holds, made NEW."""
    files = [HEAD, *PARTS]
    at = next(i for i, file in enumerate(files) if old.encode() in file)
    files[at] = files[at].replace(old.encode(), new.encode(), 1)
    with pytest.raises(TableError) as raised:
        parse_table(VLLM, *files)
    return str(raised.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tables folder of its own that holds the modes and their compiled form."""
    (tmp_path / "modes").mkdir()
    (tmp_path / "modes" / "modes.yaml").write_bytes(MODES)
    monkeypatch.setattr(load, "FOLDER", str(tmp_path))
    write_compiled()
    return tmp_path


def reread(name: str = "modes/modes") -> Any:
    """Return a table without the cache."""
    return read_table.__wrapped__(name)


def compiled(folder: Path) -> Path:
    return folder / "compiled" / "modes__modes.json"


def mark_compiled(folder: Path, **changes: Any) -> None:
    """Change the compiled form, which keeps the rest of its fields."""
    content = json.loads(compiled(folder).read_text())
    compiled(folder).write_text(json.dumps({**content, **changes}))


# What the strict loader refuses.


def test_an_unquoted_version() -> None:
    assert refusal('version: "0.32.0"', "version: 0.30") == (
        "tables/engines/vllm/0.32.0.yaml: version: wrong type; wanted text; found float 0.3. "
        "Put versions and names in quotes: unquoted 0.30 loads as 0.3.")


def test_an_unknown_key_of_a_row() -> None:
    line = refusal("{id: awq, config_class: AutoAWQConfig}",
                   "{id: awq, config_class: AutoAWQConfig, min: 75}")
    assert line == ("tables/engines/vllm/0.32.0.yaml: methods[awq]: unknown key 'min'; "
                    "wanted one of id, config_class")


def test_a_missing_key_of_a_row() -> None:
    line = refusal("{id: awq, config_class: AutoAWQConfig}", "{id: awq}")
    assert line == ("tables/engines/vllm/0.32.0.yaml: methods[awq]: missing key 'config_class'; "
                    "wanted the config class that serves it")


def test_a_wrong_type_deep_in_a_row() -> None:
    line = refusal("- {fact: gpu.capability, min: 100,", '- {fact: gpu.capability, min: "100",')
    assert line == ("tables/engines/vllm/0.32.0.yaml: kernels[FlashInferFP8ScaledMMLinearKernel]: "
                    "supported[1]: min: wrong type; wanted number; found str '100'")


def test_a_value_that_is_no_choice() -> None:
    line = refusal("resolves: awq", "resolves: AWQ")
    choices = ENGINE_DOCUMENT["config_classes"].of["resolves"].choices  # type: ignore[index,union-attr]
    assert line == ("tables/engines/vllm/0.32.0.yaml: config_classes[AutoAWQConfig]: resolves: "
                    f"unknown value; wanted one of {', '.join(choices)}; found 'AWQ'")


def test_a_missing_list() -> None:
    line = refusal("machine_code: [75, 80, 86, 87, 89, 90, 100, 103, 120, 121]\n", "")
    assert line == ("tables/engines/vllm/0.32.0.yaml: missing key 'machine_code'; wanted "
                    f"{ENGINE_DOCUMENT['machine_code'].doc}")


def test_a_duplicate_key_names_file_line_and_key() -> None:
    """PyYAML keeps the last one silently."""
    line_number = HEAD[: HEAD.index(b"\nreleased:")].count(b"\n") + 2
    line = refusal("released:", "engine: sglang\nreleased:")
    assert line == (f"tables/engines/vllm/0.32.0.yaml:{line_number}: duplicate key 'engine'; "
                    "wanted each key once")


def test_a_duplicate_key_inside_a_row() -> None:
    line = refusal("{id: awq, config_class", "{id: awq, id: awq, config_class")
    assert line.endswith("duplicate key 'id'; wanted each key once")


@pytest.mark.parametrize("source, found", [
    (b"modes: [", "2: not YAML; found did not find expected node content"),
    (b"modes: 1\n---\nmodes: 2\n", "2: not YAML; found but found another document"),
    (b"a: !!python/object:os.system x\n", "1: not YAML; found could not determine a "
     "constructor for the tag 'tag:yaml.org,2002:python/object:os.system'"),
])
def test_what_is_not_plain_yaml(source: bytes, found: str) -> None:
    with pytest.raises(TableError) as raised:
        parse_table("modes/modes", source)
    assert str(raised.value) == f"tables/modes/modes.yaml:{found}"


@pytest.mark.parametrize("source", [
    b"a: &x [1]\nb: *x\n",
    b"a: &x {c: 1}\nb: {<<: *x, d: 2}\n",
    b"released: 2026-10-17\n",
    b"rms_norm_eps: 1e-06\n",
], ids=["anchor", "merge key", "date", "number read as text"])
def test_yaml_with_surprises_is_refused(source: bytes) -> None:
    """_StrictLoader: "refuses duplicate keys, dates, anchors and merge keys"."""
    with pytest.raises(TableError, match=r"^tables/x\.yaml:"):
        load_strict(source, "tables/x.yaml")


@pytest.mark.parametrize("source", [b"a: \xff\n", b"? [a]\n: b\n", b"? {a: 1}\n: b\n"],
                         ids=["not UTF-8", "list as a key", "map as a key"])
def test_a_broken_file_is_a_table_error(source: bytes) -> None:
    with pytest.raises(TableError, match=r"^tables/x\.yaml"):
        load_strict(source, "tables/x.yaml")


@pytest.mark.parametrize("source, found", [
    (b"", "NoneType None"), (b"- 1\n", "list [1]"), (b"text\n", "str 'text'")])
def test_a_document_that_is_no_mapping(source: bytes, found: str) -> None:
    with pytest.raises(TableError) as raised:
        parse_table("modes/modes", source)
    assert str(raised.value) == (
        f"tables/modes/modes.yaml: not a mapping; wanted a mapping; found {found}")


def test_a_table_that_does_not_exist(folder: Path) -> None:
    with pytest.raises(TableError) as raised:
        reread("modes/none")
    assert str(raised.value) == ("table modes/none.yaml cannot be read; "
                                 "found No such file or directory")


# Compiled forms.


@pytest.mark.parametrize("name", table_names())
def test_the_compiled_form_is_the_yaml(name: str) -> None:
    content = json.loads(Path(compiled_path(name)).read_text(encoding="utf-8"))
    assert content == {"crc32": sources_crc32(name),
                       "table": parse_table(name, *read_sources(name))}


@pytest.mark.parametrize("name", table_names())
def test_json_holds_all_of_a_table(name: str) -> None:
    """A table is JSON-ready: what is read from the compiled form equals what YAML gives."""
    assert json.loads(compile_table(name))["table"] == parse_table(name, *read_sources(name))


def test_no_compiled_form_without_a_table() -> None:
    found = {path.name for path in (Path(FOLDER) / "compiled").iterdir()}
    assert found == {Path(compiled_path(name)).name for name in (*table_names(), NAME)}


def test_the_index_of_families_is_what_the_tables_hold() -> None:
    content = json.loads(Path(compiled_path(NAME)).read_text(encoding="utf-8"))
    assert content == {"crc32": index_crc32(), "table": made_index()}
    index = family_index()
    assert index["architectures"]["LlamaForCausalLM"] == "families/dense"
    assert index["model_types"]["llama"] == "LlamaForCausalLM"


def test_a_stale_index_of_families_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder has no families and an index of none; then it gets one."""
    (folder / "families").mkdir()
    (folder / "families" / "one.yaml").write_bytes(FAMILY)
    monkeypatch.setattr(family_index_module, "read_table", read_table.__wrapped__)
    found = family_index.__wrapped__()
    assert set(found["architectures"].values()) == {"families/one"}


def test_a_fresh_compiled_form_is_read(folder: Path) -> None:
    mark_compiled(folder, table={"modes": []})
    assert reread() == {"modes": []}


def test_a_stale_compiled_form_is_ignored(folder: Path) -> None:
    edited = MODES.replace(b"not quantized", b"as it is")
    (folder / "modes" / "modes.yaml").write_bytes(edited)
    assert reread()["modes"][0]["effect"] == "as it is"


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"crc32": 1, "table": {}}'])
def test_a_compiled_form_that_is_none_is_ignored(folder: Path, content: str) -> None:
    compiled(folder).write_text(content)
    assert reread() == parse_table("modes/modes", MODES)


def test_without_a_compiled_form_the_yaml_is_read(folder: Path) -> None:
    compiled(folder).unlink()
    assert reread() == parse_table("modes/modes", MODES)


def test_a_bad_table_is_not_hidden_by_a_stale_compiled_form(folder: Path) -> None:
    (folder / "modes" / "modes.yaml").write_bytes(MODES + b"more: 1\n")
    with pytest.raises(TableError, match="unknown key 'more'"):
        reread()


def test_compiling_drops_forms_without_a_table_and_leaves_no_other_file(folder: Path) -> None:
    (folder / "compiled" / "gone.json").write_text("{}")
    assert write_compiled() == ["modes/modes"]
    assert {path.name for path in (folder / "compiled").iterdir()} == {
        "modes__modes.json", f"{NAME}.json"}


def test_compiling_a_bad_table_writes_nothing_for_it(folder: Path) -> None:
    before = compiled(folder).read_bytes()
    (folder / "modes" / "modes.yaml").write_bytes(b"modes: 1\n")
    with pytest.raises(TableError):
        write_compiled()
    assert compiled(folder).read_bytes() == before


def test_an_engine_table_is_keyed_by_id_in_the_table_s_order() -> None:
    raw, keyed = read_table(VLLM), load_engine("vllm", "0.32.0")
    for name in KEYED["vllm"]:
        assert list(keyed[name].items()) == [
            (row["id"], row) for row in whole_rows(raw[name])]
    for name in ("modules", "backends"):
        assert list(keyed["attention"][name]) == [row["id"] for row in raw["attention"][name]]
    rest = [name for name in raw if name not in (*KEYED["vllm"], "attention")]
    assert {name: keyed[name] for name in rest} == {name: raw[name] for name in rest}


def test_a_backend_that_extends_another_has_its_rows() -> None:
    backends = load_engine("vllm", "0.32.0")["attention"]["backends"]
    flash, diffkv = backends["FLASH_ATTN"], backends["FLASH_ATTN_DIFFKV"]
    assert diffkv["requires"] is flash["requires"]
    assert (diffkv["id"], diffkv["symbol"]) == ("FLASH_ATTN_DIFFKV", "FlashAttentionDiffKVBackend")
