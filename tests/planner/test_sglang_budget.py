"""budget() of SGLang: public start-up logs, the engine's refusals, its flags and data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from quantplan.planner.sglang_budget import SglangBudget
from quantplan.reports.startup_log import parse_log
from quantplan.tables.errors import EngineRefusalError, NotKnownError, UsageError

from quantplan import budget, check_budget, reports

SCHEMA = json.loads(
    (Path(str(reports.__file__)).parent / "schema" / "sglang-budget.v1.json").read_text())


def of(model: Any = "qwen3-8b", gpu: str | None = "h100", **options: Any) -> SglangBudget:
    """Return SGLang's budget."""
    found = budget(model, engine="sglang", gpu=gpu, **options)
    assert isinstance(found, SglangBudget)
    return found


def test_a_public_log_of_qwen3_8b_on_a_gb300() -> None:
    """A clean start-up log of 2026-05-24: mem usage=15.28 GB, max_total_num_tokens=1707904,
    chunked_prefill_size=16384, max_running_requests=4096; its constants are among those fitted."""
    found = of(gpu="gb300")
    assert abs(found.weights.bytes / 2**30 - 15.28) < 0.005
    assert abs(found.kv_tokens - 1_707_904) < 1_000
    assert (found.settings.chunk_tokens, found.pools.requests) == (16_384, 4_096)
    assert found.page_tokens == 64


LOG = """\
[2026-05-24 00:52:40] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1)
[2026-05-24 00:52:51] Load weight begin. avail mem=275.75 GB
[2026-05-24 00:52:54] Load weight end. elapsed=2.62 s, type=Qwen3ForCausalLM, avail mem=260.48 GB, \
mem usage=15.28 GB.
[2026-05-24 00:52:54] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1707904, \
K size: 117.28 GB, V size: 117.28 GB
[2026-05-24 00:53:20] max_total_num_tokens=1707904, chunked_prefill_size=16384, \
max_prefill_tokens=16384, max_running_requests=4096, context_len=40960, available_gpu_mem=21.24 GB
"""


def test_the_same_log_checked() -> None:
    check = check_budget(parse_log(LOG.splitlines()), gpu="gb300")
    assert {term.name: term.agrees for term in check.terms} == {
        "weights": True, "KV cache memory": True, "KV tokens": True}


@pytest.mark.parametrize("model, tokens, title", [
    ("qwen3-235b-a22b", 48_128, "bf16"), ("deepseek-r1", 70_272, "fp8 block 128x128")])
def test_experts_and_latents_of_eight_ranks(model: str, tokens: int, title: str) -> None:
    """Bytes per token as DefaultPoolConfigurator counts them (sglang_memory_answers.jsonl): 94
    layers of one replicated KV head; 61 latents of 576 values."""
    found = of(model, gpu="h200", tp=8)
    assert (found.bytes_per_token, found.weights.title) == (tokens, title)
    assert found.fits


@pytest.mark.parametrize("options", [
    {}, {"tp": 4}, {"mem_fraction_static": 0.5}, {"kv_cache_dtype": "fp8_e4m3"},
    {"gpu": None, "gpu_mem": "24GiB"}, {"gpu": "4090", "model": "qwen3-32b"}])
def test_lines_make_up_the_gpu_and_the_data_keeps_its_schema(options: dict[str, Any]) -> None:
    found = of(**options)
    jsonschema.validate(found.to_dict(), SCHEMA)
    total = found.weights.bytes + found.overhead_bytes + found.kv_bytes
    assert total == found.memory.bytes or not found.fits
    assert found.missing_bytes == 0 or not found.fits


def test_weights_that_leave_nothing_are_refused_in_the_engine_s_words() -> None:
    """KVCacheConfigurator._profile_available_bytes: 1 - available/pre, rounded up to 3 places."""
    found = of(mem_fraction_static=0.1)
    least = 1 - (78.46 - 15.2793 - 0.01) / 78.46
    assert found.refusal is not None
    assert found.refusal.message.startswith(
        "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.1. "
        "Raise --mem-fraction-static above 0.195 (minimum viable = 1 - available/pre = "
        f"{least:.4f}).")
    assert found.missing_bytes > 0 and not found.fits
    assert of(mem_fraction_static=0.2).fits


def test_weights_larger_than_the_gpu_do_not_load() -> None:
    found = of("qwen3-32b", gpu="4090")
    assert found.refusal is not None
    assert found.refusal.message == "CUDA out of memory while the weights load."


def test_a_context_beyond_the_model_s_own() -> None:
    """ModelConfig._derive_context_length; the variable lets it pass."""
    found = of(context_length=50_000)
    assert found.refusal is not None
    assert "context_length (50000) is greater than the derived context_length (40960)" in (
        found.refusal.message)
    assert of(context_length=8_192).refusal is None


@pytest.mark.parametrize("engine, options, hint", [
    ("sglang", {"gpu_memory_utilization": 0.9}, "--mem-fraction-static"),
    ("sglang", {"max_num_seqs": 8}, "--max-running-requests"),
    ("sglang", {"enforce_eager": True}, "--disable-cuda-graph"),
    ("vllm", {"chunked_prefill_size": 2048}, "--max-num-batched-tokens"),
    ("vllm", {"max_mamba_cache_size": 4}, "Drop --max-mamba-cache-size")])
