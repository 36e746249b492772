"""The engine's memory flags as they may be given, read as the engine reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.facts import AUTO_LENGTH, MemoryFlags
from quantplan.reports.naming import ENGINE_NAMES
from quantplan.tables.errors import UsageError

SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
            "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""vllm 0.32.0 utils/argparse_utils.py:human_readable_int."""
OTHERS: Mapping[str, Mapping[str, str | None]] = {
    "vllm": {"mem_fraction_static": "--gpu-memory-utilization",
             "chunked_prefill_size": "--max-num-batched-tokens",
             "max_running_requests": "--max-num-seqs", "max_total_tokens": None,
             "context_length": "--max-model-len", "cuda_graph_max_bs_decode": None,
             "disable_cuda_graph": "--enforce-eager", "swa_full_tokens_ratio": None,
             "mamba_full_memory_ratio": None, "max_mamba_cache_size": None,
             "attn_dp_size": None, "dp_size": "--dp", "enable_dp_attention": None,
             "moe_a2a_backend": None, "disaggregation_mode": None,
             "speculative_algorithm": "--speculative-config",
             "speculative_num_draft_tokens": "--speculative-config"},
    "sglang": {"gpu_memory_utilization": "--mem-fraction-static",
               "max_num_batched_tokens": "--chunked-prefill-size",
               "max_num_seqs": "--max-running-requests", "max_model_len": "--context-length",
               "enforce_eager": "--disable-cuda-graph", "enable_prefix_caching": None,
               "kv_cache_memory_bytes": "--max-total-tokens", "num_gpu_blocks_override": None,
               "dcp": None, "speculative_config": "--speculative-algorithm",
               "limit_mm_per_prompt": None}}
"""Engine -> memory flags that it does not have -> what it has in their place."""
_FORM = re.compile(r"([0-9]{1,15})(\.[0-9]{1,15})?([kKmMgGtT]?)")


def memory_flags(options: Mapping[str, Any]) -> MemoryFlags:
    """Return the memory flags of checked options; raise UsageError for one that is no number."""
    given = {name: options[name] for name in MemoryFlags._fields
             if options.get(name) is not None}
    return MemoryFlags(**{name: READ[name](value) if name in READ else value
                          for name, value in given.items()})


def check_engine(flags: MemoryFlags, engine: str) -> None:
    """Raise UsageError for a memory flag that the engine does not have."""
    for name, own in OTHERS[engine].items():
        if getattr(flags, name) != getattr(MemoryFlags(), name):
            flag, title = f"--{name.replace('_', '-')}", ENGINE_NAMES[engine]
            raise UsageError(f"{flag} with {title}", wanted=f"flags of {title}",
                             hint=f"{title} has {own}." if own else f"Drop {flag}.")


def engine_count(text: str, option: str, wanted: str) -> int:
    """Return the whole number that vLLM reads in text: 8192, 32k (32,000), 32K (32,768)."""
    match = _FORM.fullmatch(text.strip())
    if match is None or (match[2] and match[3] not in "kmgt"):
        raise UsageError(option, wanted=wanted, found=repr(text[:40]))
    scale = SUFFIXES.get(match[3], 1)
    return int(float(match[1] + match[2]) * scale) if match[2] else int(match[1]) * scale


def _length(value: str | int) -> int:
    if str(value).strip().lower() in ("auto", str(AUTO_LENGTH)):
        return AUTO_LENGTH
    found = engine_count(str(value), "--max-model-len", "tokens, such as 8192 or 32k, or auto")
    if found < 1:
        raise UsageError("--max-model-len", wanted="at least one token", found=str(value))
    return found


def _cache_bytes(value: str | int) -> int:
    """Return the bytes of --kv-cache-memory-bytes, which may have a unit here."""
    text, option = str(value), "--kv-cache-memory-bytes"
    if text[-1:] in SUFFIXES:
        return engine_count(text, option, "a size such as 20GiB or 20G")
    from quantplan.planner.sizes import parse_size

    return parse_size(text, option)


def _share(option: str, least: float, most: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if not least < value <= most:
            raise UsageError(option, wanted=f"more than {least:g} and at most {most:g}",
                             found=str(value))
        return float(value)

    return read


READ: Mapping[str, Callable[[Any], Any]] = {
    "max_model_len": _length, "kv_cache_memory_bytes": _cache_bytes,
    "speculative_config": dict, "limit_mm_per_prompt": dict,
    "mem_fraction_static": _share("--mem-fraction-static", 0, 1),
    "swa_full_tokens_ratio": _share("--swa-full-tokens-ratio", 0, 1),
    "mamba_full_memory_ratio": _share("--mamba-full-memory-ratio", 0, 1e6)}
"""Field of MemoryFlags -> how what is given is read."""
