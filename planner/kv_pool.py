"""The pool of blocks that all groups of layers share, and what the engine says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm
from typing import Any

from quantplan.planner.kv_groups import Group, form_groups
from quantplan.planner.kv_layers import indexed
from quantplan.planner.kv_spec import Spec, Use
from quantplan.planner.stages import stages
from quantplan.tables.record import NamedTuple

GIB_BYTES = 2**30


class Pool(NamedTuple):
    """The blocks of one rank: `groups` are the whole model's, `stages` their parts on each
    pipeline stage; `use` holds all but the tokens of a request."""

    groups: Sequence[Group]
    stages: Sequence[Sequence[Group]]
    use: Use
    rules: Mapping[str, Any]
    override_blocks: int | None = None

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block on the rank that has the largest ones."""
        return max(group.page_bytes for group in self.largest_stage)

    @property
    def largest_stage(self) -> Sequence[Group]:
        """Return the groups of the stage whose blocks are largest: it has the fewest."""
        return max(self.stages, key=lambda groups: max(group.page_bytes for group in groups))

    def blocks(self, available_bytes: int) -> int:
        """Return the blocks of every rank: what the fullest one has room for, or the flag's."""
        if self.override_blocks is not None:
            return self.override_blocks
        return max(0, available_bytes // self.block_bytes)

    def request_blocks(self, tokens: int) -> int:
        """Return the blocks of one request (get_max_concurrency_for_kv_cache_config)."""
        use = self.use._replace(tokens=tokens)
        return sum(group.blocks(use) for group in self.groups)

    def max_concurrency(self, available_bytes: int, tokens: int) -> float:
        """Return how many requests of `tokens` the pool holds, as the engine prints it."""
        return self.blocks(available_bytes) / self.request_blocks(tokens)

    def printed_tokens(self, available_bytes: int, tokens: int) -> int:
        """Return what "GPU KV cache size" says where requests are at most `tokens` long."""
        if self.rules["printed_tokens"] == "requests":
            return int(self.max_concurrency(available_bytes, tokens) * tokens)
        least = min(group.first.block_tokens for group in self.groups)
        return self.blocks(available_bytes) // len(self.groups) * least * self.use.dcp

    def needed_bytes(self, tokens: int) -> int:
        """Return what the engine counts for one request (_max_memory_usage_bytes_from_groups)."""
        return self.block_bytes * self._checked_blocks(tokens)

    def _checked_blocks(self, tokens: int) -> int:
        use = self.use._replace(tokens=tokens)
        counted = self.groups if self.rules["checked_groups"] == "all" else self.groups[:1]
        return sum(group.blocks(use) for group in counted)

    def room_bytes(self, available_bytes: int) -> int:
        """Return the bytes against which the engine checks one request."""
        if self.override_blocks is not None:
            available_bytes = self.override_blocks * self.block_bytes
        return available_bytes - (self.block_bytes if self.rules["null_block"] else 0)

    def least_bytes(self, tokens: int) -> int:
        """Return the bytes that pass the engine's check of a request of so many tokens."""
        unused = self.block_bytes if self.rules["null_block"] else 0
        return self.needed_bytes(tokens) + unused

    def largest_context(self, available_bytes: int, limit: int) -> int:
        """Return the longest request that passes the engine's check, at most `limit`; 0: none."""
        room, least, most = self.room_bytes(available_bytes) // self.block_bytes, 0, limit
        while least < most:
            middle = (least + most + 1) // 2
            fits = self._checked_blocks(middle) <= room
            least, most = (middle, most) if fits else (least, middle - 1)
        return least

    def refusal(self, available_bytes: int, tokens: int) -> str | None:
        """Return the engine's words where one request of `tokens` does not fit, or None
        (_check_enough_kv_cache_memory)."""
        room = self.room_bytes(available_bytes)
        if room <= 0:
            return "No available memory for the cache blocks."
        needed = self.needed_bytes(tokens)
        if needed <= room:
            return None
        longest = self.largest_context(available_bytes, tokens)
        estimate = (" Based on the available memory, the estimated maximum model length is "
                    f"{longest}." if longest else "")
        return (f"To serve at least one request with the {self.rules['models_word']} max seq len "
                f"({tokens}), ({round(needed / GIB_BYTES, 2)} GiB KV cache is needed, which is "
                "larger than the available KV cache memory "
                f"({round(room / GIB_BYTES, 2)} GiB).{estimate}")

    @property
    def token_bytes(self) -> int:
        """Return what one more token of a request takes of the pool, rounded up to whole bytes."""
        spans = [group.first.block_tokens * self.use.dcp for group in self.groups
                 if group.first.grows]
        whole = lcm(*spans)
        return -(-self.block_bytes * sum(whole // span for span in spans) // whole)

    def fixed_blocks(self, group: Group) -> int:
        """Return the blocks of a request in a group that stops growing with its tokens."""
        return group.blocks(self.use._replace(tokens=2**62))


def make_pool(
    layers: Mapping[str, Spec], rules: Mapping[str, Any], use: Use, *, pp: int = 1,
    num_layers: int = 1, override_blocks: int | None = None, packs: bool = False,
) -> Pool:
    """Return the pool of some layers; raise NotKnownError where pages cannot be made equal."""
    groups = form_groups(layers, rules, packs=packs)
    parts = [[group.of_stage(names) for group in groups]
             for names in _stages(layers, pp, num_layers)]
    return Pool(groups, parts, use, rules, override_blocks)


def _stages(layers: Mapping[str, Spec], pp: int, num_layers: int) -> list[set[str]]:
    """Return the layers of each pipeline stage; a draft's are on the last one."""
    ends = [stage.end or num_layers for stage in stages(num_layers, pp)]
    found: list[set[str]] = [set() for _ in ends]
    for name, index in indexed(layers):
        found[next((i for i, end in enumerate(ends) if index < end), pp - 1)].add(name)
    return [names for names in found if names]
