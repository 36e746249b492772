"""Rules of SGLang 0.5.22 beside its golden rows; every answer is the engine's own, asked for an
emulated 9.0."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables.errors import CheckpointError, NotKnownError, UsageError

from quantplan import Explanation, explain

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1536,
    "intermediate_size": 5632, "num_hidden_layers": 1, "num_attention_heads": 12,
    "num_key_value_heads": 3, "vocab_size": 32000, "hidden_act": "silu", "head_dim": 128,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}


def ask(quant: Any = None, tp: int = 1, **changes: Any) -> Explanation:
    """Return our answer for the small Llama with a quantization config and other sizes."""
    config = {**LLAMA, **changes, **({"quantization_config": quant} if quant else {})}
    return explain(config, engine="sglang", engine_version="0.5.22", capability=90, tp=tp)


@pytest.mark.parametrize("quant, tp, changes, error", [
    (None, 3, {}, ("AssertionError", "", "mlp.gate_up_proj")),
    (None, 2, {}, ("AssertionError", "", "self_attn.qkv_proj")),
    (None, 3, {"intermediate_size": 5760}, None),
    (None, 3, {"intermediate_size": 5760, "vocab_size": 151936}, None),
    ({"quant_method": "awq", "bits": 4, "group_size": -1, "zero_point": False}, 1,
     {"torch_dtype": "float16", "num_key_value_heads": 12},
     ("RuntimeError", "Trying to create tensor with negative dimension -1536: [-1536, 576]",
      "self_attn.qkv_proj")),
    (GPTQ, 6, {"intermediate_size": 5634},
     ("RuntimeError", "shape '[-1, 64]' is invalid for input of size 22536", "mlp.gate_up_proj")),
])
def test_what_does_not_divide_over_the_ranks(
    quant: Any, tp: int, changes: dict[str, Any], error: tuple[str, str, str] | None
) -> None:
    """models/llama.py asserts heads, MergedColumnParallelLinear its outputs; a vocabulary always
    divides; GPTQ's scales are put into Marlin's order when all is loaded."""
    found = ask(quant, tp, **changes).trace.error
    assert (found and (found.type, found.message, str(found.layer).split(".0.")[-1])) == error


def test_a_vocabulary_is_padded_for_ranks_that_do_not_divide_it() -> None:
    """32000 is 500 x 64, which 3 ranks do not divide: padded to 3 x 64 x 167 = 32064."""
    layers = ask(None, 3, intermediate_size=5760).trace.layers
    assert {x.n for x in layers if x.path in ("model.embed_tokens", "lm_head")} == {10688}


def test_head_dim_that_only_sglang_reads_is_not_known() -> None:
    with pytest.raises(NotKnownError, match="Qwen2ForCausalLM with head_dim 64"):
        ask(architectures=["Qwen2ForCausalLM"], model_type="qwen2", head_dim=64)


@pytest.mark.parametrize("option, value, error", [
    ("linear_backend", "triton", UsageError), ("fp8_gemm_backend", "tritn", UsageError),
    ("dtype", "int4", UsageError)])
def test_flags_that_are_not_answered(option: str, value: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        explain(LLAMA, engine="sglang", capability=90, **{option: value})


@pytest.mark.parametrize("quant, message", [
    ({"quant_method": None}, "'NoneType' object has no attribute 'lower'"),
    ({"quant_method": 5}, "'int' object has no attribute 'lower'"),
    ({"quant_method": []}, "'list' object has no attribute 'lower'"),
    ({"quant_method": "modelopt", "quant_algo": None},
     "'NoneType' object has no attribute 'upper'"),
])
def test_names_of_methods_that_are_no_text(quant: Any, message: str) -> None:
    error = ask(quant).trace.error
    assert error is not None
    assert (error.type, error.message) == ("AttributeError", message)


def test_an_algorithm_that_is_no_text() -> None:
    with pytest.raises(CheckpointError, match="quant_algo"):
        ask({"quant_method": "modelopt", "quant_algo": 5})
