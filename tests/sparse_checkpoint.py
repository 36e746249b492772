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
EXPERT = (("gate_proj", 2048, 7168), ("up_proj", 2048, 7168), ("down_proj", 7168, 2048))
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
    """Write a mixture of experts of 10^12 parameters: 207,361 tensors in 160 shards; return it.

    60 layers of 384 experts with static FP8 scales per tensor, as ModelOpt writes them; sizes as in
    DeepSeek-V3's family (hidden 7168, expert 2048).
    """
    experts = [
        Stored(f"model.layers.{layer}.mlp.experts.{expert}.{name}.{part}", dtype, shape)
        for layer in range(60)
        for expert in range(384)
        for name, n, k in EXPERT
        for part, (dtype, shape) in _fp8(n, k).items()
    ]
    stored = [Stored("lm_head.weight", "BF16", (163840, 7168)), *experts]
    size = -(-len(stored) // 160)
    shards = [stored[start : start + size] for start in range(0, len(stored), size)]
    moe = {"n_routed_experts": 384, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
    sizes = {"hidden_size": 7168, "num_hidden_layers": 60, "vocab_size": 163840}
    quantization = {"quantization_config": QUANTIZATION["fp8"]}
    return write_folder(
        folder, {"architectures": ["DeepseekV3ForCausalLM"], **moe, **sizes, **quantization}, shards
    )


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
