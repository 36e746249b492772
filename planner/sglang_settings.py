"""What SGLang's server sets by a GPU's memory: chunks, graphs and --mem-fraction-static
(arg_groups/memory_hook.py:handle_gpu_memory_settings)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, MemoryFlags
from quantplan.dispatch.sglang.attention import is_made
from quantplan.planner.sglang_reserve import Server, Settings, reserved
from quantplan.tables.errors import NotKnownError

Rules = Mapping[str, Any]
Facts = Mapping[str, Any]


def settings(
    rules: Rules, facts: Facts, checkpoint: Checkpoint, flags: MemoryFlags, *, memory_mib: int,
    tp: int = 1,
) -> Settings:
    """Return what the server makes of `flags` on a GPU of `memory_mib`, nvidia-smi's total.

    `rules` are the version's `memory`, `facts` those of memory_facts. Raises NotKnownError for an
    encoder whose size config.json leaves to its class.
    """
    row = next(row for row in rules["by_memory"] if memory_mib < row.get("below_mib", 1 << 40))
    chunk = row["chunk_tokens"] if flags.chunked_prefill_size is None else (
        flags.chunked_prefill_size)
    wide = "wide_" if tp >= rules["wide_from_ranks"] else ""
    most = _graph_requests(rules, facts, row[f"{wide}graph_requests"], flags)
    has_graphs = not flags.disable_cuda_graph and flags.disaggregation_mode != "prefill"
    sizes = _prefill_graphs(rules, facts, checkpoint, flags, chunk) if (
        _has_prefill_graphs(rules, facts, flags)) else ()
    found = Settings(chunk, most if has_graphs else 0, sizes, flags.mem_fraction_static or 0)
    there = found._replace(prefill_graphs=sizes if no_prefill_graphs(rules, facts) is None else ())
    shared = _shared(rules, there, flags)
    if flags.mem_fraction_static is not None:
        return shared
    parts = tuple(reserved(rules, facts, found, Server(memory_mib, tp * flags.pp, most, flags)))
    fraction = round((memory_mib - sum(part.mib for part in parts)) / memory_mib, 3)
    if facts["model.multimodal"] and flags.disaggregation_mode != "decode":
        fraction *= encoder_factor(rules, checkpoint.config)
    return shared._replace(mem_fraction=fraction, reserved=parts)


def _shared(rules: Rules, found: Settings, flags: MemoryFlags) -> Settings:
    """Return the settings of one of several attention groups, which share a chunk; what is kept
    free was made from the whole one (arg_groups/parallel_hook.py:handle_data_parallelism)."""
    if flags.attention_groups == 1:
        return found
    chunk = found.chunk_tokens // flags.attention_groups
    sizes = found.prefill_graphs
    if sizes and sizes[-1] > chunk:
        sizes = _sizes(rules, chunk)
    return found._replace(chunk_tokens=chunk, prefill_graphs=sizes)


def memory_facts(facts: Facts, checkpoint: Checkpoint, flags: MemoryFlags) -> dict[str, Any]:
    """Return the facts of attention with model.multimodal as the engine has it in the end: of a
    class on its list or with a text config, unless encoders are off
    (configs/model_config.py:ModelConfig)."""
    wrapper = checkpoint.text_config is not checkpoint.config
    encoders = not facts["model.encoders_off"] and not checkpoint.config.get("language_model_only")
    return {**facts, "flags.pipeline": flags.pp > 1,
            "flags.requests": flags.max_running_requests or 0,
            "model.multimodal": encoders and (facts["model.multimodal"] or wrapper)}


def no_prefill_graphs(rules: Rules, facts: Facts) -> Mapping[str, Any] | None:
    """Return the row that says why prefills run without graphs, None where they have some."""
    return next((row for row in rules["no_prefill_graphs"] if is_made(row, facts)), None)


def _has_prefill_graphs(rules: Rules, facts: Facts, flags: MemoryFlags) -> bool:
    row = no_prefill_graphs(rules, facts)
    return not flags.disable_cuda_graph and flags.disaggregation_mode != "decode" and (
        row is None or bool(row.get("kept")))


def encoder_cache(rules: Rules, facts: Facts) -> Mapping[str, Any] | None:
    """Return the row of what encoders keep of the KV cache's share, None for a model without."""
    return next(row for row in rules["encoder_caches"] if is_made(row, facts)) if (
        facts["model.multimodal"]) else None


def _graph_requests(rules: Rules, facts: Facts, usual: int, flags: MemoryFlags) -> int:
    asked, running = flags.cuda_graph_max_bs_decode, flags.max_running_requests
    if asked is not None or running is None:
        return usual if asked is None else asked
    grows = (encoder_cache(rules, facts) or {}).get("graphs_up_to", 0)
    return running if usual < running <= grows else min(usual, running)


def _prefill_graphs(
    rules: Rules, facts: Facts, checkpoint: Checkpoint, flags: MemoryFlags, chunk: int
) -> tuple[int, ...]:
    latent, named, largest = rules["latent_prefill"], rules["named_prefill"], chunk
    if facts["model.mla"]:
        largest = min(latent["tokens"], chunk) if latent["within_chunk"] else latent["tokens"]
    if flags.max_total_tokens is not None:
        largest = min(largest, flags.max_total_tokens)
    if named["name_has"] in checkpoint.name.lower():
        largest = min(largest, named["most_tokens"])
    if flags.moe_a2a_backend == rules["deepep"]["backend"]:
        step = rules["deepep"]["sizes_step"]
        most = rules["deepep"]["prefill_tokens"]
        return tuple(sorted({-(-size // step) * step for size in _sizes(rules, most)}))
    return _sizes(rules, largest)


def _sizes(rules: Rules, largest: int) -> tuple[int, ...]:
    return tuple(size for row in rules["prefill_sizes"]
                 for size in range(row["start"], row.get("stop", largest) + 1, row["step"])
                 if size <= largest)


def encoder_factor(rules: Rules, config: Mapping[str, Any]) -> float:
    """Return what --mem-fraction-static is multiplied with for an encoder, by its layers and
    hidden size (arg_groups/memory_hook.py:adjust_mem_fraction_for_vlm)."""
    row, vision = rules["encoders"], config.get("vision_config")
    if vision is None:
        return 1.0
    layers = next((vision[name] for name in row["layer_fields"] if name in vision), None)
    if layers is None and not any(name in vision for name in row["usual_with"]):
        raise NotKnownError("the layers of this model's encoder", wanted="vision_config with "
                            + ", ".join(row["layer_fields"]), hint="Pass --mem-fraction-static.")
    hidden = next((vision[name] for name in row["hidden_fields"] if name in vision), row["hidden"])
    size = (row["layers"] if layers is None else layers) * hidden ** 2
    grown = size / (row["layers"] * row["hidden"] ** 2)
    factor = 1.0 - row["per_doubling"] * (grown - 1.0)
    return float(row["factor"] * max(row["least"], min(row["most"], factor)))
