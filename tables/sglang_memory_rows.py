"""The schema of memory in an SGLang version's table: what the server sets aside, and its pools."""

from __future__ import annotations

from quantplan.tables.requirement_rows import REQUIREMENTS
from quantplan.tables.schema import Field, Row
from quantplan.tables.sglang_attention_rows import UNLESS, WHEN

SOURCE = Field("text", "engine file:symbol")
ARCHITECTURES = Field("list", "model classes", required=False, of=Field("text", "an architecture"))


def _name(doc: str) -> Field:
    return Field("text", f"field of the text config: {doc}")


STATE: Row = {
    "id": Field("text", "short name"),
    "fact": Field("text", "the fact of the model classes that have it", required=False),
    "architectures": ARCHITECTURES,
    "within": Field("text", "object of the config that holds the fields", required=False),
    "heads": _name("heads of the state"),
    "head_dim": _name("features of a head"),
    "groups": _name("groups that share keys"),
    "state": _name("features of the state per head"),
    "kernel": _name("width of the convolution"),
    "dtype_field": Field("text", "field of the config with the state's dtype; absent: float32",
                         required=False),
    "modules": Field("list", "module classes that keep it", of=Field("text", "a class")),
    "source": SOURCE,
}

REFUSED: Row = {
    "type": Field("text", "the exception"),
    "message": Field("text", "the engine's words; {name} is filled in"),
    "source": SOURCE,
}

