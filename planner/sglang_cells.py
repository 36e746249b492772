"""What one token takes in SGLang's pools, per rank: latents, heads, windows, indexers, states
(model_executor/pool_configurator.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.predicates import applies
from quantplan.dispatch.structure import TEXT, Module, Structure
from quantplan.planner.lines import EXACT, BudgetLine, total_bytes
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Rules = Mapping[str, Any]
Facts = Mapping[str, Any]
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
              "float4_e2m1fn_x2": 1}
"""Bytes of one element, two values for FP4 (torch._utils._element_size)."""
FP4 = "float4_e2m1fn_x2"


class Cells(NamedTuple):
    """Bytes of one token per rank, one line per kind of layer: in every layer that keeps all
    tokens, and in those of the window pool, whose tokens are fewer; `state` is one slot of a hybrid
    model's state pool (None: it has none)."""

    full: tuple[BudgetLine, ...]
    window: tuple[BudgetLine, ...] = ()
    window_tokens: int | None = None
    state: BudgetLine | None = None

    @property
    def full_bytes(self) -> int:
        """Return the bytes of one token in the layers that keep all."""
        return total_bytes(self.full)

    @property
    def window_bytes(self) -> int:
        """Return the bytes of one token in the window pool."""
        return total_bytes(self.window)


class Attended(NamedTuple):
    """What the cells are made of: the cache's dtype and what --kv-cache-dtype became, ranks
    of an attention group, and the layers of the largest pipeline stage where there are several."""

    rules: Rules
    facts: Facts
    config: Mapping[str, Any]
    kv_dtype: str
    kv_asked: str
    tp: int
    stage_layers: int | None = None


def cells(structure: Structure, at: Attended) -> Cells:
    """Return what one token takes. Raises NotKnownError for pools that are not in the table."""
    _check_known(structure, at)
    modules = [module for module in structure.modules
               if module.kind == "attention" and module.stack == TEXT and "heads" in module.facts]
    state = _state(structure, at)
    if at.facts["model.mla"]:
        return Cells(tuple(_latent(structure, modules, at, state)), state=state)
    if at.facts["model.window_pool"]:
        return _windowed(modules, at)
    layers = len({i for module in modules for i in module.layers}) if state else (
        at.stage_layers or structure.num_layers)
    return Cells((_heads("KV cache", modules, layers, at),), state=state)


def _check_known(structure: Structure, at: Attended) -> None:
    for row in at.rules["not_known"]:
        if structure.architecture in row["architectures"]:
            raise NotKnownError(f"SGLang's budget: {row['what']} ({structure.architecture})",
                                hint="`quantplan explain` answers for its kernels.")
    staged = at.stage_layers is not None and (
        at.facts["model.window_pool"] or at.facts["model.dsa"] or _state_row(structure, at))
    if staged:
        raise NotKnownError(f"SGLang's pools of a pipeline stage of {structure.architecture}",
                            hint="Drop --pp: how its kinds of layers fall on stages is not read.")
    if at.kv_dtype == FP4 and not at.facts["model.mla"]:
        raise NotKnownError(f"SGLang's bytes per token of --kv-cache-dtype {at.kv_asked}",
                            hint="Its scales and workspace depend on the attention backend.")


