"""vLLM on one machine: what is imported before, and the child that answers its questions."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from quantplan.oracle.worker.channel import Channel
from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.vllm.build import answer
from quantplan.oracle.worker.vllm.emulation import Emulation
from quantplan.oracle.worker.vllm.packages import PACKAGES
from quantplan.oracle.worker.vllm.watch import Watch

USABLE = {
    "flashinfer": ("vllm.utils.flashinfer", "has_flashinfer"),
    "deep_gemm": ("vllm.utils.import_utils", "has_deep_gemm"),
    "nvidia_artifactory": ("vllm.utils.flashinfer", "has_nvidia_artifactory"),
    "humming": ("vllm.utils.import_utils", "has_humming"),
    "triton_kernels": ("vllm.utils.import_utils", "has_triton_kernels"),
    "tilelang": ("vllm.utils.import_utils", "has_tilelang"),
}
"""Library -> the engine's own question whether it can be used."""


NEEDED = ("torch", "transformers", "vllm")
"""Packages without which there is no engine."""


def prepare(emulate: bool) -> Emulation | None:
    """Import what every machine shares; return the emulation, None where the GPU is real."""
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if emulate:
        return Emulation()
    imported("transformers.models.auto.modeling_auto")
    return None


def serve(channel: Channel, machine: Mapping[str, Any], emulation: Emulation | None) -> None:
    """Be the machine that MACHINE says and answer its questions."""
    os.environ.update(machine["env"])
    if emulation is not None:
        emulation.enter(machine)
    libraries = dict(machine["libs"]) if emulation is not None else {
        name: _usable(name) for name in machine["libs"]}
    absent = frozenset(package for name, packages in PACKAGES.items()
                       if not libraries.get(name, False) for package in packages)
    platform = imported("vllm.platforms").current_platform
    if not platform.is_cuda():
        channel.write({"fault": "the engine sees no NVIDIA GPU here; --capability emulates one"})
        return
    capability = platform.get_device_capability()
    _inspect_models_here()
    watch = Watch()
    channel.write({"ready": True, "libs": libraries,
                   "capability": capability.to_int()})
    while (question := channel.read()) is not None and "end" not in question:
        channel.write(answer(question, watch, absent))


def _usable(name: str) -> bool:
    """Return whether the engine can use a library."""
    module, question = USABLE.get(name, (None, ""))
    with suppress(ImportError):
        asked: Callable[[], bool] | None = (
            getattr(imported(module), question, None) if module else None)
        return bool(asked()) if asked else _importable(PACKAGES.get(name, (name,))[0])
    return False


def _importable(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _inspect_models_here() -> None:
    """Let the engine look at model classes in this process: it starts another one for each, which
    would not be this machine."""
    registry = imported("vllm.model_executor.models.registry")
    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()
