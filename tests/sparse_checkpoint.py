"""Full-size Llama-3.1-8B checkpoints that use no disk: true headers, then a hole where weights go.

Names, dtypes, shapes and offsets are those of the published files; `build` writes the headers and
truncates each file to its full size. M = tokens, N = output features, K = input features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# Source: config.json of meta-llama/Llama-3.1-8B.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
# (name, N, K) of the seven linear layers of a decoder layer, in the order transformers saves them.
LINEARS = (
    ("self_attn.q_proj", 4096, 4096),
    ("self_attn.k_proj", 1024, 4096),
    ("self_attn.v_proj", 1024, 4096),
    ("self_attn.o_proj", 4096, 4096),
    ("mlp.gate_proj", 14336, 4096),
    ("mlp.up_proj", 14336, 4096),
    ("mlp.down_proj", 4096, 14336),
)
NORMS = ("input_layernorm", "post_attention_layernorm")
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4, "I64": 8}
# Source: transformers 4.x `save_pretrained`, max_shard_size="5GB".
SHARD_LIMIT_BYTES = 5_000_000_000
GROUP = 128


class Stored(NamedTuple):
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Return the tensor's size in bytes."""
        size = ITEM_BYTES[self.dtype]
        for length in self.shape:
            size *= length
        return size


