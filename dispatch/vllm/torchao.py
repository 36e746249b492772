"""quant_method torchao: TorchAOConfig; torch runs the tensor that torchao makes of each weight
(model_executor/layers/quantization/torchao.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import FP8_TENSOR_CORES_MIN, Assignment, Context, Site
from quantplan.dispatch.vllm.fields import Config, bad_config, names
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.record import NamedTuple

SOURCE = "model_executor/layers/quantization/torchao.py"
PER_MODULE = ("ModuleFqnToConfig", "FqnToConfig")
"""Config types of torchao that name one config per module; the first became the second."""


class TorchAoFields(NamedTuple):
    """TorchAOConfig after construction: one config for the model, or one per module name."""

    kind: str
    modules: Mapping[str, Any]
    skipped: tuple[str, ...]


def check(config: Config) -> Config:
    """Return the config: torchao itself reads its types."""
    return config


def read(config: Config, context: Context) -> TorchAoFields:
    """Return the fields of the checkpoint, or refuse as TorchAOConfig.from_config does."""
    _require_package(context)
    types = config.get("quant_type")
    if types is None:
        raise bad_config("quant_type must be specified", f"{SOURCE}:TorchAOConfig.from_config")
    if not isinstance(types, Mapping) or len(types) != 1 or "default" not in types:
        raise bad_config("Expected only one key 'default' in quant_type dictionary",
                         f"{SOURCE}:TorchAOConfig.from_config")
    kind, data = _typed(types["default"])
    modules = data.get("module_fqn_to_config", {}) if kind in PER_MODULE else {}
    modules = modules if isinstance(modules, Mapping) else {}
    left = tuple(name for name, own in modules.items() if own is None)
    return TorchAoFields(kind, modules, names(config, "modules_to_not_convert") + left)


def _require_package(context: Context) -> None:
    present = context.facts["lib.torchao"]
    if present is None:
        raise NotKnownError("whether the package torchao is installed",
                            hint="Say --lib torchao=on or off.")
    if not present:
        raise refuse("config fields", "ImportError",
                     "Please install torchao>=0.10.0 via `pip install torchao>=0.10.0` to use "
                     "torchao quantization.", None, f"{SOURCE}:TorchAOConfig.from_config",
                     hint="pip install torchao; --lib torchao=on shows the answer then.")


def _typed(value: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the type and data of a torchao config as torchao writes it down."""
    kind = value.get("_type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str):
        raise CheckpointError("quantization config: quant_type", wanted="a torchao config with "
                              "_type", found=repr(value)[:60])
    data = value.get("_data", {})
    return kind, data if isinstance(data, Mapping) else {}


def assign(fields: TorchAoFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; None for embeddings and lm_head."""
    if site.module.split == "vocab":
        return None
    if any(f".{name}." in f".{site.path}." for name in fields.skipped):
        return Assignment("UnquantizedLinearMethod", why="named in modules_to_not_convert")
    own = _own(fields.modules, site.path) if fields.kind in PER_MODULE else True
    if own is None:
        return Assignment("UnquantizedLinearMethod", why="no config of torchao names it")
    kind = fields.kind if own is True else _typed(own)[0]
    _check_fp8_activations(kind, context, site)
    return Assignment("TorchAOLinearMethod", why=f"torchao {kind}: torch runs it, no kernel is "
                      "looked for")


def _own(modules: Mapping[str, Any], path: str) -> Any:
    if path in modules:
        return modules[path]
    fitting = (own for name, own in modules.items()
               if name.startswith("re:") and re.fullmatch(name[3:], path))
    return next(fitting, modules.get("_default"))


def _check_fp8_activations(kind: str, context: Context, site: Site) -> None:
    """Refuse FP8 activations without FP8 tensor cores."""
    lacking = context.gpu.capability < FP8_TENSOR_CORES_MIN
    if "Float8" in kind and "Activation" in kind and lacking:
        raise refuse("layer assignment", "ValueError",
                     f"torchao FP8 activation quantization config '{kind}' requires GPU compute "
                     "capability >= 8.9 (e.g., NVIDIA Ada Lovelace / Hopper or AMD MI300+) "
                     f"(current GPU compute capability: {context.gpu.capability_text}). For older "
                     "GPUs, consider using a non-FP8 config such as Int8WeightOnlyConfig or "
                     "Int4WeightOnlyConfig.", site.path,
                     f"{SOURCE}:_check_torchao_fp8_activation_capability")
