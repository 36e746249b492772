"""SGLang's settings by GPU memory, cells and pools: what the engine's own functions answered.

The rows of sglang_memory_answers.jsonl are answers of ServerArgs.resolve_once (its memory, graph
and attention hooks) and of KVCacheConfigurator (_profile_available_bytes, config_from_budget,
resolve_max_num_reqs) of SGLang 0.5.22 and 0.5.23, run on a CPU with a GPU of that capability and
nvidia-smi total stood in for, and with these GiB free before and after loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu, MemoryFlags
from quantplan.dispatch.sglang.attention import server_attention
from quantplan.dispatch.sglang.dtypes import kv_dtype, model_dtype
from quantplan.dispatch.sglang.models import built, lifted, model_row
from quantplan.planner.sglang_cells import Attended, cells
from quantplan.planner.sglang_context import context_tokens
from quantplan.planner.sglang_pools import Room, pools, token_bytes
from quantplan.planner.sglang_settings import encoder_cache, memory_facts, settings
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import NotKnownError

HERE = Path(__file__).parent
CONFIGS: dict[str, Any] = json.loads((HERE / "sglang_memory_configs.json").read_text())
ROWS = [json.loads(line)
        for line in (HERE / "sglang_memory_answers.jsonl").read_text().splitlines()]


def name(row: dict[str, Any]) -> str:
    """Return a test's name."""
    args = " ".join(f"{key}={value}" for key, value in row["args"].items())
    return (f"{row['version']} {row['capability']} {row['config']} {row['gpu_mib']} "
            f"{row['after_gib']} {args}")


def answered(row: dict[str, Any]) -> tuple[list[Any], int, list[Any] | None, list[str] | None]:
    """Return the server's settings, the context, and the pools or the refusal."""
    table = load_engine("sglang", row["version"])
    rules, args = table["memory"], row["args"]
    flags = MemoryFlags(**{key: value for key, value in args.items()
                           if key in MemoryFlags._fields})
    flags = flags._replace(pp=args.get("pp_size", 1))
    asked = Deployment(tp=args.get("tp_size", 1), page_size=args.get("page_size"),
                       kv_cache_dtype=args.get("kv_cache_dtype", "auto"))
    checkpoint = lifted(table, Checkpoint("model", "mapping", CONFIGS[row["config"]]))
    gpu = Gpu("GPU", row["capability"], memory_bytes=row["gpu_mib"] << 20)
    attention = server_attention(table, checkpoint, gpu, asked)
    facts = memory_facts(attention.facts, checkpoint, flags)
    served = settings(rules, facts, checkpoint, flags, memory_mib=row["gpu_mib"], tp=asked.tp)
    dtype = kv_dtype(table, attention.kv_dtype, model_dtype(checkpoint, "auto"), None)
    structure = built(checkpoint, model_row(table, checkpoint))
    held = cells(structure, Attended(
        rules, facts, checkpoint.text_config, dtype, attention.kv_dtype,
        asked.tp // flags.attention_groups, None if flags.pp == 1 else -(
            -structure.num_layers // flags.pp)))
    context = flags.context_length or context_tokens(rules, checkpoint.text_config)
    cache = encoder_cache(rules, facts)
    found = pools(rules, held, Room(
        row["before_gib"], row["after_gib"], served.mem_fraction,
        cache["mib"] / 1024 if cache else 0.0, attention.page_size, context,
        bool(facts["model.extra_buffer"])), flags)
    server = [served.mem_fraction, served.chunk_tokens, served.graph_requests,
              len(served.prefill_graphs), attention.page_size]
    if found.refused is not None:
        return server, context, None, [found.refused.type, found.refused.message]
    return server, context, [token_bytes(rules, held, flags), *found[:5]], None


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_what_the_engine_s_own_functions_answer(row: dict[str, Any]) -> None:
    """--mem-fraction-static, chunk, graphs, page; bytes per token and of the pool, tokens, window
    tokens, state slots, requests; or the error's own words."""
    assert answered(row) == (row["server"], row["context"], row.get("pool"), row.get("error"))


@pytest.mark.parametrize("architecture, words", [
    ("DeepseekV4ForCausalLM", "compressed pools"), ("Lfm2ForCausalLM", "state pool")])
def test_pools_that_are_not_known(architecture: str, words: str) -> None:
    """Classes with a pool of their own (create_memory_pool_configurator, mambaish_config)."""
    rules = load_engine("sglang", "0.5.22")["memory"]
    row = next(row for row in rules["not_known"] if architecture in row["architectures"])
    structure = built(Checkpoint("model", "mapping", CONFIGS["llama-8b"]),
                      {"architectures": ["LlamaForCausalLM"]})._replace(architecture=architecture)
    with pytest.raises(NotKnownError, match=words):
        cells(structure, Attended(rules, {}, {}, "bfloat16", "auto", 1))
    assert words in row["what"]
