"""Which file of tuned tile sizes a Triton kernel looks for, and what is said where the wheel has
none. Names are those of public reports, or what vLLM 0.32.0's own get_config_file_name and
config_name answered for the layers that it built under an emulated GPU of another name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import QWEN_72B, ask, found, only
from quantplan.reports.trace_text import depth_text

NAME = "no-tuned-file"
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 4096,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 2, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "hidden_act": "silu",
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "decoder_sparse_step": 1,
    "norm_topk_prob": True, "mlp_only_layers": [], "tie_word_embeddings": False,
}
SMALL = {**QWEN3, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
         "num_attention_heads": 32}
BLOCKS = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
          "weight_block_size": [128, 128]}
DYNAMIC = {"activation_scheme": "dynamic", "quant_method": "fp8"}
GPTQ = {"quant_method": "gptq", "group_size": 128, "sym": True, "desc_act": False,
        "lm_head": False, "dynamic": {}}
ENGINE_LOG = "Using default MoE config. Performance might be sub-optimal!"


def weights(**changes: Any) -> dict[str, Any]:
    """Return compressed-tensors arguments of 8 bits."""
    return {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False,
            "strategy": "channel", **changes}


def compressed(ours: dict[str, Any], inputs: dict[str, Any] | None, form: str) -> dict[str, Any]:
    """Return a compressed-tensors config of one group."""
    return {"quant_method": "compressed-tensors", "format": form,
            "quantization_status": "compressed", "ignore": ["lm_head", "re:.*gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": ours,
                                          "input_activations": inputs}}}


INT8 = compressed(weights(type="int"), weights(type="int", dynamic=True, strategy="token"),
                  "int-quantized")
FP8_BLOCKS_64 = compressed(
    weights(strategy="block", block_structure=[64, 64]),
    weights(dynamic=True, strategy="group", group_size=64), "float-quantized")
PACKED = compressed(weights(num_bits=4, type="int", strategy="group", group_size=128), None,
                    "pack-quantized")


def names(answer: Any) -> set[str]:
    """Return the names of the files that an answer's experts look for."""
    return {x.tuned.name for x in answer.trace.layers if x.tuned and x.moe_backend}


@pytest.mark.parametrize(("model", "quant", "options", "name"), [
    # vllm#17619: Qwen3-235B-A22B-FP8 over eight H100 with expert parallelism.
    (QWEN3, BLOCKS, {"gpu": "h100", "tp": 8, "enable_expert_parallel": True,
                     "moe_backend": "triton"},
     "E=16,N=1536,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"),
    # vllm#32347: Qwen3-30B-A3B in 16 bits over two T4.
    (SMALL, None, {"gpu": "t4", "tp": 2, "dtype": "float16"},
     "E=128,N=384,device_name=Tesla_T4.json"),
])
def test_the_names_of_public_reports(
    model: Any, quant: Any, options: dict[str, Any], name: str
) -> None:
    answer = ask(quant, model=model, **options)
    finding = only(answer, NAME)
    assert (finding.stage, finding.severity) == ("mode and numerics", "info")
    assert names(answer) == {name}
    assert name in finding.message
    assert ENGINE_LOG in finding.message
    assert "benchmark_moe.py --tune" in str(finding.hint)
    assert "VLLM_TUNED_CONFIG_FOLDER" in str(finding.hint)


H200 = "device_name=NVIDIA_H200"


