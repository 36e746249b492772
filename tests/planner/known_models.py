"""Models of the planner's tests, as config.json alone: sizes from their public configs."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.facts import Checkpoint

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "vocab_size", "max_position_embeddings")
MODELS: dict[str, tuple[str, str, tuple[int, ...], dict[str, Any]]] = {
    "llama-3.1-8b": ("LlamaForCausalLM", "llama",
                     (4096, 14336, 32, 32, 8, 128256, 131072), {}),
    "llama-3.3-70b": ("LlamaForCausalLM", "llama",
                      (8192, 28672, 80, 64, 8, 128256, 131072), {}),
    "qwen2.5-0.5b": ("Qwen2ForCausalLM", "qwen2", (896, 4864, 24, 14, 2, 151936, 32768),
                     {"tie_word_embeddings": True}),
    "qwen2.5-7b": ("Qwen2ForCausalLM", "qwen2", (3584, 18944, 28, 28, 4, 152064, 32768), {}),
    "qwen3-8b": ("Qwen3ForCausalLM", "qwen3", (4096, 12288, 36, 32, 8, 151936, 40960),
                 {"head_dim": 128}),
    "qwen3-14b": ("Qwen3ForCausalLM", "qwen3", (5120, 17408, 40, 40, 8, 151936, 40960),
                  {"head_dim": 128}),
}


def model(name: str, **changes: Any) -> Checkpoint:
    """Return the model called `name` with changed config fields."""
    architecture, model_type, sizes, more = MODELS[name]
    config = {"architectures": [architecture], "model_type": model_type, "hidden_act": "silu",
              "torch_dtype": "bfloat16", "tie_word_embeddings": False,
              **dict(zip(SIZES, sizes, strict=True)), **more, **changes}
    return Checkpoint(name, "mapping", config)
