"""The schema of tuned tile sizes: the files that Triton kernels look for by name, and those that
the wheel has; and the laws that no schema can say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from quantplan.tables.schema import Field, Row

if TYPE_CHECKING:  # zipfile, which it imports, costs every answer 7 ms
    from quantplan.tables.engine_source import EngineSource

TUNED_CONFIGS: Row = {
    "id": Field("text", "short name"),
    "sizes": Field("map", "the two sizes that a file's name begins with: letter -> its fact",
                   of=Field("text", "a fact")),
    "when": Field("map", "facts on which it looks for a file", of=Field("any", "a value")),
    "asked": Field("list", "who looks for which file; the first that applies", of={
        "by": Field("list", "kernels or experts classes", of=Field("text", "a class name")),
        "when": Field("map", "facts", required=False, of=Field("any", "a value or values")),
        "form": Field("text", "what the name says after the device; {fact} is filled in"),
        "runs": Field("text", "when the kernel that reads it runs; absent: always",
                      required=False),
    }),
    "families": Field("map", "word of a device's name -> what stands for the whole name",
                      required=False, of=Field("text", "a device")),
    "folder": Field("text", "where the wheel has them"),
    "variable": Field("text", "environment variable of a folder that is searched first",
                      required=False),
    "log": Field("text", "what the engine logs where there is none"),
    "remedy": Field("text", "how to make one"),
    "source": Field("text", "engine file:symbol"),
    "files": Field("map", "the rest of a name after device_name= -> pairs of sizes", of=Field(
        "list", "pairs", of=Field("list", "a pair", of=Field("int", "a size")))),
}

Engine = Mapping[str, Any]
VENDOR = "NVIDIA_"
"""What the devices' names begin with: files of other vendors are no rows."""


def tuned_name(configs: Mapping[str, Any], sizes: tuple[int, int], rest: str) -> str:
    """Return the name of a tuned file; `rest` is what stands after device_name=."""
    first, second = configs["sizes"]
    return f"{first}={sizes[0]},{second}={sizes[1]},device_name={rest}.json"


def tuned_names_are_asked_for(engine: Engine) -> Iterator[str]:
    """Every tuned file has a name that some kernel can ask for, once, and known kernels ask."""
    classes = {row["id"] for field in ("kernels", "experts_classes") for row in engine[field]}
    for configs in engine["tuned_configs"]:
        where = f"tuned_configs[{configs['id']}]"
        form = _forms(configs)
        for rest, pairs in configs["files"].items():
            if not form.fullmatch(rest):
                yield f"{where}.files[{rest}]: no kernel asks for this name"
            if any(len(pair) != 2 for pair in pairs) or pairs != sorted(map(list, {
                    tuple(pair) for pair in pairs})):
                yield f"{where}.files[{rest}]: pairs of sizes in order, each once"
        yield from (f"{where}.asked: no class {name}" for row in configs["asked"]
                    for name in row["by"] if name not in classes)


def _forms(configs: Mapping[str, Any]) -> re.Pattern[str]:
    """Return what matches the rest of every name that the kernels can ask for."""
    found = "|".join(re.sub(r"\\\{[^}]*\\\}", r"\\d+", re.escape(row["form"]))
                     for row in configs["asked"])
    return re.compile(rf"{VENDOR}[^,]+({found})")


def wrong_tuned_files(engine: Engine, source: EngineSource) -> Iterator[str]:
    """Yield what the table has and the engine's files have not, and what they have of the names
    that the kernels ask for and the table has not."""
    for configs in engine.get("tuned_configs", ()):
        form, folder = _forms(configs), f"{configs['folder']}/"
        names = "".join(rf"{letter}=\d+," for letter in configs["sizes"])
        told = {f"{folder}{tuned_name(configs, (pair[0], pair[1]), rest)}"
                for rest, pairs in configs["files"].items() for pair in pairs}
        name = re.compile(rf"{re.escape(folder)}{names}device_name={form.pattern}\.json")
        there = {path for path in source.files if name.fullmatch(path)}
        where = f"tuned_configs[{configs['id']}]"
        yield from (f"{where}: {path}: no such file" for path in sorted(told - there))
        yield from (f"{where}: {path}: not in the table" for path in sorted(there - told))


def tuned_conditions(engine: Engine) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every set of facts that a name depends on, with the place it stands in."""
    for configs in engine["tuned_configs"]:
        where = f"tuned_configs[{configs['id']}]"
        yield where, configs["when"]
        yield f"{where}.sizes", dict.fromkeys(configs["sizes"].values())
        for row in configs["asked"]:
            filled = re.findall(r"\{([\w.]+)\}", row["form"])
            yield f"{where}.asked", {**row.get("when", {}), **dict.fromkeys(filled)}


TUNED_LAWS = (tuned_names_are_asked_for,)
