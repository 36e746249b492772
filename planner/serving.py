"""What a vLLM engine makes of the flags that decide memory, and of those that are not given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu, MemoryFlags
from quantplan.dispatch.structure import Structure
from quantplan.tables.memory_loading import MemoryRules
from quantplan.tables.record import NamedTuple

CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length",
                  "model_max_length", "max_sequence_length", "max_seq_length", "seq_len")
"""Where configs say the longest context
(vllm transformers_utils/model_arch_config_convertor.py:derive_max_model_len_and_key)."""
ROPE_KEEPS_LENGTH = ("default", "llama3", "mrope", "longrope", "su", "proportional", None)
"""Kinds of rotary scaling that leave the length as the config has it
(vllm config/model.py:_get_and_verify_max_len)."""
ASSUMED_CONTEXT_TOKENS = 2048
"""vllm config/model.py:_get_and_verify_max_len, for a config without any of the fields."""
STATE_KINDS = ("mamba", "gdn", "linear_attention", "kda", "short_conv")


class Serving(NamedTuple):
    """The scheduler's sizes, the GPU and the rules that a budget is counted with.

    `graph_tokens` are the batch sizes that CUDA graphs are captured for, `runner` is "v1" or "v2".
    """

    rules: MemoryRules
    facts: Mapping[str, Any]
    utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    graph_tokens: tuple[int, ...]
    runner: str

    @property
    def fewest_seqs(self) -> int:
        """Return the sequences of the profile run: no more than it has tokens."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


def serving(
    rules: MemoryRules, checkpoint: Checkpoint, structure: Structure, *, deployment: Deployment,
    flags: MemoryFlags, gpu: Gpu, memory_bytes: int,
) -> Serving:
    """Return what `vllm serve` runs with on a GPU of `memory_bytes`.

    Raises NotKnownError for a version without a rule.
    """
    facts = _facts(structure, deployment, flags, gpu, memory_bytes)
    runner = "v2" if rules.rule("model_runner_v2", facts).value else "v1"
    facts = {**facts, "runner": runner}
    length = flags.max_model_len if (flags.max_model_len or 0) > 0 else own_context(checkpoint)
    assert length is not None
    sequences, tokens = scheduler_sizes(rules, facts, flags, length)
    share = flags.gpu_memory_utilization
    return Serving(
        rules, facts, rules.rule("gpu_memory_utilization").value if share is None else share,
        length, sequences, tokens,
        () if flags.enforce_eager else graph_sizes(rules, facts, sequences, tokens), runner)


def scheduler_sizes(
    rules: MemoryRules, facts: Mapping[str, Any], flags: MemoryFlags, max_model_len: int
) -> tuple[int, int]:
    """Return max_num_seqs and max_num_batched_tokens
    (vllm engine/arg_utils.py:EngineArgs._set_default_max_num_seqs_and_batched_tokens_args)."""
    default = rules.rule("batch_defaults", facts).value
    sequences = flags.max_num_seqs or default["sequences"]
    tokens = flags.max_num_batched_tokens or min(
        sequences * max_model_len, default["server_tokens"])
    return flags.max_num_seqs or min(sequences, tokens), tokens


def graph_sizes(
    rules: MemoryRules, facts: Mapping[str, Any], sequences: int, tokens: int
) -> tuple[int, ...]:
    """Return the batch sizes that CUDA graphs are captured for, without a draft
    (vllm config/vllm.py:VllmConfig._set_cudagraph_sizes)."""
    largest = min(2 * sequences, rules.rule("largest_graph", facts).value, tokens)
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    return tuple(size for size in steps if size <= largest)


def own_context(checkpoint: Checkpoint) -> int:
    """Return what --max-model-len is by default: the longest context of a model, under longrope
    the one before it was stretched (vllm config/model.py:_get_and_verify_max_len)."""
    original = checkpoint.text_config.get("original_max_position_embeddings")
    if _scaling(checkpoint)[0] == "longrope" and isinstance(original, int):
        return original
    return derived_context(checkpoint)[0]


def derived_context(checkpoint: Checkpoint) -> tuple[int, str | None]:
    """Return the longest context of a model and the config's field that says it, None where no
    field does."""
    config = checkpoint.text_config
    found = [(config[name], name) for name in CONTEXT_FIELDS if isinstance(config.get(name), int)]
    length, key = min(found, key=lambda pair: pair[0], default=(ASSUMED_CONTEXT_TOKENS, None))
    kind, scaling = _scaling(checkpoint)
    factor = scaling.get("factor")
    if kind in ROPE_KEEPS_LENGTH or not isinstance(factor, (int, float)):
        return length, key
    if kind == "yarn":
        length = scaling.get("original_max_position_embeddings", length)
    return int(length * factor), key


def _scaling(checkpoint: Checkpoint) -> tuple[str | None, Mapping[str, Any]]:
    config = checkpoint.text_config
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return scaling.get("rope_type", scaling.get("type")), scaling


def _facts(
    structure: Structure, deployment: Deployment, flags: MemoryFlags, gpu: Gpu, memory_bytes: int
) -> dict[str, Any]:
    kinds = {module.kind for module in structure.modules}
    return {
        "tp": deployment.tp, "pp": flags.pp, "gpu.capability": gpu.capability,
        "gpu.name": gpu.name, "gpu.memory_bytes": memory_bytes,
        "architecture": structure.architecture, "model.experts": "experts" in kinds,
        "model.hybrid": bool(kinds.intersection(STATE_KINDS)),
        **dict(_speculative(flags)),
        **{f"env.{name}": value for name, value in deployment.env.items()},
    }


def _speculative(flags: MemoryFlags) -> Iterator[tuple[str, Any]]:
    method = (flags.speculative_config or {}).get("method")
    if method:
        yield "speculative.method", method