MEMORY: Row = {
    "by_memory": Field("list", "defaults by the GPU's memory; the first row that fits", of={
        "below_mib": Field("int", "nvidia-smi's total is below this; absent: any", required=False),
        "chunk_tokens": Field("int", "--chunked-prefill-size"),
        "graph_requests": Field("int", "--cuda-graph-max-bs-decode"),
        "wide_graph_requests": Field("int", "the same on many ranks"),
    }),
    "by_memory_source": SOURCE,
    "wide_from_ranks": Field("int", "tensor parallel ranks that count as many"),
    "prefill_tokens": Field("int", "--max-prefill-tokens"),
    "prefill_tokens_source": SOURCE,
    "reserve": Field("row", "what is kept free for activations", of={
        "fixed_mib": Field("int", "whatever runs"),
        "mib_per_token": Field("number", "per token of a prefill chunk"),
        "least_tokens": Field("int", "tokens that are counted at least"),
        "mib_per_rank": Field("int", "per tensor and pipeline parallel rank"),
        "large_above_mib": Field("int", "a GPU with more memory keeps at least large_least_mib"),
        "large_least_mib": Field("int", "that least size"),
    }),
    "reserve_source": SOURCE,
    "graphs": Field("row", "what is kept free for CUDA graphs", of={
        "mib_per_request": Field("int", "per request of the largest decode graph"),
        "mib_per_prefill_size": Field("int", "per size of a prefill graph"),
        "latent_prefill_mib": Field("int", "for all prefill graphs of latent attention"),
        "mib_per_group_request": Field("int", "per such request and attention group, of several"),
        "many_requests": Field("int", "a largest decode graph of more requests is a large one"),
        "mib_per_group_request_of_many": Field("number", "further ones per request and group in a "
                                               "large one"),
    }),
    "graphs_source": SOURCE,
    "deepep": Field("row", "what DeepEP's all-to-all changes", of={
        "backend": Field("text", "--moe-a2a-backend"),
        "prefill_mib": Field("int", "kept free for its part of the prefill graphs"),
        "decode_mib": Field("int", "kept free for its buffers in decode graphs"),
        "prefill_tokens": Field("int", "the largest prefill graph"),
        "sizes_step": Field("int", "sizes of prefill graphs are rounded up to a multiple of it"),
        "source": SOURCE,
    }),
    "attention_groups": Field("list", "model classes whose weights in several attention groups are "
                              "known", of={
        "architectures": Field("list", "model classes", of=Field("text", "an architecture")),
        "shared_experts_whole": Field("list", "all-to-all backends with which every rank has whole "
                                      "shared experts", of=Field("text", "a backend")),
        "source": SOURCE,
    }),
    "drafts": Field("list", "speculative algorithms without a draft model", of={
        "algorithms": Field("list", "values of --speculative-algorithm",
                            of=Field("text", "a name")),
        "most_requests": Field("int", "--max-running-requests where nobody says"),
        "source": SOURCE,
    }),
    "prefill_sizes": Field("list", "tokens of the prefill graphs up to the largest", of={
        "start": Field("int", "first size"),
        "stop": Field("int", "last size; absent: the largest", required=False),
        "step": Field("int", "between two sizes"),
    }),
    "prefill_sizes_source": SOURCE,
    "latent_prefill": Field("row", "the largest prefill graph of latent attention", of={
        "tokens": Field("int", "its tokens"),
        "within_chunk": Field("flag", "never more than a chunk"),
    }),
    "latent_prefill_source": SOURCE,
    "named_prefill": Field("row", "a largest prefill graph by the model's name", of={
        "name_has": Field("text", "part of the name, in any case"),
        "most_tokens": Field("int", "its tokens at most"),
    }),
    "named_prefill_source": SOURCE,
    "no_prefill_graphs": Field("list", "where prefills run without graphs", of={
        "id": Field("text", "short name"),
        "when": WHEN,
        "unless": UNLESS,
        "kept": Field("flag", "what is kept free for them stays", required=False),
        "because": Field("text", "why, in words for people"),
        "source": SOURCE,
    }),
    "encoders": Field("row", "what models with encoders keep free besides", of={
        "factor": Field("number", "their share of --mem-fraction-static"),
        "layers": Field("int", "layers of the usual encoder"),
        "hidden": Field("int", "its hidden size"),
        "per_doubling": Field("number", "less for each time its size"),
        "least": Field("number", "the least such factor"),
        "most": Field("number", "the largest"),
        "layer_fields": Field("list", "fields of vision_config with its layers",
                              of=Field("text", "a field")),
        "hidden_fields": Field("list", "fields of vision_config with its hidden size",
                               of=Field("text", "a field")),
        "usual_with": Field("list", "fields of a vision_config whose layers the engine takes for "
                            "the usual ones", of=Field("text", "a field")),
    }),
    "encoders_source": SOURCE,
    "encoder_caches": Field("list", "what encoders keep of the KV cache's share; the first that "
                            "fits", of={
        "id": Field("text", "short name"),
        "architectures": ARCHITECTURES,
        "when": WHEN,
        "needs": REQUIREMENTS,
        "mib": Field("int", "its size"),
        "graphs_up_to": Field("int", "decode graphs grow to --max-running-requests, up to this",
                              required=False),
        "source": SOURCE,
    }),
    "context_fields": Field("list", "fields of the longest context; the first that is there",
                            of=Field("text", "a field")),
    "context_source": SOURCE,
    "longer_context": Field("row", "what a longer --context-length ends in", of={
        **REFUSED, "variable": Field("text", "the variable that allows it")}),
    "cells": Field("row", "bytes of a token in one layer's cache", of={
        "scale_block": Field("int", "values per scale of FP4"),
        "mxfp8_block": Field("int", "values per scale of MXFP8"),
        "index_block": Field("int", "values per scale of an indexer's keys and of FP8 latents"),
        "index_scale_bytes": Field("int", "bytes of such a scale"),
        "rope_bytes": Field("int", "bytes of a rotary value beside an FP8 latent"),
        "raw_layouts": Field("list", "facts at which FP8 latents have no scales; any one line",
                             of=Field("map", "facts", of=Field("any", "a value"))),
    }),
    "cells_source": SOURCE,
    "latent_layout_source": SOURCE,
    "window_ratio": Field("number", "--swa-full-tokens-ratio"),
    "window_source": SOURCE,
    "small_window": Field("row", "what a window pool without room for a request ends in",
                          of=REFUSED),
    "state_ratio": Field("number", "--mamba-full-memory-ratio"),
    "state_slots": Field("int", "state slots per request"),
    "state_buffer_slots": Field("int", "further ones with model.extra_buffer"),
    "state_source": SOURCE,
    "states": Field("list", "states of hybrid models; the first that fits", of=STATE),
    "not_known": Field("list", "model classes whose pools are not in the table", of={
        "architectures": Field("list", "model classes", of=Field("text", "an architecture")),
        "what": Field("text", "what is not known"),
    }),
    "starved": Field("row", "what no state slot left ends in", of=REFUSED),
    "idle": Field("row", "what too few state slots for a request end in", of=REFUSED),
    "full": Field("row", "what no token left ends in", of=REFUSED),
    "overfull": Field("row", "what no byte left ends in", of=REFUSED),
    "requests": Field("row", "requests at once where nobody says", of={
        "per_context": Field("int", "times the contexts that fit"),
        "least": Field("int", "at least"),
        "most": Field("int", "at most"),
    }),
    "requests_source": SOURCE,
    "measured": Field("list", "what only a run shows; of an id the first that fits", of={
        "id": Field("text", "what it is", choices=("runtime", "ranks", "loading")),
        "name": Field("text", "its name for people"),
        "families": Field("list", "capability families", required=False,
                          of=Field("int", "gpu.family")),
        "from_ranks": Field("int", "only from so many ranks", required=False),
        "gib": Field("number", "its size"),
        "plus_minus_gib": Field("number", "how far it may be off"),
        "measured_on": Field("text", "where, with each figure"),
        "evidence": Field("text", "what was read"),
    }),
}
