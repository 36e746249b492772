"""The engine's memory flags as they may be given, read as the engine reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.facts import MemoryFlags
from quantplan.tables.errors import UsageError

SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
            "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""vllm 0.32.0 utils/argparse_utils.py:human_readable_int."""
AUTO_LENGTH = -1
"""--max-model-len that asks the engine for the longest context that fits
(vllm 0.32.0 utils/argparse_utils.py:human_readable_int_or_auto)."""
_FORM = re.compile(r"([0-9]{1,15})(\.[0-9]{1,15})?([kKmMgGtT]?)")


def memory_flags(options: Mapping[str, Any]) -> MemoryFlags:
    """Return the memory flags of checked options; raise UsageError for one that is no number."""
    given = {name: options[name] for name in MemoryFlags._fields
             if options.get(name) is not None}
    return MemoryFlags(**{name: READ[name](value) if name in READ else value
                          for name, value in given.items()})


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


READ: Mapping[str, Callable[[Any], Any]] = {
    "max_model_len": _length, "kv_cache_memory_bytes": _cache_bytes,
    "speculative_config": dict, "limit_mm_per_prompt": dict}
"""Field of MemoryFlags -> how what is given is read."""
