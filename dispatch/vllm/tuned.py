"""Tuned tile sizes: Triton kernels look for a file by name (table `tuned_configs`) and run their
defaults where neither the wheel nor a folder of the user's has it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from quantplan.dispatch.predicates import applies, fill
from quantplan.dispatch.trace import Finding, Layer, TunedFile
from quantplan.dispatch.vllm.context import Context
from quantplan.dispatch.vllm.numerics import and_more
from quantplan.tables.tuned_rows import tuned_name

Configs = Mapping[str, Any]
Facts = Mapping[str, Any]


def tuned_file(context: Context, kernel: str | None, facts: Facts) -> TunedFile | None:
    """Return the file that a kernel or experts class looks for at a layer of these facts; None
    where it looks for none or the GPU's own name is not known."""
    if not context.gpu.named_by_driver:
        return None
    for configs, row in _asking(context, kernel):
        if applies(configs["when"], facts) and applies(row.get("when"), facts):
            first, second = (facts[name] for name in configs["sizes"].values())
            rest = _device(context.gpu.name, configs) + fill(row["form"], facts)
            return TunedFile(configs["id"], tuned_name(configs, (first, second), rest),
                             (first, second), rest,
                             [first, second] in configs["files"].get(rest, ()), row.get("runs"))
    return None


def _asking(context: Context, kernel: str | None) -> tuple[tuple[Configs, Configs], ...]:
    """Return the rows of the table that are about a kernel, worked out once."""
    key = ("tuned", kernel)
    if key not in context.walks:
        context.walks[key] = tuple(
            (configs, row) for configs in context.table["tuned_configs"].values()
            for row in configs["asked"] if kernel in row["by"])
    found: tuple[tuple[Configs, Configs], ...] = context.walks[key]
    return found


def _device(name: str, configs: Configs) -> str:
    """Return a GPU's name as it stands in a file's, or its family's."""
    text = _as_file_name(name)
    words = text.split("_")
    return next((whole for word, whole in configs.get("families", {}).items() if word in words),
                text)


@cache
def _as_file_name(name: str) -> str:
    """utils/platform_utils.py:get_device_name_as_file_name."""
    return re.sub(r"[\s/]+", "_", name)


def untuned(context: Context, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """Kernels that run their default tile sizes: the wheel has no file for their layers."""
    alike: dict[TunedFile, list[Layer]] = {}
    for layer in layers:
        if layer.tuned and not layer.tuned.there:
            alike.setdefault(layer.tuned, []).append(layer)
    for file, found in alike.items():
        configs = context.table["tuned_configs"][file.configs]
        variable = configs.get("variable")
        if variable and context.facts[f"env.{variable}"] is not None:
            continue  # what that folder holds is not known
        when = f" {file.runs}" if file.runs else ""
        yield Finding(
            "mode and numerics", "info", "no-tuned-file",
            f"{found[0].path}{and_more(found)}: {found[0].kernel} runs default tile sizes{when}, "
            f"as the wheel has no {file.name} (\"{configs['log']}\")",
            f"{configs['remedy']}.{_elsewhere(context, configs, found[0])}", configs["source"])


def _elsewhere(context: Context, configs: Configs, layer: Layer) -> str:
    """Return which other tensor parallel sizes the wheel has a file of this device for."""
    if layer.moe_backend is None or layer.tuned is None or context.deployment.dp > 1:
        return ""
    given = context.structure.module_of(layer.path, layer.layer_index).facts
    heads = context.structure.sizes["num_attention_heads"]
    there = {given["intermediate"] // shard: shard for count, shard
             in configs["files"].get(layer.tuned.rest, ())
             if count == given["experts"] and given["intermediate"] % shard == 0}
    letter = list(configs["sizes"])[1]
    fitting = [f"{tp} ({letter}={shard})" for tp, shard in sorted(there.items()) if heads % tp == 0]
    plain = " without expert parallelism" if context.deployment.expert_parallel else ""
    return "" if not fitting else (
        f" The wheel has this device's file for tensor parallel size {', '.join(fitting)}{plain}.")


RULES = (untuned,)
