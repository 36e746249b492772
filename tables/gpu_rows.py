"""The schema of the GPU tables, the list of their files, and the key that a GPU is looked up by.

Conventions: peaks are dense (a figure printed with sparsity is halved) and accumulate in FP32, so
GeForce FP16 is half of what its FP16-accumulate column prints. A figure that is absent has no
hardware path or no source: never a guess. Memory comes in three figures, from the box to the
engine: `memory_label_gb` (2^30 bytes each), `memory_nvml_mib` (nvidia-smi), `memory_torch_gib`
(the total that torch, and so vLLM, divides up).
"""

from __future__ import annotations

import re

from quantplan.tables.schema import Field, Row

GPU_FILES = ("volta", "turing", "ampere", "ada", "hopper", "blackwell", "jetson")
SEGMENTS = ("data-centre", "workstation", "geforce", "jetson", "dgx")
ARCHITECTURES = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")
KINDS = ("spec", "measured", "exact", "modelled")

FIGURE: Row = {
    "value": Field("number", "the figure, in the unit of its name"),
    "kind": Field("text", "spec: a document says so; measured: read on such a GPU; exact: follows "
                  "by arithmetic; modelled: follows from a clock", choices=KINDS),
    "source": Field("text", "an id of this file's sources"),
}

SOURCE: Row = {
    "title": Field("text", "document, log or command"),
    "date": Field("text", "year, or year and month, of the document"),
    "url": Field("text", "where it can be read", required=False),
    "note": Field("text", "how the figure was taken from it", required=False),
}


def _figure(doc: str) -> Field:
    return Field("row", doc, required=False, of=FIGURE)


CHIP: Row = {
    "capability": Field("text", 'compute capability as quoted text: "8.9"'),
    "full_sm_count": _figure("streaming multiprocessors of the whole chip"),
}

GPU_ROW: Row = {
    "id": Field("text", "short name in kebab case"),
    "name": Field("text", "what NVML calls it; two memory sizes may share it"),
    "vendor_name": Field("text", "what NVIDIA calls it, where that says more", required=False),
    "name_from": Field("text", "vendor: no driver output with this name was found", required=False,
                       choices=("vendor",)),
    "aliases": Field("list", "further spellings, lower case; a bare family name means the most "
                     "common variant", of=Field("text", "an alias")),
    "segment": Field("text", "the line of products", choices=SEGMENTS),
    "architecture": Field("text", "the microarchitecture", choices=ARCHITECTURES),
    "chip": Field("text", "an id of this file's chips"),
    "capability": Field("text", 'compute capability as quoted text: "8.9"'),
    "sm_count": _figure("streaming multiprocessors that are enabled"),
    "boost_mhz": _figure("boost clock"),
    "l2_bytes": _figure("L2 cache"),
    "memory_label_gb": Field("row", "memory as sold, in units of 2^30 bytes", of=FIGURE),
    "memory_nvml_mib": _figure("total memory as nvidia-smi prints it"),
    "memory_torch_gib": _figure("total memory as the CUDA runtime and torch tell it"),
    "bandwidth_gb_per_s": _figure("peak memory bandwidth, 10^9 bytes per second"),
    "dense_fp16_tflops": _figure("dense FP16 tensor peak, FP32 accumulation"),
    "dense_bf16_tflops": _figure("dense BF16 tensor peak; none below 8.0"),
    "dense_int8_tops": _figure("dense INT8 tensor peak; none below 7.5"),
    "dense_fp8_tflops": _figure("dense FP8 tensor peak, FP32 accumulation; none below 8.9"),
    "dense_fp4_tflops": _figure("dense FP4 tensor peak; none below 10.0"),
}

FIGURE_NAMES = tuple(name for name, field in GPU_ROW.items() if field.of is FIGURE)

GPU_DOCUMENT: Row = {
    "sources": Field("map", "where the figures come from", of=SOURCE),
    "chips": Field("map", "the dies of these GPUs", of=CHIP),
    "gpus": Field("list", "one row per product and memory size", of=GPU_ROW),
}

OLDER_DOCUMENT: Row = {
    "source": Field("text", "where the capabilities are said"),
    "cards": Field("list", "cards that have no rows of their own", of={
        "capability": Field("text", 'compute capability as quoted text: "6.1"'),
        "names": Field("list", "their names, as `lookup_key` leaves them",
                       of=Field("text", "a name")),
    }),
}

_IGNORED = re.compile(r"nvidia|geforce|tesla|nvgpu|[\s_()-]+")
_GIGABYTES = re.compile(r"(?<=[0-9])gi?b")


def lookup_key(text: str) -> str:
    """Return what is left of a GPU's name when case, maker, series and punctuation are ignored."""
    return _GIGABYTES.sub("g", _IGNORED.sub("", text.lower()))
