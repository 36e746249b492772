"""What versions of vLLM do differently: answers of each version's own code (oracle)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, quantization
from quantplan.dispatch.facts import Deployment
from quantplan.dispatch.trace import Refusal
from quantplan.dispatch.vllm.float_kv import check_float_kv
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.versions import engine_versions

from quantplan import Explanation, explain

DISPATCH = Path(__file__).parents[2] / "dispatch"


def ask(version: str, quant: str | None = None, **options: Any) -> Explanation:
    config = dict(LLAMA)
    if quant is not None:
        config["quantization_config"] = quantization(quant)
    options.setdefault("capability", "9.0")
    return explain(config, engine_version=version, **options)


def refusal(answer: Explanation) -> str | None:
    return answer.trace.error.message if answer.trace.error else None


@pytest.mark.parametrize("name", [
    row["id"] for row in load_engine("vllm")["traits"].values()])
def test_every_trait_is_read_by_a_rule(name: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DISPATCH.rglob("*.py")]
    assert any(f'"{name}"' in text for text in texts)


def test_versions_have_the_same_traits() -> None:
    """A trait that only one version has would be a KeyError in another."""
    names = [sorted(load_engine("vllm", version)["traits"]) for version in engine_versions("vllm")]
    assert names == [names[0]] * len(names)


# --kv-cache-dtype of the other 16-bit dtype.


@pytest.mark.parametrize("dtype, kv, allowed", [
    ("bfloat16", "float16", "`auto` or `bfloat16`"), ("float16", "bfloat16", "`auto` or `float16`"),
    ("float32", "bfloat16", "`auto`"), ("float32", "float16", "`auto`"),
])
def test_0_33_refuses_a_16_bit_cache_that_is_not_the_models(
    dtype: str, kv: str, allowed: str
) -> None:
    answer = ask("0.33.0", dtype=dtype, kv_cache_dtype=kv)
    assert refusal(answer) == (
        f'kv_cache_dtype="{kv}" is incompatible with dtype="{dtype}". Please set '
        f"`--kv-cache-dtype` to {allowed}.")
    assert answer.trace.error is not None
    assert answer.trace.error.type == "ValidationError"
    assert answer.trace.error.source == (
        "config/vllm.py:VllmConfig._reject_mismatched_float_kv_cache")


@pytest.mark.parametrize("version, dtype, kv", [
    ("0.33.0", "bfloat16", "bfloat16"), ("0.33.0", "float16", "float16"),
    ("0.33.0", "float16", "auto"), ("0.32.0", "bfloat16", "float16"),
])
def test_what_stays_allowed(version: str, dtype: str, kv: str) -> None:
    assert refusal(ask(version, dtype=dtype, kv_cache_dtype=kv)) is None


def test_the_cache_is_refused_before_heads_and_behind_the_method() -> None:
    """Order of VllmConfig.__post_init__; the method's name is ModelConfig's business."""
    heads = ask("0.33.0", dtype="float16", kv_cache_dtype="bfloat16", tp=3)
    assert str(refusal(heads)).startswith('kv_cache_dtype="bfloat16"')
    method = ask("0.33.0", "gptq4-g128", dtype="float16", kv_cache_dtype="bfloat16",
                 quantization="awq")
    assert str(refusal(method)).startswith("Quantization method specified in the model config")


# compressed-tensors W4A16 under VLLM_BATCH_INVARIANT.


@pytest.mark.parametrize("version, flag, kernel", [
    ("0.32.0", "1", "MacheteLinearKernel"), ("0.33.0", "0", "MacheteLinearKernel"),
    ("0.33.0", "1", None),
])
def test_0_33_looks_for_no_integer_kernel_under_batch_invariance(
    version: str, flag: str, kernel: str | None
) -> None:
    answer = ask(version, "ct-w4a16", env={"VLLM_BATCH_INVARIANT": flag})
    layer = next(x for x in answer.trace.layers if x.path.endswith("qkv_proj"))
    assert (layer.scheme, layer.kernel) == ("CompressedTensorsWNA16", kernel)
    assert layer.why == (None if kernel else "env.VLLM_BATCH_INVARIANT is true: the weight is "
                         "unpacked and multiplied in 16 bits")


def test_groups_that_straddle_ranks_are_refused_without_a_kernel_too() -> None:
    """create_weights of the scheme divides the groups whatever the kernel."""
    config = {**LLAMA, "intermediate_size": 14336 + 64,
              "quantization_config": quantization("ct-w4a16")}
    answer = explain(config, engine_version="0.33.0", capability="9.0",
                     env={"VLLM_BATCH_INVARIANT": "1"})
    assert str(refusal(answer)).startswith("Weight input_size_per_partition=14400 for layer "
                                           "'model.layers.0.mlp.down_proj' is not divisible by")


# DeepGEMM and MXFP8.


@pytest.mark.parametrize("version, capability, kernel", [
    ("0.33.0", "9.0", "TorchMxFp8LinearKernel"), ("0.33.0", "8.9", None),
    ("0.32.0", "8.9", "MarlinMxfp8LinearKernel"),
])
def test_linear_backend_torch_for_mxfp8(
    version: str, capability: str, kernel: str | None
) -> None:
    """0.32.0 has no MXFP8 kernel of that backend and tries the whole list."""
    answer = ask(version, "ct-mxfp8", capability=capability, linear_backend="torch")
    if kernel is None:
        assert str(refusal(answer)).endswith(
            "TorchMxFp8LinearKernel: requires XPU or CUDA (>=sm_90) for native torch._scaled_mm")
    else:
        assert {x.kernel for x in answer.trace.layers if x.kernel and not x.attn_backend} == {
            kernel}


# Routed experts.

MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
       "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
       "num_experts_per_tok": 8, "num_hidden_layers": 1, "num_attention_heads": 32,
       "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "hidden_act": "silu",
       "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
       "max_position_embeddings": 40960, "torch_dtype": "bfloat16"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def experts(version: str, quant: Any = None, **options: Any) -> tuple[str | None, str | None]:
    """Return backend and class of the experts of a Qwen3-30B-A3B cut to a layer."""
    config = {**MOE, **({"quantization_config": quant} if quant else {})}
    options.setdefault("capability", "10.0")
    answer = explain(config, engine_version=version, **options)
    layer = next(x for x in answer.trace.layers if x.path.endswith("experts"))
    return layer.moe_backend, layer.kernel


@pytest.mark.parametrize("version, capability, found", [
    ("0.32.0", "9.0", ("TRITON", "TritonExperts")), ("0.33.0", "9.0", ("TRITON", "TritonExperts")),
    ("0.33.0", "8.0", ("TRITON", "TritonExperts")),
])
def test_marlin_for_unquantized_experts(
    version: str, capability: str, found: tuple[str, str]
) -> None:
    """0.33.0 chooses automatically; 0.32.0 refuses the flag."""
    if version == "0.32.0":
        answer = explain(MOE, engine_version=version, capability=capability, moe_backend="marlin")
        assert str(refusal(answer)).startswith(
            "moe_backend='marlin' is not supported for unquantized MoE. Expected one of")
    else:
        assert experts(version, capability=capability, moe_backend="marlin") == found


@pytest.mark.parametrize("strategy, found", [
    ("uniform_random", ("FLASHINFER_TRTLLM", "TrtLlmBf16ExpertsMonolithic")),
    ("normal_routing", ("FLASHINFER_CUTLASS", "FlashInferExperts")),
])
def test_simulated_routing(strategy: str, found: tuple[str, str]) -> None:
    env = {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": strategy}
    assert experts("0.33.0", env=env) == found


def test_an_unknown_strategy_is_refused_while_the_layer_is_built() -> None:
    answer = explain(MOE, engine_version="0.33.0", capability="10.0",
                     env={"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "x"})
    assert refusal(answer) == ("Unknown routing strategy: x. Available strategies: "
                               "['uniform_random', 'normal_routing']")


def batch_invariant(version: str) -> Any:
    answer = explain({**MOE, "quantization_config": FP8}, engine_version=version, capability="8.9",
                     env={"VLLM_BATCH_INVARIANT": "1"})
    return answer.trace


def test_fp8_experts_under_batch_invariance_have_a_scale_per_token() -> None:
    """A scale over all tokens would depend on the batch."""
    for version, key in (("0.32.0", "kFp8DynamicTensorSym"), ("0.33.0", "kFp8DynamicTokenSym")):
        trace = batch_invariant(version)
        selection = trace.error.selection if trace.error else next(
            x.selection for x in trace.layers if x.path.endswith("experts"))
        texts = [c.text for candidate in selection.candidates for c in candidate.checks]
        assert any(f"kFp8StaticTensorSym x {key}" in text for text in texts)


def test_0_33_counts_packed_caches_as_quantized() -> None:
    """FlashAttention is asked for an FP8 cache as well (v1/attention/backends/flash_attn.py)."""
    answers = [explain({**LLAMA, "num_hidden_layers": 6}, engine_version=version, capability="8.9",
                       kv_cache_dtype="turboquant_4bit_nc", attention_backend="FLASH_ATTN")
               for version in ("0.32.0", "0.33.0")]
    told = ["FP8 KV cache requires FA3 on SM90" in str(refusal(answer)) for answer in answers]
    assert told == [False, True]


def test_0_33_asks_for_the_models_dtype_after_the_model_class_changed_it() -> None:
    """DeepSeek-V3.2 makes auto of bfloat16 (model_executor/models/config.py)."""
    context = SimpleNamespace(
        table=load_engine("vllm", "0.33.0"), dtype="float16", facts={},
        deployment=Deployment(kv_cache_dtype="bfloat16"),
        structure=SimpleNamespace(architecture="DeepseekV32ForCausalLM"))
    check_float_kv(context)  # type: ignore[arg-type]
    context.structure.architecture = "DeepseekV3ForCausalLM"
    with pytest.raises(Refusal):
        check_float_kv(context)  # type: ignore[arg-type]
