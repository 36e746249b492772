"""How SGLang fills the memory that its weights leave: state slots, tokens, requests
(mem_cache/kv_cache_configurator.py:KVCacheConfigurator)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import MemoryFlags
from quantplan.planner.sglang_cells import Cells
from quantplan.tables.record import NamedTuple

Rules = Mapping[str, Any]
GIB = 1 << 30
MORE = "Pass a larger --mem-fraction-static."


class Refused(NamedTuple):
    """Why the engine ends its start here: the exception, its words, and what helps."""

    type: str
    message: str
    hint: str


class Pools(NamedTuple):
    """The pools of one rank: `kv_bytes` for tokens, `tokens` of the full pool (what the engine
    prints), those of the window pool, state slots, requests at once, or the engine's refusal."""

    kv_bytes: int
    tokens: int = 0
    window_tokens: int | None = None
    state_slots: int | None = None
    requests: int = 0
    refused: Refused | None = None


class Room(NamedTuple):
    """What the pools are made for: GiB free before and after the weights were loaded, the
    fraction, GiB kept for encoders, tokens of a page and of a context; `buffered` states keep
    more slots per request."""

    before_gib: float
    after_gib: float
    fraction: float
    encoder_gib: float
    page: int
    context: int
    buffered: bool = False


def pools(rules: Rules, cells: Cells, room: Room, flags: MemoryFlags) -> Pools:
    """Return the pools that the engine makes, in its order; none where the weights do not load."""
    if room.after_gib <= 0:
        return Pools(0, refused=_overfull(rules, room))
    left = room.after_gib - room.before_gib * (1 - room.fraction) - room.encoder_gib
    slots = None
    if cells.state is not None:
        slots = _slots(rules, cells.state.bytes, left, flags)
        if slots <= 0:
            return Pools(0, state_slots=slots, refused=_refused(
                rules["starved"], MORE, slots=slots, left=f"{left:.2f}",
                slot=f"{cells.state.bytes / (1 << 20):.2f}"))
        left -= (slots + 1) * cells.state.bytes / GIB
    if left <= 0:
        return Pools(0, state_slots=slots, refused=_overfull(rules, room))
    kv_bytes = int(left * GIB)
    tokens = _tokens(rules, cells, kv_bytes, room.page, flags)
    found = Pools(kv_bytes, tokens, _window_tokens(rules, cells, tokens, room.page, flags), slots)
    found = found._replace(requests=_requests(rules, found, room, flags))
    return found._replace(refused=_too_small(rules, cells, found, room, flags))


def token_bytes(rules: Rules, cells: Cells, flags: MemoryFlags) -> float:
    """Return what one token of the full pool costs, its share of the window pool included."""
    return cells.full_bytes + _ratio(rules, flags) * cells.window_bytes if cells.window else (
        cells.full_bytes)


def _ratio(rules: Rules, flags: MemoryFlags) -> float:
    ratio = flags.swa_full_tokens_ratio
    return float(rules["window_ratio"] if ratio is None else ratio)


def _slots(rules: Rules, slot_bytes: int, left_gib: float, flags: MemoryFlags) -> int:
    """Return the slots of the state pool without the one that pads it."""
    if flags.max_mamba_cache_size is not None:
        return flags.max_mamba_cache_size // flags.attention_groups
    if flags.disaggregation_mode == "decode" and flags.max_running_requests is not None:
        return flags.max_running_requests // flags.attention_groups
    ratio = flags.mamba_full_memory_ratio
    ratio = rules["state_ratio"] if ratio is None else ratio
    return int((left_gib * ratio / (1 + ratio) * GIB - slot_bytes) // slot_bytes)


def _tokens(rules: Rules, cells: Cells, kv_bytes: int, page: int, flags: MemoryFlags) -> int:
    tokens = int(kv_bytes // token_bytes(rules, cells, flags)) // page * page
    if flags.max_total_tokens is not None and flags.max_total_tokens < tokens:
        tokens = flags.max_total_tokens // page * page
    return tokens


def _window_tokens(
    rules: Rules, cells: Cells, tokens: int, page: int, flags: MemoryFlags
) -> int | None:
    return int(tokens * _ratio(rules, flags)) // page * page if cells.window else None


def _per_request(rules: Rules, room: Room, flags: MemoryFlags) -> int:
    """Return the state slots of a request: one in a decode server, which caches no prefixes."""
    if flags.disaggregation_mode == "decode":
        return 1
    found: int = rules["state_slots"] + (rules["state_buffer_slots"] if room.buffered else 0)
    return found


def _requests(rules: Rules, found: Pools, room: Room, flags: MemoryFlags) -> int:
    row, tokens = rules["requests"], found.tokens
    usual = max(min(int(tokens / room.context * row["per_context"]), row["most"]), row["least"])
    given = flags.max_running_requests or most_requests(rules, flags)
    asked = usual if given is None else given // flags.attention_groups
    requests = min(asked, tokens // 2)
    return requests if found.state_slots is None else min(
        requests, found.state_slots // _per_request(rules, room, flags))


def most_requests(rules: Rules, flags: MemoryFlags) -> int | None:
    """Return --max-running-requests that a speculative algorithm sets; None without one."""
    return next((row["most_requests"] for row in rules["drafts"]
                 if flags.speculative_algorithm in row["algorithms"]), None)


def _overfull(rules: Rules, room: Room) -> Refused:
    if room.after_gib <= 0:
        return Refused("OutOfMemoryError", "CUDA out of memory while the weights load.",
                       "Use more ranks, or fewer bits per weight.")
    least = 1 - room.after_gib / room.before_gib
    suggested = math.ceil(least * 1000) / 1000
    hint = (f"Pass --mem-fraction-static above {suggested:.3f}." if suggested < 1
            else "Use more ranks, or fewer bits per weight.")
    return _refused(rules["overfull"], hint, fraction=room.fraction,
                    suggested=f"{suggested:.3f}", least=f"{least:.4f}")


def _too_small(
    rules: Rules, cells: Cells, found: Pools, room: Room, flags: MemoryFlags
) -> Refused | None:
    """Return the refusal of a window pool without room for a window and a page, of a pool without
    a token, and of states without a request."""
    window, swa, slots = cells.window_tokens, found.window_tokens, found.state_slots
    if window is not None and swa is not None and window + room.page >= swa:
        return _refused(rules["small_window"], "Raise --swa-full-tokens-ratio.", tokens=swa,
                        window=window, page=room.page)
    if found.tokens <= 0:
        return _refused(rules["full"], MORE)
    if slots is not None and found.requests <= 0:
        return _refused(rules["idle"], MORE, slots=slots, ratio=_per_request(rules, room, flags),
                        requests=found.requests)
    return None


def _refused(row: Rules, hint: str, **values: object) -> Refused:
    words = str(row["message"])
    for name, value in values.items():
        words = words.replace(f"{{{name}}}", str(value))
    return Refused(str(row["type"]), words, hint)
