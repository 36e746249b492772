"""The engine's compiled operators, declared from the wheel's own files and never loaded.

A shared object holds the schema of every operator that it registers as text. Declaring those makes
`hasattr(torch.ops._C, name)` say what it says on a GPU machine.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.oracle.worker.modules import imported

SCHEMA = re.compile(rb"([a-z_][\w.]*)\([^\0]*\) *-> *[^\0]+")
LONGEST_SCHEMA = 6000
SUFFIX = "_stable_libtorch"
SPACES: Mapping[str, tuple[str, ...]] = {
    "_C": ("_C", "_C_cache_ops", "_C_cuda_utils", "_C_custom_ar"),
    "_moe_C": ("_moe_C",), "_qutlass_C": ("_qutlass_C",), "_flashkda_C": ("_flashkda_C",),
}
"""Shared object -> the operator namespaces that its registrations go to."""

CAPABILITY_QUERIES: Mapping[str, Callable[[int], bool]] = {
    "cutlass_scaled_mm_supports_fp8": lambda capability: capability >= 89,
    "cutlass_scaled_mm_supports_block_fp8": lambda capability: capability >= 90,
    "cutlass_group_gemm_supported": lambda capability: 90 <= capability < 120,
    "cutlass_scaled_mm_supports_fp4": lambda capability: 100 <= capability < 130,
    "mxfp4_experts_quant_supported": lambda capability: 100 <= capability < 120,
}
"""What the compiled queries answer: read from the machine code of the 0.32.0 and 0.33.0 wheels
(CUDA 13.0 builds), which is the same in both."""

WORKSPACE_BYTES = 1 << 20


def engine_folder() -> str:
    """Return the folder of the vllm package, which is not imported."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations
    return str(spec.submodule_search_locations[0])


def shared_objects(folder: str) -> Iterator[tuple[str, str]]:
    """Yield module name and path of every shared object of the engine's own."""
    for place, _, files in os.walk(folder):
        for file in sorted(files):
            if file.endswith(".so"):
                path = os.path.join(place, file)
                parts = os.path.relpath(path, os.path.dirname(folder)).split(os.sep)
                yield ".".join((*parts[:-1], file.split(".")[0])), path


def schemas(path: str) -> dict[str, str]:
    """Return operator name -> schema of one shared object."""
    found: dict[str, str] = {}
    with open(path, "rb") as file:
        texts = file.read().split(b"\0")
    for text in texts:
        if b"->" in text and len(text) < LONGEST_SCHEMA and (match := SCHEMA.fullmatch(text)):
            schema = " ".join(text.decode("ascii", "ignore").split())
            found.setdefault(match[1].decode(), schema)
    return found


def declare_operators() -> list[Any]:
    """Put empty modules in place of the shared objects and declare their operators; return the
    libraries, which must be kept for the operators to live."""
    torch = imported("torch")
    libraries = []
    for module, path in shared_objects(engine_folder()):
        sys.modules[module] = types.ModuleType(module)
        sys.modules[module].__spec__ = importlib.machinery.ModuleSpec(module, None)
        stem = module.removeprefix("vllm.").removesuffix(SUFFIX)
        declared = schemas(path) if stem in SPACES else {}
        libraries += [_library(torch, space, declared) for space in SPACES.get(stem, ())]
    return [*libraries, _queries(torch)]


def _library(torch: Any, space: str, declared: Mapping[str, str]) -> Any:
    library = torch.library.Library(space, "FRAGMENT")
    for schema in declared.values():
        try:
            library.define(schema)
        except RuntimeError:  # text that only looks like a schema
            continue
    if "get_workspace_size" in declared and space == "_flashkda_C":
        library.impl("get_workspace_size", lambda *sizes: WORKSPACE_BYTES,
                     "CompositeExplicitAutograd")
    return library


def _queries(torch: Any) -> Any:
    library = torch.library.Library("_C", "FRAGMENT")
    for name, answer in CAPABILITY_QUERIES.items():
        if not hasattr(torch.ops._C, name):
            library.define(f"{name}(int cuda_device_capability) -> bool")
        library.impl(name, answer, "CompositeExplicitAutograd")
    return library
