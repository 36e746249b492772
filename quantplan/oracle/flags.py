"""The options of `explain` as each engine's own flags."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from quantplan.api import explain
from quantplan.dispatch.sglang.flags import VLLM_ONLY
from quantplan.dispatch.vllm.flags import SGLANG_ONLY
from quantplan.tables.record import NamedTuple

QUESTION = frozenset({
    "model", "engine", "engine_version", "assume_nearest", "gpu", "capability", "env", "libs",
    "tensors", "side_files", "revision", "as_format"})
"""Parameters of `explain` that are no flags of any engine."""


class Flags(NamedTuple):
    """How one engine takes the options: those that it calls otherwise, those that are nested in a
    field of another name, and those that it does not have."""

    renamed: Mapping[str, str]
    nested: Mapping[str, str]
    foreign: frozenset[str]


ENGINES: Mapping[str, Flags] = {
    "vllm": Flags({"tp": "tensor_parallel_size", "dp": "data_parallel_size"},
                  {"linear_backend_per_quant": "kernel_config"},
                  frozenset(SGLANG_ONLY)),
    "sglang": Flags({"tp": "tp_size", "moe_backend": "moe_runner_backend",
                     "fp8_gemm_backend": "fp8_gemm_runner_backend",
                     "fp4_gemm_backend": "fp4_gemm_runner_backend"}, {},
                    frozenset(VLLM_ONLY)),
}
WHOLE_EXPERTS = "enable_expert_parallel"
"""vLLM's flag; SGLang says over how many ranks whole experts are spread."""


def option_names(engine: str | None = None) -> list[str]:
    """Return the options of `explain` that are also flags of an engine, None: of any."""
    foreign = ENGINES[engine].foreign if engine else frozenset()
    return [name for name in signature(explain).parameters
            if name not in QUESTION and name not in foreign]


def engine_flags(engine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as the engine's arguments."""
    own = ENGINES[engine]
    flags: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if engine == "sglang" and name == WHOLE_EXPERTS:
            flags |= {"ep_size": options.get("tp", 1)} if value else {}
        elif name in own.nested:
            flags[own.nested[name]] = {name: value}
        else:
            flags[own.renamed.get(name, name)] = list(value) if isinstance(value, tuple) else value
    return flags
