"""The schema of an engine version's table."""

from __future__ import annotations

from quantplan.tables.attention_rows import ATTENTION, KV_CACHE
from quantplan.tables.coverage_rows import COVERS
from quantplan.tables.engine_head_rows import HEAD, MODEL_TYPES
from quantplan.tables.humming_rows import HUMMING, KERNEL_HUMMING
from quantplan.tables.inc_rows import INC
from quantplan.tables.method_rows import METHODS
from quantplan.tables.modelopt_rows import modelopt
from quantplan.tables.moe_rows import MOE_FIELDS
from quantplan.tables.online_rows import ONLINE
from quantplan.tables.overlay import CHANGE
from quantplan.tables.platform_rows import PLATFORM_ROWS
from quantplan.tables.requirement_rows import REQUIREMENT, REQUIREMENTS
from quantplan.tables.schema import Field, Row
from quantplan.tables.scheme_rows import COMPRESSED_TENSORS, QUARK_SCHEME, SCHEME
from quantplan.tables.tuned_rows import TUNED_CONFIGS

KERNEL: Row = {
    "id": Field("text", "the engine's class name"),
    "file": Field("text", "the engine file that defines it"),
    "mode": Field("text", "what it computes; {fact} is filled in"),
    "mode_when": Field("list", "modes on some capabilities; the first whose when applies wins",
                       required=False, of={
                           "when": Field("map", "facts", of=Field("any", "a value or values")),
                           "mode": Field("text", "the mode there"),
                           "act": Field("text", "how activations are quantized there",
                                        required=False),
                       }),
    "act": Field("text", "how activations are quantized when it runs; absent: as asked",
                 required=False),
    "humming": KERNEL_HUMMING,
    "min_capability": Field("int", "get_min_capability(), as capability x 10", required=False),
    "base": Field("text", "first of two kernels that it dispatches to", required=False),
    "fallback": Field("text", "second of two kernels that it dispatches to", required=False),
    "supported": REQUIREMENTS,
    "implement": REQUIREMENTS,
    "runs": Field("list", "what its first forward asks, which selection does not", required=False,
                  of=REQUIREMENT),
}

FAMILY: Row = {
    "id": Field("text", "the name that --linear-backend overrides use"),
    "label": Field("text", "the word in the engine's no-kernel message"),
    "kernels": Field("list", "class names in priority order", of=Field("text", "a kernel id")),
    "texts": Field("row", "the engine's wording of one rejected candidate", of={
        "disabled": Field("text", "named in VLLM_DISABLED_KERNELS"),
        "capability": Field("text", "below get_min_capability()", required=False),
        "reason": Field("text", "any other reason"),
        "pin_unsupported": Field("text", "a forced kernel is not supported", required=False),
        "pin_outside": Field("text", "a forced kernel is not in the list", required=False),
    }),
    "pins": Field("list", "kernels that the engine forces without walking the list; the first that "
                  "applies", required=False, of={
                      "kernel": Field("text", "a kernel id"),
                      "when": Field("map", "facts", of=Field("any", "a value or values")),
                      "if_supported": Field("flag", "the kernel is asked, and forced only where it "
                                            "is supported", required=False),
                      "capabilities": Field("list", "capabilities x 10 on which it is forced; "
                                            "absent: all", required=False,
                                            of=Field("int", "a capability")),
                      "because": Field("text", "the reason"),
                      "source": Field("text", "engine file:symbol"),
                  }),
    "backend_filter": Field("flag", "whether --linear-backend filters this list",
                            required=False),
    "none_left": Field("text", "the ValueError where --linear-backend names no kernel of the list; "
                       "{backend} is filled in; absent: the whole list is tried", required=False),
    "source": Field("text", "engine file:symbol"),
}

ENGINE_DOCUMENT: Row = {
    **HEAD,
    "covers": Field("row", "what the table speaks for, where that is not the whole version",
                    required=False, of=COVERS),
    "machine_code": Field("list", "capabilities (x 10) that the wheel's machine code serves",
                          of=Field("int", "a capability")),
    "machine_code_source": Field("text", "how that was read"),
    "removed_environment": Field("map", "variables that older versions read and this one ignores "
                                 "-> the flag in their place", of=Field("text", "a flag")),
    **METHODS,
    **ONLINE,
    "compressed_tensors": COMPRESSED_TENSORS,
    "schemes": Field("list", "compressed-tensors scheme classes, in the engine's order",
                     of=SCHEME),
    "quark_schemes": Field("list", "Quark's scheme classes, in the engine's order",
                           of=QUARK_SCHEME),
    "humming": HUMMING,
    "inc": INC,
    "promotion": Field("row", "the reordering of kernel lists on some capabilities", of={
        "capabilities": Field("list", "capability x 10", of=Field("int", "a capability")),
        "move": Field("text", "the first kernel whose name holds this"),
        "before": Field("text", "is moved before the first whose name holds this"),
        "because": Field("text", "the reason"),
        "source": Field("text", "engine file:symbol"),
    }),
    "linear_backends": Field("map", "--linear-backend value -> kernels it keeps",
                             of=Field("list", "kernels", of=Field("text", "a kernel id"))),
    "linear_backend_source": Field("text", "engine file:symbol"),
    "disabled_source": Field("text", "engine file:symbol"),
    "families": Field("list", "candidate lists", of=FAMILY),
    "kernels": Field("list", "kernel classes and what they require", of=KERNEL),
    "modelopt": Field("row", "ModelOpt checkpoints", of=modelopt(REQUIREMENT)),
    "attention": Field("row", "attention backends and what chooses between them", of=ATTENTION),
    "kv_cache": Field("row", "KV cache dtypes", of=KV_CACHE),
    **MOE_FIELDS,
    "tuned_configs": Field("list", "tuned tile sizes of Triton kernels", of=TUNED_CONFIGS),
    "model_types": MODEL_TYPES,
    "architectures": Field("list", "registered model classes, in registry order",
                           of=Field("text", "an architecture")),
    "architectures_source": Field("text", "engine file:symbol"),
    "removed_architectures": Field("map", "architectures that left the engine and that "
                                   "Transformers has no class for -> last version",
                                   of=Field("text", "a version")),
    "removed_architectures_source": Field("text", "engine file:symbol"),
    "float16_refused": Field("map", "model types that float16 does not serve -> the engine's words",
                             of=Field("text", "the reason")),
    "float16_refused_source": Field("text", "engine file:symbol"),
    "platforms": PLATFORM_ROWS,
    "defaults": Field("row", "defaults that the memory budget needs", of={
        "gpu_memory_utilization": Field("number", "fraction of the driver's total"),
        "block_size": Field("int", "KV block size in tokens"),
        "source": Field("text", "engine file:symbol"),
    }),
}

OVERLAY_DOCUMENT: Row = {
    **{name: ENGINE_DOCUMENT[name] for name in ("engine", "version", "default", "released",
                                                "wheel")},
    "extends": Field("text", ENGINE_DOCUMENT["extends"].doc),
    "covers": ENGINE_DOCUMENT["covers"],
    "changes": Field("list", ENGINE_DOCUMENT["changes"].doc, of=CHANGE),
}
"""A file of a version that extends another one."""
