"""The lint laws of the bundled models: each yields a sentence for every row that breaks it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantplan.tables.family_loading import families_by_architecture
from quantplan.tables.load import read_table
from quantplan.tables.model_rows import MODEL_FILES
from quantplan.tables.name_laws import not_kebab, used_twice
from quantplan.tables.record import NamedTuple

POSITIVE_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                  "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings")

LEAST_SIZE_RATIO, MOST_SIZE_RATIO = 0.9, 1.25
"""How far parameters_count may lie from the billions in the id: Llama-3.2-1B has 1.24."""


class ModelEntry(NamedTuple):
    """One model row with the file it stands in."""

    file: str
    row: Mapping[str, Any]

    def breaks(self, field: str, problem: str) -> str:
        """Return the sentence that names file, row, field and problem."""
        return f"tables/models/{self.file}.yaml: models[{self.row['id']}]: {field}: {problem}"


ModelEntries = Sequence[ModelEntry]


def model_entries() -> tuple[ModelEntry, ...]:
    """Return every row of every model table; raise TableError when a table breaks its schema."""
    return tuple(ModelEntry(file, row)
                 for file in MODEL_FILES
                 for row in read_table(f"models/{file}")["models"])


def law_name_is_kebab(rows: ModelEntries) -> Iterator[str]:
    """Ids and aliases are lower case, joined by hyphens and dots, without a slash."""
    yield from not_kebab(rows, ".-", "aliases")


def law_name_is_unique(rows: ModelEntries) -> Iterator[str]:
    """No name stands twice, in one row or in two."""
    yield from used_twice(rows)


def law_hub_is_a_repository(rows: ModelEntries) -> Iterator[str]:
    """A hub repository is owner/name, and stands once."""
    owners: dict[str, str] = {}
    for entry in rows:
        hub = entry.row["hub"]
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", hub):
            yield entry.breaks("hub", f"{hub!r} is not owner/name")
        if hub in owners:
            yield entry.breaks("hub", f"{hub!r} is already the one of {owners[hub]}")
        owners[hub] = entry.row["id"]


def law_source_names_the_hub(rows: ModelEntries) -> Iterator[str]:
    """The source is a file of the row's own hub repository, and was read somewhere."""
    for entry in rows:
        if not entry.row["source"].startswith(f"hub {entry.row['hub']}: "):
            yield entry.breaks("source", f"{entry.row['source']!r} is not of {entry.row['hub']}")
        if not entry.row["read_in"]:
            yield entry.breaks("read_in", "names no place")


def law_architecture_has_a_family(rows: ModelEntries) -> Iterator[str]:
    """Every architecture has a family row, which has the model type and accepts the activation."""
    families = families_by_architecture()
    for entry in rows:
        config = entry.row["config"]
        for architecture in config["architectures"]:
            if architecture not in families:
                yield entry.breaks("architectures", f"no family row for {architecture}")
                continue
            family = families[architecture]
            if config["model_type"] not in family["model_types"]:
                yield entry.breaks("model_type", f"{config['model_type']} is not "
                                   f"{family['id']}'s")
            activation = config.get("hidden_act")
            if activation and activation not in family.get("hidden_act", (activation,)):
                yield entry.breaks("hidden_act", f"{activation} is not accepted by "
                                   f"{family['id']}")


def law_sizes_are_positive(rows: ModelEntries) -> Iterator[str]:
    """Every size is above zero."""
    for entry in rows:
        for name in POSITIVE_SIZES:
            value = entry.row["config"].get(name)
            if value is not None and value <= 0:
                yield entry.breaks(name, f"{value} is not above zero")


def law_heads_divide(rows: ModelEntries) -> Iterator[str]:
    """Query heads are a multiple of key heads, and divide hidden_size where head_dim is absent."""
    for entry in rows:
        config = entry.row["config"]
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads", heads)
        if kv_heads > 0 and heads % kv_heads:
            yield entry.breaks("num_key_value_heads", f"{kv_heads} does not divide {heads}")
        if heads > 0 and "head_dim" not in config and config["hidden_size"] % heads:
            yield entry.breaks("head_dim", f"absent, and {heads} heads do not divide hidden_size")


def law_quantized_count_is_computed(rows: ModelEntries) -> Iterator[str]:
    """The count of a quantized repository is computed: its published one is of packed tensors."""
    for entry in rows:
        quantized = "quantization_config" in entry.row["config"]
        if quantized and entry.row["parameters_kind"] != "computed":
            yield entry.breaks("parameters_kind", f"{entry.row['parameters_kind']}, though the "
                               "repository is quantized")


def law_quantization_names_its_method(rows: ModelEntries) -> Iterator[str]:
    """A quantization_config says quant_method, by which engines choose."""
    for entry in rows:
        quantization = entry.row["config"].get("quantization_config")
        if quantization is not None and not quantization.get("quant_method"):
            yield entry.breaks("quantization_config", "no quant_method")


def law_id_tells_the_size(rows: ModelEntries) -> Iterator[str]:
    """Billions that the id names are those of parameters_count, to the rounding of names."""
    for entry in rows:
        named = re.search(r"-(\d+(?:\.\d+)?)b(?:-|$)", entry.row["id"])
        if named is None:
            continue
        ratio = entry.row["parameters_count"] / (float(named[1]) * 1e9)
        if not LEAST_SIZE_RATIO <= ratio <= MOST_SIZE_RATIO:
            yield entry.breaks("parameters_count", f"{ratio:.2f} of the id's {named[1]} billion")


LAWS = (
    law_name_is_kebab,
    law_name_is_unique,
    law_hub_is_a_repository,
    law_source_names_the_hub,
    law_architecture_has_a_family,
    law_sizes_are_positive,
    law_heads_divide,
    law_quantized_count_is_computed,
    law_quantization_names_its_method,
    law_id_tells_the_size,
)
