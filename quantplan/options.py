"""The options of the API as they may be given; a wrong type is refused before anything is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.config_file import kind
from quantplan.dispatch.facts import A2A_BACKENDS, LIB_STATES, ROLES
from quantplan.tables.errors import UsageError
from quantplan.tables.platform_rows import PLATFORMS

ENGINES = ("vllm", "sglang")


def checked(**options: Any) -> dict[str, Any]:
    """Return the options; raise UsageError for the first whose value is of a type it cannot
    have."""
    for name, value in options.items():
        wanted, fits = KINDS[name]
        if not fits(value):
            raise UsageError(name, wanted=wanted, found=kind(value))
    return options


def engine_named(text: str, option: str = "", bare: str | None = None) -> tuple[str, str | None]:
    """Return the engine and the version, if one is given, of text such as vllm@0.32.0; with `bare`
    0.32.0 is a version of that engine."""
    name, at, version = text.partition("@")
    if bare and not at and name[:1].isdecimal():
        return bare, name
    if name.lower() not in ENGINES or (at and not version):
        raise UsageError(f"{option} {text}".strip(),
                         wanted=f"{' or '.join(ENGINES)}, with @VERSION if needed")
    return name.lower(), version or None


def method_name(name: str | None) -> str | None:
    """Return the engine's reading of --quantization: lower case, and nothing for "" and "None"
    (config/model.py:validate_quantization_before, engine/arg_utils.py:optional_type)."""
    return None if name in (None, "", "None") else name.lower()


def backend_name(name: str | None) -> str:
    """Return the engine's spelling of a backend: lower case, underscores (config/kernel.py
    normalises dashes the same way)."""
    return (name or "auto").lower().replace("-", "_")


def pairs(given: tuple[str, ...], option: str, wanted: str) -> dict[str, str]:
    """Return name -> value of options written NAME=VALUE; raise UsageError for others."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{option} {text}", wanted=wanted)
        if found.get(name, value) != value:
            raise UsageError(f"{option} {name} is given twice", wanted="one value",
                             found=f"{found[name]} and {value}")
        found[name] = value
    return found


def library_states(given: tuple[str, ...]) -> dict[str, bool | str | None]:
    """Return library -> state of the --lib options; raise UsageError for what is no state."""
    libs = {}
    for name, state in pairs(given, "--lib", "NAME=" + "|".join(LIB_STATES)).items():
        if state not in LIB_STATES:
            raise UsageError(f"--lib {name}={state}", wanted="one of " + ", ".join(LIB_STATES))
        libs[name] = LIB_STATES[state]
    return libs


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _size(value: Any) -> bool:
    return value is None or isinstance(value, str) or type(value) is int


def _capability(value: Any) -> bool:
    return isinstance(value, str) or _number(value)


def _texts(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(item, str) for key, item in value.items()))


def _states(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and all(
        isinstance(key, str) and (item is None or isinstance(item, bool) or item == "installed")
        for key, item in value.items()))


def _named(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping)
                             and all(isinstance(key, str) for key in value))


def _names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


def _count(value: Any) -> bool:
    return value is None or (type(value) is int and value > 0)


def _parallel(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 1024


def _model(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike, Mapping))


KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "model": ("a folder, a config.json, a hub id, a bundled name or a parsed config", _model),
    **dict.fromkeys(("gpu", "dtype", "quantization", "kv_cache_dtype", "linear_backend",
                     "moe_backend", "revision", "as_format", "engine_version", "from_version",
                     "to_version", "attention_backend",
                     "mm_encoder_attn_backend", "mm_encoder_attn_dtype"),
                    ("text", _text)),
    "platform": ("one of " + ", ".join(PLATFORMS), lambda value: value in PLATFORMS),
    "engine": ("text", lambda value: isinstance(value, str)),
    "capability": ("a number or text such as 8.9", _capability),
    "gpu_mem": ("text such as 24GiB, or bytes", _size),
    "gpu_memory_utilization": ("a number", _number),
    **dict.fromkeys(("env", "linear_backend_per_quant"), ("a mapping of text to text", _texts)),
    "libs": ("a mapping of text to true, false, 'installed' or None", _states),
    **dict.fromkeys(("attention_config", "quantization_config", "speculative_config",
                     "limit_mm_per_prompt"), ("a mapping of names", _named)),
    "kv_cache_dtype_skip_layers": ("a list of text", _names),
    **dict.fromkeys(("block_size", "page_size"), ("a whole number from 1 up", _count)),
    **dict.fromkeys(("fp8_gemm_backend", "fp4_gemm_backend", "prefill_attention_backend",
                     "decode_attention_backend", "mm_attention_backend"), ("a name", _text)),
    **dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override"),
                    ("a whole number from 1 up", _count)),
    **dict.fromkeys(("max_running_requests", "max_total_tokens", "context_length",
                     "cuda_graph_max_bs_decode", "max_mamba_cache_size",
                     "speculative_num_draft_tokens"),
                    ("a whole number from 1 up", _count)),
    "chunked_prefill_size": ("a whole number, -1 for no chunks",
                             lambda value: value is None or (type(value) is int and value >= -1
                                                             and value != 0)),
    **dict.fromkeys(("mem_fraction_static", "swa_full_tokens_ratio", "mamba_full_memory_ratio"),
                    ("a number", _number)),
    "speculative_algorithm": ("a name", _text),
    "moe_a2a_backend": ("one of " + ", ".join(A2A_BACKENDS), A2A_BACKENDS.__contains__),
    "disaggregation_mode": ("one of " + ", ".join(ROLES), ROLES.__contains__),
    "max_model_len": ("tokens, such as 8192 or 32k, or auto", _size),
    "kv_cache_memory_bytes": ("text such as 20GiB, or bytes", _size),
    "enable_prefix_caching": ("true, false or None",
                              lambda value: value is None or isinstance(value, bool)),
    **dict.fromkeys(("tp", "dp", "pp", "dcp", "dp_size", "attn_dp_size"),
                    ("a whole number from 1 to 1024", _parallel)),
    "tensors": ("a mapping of names", _named),
    "side_files": ("a mapping of file names", _named),
    **dict.fromkeys(("allow_deprecated_quantization", "trust_remote_code", "assume_nearest",
                     "enable_expert_parallel", "enforce_eager", "disable_cuda_graph",
                     "enable_dp_attention"),
                    ("true or false", lambda value: isinstance(value, bool))),
}
"""Option -> what its value must be, in words and as a test."""
