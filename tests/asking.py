"""Questions about Llama-3.1-8B cut to two layers, and the engine's golden answers."""

from __future__ import annotations

import gzip
import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from quantplan.dispatch.trace import Finding

from quantplan import Explanation, explain

GOLDEN = Path(__file__).parent / "golden" / "vllm-0.32.0.jsonl.gz"
LEAVES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}
QWEN_72B: dict[str, Any] = {
    **LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8192,
    "intermediate_size": 29568, "num_attention_heads": 64, "vocab_size": 152064,
    "max_position_embeddings": 32768,
}


@cache
def golden_rows() -> dict[str, dict[str, Any]]:
    """Return the golden rows by id."""
    with gzip.open(GOLDEN, "rt", encoding="utf-8") as file:
        return {row["id"]: row for row in map(json.loads, file)}


@cache
def _quantizations() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, row in golden_rows().items():
        if name.startswith("llama8b/"):
            config = row["case"]["config"].get("quantization_config")
            found.setdefault(name.split("/")[1], json.dumps(config))
    return found


def quantization(name: str, **changes: Any) -> Any:
    """Return the quantization_config of the golden cases called NAME, with CHANGES."""
    found = json.loads(_quantizations()[name])
    return None if found is None else {**found, **changes}


def scheme(name: str, **changes: Any) -> Any:
    """Return a golden compressed-tensors config whose only group has CHANGES: `weights` and
    `input_activations` are merged into the group's, other fields replace the group's."""
    found = quantization(name)
    group = found["config_groups"]["group_0"]
    for field, value in changes.items():
        merge = field in ("weights", "input_activations") and isinstance(value, dict)
        group[field] = {**(group[field] or {}), **value} if merge else value
    return found


def ask(quant: Any = None, capability: str = "9.0", *, model: Any = None, **options: Any
        ) -> Explanation:
    """Return our answer: QUANT is a golden name or a quantization_config, MODEL a config."""
    config = deepcopy(LLAMA if model is None else model)
    if quant is not None:
        config["quantization_config"] = quantization(quant) if isinstance(quant, str) else quant
    if "gpu" not in options:
        options["capability"] = capability
    return explain(config, engine="vllm", engine_version="0.32.0", **options)


def ask_row(row: dict[str, Any]) -> Explanation:
    """Return our answer to a golden row's case."""
    case = row["case"]
    return explain(
        case["config"], engine="vllm", engine_version="0.32.0", capability=case["capability"],
        tp=case.get("tp_size", 1), dtype=case.get("dtype"), env=case.get("env"),
        quantization=case.get("quantization"), kv_cache_dtype=case.get("kv_cache_dtype"),
        libs=case.get("libs"), linear_backend=case.get("linear_backend"),
        tensors=case.get("tensors"))


def kernels(answer: Explanation) -> dict[str, str | None]:
    """Return path -> kernel of the linear layers, or the method where there is no kernel."""
    return {layer.path: layer.kernel or layer.method for layer in answer.trace.layers
            if layer.module != "Attention"}


def message(answer: Explanation) -> str:
    """Return the engine's error of an answer that must be one."""
    assert answer.trace.error is not None
    return answer.trace.error.message


def stored(quantized: dict[str, str], *plain: str, layers: int = 2) -> dict[str, str]:
    """Return headers of Llama-3.1-8B: modules hold QUANTIZED tensors, but bfloat16 where their path
    holds one of PLAIN."""
    found = {"model.embed_tokens.weight": "BF16", "lm_head.weight": "BF16",
             "model.norm.weight": "BF16"}
    for index in range(layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{index}.{norm}.weight"] = "BF16"
        for leaf in LEAVES:
            path = f"model.layers.{index}.{leaf}"
            parts = {"weight": "BF16"} if any(p in path for p in plain) else quantized
            found |= {f"{path}.{part}": dtype for part, dtype in parts.items()}
    return found


AWQ_PARTS = {"qweight": "I32", "qzeros": "I32", "scales": "F16"}
FP8_PARTS = {"weight": "F8_E4M3", "weight_scale": "F32"}


def found(answer: Explanation, name: str) -> list[Finding]:
    """Return the findings called NAME."""
    return [finding for finding in answer.trace.findings if finding.id == name]


def only(answer: Explanation, name: str) -> Finding:
    """Return the one finding called NAME."""
    (finding,) = found(answer, name)
    return finding


def starts(answer: Explanation) -> str:
    """Return "yes", "no" or "conditional"."""
    return str(answer.to_dict()["starts"])


def selection_only(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an explanation as the engine's selection alone would have it: without the refusal of
    bfloat16 below 8.0, which comes from the worker's process."""
    refused = (answer["error"] or {}).get("source") == (
        "platforms/cuda.py:CudaPlatformBase.check_if_supports_dtype")
    return {**answer, "outcome": "ok", "error": None} if refused else answer
