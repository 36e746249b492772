"""Sizes that differ from layer to layer without kinds of layers behind them.

Each rule returns one value per layer, None where the layer lacks what the size is of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quantplan.tables.errors import CheckpointError

Config = Mapping[str, Any]
Row = Mapping[str, Any]
Sizes = list["int | None"]
FFN_MULTIPLE = 256


def layer_sizes(rows: Sequence[Row], config: Config, count: int) -> dict[str, Sizes]:
    """Return size name -> its value in each of `count` layers, of the rows that have a rule."""
    return {row["id"]: RULES[row["each"]](config, count) for row in rows if "each" in row}


def decilm_kv_heads(config: Config, count: int) -> Sizes:
    """Kv heads of layers with attention (model_executor/models/nemotron_nas.py)."""
    heads = config["num_attention_heads"]
    return [None if block.get("no_op") else heads // _whole(block, "n_heads_in_group")
            for block in _blocks(config, "attention", count)]


def decilm_intermediate(config: Config, count: int) -> Sizes:
    """model_executor/models/nemotron_nas.py:_ffn_mult_to_intermediate_size, or the size itself."""
    return [None if block.get("no_op") else _intermediate(block, config["hidden_size"])
            for block in _blocks(config, "ffn", count)]


def lfm2_intermediate(config: Config, count: int) -> Sizes:
    """model_executor/models/lfm2.py:Lfm2MLP adjusts the size of its config, of which block_ff_dim
    is the older name."""
    field = "block_ff_dim" if "block_ff_dim" in config else "intermediate_size"
    size = _whole({"intermediate_size": 12288, **config}, field)
    if config.get("block_auto_adjust_ff_dim", True):
        size = int(config.get("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
        multiple = _whole({"block_multiple_of": FFN_MULTIPLE, **config}, "block_multiple_of")
        size = -(-size // multiple) * multiple
    return [size] * count


def laguna_heads(config: Config, count: int) -> Sizes:
    """Query heads of each layer (model_executor/models/laguna.py:LagunaDecoderLayer)."""
    listed = config.get("num_attention_heads_per_layer")
    if listed is None:
        return [_whole(config, "num_attention_heads")] * count
    if not isinstance(listed, list) or len(listed) != count:
        raise CheckpointError("config.json: num_attention_heads_per_layer",
                              wanted=f"a list of {count} numbers", found=repr(listed)[:60])
    return [_whole({"num_attention_heads_per_layer": heads}, "num_attention_heads_per_layer")
            for heads in listed]


def _intermediate(block: Config, hidden: int) -> int:
    if "ffn_mult" not in block:
        return _whole(block, "intermediate_size")
    size = int(2 * block["ffn_mult"] * hidden / 3)
    return -(-size // FFN_MULTIPLE) * FFN_MULTIPLE


def _blocks(config: Config, part: str, count: int) -> list[Config]:
    blocks = config.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) < count:
        raise CheckpointError("config.json: block_configs", wanted=f"a list of {count} objects",
                              found=repr(blocks)[:60])
    return [_part(block, part) for block in blocks[:count]]


def _part(block: Any, part: str) -> Config:
    found = block.get(part) if isinstance(block, Mapping) else None
    if not isinstance(found, Mapping):
        raise CheckpointError(f"config.json: block_configs: {part}", wanted="an object",
                              found=repr(found)[:60])
    return found


def _whole(block: Config, field: str) -> int:
    value = block.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: {field}", wanted="a positive integer",
                              found=repr(value)[:60])
    return value


RULES: Mapping[str, Callable[[Config, int], Sizes]] = {
    "decilm_kv_heads": decilm_kv_heads, "decilm_intermediate": decilm_intermediate,
    "lfm2_intermediate": lfm2_intermediate, "laguna_heads": laguna_heads,
}
