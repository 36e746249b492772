"""The bundled models' tables: the schema, and every law with a row that breaks it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from quantplan.tables import model_laws
from quantplan.tables.errors import TableError
from quantplan.tables.load import parse_table, table_names
from quantplan.tables.model_laws import LAWS, ModelEntry, model_entries
from quantplan.tables.model_rows import MODEL_DOCUMENT, MODEL_FILES
from quantplan.tables.schema import check


def row_of(model_id: str) -> dict[str, Any]:
    """Return a private copy of the row with id MODEL_ID."""
    found = [entry.row for entry in model_entries() if entry.row["id"] == model_id]
    return copy.deepcopy(dict(found[0]))


def changed(**fields: Any) -> list[ModelEntry]:
    """Return llama-3.1-8b alone, with top-level FIELDS replaced."""
    return [ModelEntry("llama-3", {**row_of("llama-3.1-8b"), **fields})]


def reconfigured(**fields: Any) -> list[ModelEntry]:
    """Return llama-3.1-8b alone, with config FIELDS replaced."""
    return changed(config={**row_of("llama-3.1-8b")["config"], **fields})


BROKEN: dict[Callable[..., Any], tuple[list[ModelEntry], str]] = {
    model_laws.law_name_is_kebab: (
        changed(aliases=["meta-llama/Llama-3.1-8B"]),
        "aliases: 'meta-llama/Llama-3.1-8B' is not kebab case"),
    model_laws.law_name_is_unique: (
        changed(aliases=["llama-3.1-8b"]),
        "aliases: 'llama-3.1-8b' already means llama-3.1-8b"),
    model_laws.law_hub_is_a_repository: (
        changed(hub="Llama-3.1-8B"), "hub: 'Llama-3.1-8B' is not owner/name"),
    model_laws.law_source_names_the_hub: (
        changed(source="hub Qwen/Qwen3-8B: config.json"),
        "source: 'hub Qwen/Qwen3-8B: config.json' is not of meta-llama/Meta-Llama-3.1-8B"),
    model_laws.law_architecture_has_a_family: (
        reconfigured(model_type="qwen2"), "model_type: qwen2 is not llama's"),
    model_laws.law_sizes_are_positive: (
        reconfigured(intermediate_size=0), "intermediate_size: 0 is not above zero"),
    model_laws.law_heads_divide: (
        reconfigured(num_key_value_heads=5), "num_key_value_heads: 5 does not divide 32"),
    model_laws.law_quantized_count_is_computed: (
        reconfigured(quantization_config={"quant_method": "fp8"}),
        "parameters_kind: published, though the repository is quantized"),
    model_laws.law_quantization_names_its_method: (
        reconfigured(quantization_config={"bits": 4}), "quantization_config: no quant_method"),
    model_laws.law_id_tells_the_size: (
        changed(parameters_count=70_553_706_496),
        "parameters_count: 8.82 of the id's 8 billion"),
}


def test_every_law_has_a_row_that_trips_it() -> None:
    assert set(BROKEN) == set(LAWS)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law_names_the_row_that_breaks_it(law: Callable[..., Any]) -> None:
    rows, problem = BROKEN[law]
    assert list(law(rows)) == [f"tables/models/llama-3.yaml: models[llama-3.1-8b]: {problem}"]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law_holds_for_the_tables(law: Callable[..., Any]) -> None:
    assert list(law(model_entries())) == []


@pytest.mark.parametrize(("entries", "problem"), [
    (reconfigured(architectures=["BambooForCausalLM"]),
     "architectures: no family row for BambooForCausalLM"),
    (reconfigured(hidden_act="gelu"), "hidden_act: gelu is not accepted by llama"),
])
def test_architecture_law_names_what_the_family_lacks(
    entries: list[ModelEntry], problem: str
) -> None:
    found = list(model_laws.law_architecture_has_a_family(entries))
    assert found == [f"tables/models/llama-3.yaml: models[llama-3.1-8b]: {problem}"]


def test_a_second_row_of_one_repository_is_refused() -> None:
    twice = [*changed(), *changed(id="other-8b")]
    assert list(model_laws.law_hub_is_a_repository(twice)) == [
        "tables/models/llama-3.yaml: models[other-8b]: hub: 'meta-llama/Meta-Llama-3.1-8B' is "
        "already the one of llama-3.1-8b"]


def test_an_unread_source_is_refused() -> None:
    assert list(model_laws.law_source_names_the_hub(changed(read_in=[]))) == [
        "tables/models/llama-3.yaml: models[llama-3.1-8b]: read_in: names no place"]


def test_an_id_without_a_size_has_none_to_tell() -> None:
    assert list(model_laws.law_id_tells_the_size(changed(id="llama-3.1"))) == []


def test_absent_head_dim_must_follow_from_hidden_size() -> None:
    assert list(model_laws.law_heads_divide(reconfigured(hidden_size=4100))) == [
        "tables/models/llama-3.yaml: models[llama-3.1-8b]: head_dim: absent, and 32 heads do not "
        "divide hidden_size"]


def test_every_file_is_listed() -> None:
    on_disk = [name for name in table_names() if name.startswith("models/")]
    assert sorted(f"models/{file}" for file in MODEL_FILES) == on_disk


@pytest.mark.parametrize(("field", "value", "message"), [
    ("vocab_size", "128256", "tables/models/x.yaml: models[llama-3.1-8b]: config: vocab_size: "
                             "wrong type; wanted int; found str '128256'"),
    ("rope_theta", 500000.0, "tables/models/x.yaml: models[llama-3.1-8b]: config: unknown key "
                             "'rope_theta'"),
    ("torch_dtype", "fp16", "tables/models/x.yaml: models[llama-3.1-8b]: config: torch_dtype: "
                            "unknown value; wanted one of bfloat16, float16, float32; found "
                            "'fp16'"),
])
def test_schema_names_the_row_and_the_field(field: str, value: Any, message: str) -> None:
    row = row_of("llama-3.1-8b")
    row["config"][field] = value
    with pytest.raises(TableError) as caught:
        check({"models": [row]}, MODEL_DOCUMENT, "tables/models/x.yaml")
    assert str(caught.value).startswith(message)


def test_model_tables_are_checked_against_the_schema() -> None:
    with pytest.raises(TableError, match=r"tables/models/x\.yaml: missing key 'models'"):
        parse_table("models/x", b"{}")