def _heads(name: str, modules: list[Module], layers: int, at: Attended) -> BudgetLine:
    """Return the line of layers with keys and values per head; all have the same heads."""
    sizes = {(m.facts["kv_heads"], m.facts["head_dim"],
              m.facts.get("v_head_dim", m.facts["head_dim"])) for m in modules}
    if len(sizes) != 1:
        raise NotKnownError("SGLang's KV cache of layers with heads of several sizes",
                            found=", ".join(map(str, sorted(sizes))))
    kv_heads, dim, v_dim = next(iter(sizes))
    heads, item = max(1, kv_heads // at.tp), ITEM_BYTES[at.kv_dtype]
    values = heads * (dim + v_dim) * layers
    block = at.rules["cells"]["mxfp8_block"]
    scales = values // block if at.kv_asked == "mxfp8" else 0
    formula = (f"{layers} layers x {heads} KV heads x ({dim} + {v_dim}) x {item} bytes "
               f"({at.kv_dtype})" + (f" + a scale per {block}" if scales else ""))
    return BudgetLine(name, values * item + scales, formula, at.rules["cells_source"], EXACT)


def _windowed(modules: list[Module], at: Attended) -> Cells:
    """Return the cells of a model with a pool of its own for windows."""
    if at.facts["model.chunk_windows"]:
        every = [i for module in modules for i in module.layers]
        split = [(modules, [i for i in every if (i + 1) % 4]),
                 (modules, [i for i in every if (i + 1) % 4 == 0])]
        window = at.config.get("attention_chunk_size")
    else:
        windows = [m for m in modules if m.facts.get("window") is not None]
        wholes = [m for m in modules if m.facts.get("window") is None]
        split = [(part, [i for m in part for i in m.layers]) for part in (windows, wholes)]
        window = max((m.facts["window"] for m in windows), default=0) - (
            1 if at.facts["model.exclusive_window"] else 0)
    (own, sliding), (rest, full) = split
    if not sliding or not full:
        raise NotKnownError("SGLang's window pool of a model whose layers are all alike")
    return Cells((_heads("full attention", rest, len(full), at),),
                 (_heads("sliding windows", own, len(sliding), at),), window)


def _latent(
    structure: Structure, modules: list[Module], at: Attended, state: BudgetLine | None
) -> Iterator[BudgetLine]:
    """Yield the lines of latent attention, and of its indexer."""
    rank, rope = modules[0].facts["kv_lora_rank"], modules[0].facts["qk_rope_head_dim"]
    layers = len({i for m in modules for i in m.layers}) if state else (
        at.stage_layers or structure.num_layers)
    row, item = at.rules["cells"], ITEM_BYTES[at.kv_dtype]
    dim, words = rank + rope, f"({rank} + {rope})"
    sparse = bool(at.facts["model.dsa"])
    if sparse and at.kv_dtype == "float8_e4m3fn" and not _is_raw(at):
        scales = rank // row["index_block"] * row["index_scale_bytes"]
        dim, words = rank + scales + rope * row["rope_bytes"], (
            f"({rank} + {scales} of scales + {rope} x {row['rope_bytes']})")
    size = dim * layers * item
    if at.kv_dtype == FP4:
        size, words = size // 2 + dim // row["scale_block"] * layers, f"{words} / 2 and scales"
    yield BudgetLine("latent KV cache", size, f"{layers} layers x {words} x {item} bytes "
                     f"({at.kv_dtype})", at.rules["latent_layout_source"], EXACT)
    if sparse:
        yield _indexer(structure, at)


def _is_raw(at: Attended) -> bool:
    return any(applies(line, at.facts) for line in at.rules["cells"]["raw_layouts"])


def _indexer(structure: Structure, at: Attended) -> BudgetLine:
    row, dim = at.rules["cells"], at.config["index_head_dim"]
    layers = len({i for m in structure.modules if ".indexer." in f".{m.path}." for i in m.layers})
    pooled = at.config.get("index_kpool") or 1
    size = -(-(dim + dim // row["index_block"] * row["index_scale_bytes"]) // pooled)
    return BudgetLine("indexer keys", size * layers, f"{layers} layers x {size} bytes",
                      at.rules["cells_source"], EXACT)


def _state(structure: Structure, at: Attended) -> BudgetLine | None:
    """Return the bytes of one slot of the state pool, None for a model without states
    (configs/mamba_utils.py:Mamba2StateShape)."""
    row = _state_row(structure, at)
    if row is None:
        return None
    fields = at.config[row["within"]] if "within" in row else at.config
    heads, dim, groups, state, kernel = (
        _field(fields, row[name]) for name in ("heads", "head_dim", "groups", "state", "kernel"))
    held = groups if groups % at.tp == 0 else at.tp
    conv = (heads * dim + 2 * held * state) // at.tp * (kernel - 1)
    dtype = str(at.config.get(row.get("dtype_field", ""), "float32"))
    temporal = heads // at.tp * dim * state
    layers = len({i for m in structure.modules if m.module in row["modules"] for i in m.layers})
    item = ITEM_BYTES.get(dtype, ITEM_BYTES["float32"])
    return BudgetLine("state", (conv * 2 + temporal * item) * layers,
                      f"{layers} layers x ({conv:,} x 2 + {temporal:,} x {item} bytes) per slot",
                      row["source"], EXACT)


def _state_row(structure: Structure, at: Attended) -> Rules | None:
    return next((row for row in at.rules["states"] if at.facts.get(row.get("fact"))
                 or structure.architecture in row.get("architectures", ())), None)


def _field(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int):
        raise NotKnownError(f"SGLang's state of a model without {name} in config.json")
    return value