@pytest.mark.parametrize(("quant", "options", "name"), [
    (None, {"tp": 2}, f"E=128,N=768,{H200}.json"),
    (None, {"tp": 2, "dtype": "float32"}, f"E=128,N=768,{H200},dtype=float32.json"),
    (None, {"tp": 2, "moe_backend": "batched_triton"}, f"E=128,N=768,{H200}.json"),
    (BLOCKS, {"tp": 2}, f"E=128,N=768,{H200},dtype=fp8_w8a8,block_shape=[128,128].json"),
    (BLOCKS, {"tp": 8}, f"E=128,N=192,{H200},dtype=fp8_w8a8,block_shape=[64,64].json"),
    (FP8_BLOCKS_64, {"tp": 4, "moe_backend": "triton"},
     f"E=128,N=384,{H200},dtype=fp8_w8a8,block_shape=[64,64].json"),
    (DYNAMIC, {"tp": 8, "moe_backend": "triton"}, f"E=128,N=192,{H200},dtype=fp8_w8a8.json"),
    (INT8, {"tp": 8, "moe_backend": "triton"}, f"E=128,N=192,{H200}.json"),
    (PACKED, {"tp": 4, "moe_backend": "triton"}, f"E=128,N=384,{H200},dtype=int4_w4a16.json"),
    (PACKED, {"tp": 4, "moe_backend": "emulation"}, f"E=128,N=384,{H200}.json"),
    ({**GPTQ, "bits": 4}, {"tp": 2, "quantization": "moe_wna16", "moe_backend": "triton"},
     f"E=128,N=768,{H200},dtype=int4_w4a16.json"),
    ({**GPTQ, "bits": 8}, {"tp": 2, "quantization": "moe_wna16", "moe_backend": "triton"},
     f"E=128,N=768,{H200},dtype=int8_w8a16.json"),
    (None, {"tp": 4, "quantization": "fp8_per_block", "moe_backend": "triton"},
     f"E=128,N=384,{H200},dtype=fp8_w8a8,block_shape=[128,128].json"),
    (None, {"tp": 4, "quantization": "int8_per_channel_weight_only", "moe_backend": "triton"},
     f"E=128,N=384,{H200},dtype=int8_w8a16.json"),
])
def test_experts_ask_for_the_engine_s_name(
    quant: Any, options: dict[str, Any], name: str
) -> None:
    assert names(ask(quant, model=QWEN3, gpu="h200", **options)) == {name}


def test_an_h200_of_any_form_reads_the_files_of_the_h200_and_a_gh200_does_not() -> None:
    """fused_moe.py:get_config_file_name looks for the word H200 between underscores."""
    assert names(ask(model=QWEN3, gpu="h200-nvl", tp=2)) == {f"E=128,N=768,{H200}.json"}
    assert names(ask(model=QWEN3, gpu="gh200-480gb", tp=2)) == {
        "E=128,N=768,device_name=NVIDIA_GH200_480GB.json"}


def test_a_file_of_the_wheel_is_no_finding_and_is_named_in_the_trace() -> None:
    answer = ask(BLOCKS, model=QWEN3, gpu="h200", tp=2)
    assert not found(answer, NAME)
    assert ("tuned tile sizes: E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,"
            "block_shape=[128,128].json, in the wheel") in depth_text(answer.trace)


def test_another_tensor_parallel_size_with_a_file_is_named() -> None:
    """The 0.32.0 wheel has E=128 with N=96, 192, 384, 512, 768 and 1024 for the H200 in 16 bits."""
    finding = only(ask(model=QWEN3, gpu="h200", tp=1), NAME)
    assert str(finding.hint).endswith("The wheel has this device's file for tensor parallel size "
                                      "2 (N=768), 4 (N=384), 8 (N=192), 16 (N=96).")
    spread = only(ask(model=QWEN3, gpu="h200", tp=8, enable_expert_parallel=True,
                      moe_backend="triton"), NAME)
    assert str(spread.hint).endswith("16 (N=96) without expert parallelism.")


def test_a_file_that_only_0_33_has() -> None:
    from quantplan import explain

    model = {**QWEN3, "num_experts": 256, "moe_intermediate_size": 640,
             "quantization_config": DYNAMIC}
    said = [explain(model, engine="vllm", engine_version=version, gpu="h200", tp=2,
                    moe_backend="triton") for version in ("0.32.0", "0.33.0")]
    assert [len(found(answer, NAME)) for answer in said] == [1, 0]


@pytest.mark.parametrize("options", [
    {"capability": "9.0"},  # no device, no name
    {"gpu": "h800-pcie"},  # no driver output with its name is known
    {"gpu": "h100", "env": {"VLLM_TUNED_CONFIG_FOLDER": "tuned"}},  # it may be there
    {"gpu": "h100", "env": {"VLLM_BATCH_INVARIANT": "1"}},  # defaults are what it wants
], ids=["capability", "unnamed", "folder", "batch-invariant"])
def test_nothing_is_said_of_what_is_not_known_or_not_looked_for(options: dict[str, Any]) -> None:
    answer = ask(BLOCKS, model=QWEN3, tp=4, **options)
    assert {x.kernel for x in answer.trace.layers if x.moe_backend} == {"TritonExperts"}
    assert not found(answer, NAME)
    assert not [f for f in found(answer, "variable-not-read") if "TUNED" in f.message]


