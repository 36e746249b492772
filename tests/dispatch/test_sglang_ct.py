"""Compressed-tensors and w8a8 on SGLang 0.5.22: answers of the engine's own code to configs that
the golden grid does not hold, asked under an emulated GPU."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
    "num_attention_heads": 32, "num_hidden_layers": 1, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 128256}
QKV, O_PROJ = "model.layers.*.self_attn.qkv_proj", "model.layers.*.self_attn.o_proj"
GATE_UP, DOWN = "model.layers.*.mlp.gate_up_proj", "model.layers.*.mlp.down_proj"
MLP = "model.layers.0.mlp.gate_up_proj"


def args(strategy: str | None = "channel", kind: str = "float", bits: int = 8, **more: Any
         ) -> dict[str, Any]:
    """Return quantization arguments."""
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **more}


TOKEN, INT_TOKEN = args("token", dynamic=True), args("token", "int", dynamic=True)
STATIC = args("tensor")
INT4 = args("group", "int", 4, group_size=128)
BLOCK = args("block", block_structure=[128, 128])
GROUP = args("group", group_size=128, dynamic=True)
KV = args("tensor", dynamic=False)


def group(weights: Any, inputs: Any = None, targets: Any = ("Linear",), **more: Any
          ) -> dict[str, Any]:
    """Return a config group."""
    return {"weights": weights, "input_activations": inputs, "targets": list(targets), **more}


def config(*groups: dict[str, Any], fmt: str = "float-quantized", ignore: Any = ("lm_head",),
           **more: Any) -> dict[str, Any]:
    """Return a compressed-tensors config."""
    return {"quant_method": "compressed-tensors", "format": fmt, "ignore": list(ignore),
            "config_groups": {f"group_{i}": row for i, row in enumerate(groups)}, **more}


FP8 = config(group(args(), TOKEN))


def ask(quantization_config: Any, capability: int = 90, model: Any = (), **options: Any
        ) -> dict[str, Any]:
    """Return our answer for the Llama above with a quantization config."""
    whole = {**LLAMA, **dict(model), "quantization_config": quantization_config}
    return explain(whole, engine="sglang", engine_version="0.5.22", capability=capability,
                   **options).to_dict()


def kernels(answer: dict[str, Any]) -> dict[str, str | None]:
    """Return layer -> kernel of the layers that are not 16-bit."""
    return {layer["path"]: layer["kernel"] for layer in answer["layers"]
            if layer.get("kernel") not in (None, "torch.mm")}


def only(name: str, *paths: str) -> dict[str, str]:
    """Return the same kernel for these layers."""
    return dict.fromkeys(paths, name)


@pytest.mark.parametrize("ignored, paths", [
    (["q_proj"], (QKV, O_PROJ, GATE_UP, DOWN)),
    (["self_attn"], (QKV, O_PROJ, GATE_UP, DOWN)),
    (["model.layers.0.mlp"], (QKV, O_PROJ, GATE_UP, DOWN)),
    (["re:down_proj"], (QKV, O_PROJ, GATE_UP, DOWN)),
    (["mlp.down_proj"], (QKV, O_PROJ, GATE_UP)),
    (["qkv_proj"], (O_PROJ, GATE_UP, DOWN)),
    (["re:.*v_proj"], (O_PROJ, GATE_UP, DOWN)),
])
def test_ignore_goes_by_the_engines_own_names(ignored: list[str], paths: tuple[str, ...]) -> None:
    """Llama declares no fused parts: a leaf's name names nothing, and re: fits the start only."""
    answer = ask({**FP8, "ignore": ["lm_head", *ignored]})
    assert kernels(answer) == only("fp8_scaled_mm", *paths)


@pytest.mark.parametrize("targets", [("linear",), ("QKVParallel", "RowParallel", "re:.*gate_up")])
def test_targets_may_be_words_of_a_class(targets: tuple[str, ...]) -> None:
    answer = ask(config(group(args(), TOKEN, targets)))
    assert kernels(answer) == only("fp8_scaled_mm", QKV, O_PROJ, GATE_UP, DOWN)


