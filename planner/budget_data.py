"""A budget as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantplan.planner.budget import Budget


def budget_data(budget: Budget) -> dict[str, Any]:
    """Return what reports/schema/budget.v2.json says of a budget, without the schema's name."""
    return {
        "engine": {"name": budget.serving.rules.engine, "version": budget.version},
        "model": {"name": budget.model, "architecture": budget.architecture,
                  "format": budget.weights.title, "linear_parameters": budget.linear_parameters,
                  "other_parameters": budget.other_parameters,
                  "total_parameters": budget.total_parameters},
        "deployment": _deployment(budget),
        "memory": budget.memory.to_dict(),
        "engine_memory": budget.engine_memory.to_dict(),
        "weights": {"bytes": budget.weights.bytes, "origin": budget.weights.origin,
                    "stage_bytes": list(budget.weights.stage_bytes),
                    "lines": [line.to_dict() for line in budget.weights.lines]},
        "overheads": {"bytes": budget.overhead_bytes,
                      "lines": [line.to_dict() for line in budget.overheads]},
        "kv_cache": _kv_cache(budget),
        "fits": budget.fits,
        "missing_bytes": budget.missing_bytes,
        "refusal": budget.refusal._asdict() if budget.refusal else None,
        "what_if": [row._asdict() for row in budget.what_if],
        "notes": [note._asdict() for note in budget.notes],
    }


def _deployment(budget: Budget) -> dict[str, Any]:
    serving = budget.serving
    return {"tp": budget.tp, "pp": budget.flags.pp, "dtype": budget.dtype,
            "utilization": budget.utilization, "max_model_len": budget.max_model_len,
            "max_num_seqs": serving.max_num_seqs,
            "max_num_batched_tokens": serving.max_num_batched_tokens,
            "enforce_eager": budget.flags.enforce_eager,
            "kv_cache_memory_bytes": budget.flags.kv_cache_memory_bytes}


def _kv_cache(budget: Budget) -> dict[str, Any]:
    kv = budget.kv
    return {"bytes": budget.kv_bytes, "plus_minus_bytes": budget.plus_minus_bytes,
            "upper_bound": budget.is_upper_bound,
            "lines": [line.to_dict() for line in kv.lines],
            "bytes_per_token": kv.bytes_per_token,
            "fixed_bytes_per_request": kv.fixed_bytes_per_request,
            "block_tokens": kv.block_tokens, "tokens": budget.kv_tokens,
            "max_concurrency": round(budget.max_concurrency, 2),
            "largest_context": budget.largest_context}
