"""What SGLang's server keeps free of the weights and the KV cache, part by part
(arg_groups/memory_hook.py:handle_gpu_memory_settings)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import MemoryFlags
from quantplan.tables.record import NamedTuple

Rules = Mapping[str, Any]
Facts = Mapping[str, Any]


class Reserved(NamedTuple):
    """One part of what the server keeps free: MiB, how it is counted, and the engine's rule."""

    name: str
    mib: float
    formula: str
    source: str


class Settings(NamedTuple):
    """The server's arguments as they are in the end.

    `graph_requests` are those of the largest decode graph, `prefill_graphs` the token sizes of the
    prefill graphs, both empty (0) where there are no graphs; `reserved` is what `mem_fraction` was
    made from, nothing where it was asked for.
    """

    chunk_tokens: int
    graph_requests: int
    prefill_graphs: tuple[int, ...]
    mem_fraction: float
    reserved: tuple[Reserved, ...] = ()


class Server(NamedTuple):
    """What the reserve is made for: the GPU's MiB, tensor and pipeline parallel ranks, requests of
    the largest decode graph whether there is one or not, and the flags."""

    memory_mib: int
    ranks: int
    most_requests: int
    flags: MemoryFlags


def reserved(rules: Rules, facts: Facts, found: Settings, at: Server) -> Iterator[Reserved]:
    """Yield the parts of the reserve; a large GPU's least is a part of its own."""
    row, source = rules["reserve"], rules["reserve_source"]
    tokens = max(_tokens(rules, found, at), row["least_tokens"])
    parts = [
        Reserved("metadata", row["fixed_mib"], f"{row['fixed_mib']} MiB", source),
        Reserved("activations", tokens * row["mib_per_token"],
                 f"{tokens:,} tokens x {row['mib_per_token']} MiB", source),
        Reserved("ranks", at.ranks * row["mib_per_rank"],
                 f"{at.ranks} ranks x {row['mib_per_rank']} MiB", source),
        *_graphs(rules, facts, found, at)]
    yield from parts
    short = row["large_least_mib"] - sum(part.mib for part in parts)
    if at.memory_mib > row["large_above_mib"] and short > 0:
        yield Reserved("least reserve", short, f"up to {row['large_least_mib']:,} MiB on GPUs above"
                       f" {row['large_above_mib']:,} MiB", source)
    deepep = rules["deepep"]
    if found.graph_requests and at.flags.moe_a2a_backend == deepep["backend"]:
        yield Reserved("DeepEP buffers", deepep["decode_mib"], f"{deepep['decode_mib']:,} MiB",
                       deepep["source"])


def _tokens(rules: Rules, found: Settings, at: Server) -> int:
    """Return the tokens whose activations are kept room for: of a decode server those of its
    requests."""
    if at.flags.disaggregation_mode == "decode":
        requests = at.flags.max_running_requests or at.most_requests
        return requests * (at.flags.speculative_num_draft_tokens or 1)
    return int(found.chunk_tokens if found.chunk_tokens > 0 else rules["prefill_tokens"])


def _graphs(rules: Rules, facts: Facts, found: Settings, at: Server) -> Iterator[Reserved]:
    row, source, sizes = rules["graphs"], rules["graphs_source"], len(found.prefill_graphs)
    if found.graph_requests:
        yield Reserved("decode graphs", found.graph_requests * row["mib_per_request"],
                       f"{found.graph_requests} requests x {row['mib_per_request']} MiB", source)
    if at.flags.attention_groups > 1 and at.flags.disaggregation_mode != "prefill":
        yield _groups(row, source, at)
    if sizes and facts["model.mla"]:
        yield Reserved("prefill graphs", row["latent_prefill_mib"],
                       f"{row['latent_prefill_mib']:,} MiB for latent attention", source)
    elif sizes:
        yield Reserved("prefill graphs", sizes * row["mib_per_prefill_size"],
                       f"{sizes} sizes x {row['mib_per_prefill_size']} MiB", source)
    deepep = rules["deepep"]
    if sizes and at.flags.moe_a2a_backend == deepep["backend"]:
        yield Reserved("DeepEP prefill graphs", deepep["prefill_mib"],
                       f"{deepep['prefill_mib']:,} MiB", source)


def _groups(row: Rules, source: str, at: Server) -> Reserved:
    """Return the padding of several attention groups, more where graphs are large."""
    each = row["mib_per_group_request"]
    if at.most_requests > row["many_requests"]:
        each += row["mib_per_group_request_of_many"]
    groups = at.flags.attention_groups
    return Reserved("attention groups", at.most_requests * groups * each,
                    f"{at.most_requests} requests x {groups} groups x {each} MiB", source)
