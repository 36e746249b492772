"""Rotary tables of a model: what the engine keeps of each distinct rope on the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from quantplan.dispatch.structure import Structure
from quantplan.planner.parts import model_bits
from quantplan.tables.errors import NotKnownError
from quantplan.tables.load import read_table
from quantplan.tables.record import NamedTuple

Config = Mapping[str, Any]
FLOAT32_BYTES = 4
PARTIAL = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
"""Names of the rotated share of a head (vllm 0.32.0
transformers_utils/config.py:patch_rope_parameters)."""
FULL, SLIDING = "full_attention", "sliding_attention"
KINDS = (SLIDING, FULL, "chunked_attention", "linear_attention")
TRANSFORMERS = "model_executor/models/transformers/"
"""Classes that it serves compute cosines as they go."""


class RotaryTable(NamedTuple):
    """One table: positions, rotated features of a head, bytes of one element."""

    rows: int
    features: int
    element_bytes: int
    source: str

    @property
    def bytes(self) -> int:
        """Return what stays on the GPU: cosines and sines of every position."""
        return self.rows * self.features * self.element_bytes


def rotary_tables(
    config: Config, structure: Structure, dtype: str, flashinfer: bool = True,
    engine: str = "vllm",
) -> tuple[RotaryTable, ...]:
    """Return the tables of a model's language model, in the order in which it builds them.

    `config` is its part of config.json. Raises NotKnownError for a rope whose table no row
    describes, or whose positions the config does not say.
    """
    if TRANSFORMERS in structure.source or _row("without", structure) or config.get("alibi"):
        return ()
    found = tuple(_table(_Rope(kind, rope, config, structure), dtype, flashinfer, _rules(engine))
                  for kind, rope in _ropes(config, structure))
    return found * 2 if _row("indexers", structure) else found


@cache
def _rules(engine: str) -> Config:
    """Return how the engine builds tables, and what models say of theirs."""
    rules: Config = read_table("rotary/vllm")
    return rules if engine == "vllm" else {**rules, **read_table(f"rotary/{engine}")}


def _row(part: str, structure: Structure) -> Config | None:
    """Return the row of `part` that names the model's class."""
    rows: list[Config] = read_table("rotary/vllm")[part]
    return next((row for row in rows if structure.architecture in row["architectures"]), None)


def _typed(part: str, config: Config) -> Config | None:
    """Return the row of `part` that names the config's model_type."""
    rows: list[Config] = read_table("rotary/vllm")[part]
    return next((row for row in rows if config.get("model_type") in row["model_types"]), None)


def _ropes(config: Config, structure: Structure) -> Iterator[tuple[str, Config]]:
    """Yield the distinct ropes and the kind of layer that has each, where layers are told apart."""
    given = config.get("rope_parameters") or {}
    whole = {"rope_theta": config.get("rope_theta"),
             **({} if given else config.get("rope_scaling") or {}), **given}
    kinds = {kind: given[kind] for kind in KINDS if isinstance(given.get(kind), Mapping)}
    if not kinds and (_typed("sliding", config) or "rope_local_base_freq" in config):
        kinds = {SLIDING: {"rope_theta": config.get("rope_local_base_freq")}, FULL: whole}
    if not kinds and "swa_rope_theta" in config:
        kinds = {SLIDING: {"rope_theta": config["swa_rope_theta"]}, FULL: whole}
    there = set(structure.layer_types or kinds)
    seen: list[tuple[str, Config]] = []
    for kind, rope in kinds.items() if kinds else (("", whole),):
        if (not kind or kind in there) and all(rope != other for _, other in seen):
            seen.append((kind, rope))
            yield kind, rope


class _Rope(NamedTuple):
    """One rope of a model, and the kind of layer that has it."""

    kind: str
    given: Config
    config: Config
    structure: Structure


def _table(at: _Rope, dtype: str, flashinfer: bool, rules: Config) -> RotaryTable:
    rope, structure = at.given, at.structure
    name = str(rope.get("rope_type", rope.get("type", "default")))
    row = next((row for row in rules["types"] if name in row["types"]), None)
    if row is None:
        raise NotKnownError(f"the rotary table of rope_type {name}",
                            wanted="one of " + ", ".join(t for r in rules["types"]
                                                         for t in r["types"]))
    features = _features(at.kind, name, rope, at.config, structure)
    times = (rules["mrope"]["factor"] if rope.get("mrope_section")
             and not _row("mrope_once", structure) else 1)
    latent = "kv_lora_rank" in structure.sizes and row["rows"] == "original_by_factor"
    wide = "dtype" in row or _row("float32", structure) is not None or (
        latent and flashinfer and features in rules["latent_float32"]["head_sizes"])
    element = FLOAT32_BYTES if wide else model_bits(dtype) // 8
    return RotaryTable(_rows(row["rows"], rope, at.config) * times, features, element,
                       row["source"])


def _features(
    kind: str, name: str, rope: Config, config: Config, structure: Structure
) -> int:
    """Return the rotated features of a head (rotary_embedding/__init__.py:get_rope)."""
    own = config.get("qk_rope_head_dim", rope.get("rope_dim", config.get("rotary_dim")))
    if type(own) is int:
        return own
    field = read_table("rotary/vllm")["full_head_dim"]["field"]
    size = structure.sizes.get("head_dim", 0)
    if kind == FULL and type(config.get(field)) is int:
        size = config[field]
    if not size:
        raise NotKnownError("the rotary table: the rotated size of a head is not known")
    if name == "proportional":
        return int(size)
    share = _row("shares", structure)
    part = next((float(place[field]) for place in (rope, config) for field in PARTIAL
                 if place.get(field) is not None), 1 / share["of"] if share else 1.0)
    return int(size * part)


def _rows(rule: str, rope: Config, config: Config) -> int:
    longest = _positions(config)
    original = rope.get("original_max_position_embeddings",
                        config.get("original_max_position_embeddings", longest))
    factor = float(rope.get("factor", 1.0))
    found = {"max_position": longest, "max_position_by_factor": longest * factor,
             "original_by_factor": original * factor,
             "original_and_max_position": original + longest,
             "both_and_joined": 2 * (original + longest)}
    return int(found[rule])


def _positions(config: Config) -> int:
    known = _typed("positions", config)
    value = next((config[name] for name in ("max_position_embeddings", "seq_length", "n_positions")
                  if name in config), known["number"] if known else None)
    if type(value) is not int or value <= 0:
        raise NotKnownError("the rotary table: config.json has no max_position_embeddings",
                            hint="The model class' own default is not in the tables yet.")
    return value