def test_every_group_has_its_own_format() -> None:
    """Expressions are asked before classes."""
    answer = ask(config(group(args(), TOKEN, format="float-quantized"),
                        group(INT4, None, ["re:.*mlp.*"], format="pack-quantized"),
                        fmt="mixed-precision"))
    assert kernels(answer) == {**only("fp8_scaled_mm", QKV, O_PROJ),
                               **only("gptq_marlin_gemm", GATE_UP, DOWN)}


@pytest.mark.parametrize("capability, block, kernel", [
    (90, [32, 32], "w8a8_block_fp8_matmul_deepgemm"), (100, [32, 32],
                                                       "w8a8_block_fp8_matmul_triton"),
    (90, [64, 64], "w8a8_block_fp8_matmul_triton"), (120, [64, 64], "fp8_blockwise_scaled_mm"),
    (120, [1, 128], "fp8_blockwise_scaled_mm"), (89, [128, 128], "w8a8_block_fp8_matmul_triton"),
])
def test_the_block_is_no_matter_of_choice(capability: int, block: list[int], kernel: str) -> None:
    """The scheme asks for the product without its block; the method fp8 runs 64 columns on Triton
    on 12.0."""
    answer = ask(config(group({**BLOCK, "block_structure": block}, GROUP)), capability)
    assert kernels(answer) == only(kernel, QKV, O_PROJ, GATE_UP, DOWN)


@pytest.mark.parametrize("weights, inputs, capability, answer", [
    (args("tensor"), STATIC, 120, ("W8A8Fp8", "torch._scaled_mm", "static")),
    (args("tensor"), TOKEN, 90, ("W8A8Fp8", "torch._scaled_mm", "per_token")),
    (args(), STATIC, 90, ("W8A8Fp8", "fp8_scaled_mm", "static")),
    (args(), TOKEN, 86, ("W8A16Fp8", "apply_fp8_marlin_linear", "none")),
    (args(), args("tensor", "int"), 90, ("W8A16Fp8", "apply_fp8_marlin_linear", "none")),
    (args(bits=4), None, 90, ("W8A16Fp8", "apply_fp8_marlin_linear", "none")),
    (args("tensor", "int"), args("tensor", "int", symmetric=False), 80,
     ("W8A8Int8", "int8_scaled_mm", "per_token")),
    (args("channel", "int"), TOKEN, 90, ("W8A8Int8", "int8_scaled_mm", "per_token")),
])
def test_schemes(weights: Any, inputs: Any, capability: int, answer: tuple[str, ...]) -> None:
    layer = next(layer for layer in ask(config(group(weights, inputs)), capability)["layers"]
                 if layer["path"] == DOWN)
    scheme = layer["scheme"].removeprefix("CompressedTensors")
    assert (scheme, layer["kernel"], layer["act"]) == answer


@pytest.mark.parametrize("targets, ignore, kernel", [
    (["Linear", "lm_head"], [], "fp8_scaled_mm"), (["Linear"], [], "torch.mm"),
    (["Linear", "lm_head"], ["lm_head"], "torch.mm"),
    (["Linear", "ParallelLMHead"], [], "torch.mm"),
])
def test_lm_head_is_quantized_where_a_target_names_it(
        targets: list[str], ignore: list[str], kernel: str) -> None:
    layers = ask(config(group(args(), TOKEN, targets), ignore=ignore))["layers"]
    assert next(x["kernel"] for x in layers if x["path"] == "lm_head") == kernel


SPARSE = {"format": "dense", "sparsity_structure": "2:4", "targets": ["Linear"]}
NO_SCHEME = ("NotImplementedError", "No compressed-tensors compatible scheme was found.")
SPARSE_24 = ("ImportError", "Other method (CompressedTensorsW4A16Sparse24) is not supported now")
CUTLASS_24 = ("ImportError", "CompressedTensors24 is not supported now")


