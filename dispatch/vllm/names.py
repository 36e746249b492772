"""What the method is called in the end: the checkpoint's name, the user's, and the override hooks
(config/model.py:ModelConfig._verify_quantization)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.trace import Step
from quantplan.dispatch.vllm.context import Table, refuse
from quantplan.tables.errors import CheckpointError, NotKnownError


class NamedMethod(NamedTuple):
    """The checkpoint's own name, the resolved one, its config and the steps in between."""

    checkpoint: str | None
    resolved: str | None
    config: Mapping[str, Any] | None
    steps: tuple[Step, ...]


def quantization_config(checkpoint: Checkpoint) -> tuple[Mapping[str, Any] | None, str]:
    """Return the quantization config that the engine finds, and where it found it.

    Order: quantization_config or hf_quant_config.json, compression_config, then the same in
    text_config. Raises CheckpointError when one is not an object.
    """
    config, text = checkpoint.config, checkpoint.text_config
    places = [
        ("quantization_config", config.get("quantization_config")),
        ("hf_quant_config.json", checkpoint.side_files.get("hf_quant_config.json")),
        ("compression_config", config.get("compression_config")),
        ("text_config.quantization_config", text.get("quantization_config")),
        ("text_config.compression_config", text.get("compression_config")),
    ]
    for place, found in places:
        if found is not None:
            if not isinstance(found, Mapping):
                raise CheckpointError(f"config.json: {place}", wanted="an object",
                                      found=repr(found)[:60])
            return found, place
    return None, "nowhere"


def name_method(
    table: Table, checkpoint: Checkpoint, deployment: Deployment, capability: int
) -> NamedMethod:
    """Return the method's final name, or refuse as the engine does."""
    config, place = quantization_config(checkpoint)
    own = _checkpoint_name(config, place)
    requested = deployment.quantization
    resolved, steps = _resolve(table, own, requested, config, capability)
    if resolved is not None:
        _check_known(table, resolved, deployment)
    return NamedMethod(own, resolved, config if own else None, tuple(steps))


def _checkpoint_name(config: Mapping[str, Any] | None, place: str) -> str | None:
    if config is None:
        return None
    method = config.get("quant_method", "")
    if not isinstance(method, str):
        raise CheckpointError(f"{place}: quant_method", wanted="text", found=repr(method)[:60])
    name = method.lower().replace("compressed_tensors", "compressed-tensors")
    if not name and _is_modelopt(config):
        raise NotKnownError("a ModelOpt quantization config without quant_method",
                            hint="ModelOpt methods are not in this version's table yet.")
    return name or None


def _is_modelopt(config: Mapping[str, Any]) -> bool:
    producer = config.get("producer")
    return isinstance(producer, Mapping) and producer.get("name") == "modelopt" and isinstance(
        config.get("quantization"), Mapping)


def _resolve(
    table: Table, own: str | None, requested: str | None, config: Mapping[str, Any] | None,
    capability: int,
) -> tuple[str | None, list[Step]]:
    if config is None:
        return requested, []
    for hook in table["overrides"]:
        if hook["checkpoint"] == own and (requested or "none") in hook["requested"]:
            because = f"checkpoint says {own}, --quantization is {requested or 'not given'}"
            return hook["answer"], [Step("Overridden", f"{own} -> {hook['answer']}", because,
                                         hook["source"])]
    if requested in (None, own):
        return own, []
    if requested == "moe_wna16" and _moe_wna16(table, config, capability):
        row = table["config_classes"]["MoeWNA16Config"]
        return requested, [Step("Overridden", f"{own} -> {requested}", "--quantization asks for it "
                                "and the checkpoint is compatible", row["source"])]
    _name_gap(own, requested)
    raise refuse("method name", "ValidationError",
                 f"Quantization method specified in the model config ({own}) does not match the "
                 f"quantization method specified in the `quantization` argument ({requested}).",
                 None, table["overrides_source"],
                 hint="Drop --quantization: the checkpoint's own method is used.")


def _moe_wna16(table: Table, config: Mapping[str, Any], capability: int) -> bool:
    from quantplan.dispatch.vllm.fields import check_kinds
    from quantplan.dispatch.vllm.moe_wna16 import compatible

    awq_min = table["config_classes"]["AutoAWQConfig"]["min_capability"]
    return compatible(check_kinds(config), capability, awq_min)


def _name_gap(own: str | None, requested: str) -> None:
    """Name the hooks that this table does not resolve, instead of guessing past them."""
    gap = requested == "humming" or (requested, own) == ("deepseek_v4_fp8", "fp8")
    modelopt = own is not None and own.startswith("modelopt")
    if gap or modelopt or own == "auto-round":
        raise NotKnownError(f"--quantization {requested} on a {own} checkpoint",
                            hint="That override is not in this version's table yet.")


def _check_known(table: Table, name: str, deployment: Deployment) -> None:
    if name in _HOOKED:
        raise NotKnownError(f"quantization method {name}",
                            hint="It is served by an override that is not in the table yet.")
    if name not in table["methods"] and name not in table["online_methods"]:
        listed = "[" + ", ".join(repr(method) for method in table["methods"]) + "]"
        raise refuse("method name", "ValidationError",
                     f"Unknown quantization method: {name}. Must be one of {listed}.", None,
                     table["methods_source"], hint=_MOVED.get(
                         name, "Use one of these names, or a version that has this method."))
    if name in table["deprecated_methods"] and not deployment.allow_deprecated_quantization:
        raise refuse("method name", "ValidationError",
                     "('The quantization method %s is deprecated and will be removed in future "
                     "versions of vLLM. To bypass, set `--allow-deprecated-quantization`.', "
                     f"'{name}')", None, table["methods_source"],
                     hint="Pass --allow-deprecated-quantization, or re-quantize the checkpoint.")


_HOOKED = ("auto-round",)
"""quant_method values that an override hook of the engine renames and no table row answers yet."""

_MOVED = {
    "bitsandbytes": "bitsandbytes left the tree of this version: install the plug-in, or use "
                    "--quantization fp8_per_tensor on the 16-bit checkpoint.",
    "gguf": "GGUF left the tree of this version: install the GGUF plug-in, or serve the "
            "safetensors checkpoint.",
    "marlin": "Marlin is a kernel, not a method: drop --quantization.",
}
"""Names that older versions knew, and what to do instead."""
