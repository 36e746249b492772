"""What the method is called in the end: the checkpoint's name, the user's, and the override hooks
(config/model.py:ModelConfig._verify_quantization)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.trace import Step, refuse
from quantplan.dispatch.vllm.context import Table
from quantplan.dispatch.vllm.quant_config import (
    method_of,
    quantization_config,
    rewritten,
    served_config,
)
from quantplan.tables.record import NamedTuple


class NamedMethod(NamedTuple):
    """The checkpoint's own name, the resolved one, its config and the steps in between."""

    checkpoint: str | None
    resolved: str | None
    config: Mapping[str, Any] | None
    steps: tuple[Step, ...]


class Question(NamedTuple):
    """What the override hooks are asked: the names, the config that names one, the model's type."""

    own: str | None
    requested: str | None
    config: Mapping[str, Any]
    model_type: Any
    capability: int


def name_method(
    table: Table, checkpoint: Checkpoint, deployment: Deployment, capability: int
) -> NamedMethod:
    """Return the method's final name, or refuse as the engine does."""
    config, place = quantization_config(checkpoint)
    own = method_of(table, checkpoint, config, place) if config is not None else None
    steps: tuple[Step, ...] = ()
    resolved = deployment.quantization
    if config is not None:
        asked = Question(own, deployment.quantization, {**config, "quant_method": own or ""},
                         checkpoint.config.get("model_type"), capability)
        resolved, steps = _resolve(table, asked)
    if resolved is not None:
        _check_known(table, resolved, deployment)
    served = _served(table, checkpoint, own, place) if resolved is not None else None
    return NamedMethod(own, resolved, served, steps)


def class_of(table: Table, name: str, without_config: bool) -> str:
    """Return the config class that serves the method `name`, of a checkpoint with a quantization
    config or without (model_executor/model_loader/weight_utils.py:get_quant_config)."""
    if without_config and name in table["online_methods"]:
        return "OnlineQuantizationConfig"
    return str(table["methods"][name]["config_class"])


def _served(
    table: Table, checkpoint: Checkpoint, own: str | None, place: str
) -> Mapping[str, Any] | None:
    config, found = served_config(checkpoint)
    if config is None or found != place:
        return config
    return {**config, "quant_method": rewritten(table, checkpoint, config, own or "", late=True)}


def _resolve(table: Table, asked: Question) -> tuple[str | None, tuple[Step, ...]]:
    own, requested = asked.own, asked.requested
    for hook in table["overrides"]:
        if _answers(hook, asked, table):
            return _answer(hook, asked)
    if requested in (None, own):
        return own, ()
    raise refuse("method name", "ValidationError",
                 f"Quantization method specified in the model config ({own}) does not match the "
                 f"quantization method specified in the `quantization` argument ({requested}).",
                 None, table["overrides_source"],
                 hint="Drop --quantization: the checkpoint's own method is used.")


def _answers(hook: Mapping[str, Any], asked: Question, table: Table) -> bool:
    own, wanted = asked.own or "", hook.get("checkpoint")
    named = wanted is None or own == wanted or bool(hook.get("begins") and own.startswith(wanted))
    requested = hook.get("requested")
    return (named
            and (requested is None or (asked.requested != "none"
                                       and (asked.requested or "none") in requested))
            and ("model_types" not in hook or asked.model_type in hook["model_types"])
            and _algo_fits(hook, asked.config)
            and ("compatible" not in hook or _moe_wna16(table, asked)))


def _algo_fits(hook: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether ModelOpt's quant_algo is the hook's (modelopt.py:ModelOptQuantConfigBase.
    _extract_modelopt_quant_algo)."""
    if "algo" not in hook and "algo_holds" not in hook:
        return True
    inner = config.get("quantization", config)
    algo = str(inner.get("quant_algo", "")).upper() if isinstance(inner, Mapping) else ""
    return algo == hook.get("algo") or ("algo_holds" in hook and hook["algo_holds"] in algo)


def _moe_wna16(table: Table, asked: Question) -> bool:
    from quantplan.dispatch.vllm.fields import check_kinds
    from quantplan.dispatch.vllm.moe_wna16 import compatible

    awq_min = table["config_classes"]["AutoAWQConfig"]["min_capability"]
    return compatible(check_kinds(asked.config), asked.capability, awq_min)


def _answer(hook: Mapping[str, Any], asked: Question) -> tuple[str, tuple[Step, ...]]:
    if "raises" in hook:
        raise refuse("method name", "ValidationError", hook["raises"], None, hook["source"],
                     hint="Drop --quantization.")
    answer = str(hook["answer"])
    if answer == asked.own and asked.requested in (None, answer):
        return answer, ()
    because = f"checkpoint says {asked.own}, --quantization is {asked.requested or 'not given'}"
    return answer, (Step("Overridden", f"{asked.own} -> {answer}", because, hook["source"]),)


def _check_known(table: Table, name: str, deployment: Deployment) -> None:
    if name not in table["methods"] and name not in table["online_methods"]:
        methods = "[" + ", ".join(repr(method) for method in table["methods"]) + "]"
        moved = table["moved_methods"].get(name)
        words = table["unknown_method"].replace("{name}", name).replace("{methods}", methods)
        raise refuse("method name", "ValidationError", words, None, table["methods_source"],
                     hint=moved["hint"] if moved else
                     "Use one of these names, or a version that has this method.")
    if name in table["deprecated_methods"] and not deployment.allow_deprecated_quantization:
        raise refuse("method name", "ValidationError",
                     "('The quantization method %s is deprecated and will be removed in future "
                     "versions of vLLM. To bypass, set `--allow-deprecated-quantization`.', "
                     f"'{name}')", None, table["methods_source"],
                     hint="Pass --allow-deprecated-quantization, or re-quantize the checkpoint.")
