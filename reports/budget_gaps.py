"""Why a printed figure is not the predicted one: causes that the log itself shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.reports.budget_terms import GIB_BYTES, Term
from quantplan.reports.startup_log import StartupLog
from quantplan.tables.record import NamedTuple

CONTEXT_GIB = 2.0
"""More than a driver's context and NCCL take of a GPU before an engine looks at it
(public logs of H100: 0.5 GiB alone, 1.5 GiB of several ranks)."""
OTHER_SIZES = (2, 4, 8)


class Gap(NamedTuple):
    """What was compared: the log, the budget, its terms by name."""

    log: StartupLog
    found: Any
    terms: Mapping[str, Term]

    def off(self, name: str) -> float | None:
        """Return predicted minus printed of a term that disagrees, None of the others."""
        term = self.terms.get(name)
        return term.gap if term is not None and term.agrees is False else None


class Cause(NamedTuple):
    """A cause of a term's gap."""

    term: str
    id: str
    message: str


def causes(log: StartupLog, found: Any, terms: tuple[Term, ...]) -> tuple[Cause, ...]:
    """Return the causes that can be named, in the order in which one leads to the next."""
    gap = Gap(log, found, {term.name: term for term in terms})
    return tuple(cause for rule in RULES for cause in rule(gap))


def _other_share(gap: Gap) -> Iterator[Cause]:
    share, used = gap.log.most("utilization_share"), getattr(gap.found, "utilization", None)
    if gap.off("engine memory") is not None and share and used and abs(share - used) > 1e-4:
        yield Cause("engine memory", "other-utilization",
                    f"the engine took {share:g} of the GPU's memory, predicted was {used:g}")


def _other_ranks(gap: Gap) -> Iterator[Cause]:
    """Weights that are a whole multiple apart were split over other ranks; others are of another
    model or format."""
    term = gap.terms.get("weights")
    if gap.off("weights") is None or term is None or not term.printed or not term.predicted:
        return
    ratio = term.predicted / term.printed
    if 0.8 < ratio < 1.25:
        return
    times = ratio if ratio > 1 else 1 / ratio
    ranks = next((n for n in OTHER_SIZES if abs(times / n - 1) < 0.06), None)
    words = f"the printed weights are {1 / ratio:.2f} times the predicted ones"
    if ranks is None:
        yield Cause("weights", "other-model", f"{words}: the log is of another model or format")
    else:
        more = "more" if ratio > 1 else "fewer"
        yield Cause("weights", "other-ranks", f"{words}, as {ranks} times {more} ranks (tp, pp) "
                    f"or {'fewer' if ratio > 1 else 'more'} weight bits make them")


def _other_class(gap: Gap) -> Iterator[Cause]:
    printed, served = gap.log.text("architecture"), gap.found.architecture
    if printed and printed != served:
        yield Cause("", "other-model", f"the log is of a {printed}, the budget of a {served}")


def _rotary_in_32_bits(gap: Gap) -> Iterator[Cause]:
    rotary = sum(line.bytes for line in gap.found.weights.lines if "rotary" in line.name)
    off = gap.off("weights")
    if off is not None and rotary and abs(-off - rotary / GIB_BYTES) < 0.011:
        yield Cause("weights", "rotary-in-32-bits",
                    "the gap is the rotary table once more: FlashInfer keeps it in 32 bits")


def _other_processes(gap: Gap) -> Iterator[Cause]:
    free, total = gap.log.least("free_gib"), gap.log.most("memory_gib")
    if free is not None and total is not None and total - free > CONTEXT_GIB:
        yield Cause("KV cache memory", "other-processes",
                    f"{total - free:.2f} of {total:.2f} GiB were taken when the engine started: "
                    "other processes hold memory of this GPU")


