"""INT8 checkpoints with block scales (layers/quantization/blockwise_int8.py)."""

from __future__ import annotations

from quantplan.dispatch.sglang import fp8
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts, unquantized_experts
from quantplan.dispatch.sglang.fields import Config, given, names, need
from quantplan.dispatch.sglang.ignore import is_skipped
from quantplan.dispatch.trace import refuse
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/blockwise_int8.py:BlockInt8Config"
METHOD = "layers/quantization/blockwise_int8.py:BlockInt8LinearMethod.__init__"


class Int8Fields(NamedTuple):
    """What BlockInt8Config keeps."""

    ignored: tuple[str, ...] = ()
    block: tuple[int, int] | None = None


def read(config: Config | None, context: Context) -> Int8Fields:
    """Return the fields, or refuse as BlockInt8Config does."""
    if config is None:
        return Int8Fields()
    need(config, "quant_method")
    act = need(config, "activation_scheme")
    fp8.check_scheme(act, SOURCE)
    return Int8Fields(names(given(config, "ignored_layers"), "ignored_layers"),
                      fp8.read_block(given(config, "weight_block_size"), act, SOURCE))


def assign(fields: Int8Fields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; embeddings and lm_head are none of the class's."""
    if site.module.split == "vocab":
        return None
    if is_skipped(context, site.path, fields.ignored):
        return unquantized("named in ignored_layers")
    if fields.block is None:
        raise refuse("layer assignment", "AssertionError", "", site.path, METHOD,
                     hint="quantization_config: add weight_block_size.")
    fp8.check_block(fields.block, context, site, site.shard.parts)
    return Assignment("BlockInt8LinearMethod", None, "block_int8")


def experts(fields: Int8Fields, context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment of routed experts: Triton, whatever the backend."""
    if is_skipped(context, site.path, fields.ignored):
        return unquantized_experts("named in ignored_layers")
    if fields.block is None:
        raise refuse("layer assignment", "AssertionError", "", site.path, METHOD,
                     hint="quantization_config: add weight_block_size.")
    fp8.check_experts_block(fields.block, held, site)
    return Assignment("BlockInt8MoEMethod", operators="experts_block_int8")