def test_cutlass_experts_ask_on_blackwell_for_small_batches_only() -> None:
    """triton_cutlass_moe.py: on 10.0, batches of up to 8 tokens go to TritonExperts."""
    quant = compressed(weights(), weights(dynamic=True, strategy="token"), "float-quantized")
    blackwell, hopper = (ask(quant, model=QWEN3, gpu=gpu, tp=4, moe_backend="cutlass")
                         for gpu in ("b200", "h200"))
    assert "default tile sizes for batches of up to 8 tokens" in only(blackwell, NAME).message
    assert names(blackwell) == {"E=128,N=384,device_name=NVIDIA_B200,dtype=fp8_w8a8.json"}
    assert not names(hopper)


def test_experts_without_the_kernel_ask_for_nothing() -> None:
    assert not names(ask({**GPTQ, "bits": 4}, model=QWEN3, gpu="h200", tp=2))  # Marlin


DENSE = {**QWEN_72B, "hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40}


def test_block_fp8_layers_ask_for_a_file_per_shape() -> None:
    """PR vllm#58005 lists N=17408,K=5120 among what an L40S misses with two ranks."""
    answer = ask(BLOCKS, model=DENSE, gpu="l40s", tp=2, linear_backend="triton")
    device = "device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128,128].json"
    assert [f.message.split("has no ")[1].split(" ")[0] for f in found(answer, NAME)] == [
        f"N=3584,K=5120,{device}", f"N=5120,K=2560,{device}", f"N=17408,K=5120,{device}",
        f"N=5120,K=8704,{device}"]
    first = found(answer, NAME)[0]
    assert first.message.startswith("model.layers.0.self_attn.qkv_proj and 1 more layers: ")
    assert "Using default W8A8 Block FP8 kernel config." in first.message
    assert "VLLM_TUNED_CONFIG_FOLDER" not in str(first.hint)  # this kernel does not read it
    quiet = ask(BLOCKS, model=DENSE, gpu="l40s", tp=2, linear_backend="triton",
                env={"VLLM_BATCH_INVARIANT": "1"})
    assert not found(quiet, NAME)


def test_int8_experts_that_quantize_while_loading_leave_activations_in_16_bits() -> None:
    """online/int8.py:Int8OnlineMoEMethod gives its kernel no activation scales and no per-token
    flag, which make_int8_moe_quant_config reads as weight-only."""
    answer = ask(model=QWEN3, gpu="h200", tp=4, quantization="int8_per_channel_weight_only",
                 moe_backend="triton")
    (mode,) = {x.mode for x in answer.trace.layers if x.moe_backend}
    assert mode == "W8A16"
    assert not found(answer, "weight-only")


def test_quark_s_int8_experts_with_one_weight_scale_leave_activations_in_16_bits() -> None:
    """quark_moe.py:QuarkW8A8Int8MoEMethod.get_fused_moe_quant_config asks for per-token scales
    beside per-channel weights only, and dynamic activations have no others: config_name then
    answered int8_w8a16."""
    one = {"dtype": "int8", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True,
           "group_size": None, "ch_axis": None, "scale_type": "float",
           "round_method": "half_even", "observer_cls": "PerTensorMinMaxObserver"}
    tokens = {**one, "is_dynamic": True, "qscheme": "per_channel", "ch_axis": 1}
    quant = {"quant_method": "quark", "layer_quant_config": {}, "layer_type_quant_config": {},
             "exclude": ["lm_head"], "export": {"kv_cache_group": [], "pack_method": "order"},
             "global_quant_config": {"weight": one, "input_tensors": tokens,
                                     "output_tensors": None, "bias": None}}
    answer = ask(quant, model=QWEN3, gpu="h200", tp=4)
    (experts,) = {(x.kernel, x.mode) for x in answer.trace.layers if x.moe_backend}
    assert experts == ("TritonExperts", "W8A16")
    assert names(answer) == {f"E=128,N=384,{H200},dtype=int8_w8a16.json"}
    assert any("routed_experts" in f.message for f in found(answer, "weight-only"))
