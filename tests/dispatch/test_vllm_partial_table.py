"""vLLM 0.25.1: a table for a part of a version. What it covers answers as that version's own code
does (oracle; tests/golden holds more rows); what it does not cover is not known."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, QWEN_72B, quantization
from quantplan.dispatch.facts import Deployment
from quantplan.tables.coverage_rows import is_base_row
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import NotKnownError

from quantplan import Explanation, explain

VERSION = "0.25.1"
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
         "symmetric": True, "dynamic": False}
W4A8 = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128,
                    "symmetric": True, "dynamic": False},
        "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True,
                              "dynamic": True}}


def compressed(format: str, **group: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], **group}}}


CONFIGS = {
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "modelopt-mixed": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
    "quark": {"quant_method": "quark"},
    "auto-round": {"quant_method": "auto-round", "bits": 4, "group_size": 128},
    "nvfp4": compressed("nvfp4-pack-quantized", weights=NVFP4, input_activations=NVFP4),
    "nvfp4a16": compressed("nvfp4-pack-quantized", weights=NVFP4),
    "w4a8-int8": compressed("pack-quantized", **W4A8),
}
TABLE = load_engine("vllm", VERSION)


def ask(quant: str | None = None, config: dict[str, Any] = LLAMA, **options: Any) -> Explanation:
    config = deepcopy(config)
    if quant is not None:
        config["quantization_config"] = CONFIGS.get(quant) or quantization(quant)
    options.setdefault("capability", "9.0")
    return explain(config, engine_version=VERSION, **options)


def kernel(answer: Explanation, leaf: str = "down_proj") -> str | None:
    layer = next(x for x in answer.trace.layers if x.path.endswith(leaf))
    return layer.kernel


def refusal(answer: Explanation) -> str | None:
    return answer.trace.error.message if answer.trace.error else None


# What is not covered.


@pytest.mark.parametrize("quant, options, says", [
    ("modelopt-mixed", {}, "the method modelopt_mixed in vllm 0.25.1"),
    ("modelopt", {"quantization": "fp8_per_block"}, "--quantization fp8_per_block of a checkpoint"),
    ("quark", {}, "the method quark in vllm 0.25.1"),
    ("bnb-nf4", {}, "the method bitsandbytes in vllm 0.25.1"),
    ("auto-round", {}, "the method inc in vllm 0.25.1"),
    ("awq4-g128", {"quantization": "humming"}, "the method humming in vllm 0.25.1"),
    (None, {"quantization": "mxfp4"}, "the method mxfp4 of a 16-bit checkpoint in vllm 0.25.1"),
    (None, {"kv_cache_dtype": "nvfp4"}, "--kv-cache-dtype nvfp4 in vllm 0.25.1"),
    (None, {"attention_backend": "hpc_attn"}, "--attention-backend HPC_ATTN in vllm 0.25.1"),
    (None, {"block_size": 64}, "--block-size in vllm 0.25.1"),
    ("gptq4-g128", {"linear_backend": "humming"}, "what HummingLinearKernel computes"),
    ("ct-fp8-w8a16", {}, "what HummingFP8ScaledMMLinearKernel computes in vllm 0.25.1"),
])
def test_what_is_not_covered_is_not_known(
    quant: str | None, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(NotKnownError) as raised:
        ask(quant, **options)
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize("changes, says", [
    ({"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2"}, "the architecture M"),
    ({"architectures": ["LlamaForCausalLM", "GlmForCausalLM"]}, "the architecture Glm"),
    ({"architectures": ["NoSuchModel"]}, "the architecture NoSuchModel"),
    ({"architectures": None}, "a model without architectures"),
    ({"model_type": "olmo"}, "the model type olmo"),
])
def test_other_models_are_not_known(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(NotKnownError) as raised:
        ask(config={**LLAMA, **changes})
    assert str(raised.value).startswith(says)


MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 1, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000, "torch_dtype": "bfloat16"}


MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 2,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129280, "torch_dtype": "bfloat16"}


@pytest.mark.parametrize("quant, options, says", [
    (None, {"tp": 4, "enable_expert_parallel": True}, "experts with --expert-parallel"),
    (None, {"env": {"VLLM_TEST_FORCE_FP8_MARLIN": "1"}}, "experts with VLLM_TEST_FORCE_FP8_MARLIN"),
    ("ct-mxfp8", {}, "experts under CompressedTensorsW8A8Mxfp8MoEMethod in vllm 0.25.1"),
    ("awq4-g256", {}, "experts under MoeWNA16Method in vllm 0.25.1"),
])
def test_experts_that_are_not_covered(
    quant: str | None, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(NotKnownError) as raised:
        ask(quant, MIXTRAL, **options)
    assert str(raised.value).startswith(says)


def test_sparse_latent_attention_is_not_known() -> None:
    config = {**MLA, "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
    with pytest.raises(NotKnownError) as raised:
        ask(config=config)
    assert str(raised.value).startswith("a model with DeepseekV32IndexerCache in vllm 0.25.1")


def test_a_backend_that_does_not_exist_is_refused_all_the_same() -> None:
    said = refusal(ask(attention_backend="nope"))
    assert said is not None and said.startswith("Unknown attention backend: 'NOPE'")


def test_options_that_are_not_covered_exist() -> None:
    assert set(TABLE["covers"]["options_not"]) <= set(Deployment._fields)


def test_an_answer_says_that_it_is_partial() -> None:
    answer = ask()
    assert answer.trace.findings[0].id == "partial-table"
    assert answer.to_dict()["starts"] == "conditional"


def test_findings_that_are_not_covered_are_not_made() -> None:
    """INT8 on 10.0 fails in 0.32.0, which a finding says; nobody has read it in 0.25.1."""
    options: dict[str, Any] = {"capability": "10.0"}
    whole = explain({**LLAMA, "quantization_config": quantization("ct-w8a8-int8")},
                    engine_version="0.32.0", **options)
    assert "int8-cutlass-from-10.0" in [finding.id for finding in whole.trace.findings]
    found = ask("ct-w8a8-int8", **options).trace.findings
    assert [finding.id for finding in found if finding.stage == "first forward"] == []


def test_findings_that_are_covered_are_made() -> None:
    found = [finding.id for finding in ask(capability="7.0").trace.findings]
    assert {"float16-fallback", "no-machine-code", "partial-table"} <= set(found)


@pytest.mark.parametrize("at, base", [
    ("modelopt.algos_source", False), ("modelopt.block_algos_source", True),
    ("attention.prefill.source", False),
    ("architectures_source", True), ("config_classes[QuarkConfig].source", True),
    ("config_classes[Fp8Config].source", False), ("attention.source", False),
    ("inc", True), ("incomplete", False)])
def test_rows_that_are_the_bases(at: str, base: bool) -> None:
    assert is_base_row(TABLE, at) is base


def test_a_whole_table_has_no_rows_of_a_base() -> None:
    assert is_base_row(load_engine("vllm", "0.32.0"), "modelopt.source") is False


# What 0.25.1 does otherwise.


@pytest.mark.parametrize("capability, env, chosen", [
    ("8.0", {}, "MarlinFP8ScaledMMLinearKernel"),
    ("8.9", {}, "CutlassFP8ScaledMMLinearKernel"),
    ("8.9", {"VLLM_TEST_FORCE_FP8_MARLIN": "1"}, "MarlinFP8ScaledMMLinearKernel"),
    ("10.0", {"VLLM_TEST_FORCE_FP8_MARLIN": "true"}, "MarlinFP8ScaledMMLinearKernel"),
    ("10.0", {}, "FlashInferFP8ScaledMMLinearKernel"),
    ("8.0", {"VLLM_BATCH_INVARIANT": "1"}, "CutlassFP8ScaledMMLinearKernel"),
])
def test_marlin_comes_first_for_fp8_below_8_9_or_forced(
    capability: str, env: dict[str, str], chosen: str
) -> None:
    assert kernel(ask("fp8-static", capability=capability, env=env)) == chosen


@pytest.mark.parametrize("quant, capability, chosen", [
    ("fp8-block128", "8.9", "TritonFp8BlockScaledMMKernel"),
    ("ct-w8a16", "8.0", "AllSparkLinearKernel"), ("ct-w8a16", "7.5", "MarlinLinearKernel"),
    ("gptq8-gchan", "8.9", "AllSparkLinearKernel"), ("gptq8-g128", "8.9", "MarlinLinearKernel"),
    ("gptq4-g128", "9.0", "MacheteLinearKernel"), ("nvfp4a16", "9.0", "MarlinNvFp4LinearKernel"),
])
def test_other_kernels_are_chosen(quant: str, capability: str, chosen: str) -> None:
    dtype = "float16" if capability == "7.5" else None
    assert kernel(ask(quant, capability=capability, dtype=dtype)) == chosen


@pytest.mark.parametrize("quant, backend, words", [
    ("fp8-static", "machete", "this layer type"), ("gptq4-g128", "cutlass", None),
    ("gptq4-g128", "triton", None), ("gptq4-g128", "torch", "mixed-precision layers"),
    ("ct-mxfp8", "triton", "MXFP8 layers"), ("ct-mxfp4", "emulation", "MXFP4 layers"),
    ("nvfp4", "flashinfer_b12x", "NVFP4 layers"), ("ct-w8a8-int8", "marlin", "this layer type"),
])
def test_a_linear_backend_without_kernel_is_refused(
    quant: str, backend: str, words: str | None
) -> None:
    said = str(refusal(ask(quant, linear_backend=backend)))
    wanted = (f"--linear-backend={backend} was requested but no '{backend}' kernel exists for "
              f"{words}.")
    assert (said == wanted) is (words is not None)


@pytest.mark.parametrize("quant, tp, chosen", [
    ("gptq4-desc", 1, "MacheteLinearKernel"), ("gptq4-desc", 2, "MarlinLinearKernel"),
    ("ct-w4a16-actorder", 1, "MacheteLinearKernel"), ("ct-w4a16-actorder", 4, "MarlinLinearKernel"),
])
def test_groups_may_be_ordered_by_activation(quant: str, tp: int, chosen: str) -> None:
    """Machete takes g_idx only where the inputs are whole on every rank."""
    answer = ask(quant, tp=tp)
    assert (kernel(answer), kernel(answer, "gate_up_proj")) == (chosen, "MacheteLinearKernel")
    whole = [f for f in answer.to_dict()["findings"] if f["id"] == "scales-on-every-rank"]
    assert len(whole) == (tp > 1)  # utils/marlin_utils.py:marlin_repeat_scales_on_all_ranks


def test_ordered_groups_are_not_padded() -> None:
    model = {**QWEN_72B, "quantization_config": quantization("ct-w4a16-actorder")}
    answer = explain(model, engine_version=VERSION, capability="8.0", tp=8)
    assert ("MarlinLinearKernel cannot implement due to: Weight output_size_per_partition = 7392 "
            "is not divisible by  min_thread_n = 64.") in str(refusal(answer))


def test_a_scheme_above_the_gpu_is_refused_in_parts() -> None:
    assert refusal(ask("ct-fp8-static", capability="7.0")) == (
        "('Quantization scheme is not supported for ', 'the current GPU. Min capability: 75. ', "
        "'Current capability: 70.')")


def test_a_partly_ignored_layer_is_told_by_its_leaves() -> None:
    assert refusal(ask("ct-ignore-part")) == (
        "Found a different quantization schemes for ['q_proj', 'k_proj', 'v_proj'] in "
        "model.layers.0.self_attn.qkv_proj. vLLM requires all to use the same scheme.")


def test_a_pattern_of_the_fused_name_ignores_nothing() -> None:
    config = quantization("ct-w4a16") | {"ignore": ["re:.*qkv_proj$", "lm_head"]}
    methods = {}
    for version in (VERSION, "0.32.0"):
        answer = explain({**LLAMA, "quantization_config": config}, engine_version=version,
                         capability="8.0")
        methods[version] = next(x.method for x in answer.trace.layers if "qkv" in x.path)
    assert methods == {VERSION: "CompressedTensorsLinearMethod",
                       "0.32.0": "UnquantizedLinearMethod"}


def test_int8_activations_of_4_bit_weights_are_served_as_fp8_on_9_0() -> None:
    answer = ask("w4a8-int8")
    layer = next(x for x in answer.trace.layers if x.path.endswith("down_proj"))
    assert (layer.scheme, layer.kernel) == ("CompressedTensorsW4A8Fp8", "CutlassW4A8LinearKernel")


def test_zero_points_at_other_widths_are_a_key_error() -> None:
    config = quantization("ct-w4a16-asym")
    config["config_groups"]["group_0"]["weights"]["num_bits"] = 3
    answer = explain({**LLAMA, "quantization_config": config}, engine_version=VERSION,
                     capability="8.0")
    assert answer.trace.error is not None
    assert (answer.trace.error.type, answer.trace.error.message) == ("KeyError", "3")


def test_a_quantized_awq_head_has_no_sizes() -> None:
    assert refusal(ask("awq4-lmhead")) == "'ParallelLMHead' object has no attribute 'output_size'"
    assert refusal(ask("awq4-lmhead", env={"VLLM_BATCH_INVARIANT": "1"})) is None


@pytest.mark.parametrize("architecture, model_type, heads", [
    ("Qwen2ForCausalLM", "qwen2", 0), ("LlamaForCausalLM", "llama", 1)])
def test_a_tied_head_of_qwen_is_the_embedding(
    architecture: str, model_type: str, heads: int
) -> None:
    answer = ask(config={**LLAMA, "architectures": [architecture], "model_type": model_type,
                         "tie_word_embeddings": True})
    assert sum(layer.path == "lm_head" for layer in answer.trace.layers) == heads


@pytest.mark.parametrize("capability, kv, backend", [
    ("9.0", "fp8", "FLASH_ATTN"), ("8.0", "fp8", "FLASHINFER"), ("12.0", "fp8", "FLASHINFER"),
    ("10.0", "fp8", "FLASHINFER"), ("8.9", "auto", "FLASH_ATTN"), ("9.0", "fp8_e5m2", "FLASHINFER"),
])
def test_attention_backends(capability: str, kv: str, backend: str) -> None:
    answer = ask(capability=capability, kv_cache_dtype=kv)
    attention = next(x for x in answer.trace.layers if x.attn_backend)
    assert attention.attn_backend == backend


def test_an_fp8_cache_is_no_reason_for_flash_attention_4() -> None:
    """0.32.0 reads it with FlashAttention 4 on 10.x; 0.25.1 with version 3 on 9.0 only."""
    said = refusal(ask(capability="10.0", kv_cache_dtype="fp8", attention_backend="FLASH_ATTN"))
    assert said is not None and said.endswith("Reason: ['kv_cache_dtype not supported']")