@pytest.mark.parametrize("asked, options, error", [
    (config(group(args(), TOKEN), fmt="mixed-precision"), {}, NO_SCHEME),
    (config(group(BLOCK)), {}, NO_SCHEME),
    (config(group(INT4), fmt="int-quantized"), {}, SPARSE_24),
    (config(group(args("channel", "int", 2)), fmt="pack-quantized"), {}, SPARSE_24),
    (config(group(args(), TOKEN), sparsity_config=SPARSE), {}, CUTLASS_24),
    (config(group(args(), TOKEN, ["re:.*self_attn.*"])), {}, (
        "ValueError", f"Unable to find matching target for {MLP} in the compressed-tensors "
        "config.")),
    (config(group(args(None, bits=4, group_size=32), args("group", bits=4, group_size=32,
                                                           dynamic=True))), {}, (
        "NotImplementedError", "Activation-quantized float4 is only supported in the NVFP4 layout "
        "(tensor_group, group_size 16); got strategy=QuantizationStrategy.GROUP, group_size=32.")),
    (config(group(BLOCK, GROUP)), {"tp": 32}, (
        "ValueError", "Weight output_partition_size = 448 is not divisible by weight quantization "
        "block_n = 128.")),
    (config(group(BLOCK, STATIC)), {}, ("AssertionError", "")),
    (config(group(BLOCK, STATIC)), {"model": {"intermediate_size": 14400}}, (
        "ValueError", "Weight output_partition_size = 14400 is not divisible by weight "
        "quantization block_n = 128.")),
    (config(group(BLOCK, GROUP, ["Linear", "lm_head"]), ignore=[]), {}, (
        "NotImplementedError", "Block-quantized lm_head is not supported; use channel or tensor "
        "weight scales for the head.")),
    (config(group(args("group", "int", 4, group_size=256)), fmt="pack-quantized"), {"tp": 8}, None),
    (config(group(args("group", "int", 4, group_size=4096)), fmt="pack-quantized"), {},
     ("AssertionError", "")),
    (config(group(args(), TOKEN), ignore=["model.embed_tokens"]), {"quantization": "w8a8_int8"}, (
        "NotImplementedError", "The class UnquantizedLinearMethod must implement the 'embedding' "
        "method, see UnquantizedEmbeddingMethod.")),
])
def test_refusals(asked: Any, options: Any, error: tuple[str, str] | None) -> None:
    found = ask(asked, **options)["error"]
    assert (found and (found["type"], found["message"])) == error


@pytest.mark.parametrize("scheme, dtype", [
    (KV, "float8_e4m3fn"), ({**KV, "dynamic": True}, "bfloat16"),
    ({**KV, "symmetric": False}, "bfloat16"), ({**KV, "strategy": "channel"}, "bfloat16"),
])
def test_the_kv_cache_is_fp8_where_its_scales_are_read(scheme: Any, dtype: str) -> None:
    answer = ask({**FP8, "kv_cache_scheme": scheme})
    method = "CompressedTensorsKVCacheMethod" if dtype != "bfloat16" else None
    assert (answer["kv_cache"]["resolved"], answer["kv_cache"]["method"]) == (dtype, method)


@pytest.mark.parametrize("method, layers", [
    ("w8a8_fp8", only("fp8_scaled_mm", QKV, O_PROJ, GATE_UP, DOWN)),
    ("w8a8_int8", only("int8_scaled_mm", QKV)),
])
def test_w8a8_stands_over_any_scheme(method: str, layers: dict[str, str]) -> None:
    """w8a8_fp8 reads no ignore; w8a8_int8 does."""
    asked = config(group(INT4), fmt="pack-quantized", ignore=["lm_head", "o_proj", "re:.*mlp.*"])
    assert kernels(ask(asked, quantization=method)) == layers


@pytest.mark.parametrize("asked, size", [
    (config(group(args("channel", "int", 4)), fmt="pack-quantized"), 14368),
    (config(group(args("tensor"), STATIC)), 14344)])
def test_what_the_kernel_alone_refuses_is_not_known(asked: Any, size: int) -> None:
    with pytest.raises(NotKnownError, match="is not a multiple of"):
        ask(asked, model={"intermediate_size": size}, tp=2 if size == 14368 else 1)
