"""vLLM's refusals of memory flags that contradict the model or each other."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.dispatch.facts import Checkpoint, Deployment, MemoryFlags
from quantplan.planner.kv_cache import KvCache
from quantplan.planner.serving import Serving, derived_context

STAGE = "config fields"
LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"

Refused = tuple[str, str]
"""The engine's words, and what to do."""


def flag_refusals(
    checkpoint: Checkpoint, deployment: Deployment, flags: MemoryFlags, serving: Serving,
    kv: KvCache,
) -> Iterator[Refused]:
    """Yield why the engine refuses flags that change memory, in its order."""
    yield from _length(checkpoint, deployment, flags)
    if deployment.tp % flags.dcp:
        yield (f"tp_size={deployment.tp} must be divisible by dcp_size={flags.dcp}.",
               f"Pass a --decode-context-parallel-size that divides {deployment.tp}.")
    yield from _batch(serving)
    if flags.dcp > 1 and kv.pool and not any(group.first.latent for group in kv.pool.groups):
        yield from _contexts(checkpoint, deployment.tp, flags.dcp)


def _length(
    checkpoint: Checkpoint, deployment: Deployment, flags: MemoryFlags
) -> Iterator[Refused]:
    """vllm 0.32.0 config/model.py:_get_and_verify_max_len."""
    asked, (derived, key) = flags.max_model_len or 0, derived_context(checkpoint)
    longest = checkpoint.text_config.get("model_max_length")
    allowed = deployment.env.get(LONG, "").lower() in ("1", "true")
    if key is None or asked <= max(derived, longest or 0) or allowed:
        return
    yield (f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
           f"({key}={derived} or model_max_length={longest} in model's config.json).",
           f"Pass --max-model-len {derived} or less, or set {LONG}=1.")


def _batch(serving: Serving) -> Iterator[Refused]:
    """vllm 0.32.0 config/scheduler.py:SchedulerConfig.verify_max_model_len."""
    tokens, sequences = serving.max_num_batched_tokens, serving.max_num_seqs
    if tokens < sequences:
        yield (f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs "
               f"({sequences}).", "Raise --max-num-batched-tokens or lower --max-num-seqs.")


def _contexts(checkpoint: Checkpoint, tp: int, dcp: int) -> Iterator[Refused]:
    """vllm 0.32.0 config/model.py:ModelConfig.verify_with_parallel_config."""
    config = checkpoint.text_config
    heads = config.get("num_attention_heads")
    kv_heads = config.get("num_key_value_heads", heads)
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        return
    if tp <= kv_heads:
        yield ("Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` "
               f"({tp}) to be greater than the model's total number of KV heads ({kv_heads}).",
               "Pass --decode-context-parallel-size 1.")
    elif dcp > tp // kv_heads:
        yield (f"`--decode-context-parallel-size` ({dcp}) exceeds the maximum supported value "
               f"({tp // kv_heads}) for `--tensor-parallel-size` ({tp}) and {kv_heads} model KV "
               "heads.", f"Pass --decode-context-parallel-size {tp // kv_heads} or less.")
    elif heads // kv_heads % dcp:
        yield (f"The model's number of query heads per KV head ({heads // kv_heads}) must be "
               f"divisible by `--decode-context-parallel-size` ({dcp}) for GQA/MQA.",
               "Pass --decode-context-parallel-size 1.")
