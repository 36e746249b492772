"""The laws of an engine table: each is tripped by a bad table, alone; the real ones keep all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch import predicates
from quantplan.tables import load
from quantplan.tables.compiling import write_compiled
from quantplan.tables.lint import ENGINE_LAWS, PREDICATES, check_table, lint, requirements
from quantplan.tables.load import FOLDER, read_table, table_names
from quantplan.tables.requirement_rows import PREDICATE_FIELDS

VLLM = "engines/vllm/0.32.0"
Table = dict[str, Any]
MODES = (Path(FOLDER) / "modes" / "modes.yaml").read_bytes()


def row(rows: list[Table], name: str) -> Table:
    """Return the row called NAME."""
    return next(item for item in rows if item["id"] == name)


def marlin(table: Table) -> Table:
    return row(table["kernels"], "MarlinLinearKernel")


def twice(table: Table) -> None:
    table["libraries"].append({**table["libraries"][0]})


def unknown_in_family(table: Table) -> None:
    row(table["families"], "w8a16_fp8")["kernels"].append("NopeKernel")


def unknown_in_backend(table: Table) -> None:
    table["linear_backends"]["torch"].append("NopeKernel")


def unknown_base(table: Table) -> None:
    row(table["kernels"], "FlashInferFp8DeepGEMMDynamicBlockScaledKernel")["base"] = "NopeKernel"


def unused(table: Table) -> None:
    table["kernels"].append({**marlin(table), "id": "LonelyKernel"})


def no_predicate(table: Table) -> None:
    del marlin(table)["implement"][2]["in"]


def two_predicates(table: Table) -> None:
    marlin(table)["implement"][2]["min"] = 1


def unknown_fact(table: Table) -> None:
    marlin(table)["implement"][2]["fact"] = "quant.groupsize"


def unknown_fact_in_when(table: Table) -> None:
    marlin(table)["implement"][0]["when"] = {"quant.zeropoints": True}


def unknown_divided_fact(table: Table) -> None:
    marlin(table)["implement"][3]["divides"] = "layer.kk"


def unknown_attention_fact(table: Table) -> None:
    row(table["attention"]["backends"], "TRITON_ATTN")["refuses"][0]["fact"] = "kv.size"


def unknown_placeholder(table: Table) -> None:
    marlin(table)["implement"][2]["says"] = "Group size ({quant.groupsize})"


def unknown_plain_placeholder(table: Table) -> None:
    marlin(table)["implement"][2]["plain"] = "groups of {quant.groupsize}"


def unknown_class(table: Table) -> None:
    row(table["methods"], "fp8")["config_class"] = "NopeConfig"


def source_in_words(table: Table) -> None:
    row(table["families"], "fp8_w8a8")["source"] = "somewhere in the engine"


def source_without_folder(table: Table) -> None:
    row(table["libraries"], "conch")["source"] = "conch:Kernel"


def unknown_answer(table: Table) -> None:
    table["overrides"][1]["answer"] = "nope"


def no_answer(table: Table) -> None:
    del table["overrides"][1]["answer"]


def unknown_deprecated(table: Table) -> None:
    table["deprecated_methods"].append("nope")


def unknown_backend(table: Table) -> None:
    table["attention"]["order"][1]["backends"].append("NOPE_ATTN")


def unknown_fact_in_order(table: Table) -> None:
    table["attention"]["order"][0]["when"] = {"gpu.famly": 100}


def order_without_an_end(table: Table) -> None:
    table["attention"]["order"][-1]["when"] = {"gpu.family": 100}


def module_without_a_list(table: Table) -> None:
    row(table["attention"]["modules"], "MLAAttention")["list"] = "latent"


def unknown_aspect(table: Table) -> None:
    row(table["attention"]["backends"], "FLASHMLA")["supports"].append("spares")


def words_of_no_aspect(table: Table) -> None:
    row(table["attention"]["backends"], "FLASHMLA")["requires"][0]["says"] = "head not supported"


def unknown_word(table: Table) -> None:
    row(table["families"], "w8a16_fp8")["texts"]["reason"] = "{kernl} {reason}."


def unknown_fact_in_mode(table: Table) -> None:
    marlin(table)["mode"] = "W{quant.bitz}A16"


def mode_without_words(table: Table) -> None:
    marlin(table)["mode"] = "W9A9"


def covers_what_has_no_row(table: Table) -> None:
    table["covers"] = {
        "architectures": ["LlamaForCausalLM"], "model_types": ["llama"],
        "config_classes": ["NopeConfig"], "kv_cache_dtypes": ["auto"], "kernels_not": [],
        "options_not": [], "findings": [], "base_rows": ["attention.prefill"]}


def base_rows_of_no_part(table: Table) -> None:
    covers_what_has_no_row(table)
    table["covers"] |= {"config_classes": [], "base_rows": ["attention.nope"]}


BAD: list[tuple[str, Callable[[Table], None], str]] = [
    ("ids_are_unique", twice, "libraries: id flashinfer twice"),
    ("kernels_are_known", unknown_in_family, "families[w8a16_fp8]: no kernel row NopeKernel"),
    ("kernels_are_known", unknown_in_backend, "linear_backends[torch]: no kernel row NopeKernel"),
    ("kernels_are_known", unknown_base, "kernels[FlashInferFp8DeepGEMMDynamicBlockScaledKernel]: "
                                        "no kernel row NopeKernel"),
    ("kernels_are_used", unused, "kernels[LonelyKernel]: in no family"),
    ("one_predicate_each", no_predicate,
     "kernels[MarlinLinearKernel].implement[2]: 0 predicates; wanted 1"),
    ("one_predicate_each", two_predicates,
     "kernels[MarlinLinearKernel].implement[2]: 2 predicates; wanted 1"),
    ("facts_are_known", unknown_fact,
     "kernels[MarlinLinearKernel].implement[2]: unknown fact quant.groupsize"),
    ("facts_are_known", unknown_fact_in_when,
     "kernels[MarlinLinearKernel].implement[0]: unknown fact quant.zeropoints"),
    ("facts_are_known", unknown_divided_fact,
     "kernels[MarlinLinearKernel].implement[3]: unknown fact layer.kk"),
    ("facts_are_known", unknown_attention_fact,
     "attention[TRITON_ATTN].refuses[0]: unknown fact kv.size"),
    ("placeholders_are_facts", unknown_placeholder,
     "kernels[MarlinLinearKernel].implement[2]: says: unknown placeholder {quant.groupsize}"),
    ("placeholders_are_facts", unknown_plain_placeholder,
     "kernels[MarlinLinearKernel].implement[2]: plain: unknown placeholder {quant.groupsize}"),
    ("methods_have_classes", unknown_class, "methods[fp8]: no config class NopeConfig"),
    ("sources_name_files", source_in_words,
     "families[fp8_w8a8].source: source 'somewhere in the engine' is no file:symbol"),
    ("sources_name_files", source_without_folder,
     "libraries[conch].source: source 'conch:Kernel' is no file:symbol"),
    ("names_are_methods", unknown_answer, "overrides[humming]: answer nope is no method"),
    ("names_are_methods", no_answer,
     "overrides[humming]: wanted either an answer or what it raises"),
    ("names_are_methods", unknown_deprecated, "deprecated_methods: nope is no method"),
    ("attention_orders_end", unknown_backend, "attention.order: no backend row NOPE_ATTN"),
    ("conditions_are_facts", unknown_fact_in_order,
     "attention: a when: unknown fact gpu.famly"),
    ("attention_orders_end", order_without_an_end,
     "attention.order: the last order of minimax_m3 has a condition; wanted one that always "
     "applies"),
    ("attention_names_are_known", module_without_a_list,
     "attention.modules[MLAAttention]: neither a list with an order nor a backend"),
    ("attention_names_are_known", unknown_aspect,
     "attention.backends[FLASHMLA]: no aspect spares"),
    ("attention_words_have_places", words_of_no_aspect,
     "attention.backends[FLASHMLA]: 'head not supported' is no aspect's words"),
    ("family_texts_fill", unknown_word, "families[w8a16_fp8].texts.reason: unknown word {kernl}"),
    ("modes_have_words", unknown_fact_in_mode,
     "kernels[MarlinLinearKernel]: mode: unknown fact quant.bitz"),
    ("modes_have_words", mode_without_words,
     "kernels[MarlinLinearKernel]: mode W9A9 has no row in tables/modes"),
    ("coverage_is_known", covers_what_has_no_row,
     "covers.config_classes: no NopeConfig in the table"),
    ("coverage_is_known", base_rows_of_no_part, "covers.base_rows: no attention.nope in the table"),
]


def broken(breaker: Callable[[Table], None]) -> Table:
    """Return the real vLLM table with one thing broken."""
    table: Table = deepcopy(read_table(VLLM))
    breaker(table)
    return table


@pytest.mark.parametrize("law, breaker, line", BAD, ids=[b.__name__ for _, b, _ in BAD])
def test_a_bad_table_trips_one_law(law: str, breaker: Callable[[Table], None], line: str) -> None:
    table = broken(breaker)
    found = {each.__name__: list(each(table)) for each in ENGINE_LAWS}
    if law == "kernels_are_known" and breaker is unknown_base:
        # The part that is no longer named is then in no family.
        assert found.pop("kernels_are_used") == [
            "kernels[FlashInferFp8BlockScaledMMKernel]: in no family"]
    assert {name: lines for name, lines in found.items() if lines} == {law: [line]}


def test_every_law_has_a_bad_table() -> None:
    assert {law for law, _, _ in BAD} == {law.__name__ for law in ENGINE_LAWS}


def test_every_law_says_what_it_wants() -> None:
    assert all(law.__doc__ and law.__doc__.endswith(".") for law in ENGINE_LAWS)


def test_the_real_tables_keep_every_law() -> None:
    assert lint() == []


def test_the_vocabulary_is_one() -> None:
    """Predicates of the schema, of the law and of the code are the same, in the same order."""
    assert tuple(PREDICATE_FIELDS) == PREDICATES == tuple(predicates.PREDICATES)


# One table's check, in a folder of its own.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "modes").mkdir()
    (tmp_path / "modes" / "modes.yaml").write_bytes(MODES)
    monkeypatch.setattr(load, "FOLDER", str(tmp_path))
    write_compiled()
    return tmp_path


STALE = "tables/modes/modes.yaml: compiled form is stale; run `quantplan tables compile`"


def test_a_lawful_table_has_no_violation(folder: Path) -> None:
    assert check_table("modes/modes") == []


def test_an_edited_table_is_stale_until_compiled(folder: Path) -> None:
    (folder / "modes" / "modes.yaml").write_bytes(MODES + b"# edited\n")
    assert check_table("modes/modes") == [STALE]
    write_compiled()
    assert check_table("modes/modes") == []


def test_a_compiled_form_that_says_something_else_is_found(folder: Path) -> None:
    """Its CRC-32 is right: only comparing the content finds it."""
    path = folder / "compiled" / "modes__modes.json"
    content = json.loads(path.read_text())
    content["table"]["modes"][0]["effect"] = "something else"
    path.write_text(json.dumps(content))
    assert check_table("modes/modes") == [STALE]


def test_a_missing_compiled_form_is_found(folder: Path) -> None:
    (folder / "compiled" / "modes__modes.json").unlink()
    assert check_table("modes/modes") == [STALE]


def test_a_table_against_its_schema_is_one_violation(folder: Path) -> None:
    (folder / "modes" / "modes.yaml").write_bytes(b"modes: [{id: x}]\n")
    assert check_table("modes/modes") == [
        "tables/modes/modes.yaml: modes[x]: missing key 'short'; "
        "wanted the mode as the text output has it"]


# What the tables say of themselves.


def test_every_requirement_says_the_engine_s_words() -> None:
    """Without `says` a rejected kernel's reason would be our sentence in the engine's mouth. What
    an order needs is no reason: another order applies."""
    silent = [where for name in table_names() if name.startswith("engines/vllm/")
              for where, row in requirements(read_table(name))
              if "says" not in row and where != "attention.needs"]
    assert silent == []


def test_sources_are_relative_to_the_engine_s_package() -> None:
    for name in table_names():
        if name.startswith("engines/"):
            files = re.findall(r'"(?:source|file)": "([^":]+)', json.dumps(read_table(name)))
            assert [file for file in files if file.startswith(("/", "vllm/", "."))] == []
