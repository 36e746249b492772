"""The methods w8a8_fp8 and w8a8_int8: a scale per output channel and one per token, whatever the
checkpoint says (layers/quantization/w8a8_fp8.py, w8a8_int8.py)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.ct_names import is_ignored
from quantplan.dispatch.sglang.experts import Experts
from quantplan.dispatch.sglang.fields import Config, names, need
from quantplan.dispatch.trace import refuse
from quantplan.tables.record import NamedTuple

FP8 = "w8a8_fp8"
NO_EXPERTS = (
    "UnquantizedLinearMethod.create_weights() missing 4 required positional arguments: "
    "'input_size_per_partition', 'output_partition_sizes', 'input_size', and 'output_size'")
"""What experts end with that the class gives a linear layer's method."""
EMBEDDING = "VocabParallelEmbedding"


class W8A8Fields(NamedTuple):
    """Whether the method is w8a8_fp8, and the names that w8a8_int8 leaves alone."""

    fp8: bool
    ignore: tuple[str, ...] = ()


def read(config: Config | None, context: Context) -> W8A8Fields:
    """Return the fields. w8a8_fp8 reads none but quant_method."""
    if context.facts["quant.method"] == FP8:
        if config is not None:
            need(config, "quant_method")
        return W8A8Fields(True)
    return W8A8Fields(False, names((config or {}).get("ignore"), "ignore"))


def assign(fields: W8A8Fields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; w8a8_int8 unquantizes any layer that it ignores."""
    if not fields.fp8 and is_ignored(context, site.path, fields.ignore):
        if site.module.module == EMBEDDING:
            raise refuse("layer assignment", "NotImplementedError", "The class "
                         "UnquantizedLinearMethod must implement the 'embedding' method, see "
                         "UnquantizedEmbeddingMethod.", site.path,
                         f"layers/vocab_parallel_embedding.py:{EMBEDDING}",
                         hint="Leave embeddings out of ignore, or serve the checkpoint with "
                         "--quantization compressed-tensors.")
        return unquantized("named in ignore")
    if site.module.split == "vocab":
        return None
    if fields.fp8:
        return Assignment("W8A8Fp8LinearMethod", None, "fp8_channel", {"fp8.act": "per_token"})
    return Assignment("W8A8Int8LinearMethod", None, "int8")


def experts(fields: W8A8Fields, context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment of routed experts: Triton, whatever the backend."""
    if fields.fp8:
        return Assignment("W8A8FP8MoEMethod", operators="experts_w8a8_fp8")
    if is_ignored(context, site.path, fields.ignore):
        raise refuse("layer assignment", "TypeError", NO_EXPERTS, site.path,
                     "layers/quantization/w8a8_int8.py:W8A8Int8Config.get_quant_method",
                     hint="Leave experts out of ignore.")
    return Assignment("W8A8Int8MoEMethod", operators="experts_w8a8_int8")