def _bf16(n: int, k: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {"weight": ("BF16", (n, k))}


def _fp8(n: int, k: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    scales = {"weight_scale": ("F32", ()), "input_scale": ("F32", ())}
    return {"weight": ("F8_E4M3", (n, k)), **scales}


def _fp8_block(n: int, k: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        "weight": ("F8_E4M3", (n, k)),
        "weight_scale_inv": ("F32", (n // GROUP, k // GROUP)),
    }


def _fp8_dynamic(n: int, k: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {"weight": ("F8_E4M3", (n, k)), "weight_scale": ("BF16", (n, 1))}


def _awq(n: int, k: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        "qweight": ("I32", (k, n // 8)),
        "qzeros": ("I32", (k // GROUP, n // 8)),
        "scales": ("F16", (k // GROUP, n)),
    }


def _gptq(n: int, k: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        "qweight": ("I32", (k // 8, n)),
        "qzeros": ("I32", (k // GROUP, n // 8)),
        "scales": ("F16", (k // GROUP, n)),
        "g_idx": ("I32", (k,)),
    }


def _w4a16(n: int, k: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        "weight_packed": ("I32", (n, k // 8)),
        "weight_scale": ("BF16", (n, k // GROUP)),
        "weight_shape": ("I64", (2,)),
    }


LAYOUTS = {
    "bf16": _bf16,
    "fp8": _fp8,
    "fp8-block": _fp8_block,
    "fp8-dynamic": _fp8_dynamic,
    "awq": _awq,
    "gptq": _gptq,
    "w4a16": _w4a16,
}
KINDS = tuple(LAYOUTS)


def _compressed(fmt: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    """Return what llm-compressor writes for one scheme over all linear layers but lm_head."""
    group = {"input_activations": inputs, "output_activations": None, "targets": ["Linear"]}
    return {
        "config_groups": {"group_0": {**group, "weights": weights}},
        "format": fmt,
        "global_compression_ratio": None,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def _scheme(num_bits: int, kind: str, strategy: str, **rest: Any) -> dict[str, Any]:
    base = {"num_bits": num_bits, "type": kind, "strategy": strategy, "symmetric": True}
    return {**base, "dynamic": False, "group_size": None, "observer": "minmax", **rest}


# As AutoFP8, DeepSeek's converter, AutoAWQ, GPTQModel and llm-compressor write them.
QUANTIZATION: dict[str, dict[str, Any]] = {
    "fp8": {"activation_scheme": "static", "ignored_layers": ["lm_head"], "quant_method": "fp8"},
    "fp8-block": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [GROUP, GROUP],
    },
    "fp8-dynamic": _compressed(
        "float-quantized",
        _scheme(8, "float", "channel"),
        _scheme(8, "float", "token", dynamic=True, observer=None),
    ),
    "awq": {
        "bits": 4,
        "group_size": GROUP,
        "modules_to_not_convert": None,
        "quant_method": "awq",
        "version": "gemm",
        "zero_point": True,
    },
    "gptq": {
        "bits": 4,
        "checkpoint_format": "gptq",
        "damp_percent": 0.01,
        "desc_act": False,
        "group_size": GROUP,
        "lm_head": False,
        "quant_method": "gptq",
        "sym": True,
        "true_sequential": True,
    },
    "w4a16": _compressed("pack-quantized", _scheme(4, "int", "group", group_size=GROUP), None),
}


def config(kind: str) -> dict[str, Any]:
    """Return the config.json of one kind."""
    quantization = QUANTIZATION.get(kind)
    return CONFIG if quantization is None else {**CONFIG, "quantization_config": quantization}


def tensors(kind: str) -> Iterator[Stored]:
    """Yield every tensor of one kind, in the order transformers saves them."""
    yield Stored("model.embed_tokens.weight", "BF16", (128256, 4096))
    for layer in range(32):
        for name, n, k in LINEARS:
            for part, (dtype, shape) in LAYOUTS[kind](n, k).items():
                yield Stored(f"model.layers.{layer}.{name}.{part}", dtype, shape)
        for name in NORMS:
            yield Stored(f"model.layers.{layer}.{name}.weight", "BF16", (4096,))
    yield Stored("model.norm.weight", "BF16", (4096,))
    yield Stored("lm_head.weight", "BF16", (128256, 4096))


def build(folder: str | Path, kind: str) -> Path:
    """Write one kind of checkpoint into a new or empty folder, without its weights; return it."""
    return write_folder(folder, config(kind), list(_shards(tensors(kind))))


def build_trillion(folder: str | Path) -> Path:
    """Write a mixture of experts of 10^12 parameters, 209,191 tensors in 160 shards; return it.

    The sizes are Kimi K2's, with static FP8 scales per tensor as ModelOpt writes them.
    """
    stored = list(_trillion())
    size = -(-len(stored) // 160)
    shards = [stored[start : start + size] for start in range(0, len(stored), size)]
    return write_folder(folder, {**KIMI_K2, "quantization_config": QUANTIZATION["fp8"]}, shards)


def _trillion() -> Iterator[Stored]:
    yield Stored("model.embed_tokens.weight", "BF16", (163840, 7168))
    for layer in range(61):
        prefix = f"model.layers.{layer}"
        yield from (Stored(f"{prefix}.{name}.weight", "BF16", (size,)) for name, size in MLA_NORMS)
        yield from _linears(f"{prefix}.self_attn", MLA)
        if layer == 0:
            yield from _linears(f"{prefix}.mlp", mlp(18432))
            continue
        yield Stored(f"{prefix}.mlp.gate.weight", "BF16", (384, 7168))
        yield Stored(f"{prefix}.mlp.gate.e_score_correction_bias", "F32", (384,))
        for name in ("shared_experts", *(f"experts.{expert}" for expert in range(384))):
            yield from _linears(f"{prefix}.mlp.{name}", mlp(2048))
    yield Stored("model.norm.weight", "BF16", (7168,))
    yield Stored("lm_head.weight", "BF16", (163840, 7168))


def _linears(prefix: str, sizes: tuple[tuple[str, int, int], ...]) -> Iterator[Stored]:
    for name, n, k in sizes:
        for part, (dtype, shape) in _fp8(n, k).items():
            yield Stored(f"{prefix}.{name}.{part}", dtype, shape)


def mlp(size: int) -> tuple[tuple[str, int, int], ...]:
    """Return the linears of an MLP of hidden size 7168: name, N, K."""
    return ("gate_proj", size, 7168), ("up_proj", size, 7168), ("down_proj", 7168, size)


MLA = (("q_a_proj", 1536, 7168), ("q_b_proj", 64 * 192, 1536), ("kv_a_proj_with_mqa", 576, 7168),
       ("kv_b_proj", 64 * 256, 512), ("o_proj", 7168, 64 * 128))
MLA_NORMS = (("input_layernorm", 7168), ("post_attention_layernorm", 7168),
             ("self_attn.q_a_layernorm", 1536), ("self_attn.kv_a_layernorm", 512))
KIMI_K2 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "dtype": "bfloat16",
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "norm_topk_prob": True, "routed_scaling_factor": 2.827, "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "vocab_size": 163840, "max_position_embeddings": 131072,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 50000.0,
    "tie_word_embeddings": False,
}
"""config.json of moonshotai/Kimi-K2-Instruct, without its rope scaling and its own code."""


def write_folder(folder: str | Path, config: dict[str, Any], shards: list[list[Stored]]) -> Path:
    """Write a config, sharded sparse weights and their index; return the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_sparse(folder / name, shard)
        index |= {tensor.name: name for tensor in shard}
    total = sum(tensor.size_bytes for shard in shards for tensor in shard)
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n")
    return folder


def write_sparse(path: Path, shard: list[Stored]) -> None:
    """Write a safetensors file's header and truncate the file to its full size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    # The library stores wide items first, then by name, so that every offset is aligned.
    for tensor in sorted(shard, key=lambda tensor: (-ITEM_BYTES[tensor.dtype], tensor.name)):
        start, end = end, end + tensor.size_bytes
        entry = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (start, end)}
        header[tensor.name] = entry
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def _shards(stored: Iterator[Stored]) -> Iterator[list[Stored]]:
    shard: list[Stored] = []
    size = 0
    for tensor in stored:
        if shard and size + tensor.size_bytes > SHARD_LIMIT_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.size_bytes
    yield shard