def test_flags_of_the_other_engine(engine: str, options: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        budget("qwen3-8b", engine=engine, gpu="h100", **options)


@pytest.mark.parametrize("options", [
    {"mem_fraction_static": 0}, {"mem_fraction_static": 1.5}, {"swa_full_tokens_ratio": 2},
    {"chunked_prefill_size": 0}, {"max_total_tokens": 0}])
def test_values_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        of(**options)


@pytest.mark.parametrize("options, words", [
    ({"model": "gpt-oss-20b", "pp": 2}, "pipeline stage"),
    ({"quantization": "fp8"}, "weight bytes")])
def test_weights_that_are_not_known(options: dict[str, Any], words: str) -> None:
    with pytest.raises(NotKnownError, match=words):
        of(**options)


NO_SUCH_TYPE = {"architectures": ["MiniMaxM3ForCausalLM"], "model_type": "minimax_m3",
                "torch_dtype": "bfloat16", "hidden_size": 64, "num_attention_heads": 4}


def test_a_class_that_the_engine_lacks_is_its_own_refusal() -> None:
    """utils/hf_transformers/config.py:get_config: AutoConfig knows no such model type."""
    with pytest.raises(EngineRefusalError) as raised:
        of(NO_SUCH_TYPE)
    assert "has model type `minimax_m3` but Transformers does not recognize" in str(raised.value)


def test_the_kv_dtype_of_a_start_that_ends_before_it_is_read() -> None:
    """MiMo-7B-Base's model type "mimo" is not in that Transformers; 36 layers x 8 KV heads x 2 x
    128 values of one byte (server_args.py: fp8_e4m3 is torch.float8_e4m3fn)."""
    found = of({"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "hidden_size": 4096,
                "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 36,
                "intermediate_size": 11008, "vocab_size": 151680, "torch_dtype": "bfloat16",
                "max_position_embeddings": 32768}, kv_cache_dtype="fp8_e4m3")
    assert found.refusal is not None
    assert found.bytes_per_token == 36 * 8 * 2 * 128


def test_attention_groups_share_attention_and_embeddings() -> None:
    """models/qwen3_moe.py:Qwen3MoeAttention, models/qwen2.py:Qwen2Model: Qwen3-235B on 8 ranks has
    8 query heads and a copied KV head, in 8 groups all 64 and 4; 94 layers, 16 bits."""
    def created(**options: Any) -> int:
        found = of("qwen3-235b-a22b", gpu="h200", tp=8, **options)
        return sum(line.bytes for line in found.weights.lines if "allocator" not in line.name)

    outputs = (64 + 2 * 4) * 128 - (8 + 2) * 128
    inputs = (64 - 8) * 128
    embedding = 151_936 * 4_096 * 2 * 7 // 8
    grown = 94 * (outputs + inputs) * 4_096 * 2 + embedding
    assert created(attn_dp_size=8) - created() == grown
    assert created(dp_size=8, enable_dp_attention=True) == created(attn_dp_size=8)
    assert created(dp_size=8) == created()


def test_shared_experts_are_whole_with_deepep() -> None:
    """models/deepseek_v2.py:DeepseekV2MoE: 58 layers of 3 matrices 7168 x 2048 in FP8, a float32
    scale per 128 x 128; one rank has an eighth otherwise."""
    def created(backend: str) -> int:
        found = of("deepseek-r1", gpu="h200", tp=8, moe_a2a_backend=backend)
        return sum(line.bytes for line in found.weights.lines if "allocator" not in line.name)

    matrix = 7_168 * 2_048 + 56 * 16 * 4
    assert created("deepep") - created("none") == 58 * 3 * matrix * 7 // 8
    with pytest.raises(NotKnownError, match="LlamaForCausalLM in several attention groups"):
        of("llama-3.1-8b", tp=2, attn_dp_size=2)


def test_drafts_with_a_model_of_their_own_are_not_known() -> None:
    with pytest.raises(NotKnownError, match=r"draft's weights and layers of .* EAGLE"):
        of(speculative_algorithm="EAGLE")


def test_ranks_that_a_layer_does_not_divide_over_are_the_engine_s_refusal() -> None:
    """layers/linear.py: QKVParallelLinear's assertion; 32 heads over 3 ranks."""
    with pytest.raises(EngineRefusalError) as raised:
        of("llama-3.1-8b", tp=3)
    assert "does not start (shapes under TP): AssertionError" in str(raised.value)


def test_what_kernels_free_follows_the_schema() -> None:
    """modelopt_quant.py: NVFP4's scales of activations end when a kernel of 16 bits is prepared."""
    found = of("qwen3-8b", gpu="h200", as_format="modelopt-nvfp4").to_dict()
    assert min(line["bytes"] for line in found["weights"]["lines"]) < 0
    jsonschema.validate(found, SCHEMA)


@pytest.mark.parametrize("flag, value, pool", [
    ("swa_full_tokens_ratio", 0.5, "windows"), ("mamba_full_memory_ratio", 0.5, "states"),
    ("max_mamba_cache_size", 8, "states")])
def test_a_flag_of_a_pool_that_the_model_lacks(flag: str, value: float, pool: str) -> None:
    notes = [note for note in of(**{flag: value}).notes if note.id == "flag-without-effect"]
    assert [note.message for note in notes] == [
        f"--{flag.replace('_', '-')} changes nothing: this model has no pool of {pool}"]
    assert of(**{flag: value}).kv_tokens == of().kv_tokens


def test_a_flag_of_a_pool_that_the_model_has() -> None:
    notes = of("gpt-oss-20b", swa_full_tokens_ratio=0.5).notes
    assert "flag-without-effect" not in {note.id for note in notes}
