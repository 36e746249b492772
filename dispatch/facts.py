"""The facts a resolution starts from: frozen, plain, with no engine in them.

M = tokens, N = output features, K = input features. Capabilities are integers: 89 is 8.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.tables.record import NamedTuple


class Tensor(NamedTuple):
    """One tensor of a safetensors header: dtype as the format spells it ("BF16", "F8_E4M3")."""

    dtype: str
    shape: tuple[int, ...] | None = None


class Note(NamedTuple):
    """Something a reader noticed that is not an error: it becomes a finding of this severity."""

    id: str
    message: str
    hint: str | None = None
    severity: str = "warning"


class Checkpoint(NamedTuple):
    """What a model folder, config.json, hub repository or mapping says, before any engine reads it.

    `tensors` is None when no safetensors header could be read (a lone config.json);
    `file_bytes` is the sum of the weight files' sizes, None when unknown.
    """

    name: str
    origin: str
    config: Mapping[str, Any]
    side_files: Mapping[str, Mapping[str, Any]] = {}
    tensors: Mapping[str, Tensor] | None = None
    file_bytes: int | None = None
    fetched_bytes: int = 0
    revision: str | None = None
    notes: tuple[Note, ...] = ()

    @property
    def folder(self) -> str:
        """Return the name by which the engine's messages call the model's folder."""
        return "<model>" if self.origin == "mapping" else self.name

    @property
    def served_config(self) -> Mapping[str, Any]:
        """Return config.json, with hf_quant_config.json as its quantization_config where it has
        none (vLLM transformers_utils/config.py:get_config)."""
        side = self.side_files.get("hf_quant_config.json")
        if side is None or self.config.get("quantization_config") is not None:
            return self.config
        return {**self.config, "quantization_config": side}

    @property
    def text_config(self) -> Mapping[str, Any]:
        """Return the language model's part of the config: `text_config` of wrappers, else all."""
        text = self.config.get("text_config")
        return text if isinstance(text, Mapping) else self.config


class Gpu(NamedTuple):
    """One GPU as the engine would see it.

    `memory_bytes` is what the driver reports as total (`memory_kind` "driver"), or the label times
    10^9 or 2^30 when no driver figure is known ("label"), or None; `memory_mib` is the total that
    nvidia-smi prints, which has what the driver keeps in it. `named_by_driver` is false where
    `name` is not what the driver calls it.
    """

    name: str
    capability: int
    sm_count: int | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_kind: str | None = None
    id: str | None = None
    origin: str = "catalogue"
    named_by_driver: bool = True
    memory_mib: int | None = None

    @property
    def capability_text(self) -> str:
        """Return the compute capability as people write it: "8.9"."""
        return f"{self.capability // 10}.{self.capability % 10}"


def capability_family(capability: int) -> int:
    """Return the capability x 10 of the GPU's family: 120 for 121."""
    return capability // 10 * 10


LIB_STATES: Mapping[str, bool | str | None] = {
    "on": True, "off": False, "unknown": None, "installed": "installed"}
"""Word -> value of `Deployment.libs`: usable, absent, not known, and installed without the engine
being able to use it."""


class Deployment(NamedTuple):
    """The engine's command line and environment, as far as it changes selection or memory."""

    tp: int = 1
    dtype: str = "auto"
    quantization: str | None = None
    quantization_config: Mapping[str, Any] | None = None
    kv_cache_dtype: str = "auto"
    linear_backend: str = "auto"
    linear_backend_per_quant: Mapping[str, str] | None = None
    moe_backend: str = "auto"
    expert_parallel: bool = False
    dp: int = 1
    allow_deprecated_quantization: bool = False
    trust_remote_code: bool = False
    attention_backend: str | None = None
    attention_config: Mapping[str, Any] = {}
    mm_encoder_attn_backend: str | None = None
    mm_encoder_attn_dtype: str | None = None
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()
    block_size: int | None = None
    fp8_gemm_backend: str = "auto"
    fp4_gemm_backend: str = "auto"
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    mm_attention_backend: str | None = None
    page_size: int | None = None
    env: Mapping[str, str] = {}
    libs: Mapping[str, bool | str | None] = {}

    @property
    def sequence_parallel_experts(self) -> bool:
        """Return whether models that can split tokens, not weights, around their experts
        (config/parallel.py:ParallelConfig.use_sequence_parallel_moe)."""
        return self.expert_parallel and self.tp > 1 and self.dp > 1

    def backend_of(self, family: str) -> str:
        """Return the linear backend asked for a kernel family: its own override, else the flag
        (model_executor/kernels/linear/__init__.py:_get_linear_backend)."""
        return (self.linear_backend_per_quant or {}).get(family) or self.linear_backend

    def backend_words(self, family: str) -> str:
        """Return the option that names a family's linear backend, as users write it."""
        own = (self.linear_backend_per_quant or {}).get(family)
        return (f"--kernel-config.linear_backend_per_quant.{family} {own}" if own
                else f"--linear-backend {self.linear_backend}")


AUTO_LENGTH = -1
"""--max-model-len that asks the engine for the longest context that fits
(vllm 0.32.0 utils/argparse_utils.py:human_readable_int_or_auto)."""
A2A_BACKENDS = ("none", "deepep", "mooncake", "nixl", "mori", "flashinfer", "megamoe", "deepep_v2",
                "pplx", "flashinfer_megamoe")
"""Values of SGLang's --moe-a2a-backend on NVIDIA GPUs (sglang 0.5.22
arg_groups/fields/exec_.py)."""
ROLES = ("null", "prefill", "decode")
"""Values of SGLang's --disaggregation-mode (arg_groups/fields/disagg.py)."""


class MemoryFlags(NamedTuple):
    """The engine's flags that change memory and not selection; None where the engine decides.

    `max_model_len` may be AUTO_LENGTH. From `mem_fraction_static` on they are
    SGLang's (arg_groups/fields/schedule.py).
    """

    pp: int = 1
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    dcp: int = 1
    speculative_config: Mapping[str, Any] | None = None
    limit_mm_per_prompt: Mapping[str, Any] | None = None
    mem_fraction_static: float | None = None
    chunked_prefill_size: int | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    context_length: int | None = None
    cuda_graph_max_bs_decode: int | None = None
    disable_cuda_graph: bool = False
    swa_full_tokens_ratio: float | None = None
    mamba_full_memory_ratio: float | None = None
    max_mamba_cache_size: int | None = None
    attn_dp_size: int = 1
    dp_size: int = 1
    enable_dp_attention: bool = False
    moe_a2a_backend: str = "none"
    disaggregation_mode: str = "null"
    speculative_algorithm: str | None = None
    speculative_num_draft_tokens: int | None = None

    @property
    def attention_groups(self) -> int:
        """Return the data-parallel groups of SGLang's attention, --dp-size of its older flags
        included (arg_groups/parallel_hook.py:handle_deprecated_dp_attention)."""
        old = self.dp_size if self.enable_dp_attention else 1
        return self.attn_dp_size if self.attn_dp_size > 1 else old