def _graphs(gap: Gap) -> Iterator[Cause]:
    """Say whether graphs were subtracted, where that is the gap."""
    off, graphs = gap.off("KV cache memory"), gap.log.most("graphs_gib")
    if off is None or not graphs:
        return
    if abs(off - graphs) < 0.15:
        yield Cause("KV cache memory", "graphs-subtracted",
                    "the gap is the estimate of CUDA graphs: the engine subtracted it, as 0.21 and "
                    "later do (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)")
    elif abs(off + graphs) < 0.15:
        yield Cause("KV cache memory", "graphs-not-subtracted",
                    "the gap is the estimate of CUDA graphs: the engine did not subtract it, as "
                    "before 0.21 or with VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0")


def _leads_on(gap: Gap) -> Iterator[Cause]:
    """Say which terms make up a gap of the KV cache, where they do."""
    off = gap.off("KV cache memory")
    parts = {name: term.gap for name, term in gap.terms.items()
             if name in ("weights", "activations", "non-torch memory") and term.gap is not None}
    engine = gap.terms.get("engine memory")
    rest = (off or 0) + sum(parts.values()) - ((engine.gap or 0) if engine else 0)
    if off is not None and len(parts) == 3 and abs(rest) < 0.06:
        worst = max(parts, key=lambda name: abs(parts[name]))
        yield Cause("KV cache memory", "follows",
                    f"it follows from the terms above, most from {worst}")


def _printed_tokens(gap: Gap) -> Iterator[Cause]:
    """Tell a gap of the cache's layout from one of its memory."""
    given = gap.terms.get("KV tokens of the printed memory")
    if given is None:
        return
    if given.agrees and gap.off("KV tokens") is not None:
        yield Cause("KV tokens", "memory-not-layout",
                    "the printed memory holds the printed tokens: only the memory differs")
    elif given.agrees is False and gap.found.kv.fixed_bytes_per_request:
        yield Cause("KV tokens of the printed memory", "printed-token-semantics",
                    "layers with windows or states: up to 0.19 the engine printed the blocks of "
                    "one group, from 0.24 on concurrency times --max-model-len")
    elif given.agrees is False and given.predicted and given.printed:
        ours = gap.found.kv.bytes_per_token
        yield Cause("KV tokens of the printed memory", "other-bytes-per-token",
                    f"a token of the log takes {ours * given.predicted / given.printed:,.0f} bytes "
                    f"of KV cache, predicted are {ours:,}: another model, KV dtype or tp")


def _own_blocks(gap: Gap) -> Iterator[Cause]:
    given = gap.log.args.get("num_gpu_blocks_override")
    if isinstance(given, int) and gap.off("KV tokens") is not None:
        yield Cause("KV tokens", "blocks-override",
                    f"--num-gpu-blocks-override {given} replaces what memory would hold")


def _encoder(gap: Gap) -> Iterator[Cause]:
    if gap.off("activations") is not None and gap.log.most("encoder_tokens"):
        yield Cause("activations", "encoder",
                    "the profile run holds a multimodal encoder at its largest item: "
                    "--limit-mm-per-prompt sizes it")


def _draft(gap: Gap) -> Iterator[Cause]:
    given = gap.log.args.get("speculative_config") or gap.log.args.get("speculative_algorithm")
    if given and gap.off("weights") is not None:
        yield Cause("weights", "draft", "a speculative draft's weights are in the printed figure")


def _offloaded(gap: Gap) -> Iterator[Cause]:
    given = gap.log.args.get("cpu_offload_gb")
    if isinstance(given, (int, float)) and given > 0:
        yield Cause("weights", "offloaded", f"--cpu-offload-gb {given:g} moves weights to the host")


def _development_build(gap: Gap) -> Iterator[Cause]:
    version = gap.log.version or ""
    if re.search(r"dev|rc|\+", version) and any(t.agrees is False for t in gap.terms.values()):
        yield Cause("", "development-build",
                    f"{version} is a development build: it may lie between the rules of two "
                    "versions")


RULES: tuple[Callable[[Gap], Iterator[Cause]], ...] = (
    _other_class, _other_share, _other_ranks, _rotary_in_32_bits, _draft, _offloaded, _encoder,
    _other_processes, _graphs, _leads_on, _own_blocks, _printed_tokens, _development_build)
