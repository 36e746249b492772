"""SGLang on one machine: what is imported before, and the child that answers its questions."""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from quantplan.oracle.worker.channel import Channel
from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.sglang.build import answer
from quantplan.oracle.worker.sglang.caches import Caches
from quantplan.oracle.worker.sglang.emulation import Emulation
from quantplan.oracle.worker.sglang.humming import run_without_values
from quantplan.oracle.worker.sglang.leaves import Leaves
from quantplan.oracle.worker.sglang.meta import note_triton_kernels
from quantplan.oracle.worker.sglang.packages import PACKAGES
from quantplan.oracle.worker.sglang.registry import read_classes_when_asked

NEEDED = ("torch", "transformers", "sglang")
"""Packages without which there is no engine."""

LAYERS = ("sglang.srt.layers.quantization", "sglang.srt.hardware_backend.gpu.quantization",
          "sglang.srt.layers.moe")
"""Packages whose modules are imported when a layer is first built: imported before, so that their
leaves are replaced."""
OTHER_DEVICES = re.compile(r"npu|modelslim|aiter|_cpu|amx|xpu|hip|mlx|mori|kt_ep|dwdp")


def prepare(emulate: bool) -> Emulation | None:
    """Import what every machine shares; return the emulation, None where the GPU is real."""
    return Emulation() if emulate else None


def serve(channel: Channel, machine: Mapping[str, Any], emulation: Emulation | None) -> None:
    """Be the machine that MACHINE says and answer its questions."""
    if emulation is None:
        channel.write({"fault": "SGLang is asked on an emulated GPU only: --capability says which"})
        return
    os.environ.update(machine["env"])
    emulation.enter(machine)
    absent = frozenset(package for name, there in machine["libs"].items() if not there
                       for package in PACKAGES.get(name, (name,)))
    leaves = _import_engine()
    caches = Caches()
    channel.write({"ready": True, "libs": dict(machine["libs"]),
                   "capability": machine["capability"]})
    variables = dict(os.environ)
    while (question := channel.read()) is not None and "end" not in question:
        caches.clear()
        channel.write(answer(question, leaves, absent))
        if dict(os.environ) != variables:  # the server's arguments set some for its processes
            os.environ.clear()
            os.environ.update(variables)


def _import_engine() -> Leaves:
    """Import the engine's start-up and layers; return the replaced leaves."""
    imported("sglang.srt.server_args")
    logging.getLogger("sglang").setLevel(logging.CRITICAL)
    read_classes_when_asked()
    for package in LAYERS:
        with suppress(ImportError):
            _import_all(package)
    note_triton_kernels()
    run_without_values()
    leaves = Leaves()
    leaves.replace()
    return leaves


def _import_all(package: str) -> None:
    for module in pkgutil.walk_packages(imported(package).__path__, f"{package}."):
        if not OTHER_DEVICES.search(module.name):
            with suppress(Exception):  # one of another device, or of a package that is absent
                importlib.import_module(module.name)
