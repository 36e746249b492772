"""Start-up logs of the truth rows, written in the engines' own line formats (tables/logs/)."""

from __future__ import annotations

from typing import Any

from memory_truth import by_worker

LINE = "(%s pid=%d) %s 04-10 10:00:00 [%s] %s"


def vllm_log(row: dict[str, Any], version: str | None = None) -> list[str]:
    """Return the lines that vLLM 0.19 prints for a row at debug level, worker by worker."""
    asked, printed = row["asked"], by_worker(row["printed"])
    version = version or row["version"]
    names = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
    given = {"model_tag": row["model"], "model": row["model"],
             **{names.get(key, key): value for key, value in asked.items()}}
    lines = [_line("APIServer", 1, "utils.py:297", f" ▀▄▀ █  version {version}"),
             _line("APIServer", 1, "utils.py:233", f"non-default args: {given}"),
             _line("EngineCore", 2, "core.py:105",
                   f"Initializing a V1 LLM engine (v{version}) with config: "
                   f"model={row['model']!r}, speculative_config=None, "
                   f"dtype=torch.{asked.get('dtype', 'bfloat16')}, "
                   f"max_seq_len={asked.get('max_model_len')}, "
                   f"tensor_parallel_size={asked.get('tp', 1)}, quantization=None, "
                   "compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>}")]
    for rank, worker in enumerate(_workers(asked)):
        lines += _worker_lines(worker, 10 + rank, rank, asked, printed)
    return lines + _engine_lines(asked, printed)


def _line(process: str, pid: int, place: str, message: str, level: str = "INFO") -> str:
    return LINE % (process, pid, level, place, message)


def _workers(asked: dict[str, Any]) -> list[str]:
    for size, letters in ((asked.get("pp", 1), "PP"), (asked.get("tp", 1), "TP")):
        if size > 1:
            return [f"Worker_{letters}{rank}" for rank in range(size)]
    return ["EngineCore"]


def _of(value: Any, rank: int) -> Any:
    return value[min(rank, len(value) - 1)] if isinstance(value, list) else value


def _worker_lines(
    worker: str, pid: int, rank: int, asked: dict[str, Any], printed: dict[str, Any]
) -> list[str]:
    own = {name: _of(value, rank) for name, value in printed.items()}
    lines = [_line(worker, pid, "gpu_model_runner.py:4820",
                   f"Model loading took {own['weights_gib']} GiB memory and 9.123456 seconds")]
    if "memory_gib" in own:
        lines.insert(0, _line(
            worker, pid, "gpu_worker.py:287", "worker init memory snapshot: torch_peak=0.0GiB, "
            f"torch_allocated=0.0GiB, free_memory={own['free_gib']}GiB, total_memory="
            f"{own['memory_gib']}GiB, cuda_memory=0.51GiB", "DEBUG"))
        lines.append(_line(
            worker, pid, "gpu_worker.py:440", f"Initial free memory: {own['free_gib']} GiB; "
            f"Requested memory: {asked['gpu_memory_utilization']:f} (util), "
            f"{own['engine_memory_gib']} GiB", "DEBUG"))
    if "graphs_gib" in own:
        lines.append(_line(worker, pid, "gpu_model_runner.py:5900",
                           f"Estimated CUDA graph memory: {own['graphs_gib']:.2f} GiB total"))
    if "non_kv_gib" in own:
        lines.append(_line(
            worker, pid, "gpu_worker.py:455", "Memory profiling takes 12.34 seconds. Total non KV "
            f"cache memory: {own['non_kv_gib']}GiB; torch peak memory increase: "
            f"{own['activations_gib']}GiB; non-torch forward increase memory: "
            f"{own['non_torch_gib']}GiB; weights memory: {own['weights_gib']}GiB.", "DEBUG"))
    lines.append(_line(worker, pid, "gpu_worker.py:460",
                       f"Available KV cache memory: {own['kv_gib']} GiB"))
    if "graphs_captured_gib" in own:
        lines.append(_line(worker, pid, "gpu_model_runner.py:5999", "Graph capturing finished in "
                           f"4 secs, took {own['graphs_captured_gib']:.2f} GiB"))
    return lines


def _engine_lines(asked: dict[str, Any], printed: dict[str, Any]) -> list[str]:
    return [_line("EngineCore", 2, "kv_cache_utils.py:1314",
                  f"GPU KV cache size: {printed['kv_tokens']:,} tokens"),
            _line("EngineCore", 2, "kv_cache_utils.py:1319", "Maximum concurrency for "
                  f"{asked['max_model_len']:,} tokens per request: {printed['concurrency']:.2f}x")]


def sglang_log(row: dict[str, Any]) -> list[str]:
    """Return the lines that SGLang 0.4 and 0.5 print for a row; --mem-fraction-static is what its
    figures give: 1 - (13.91 GiB free after loading - 11.14 of pools) / 15.16 free before."""
    p = row["printed"]
    return [f"[2026-11-01 10:00:00] {line}" if line.startswith("server_args")
            else f"[2026-11-01 10:00:01 TP0] {line}" for line in (
        f"server_args=ServerArgs(model_path='{row['model']}', tokenizer_mode='auto', "
        "mem_fraction_static=0.817, chunked_prefill_size=2048, tp_size=1, dtype='auto', "
        "quantization=None, kv_cache_dtype='auto', page_size=1, cuda_graph_bs=[1, 2, 4, 8])",
        "Load weight begin. avail mem=15.17 GB",
        "Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem="
        f"{p['free_after_load_gib']:.2f} GB, mem usage={p['weights_gib']:.2f} GB.",
        f"KV Cache is allocated. #tokens: {p['kv_tokens']}, K size: {p['k_gib']:.2f} GB, V size: "
        f"{p['v_gib']:.2f} GB",
        f"Memory pool end. avail mem={p['free_after_pool_gib']:.2f} GB",
        f"Capture cuda graph end. Time elapsed: 1.20 s. mem usage={p['graphs_captured_gib']:.2f} "
        f"GB. avail mem={p['free_after_graphs_gib']:.2f} GB.",
        f"max_total_num_tokens={p['kv_tokens']}, chunked_prefill_size=2048, max_prefill_tokens="
        "16384, max_running_requests=2048, context_len=40960, available_gpu_mem=1.70 GB")]
