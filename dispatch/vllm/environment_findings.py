"""What flags, variables and libraries do that the answer alone does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quantplan.dispatch.predicates import Unreadable
from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm.context import Context
from quantplan.tables.near_names import did_you_mean, near_names

Layers = tuple[Layer, ...]
MISSPELT = 0.92
"""Likeness of a name to a variable's that no other variable of the engine (envs.py) reaches."""


def removed_environment(context: Context, layers: Layers) -> Iterator[Finding]:
    """Environment variables that this version no longer reads."""
    for name, flag in context.table["removed_environment"].items():
        if name in context.deployment.env:
            yield Finding("flags", "warning", "removed-variable",
                          f"{name} is not read by this version any more",
                          f"Drop it; this version has {flag}.", "envs.py")


def unread_environment(context: Context, layers: Layers) -> Iterator[Finding]:
    """Variables that selection does not read: of another purpose of the engine's, or misspelt."""
    table = context.table
    known = {*table["environment"], *table["removed_environment"]}
    for name in sorted(set(context.deployment.env) - known):
        near = near_names(name, table["environment"], cutoff=MISSPELT)
        if near or name.startswith("VLLM_"):
            reads = f"Selection reads {', '.join(table['environment'])}."
            yield Finding("flags", "warning" if near else "info", "variable-not-read",
                          f"{name} is none of the variables that kernel selection reads: it "
                          "changes nothing here", f"{did_you_mean(near)} {reads}".lstrip(),
                          "envs.py")


def unreadable_environment(context: Context, layers: Layers) -> Iterator[Finding]:
    """Variables at whose value the engine raises, where nothing before that refused."""
    for name in context.table["environment"]:
        value = context.facts[f"env.{name}"]
        if isinstance(value, Unreadable):
            yield Finding("flags", "warning", "variable-unreadable",
                          f"{name}={context.deployment.env[name]}: the engine raises {value.type} "
                          f"where it reads it ({value.message})",
                          f"Give {name} a value that the engine takes.", value.source)


def unknown_disabled_kernels(context: Context, layers: Layers) -> Iterator[Finding]:
    """Names in VLLM_DISABLED_KERNELS that are no class this table knows."""
    for name in context.facts["env.VLLM_DISABLED_KERNELS"]:
        if name and name not in context.table["kernels"]:
            yield Finding("flags", "warning", "unknown-disabled-kernel",
                          f"VLLM_DISABLED_KERNELS names {name}, which is no kernel class of the "
                          "lists shown here: it disables nothing in them",
                          "Class names are spelled exactly, without spaces.",
                          context.table["disabled_source"])


def backend_without_kernel(context: Context, layers: Layers) -> Iterator[Finding]:
    """--linear-backend without a kernel for a layer type: the engine falls back."""
    missed = {x.selection.family for x in layers if x.selection
              for step in x.selection.steps if step.kind == "Filtered" and step.what == "nothing"}
    for family in sorted(missed):
        yield Finding("kernel selection", "warning", "linear-backend-without-kernel",
                      f"{context.deployment.backend_words(family)} has no {family} kernel: "
                      "automatic selection is used for that layer type",
                      "Name a backend that has one, or drop the flag; -v lists the kernels.",
                      context.table["linear_backend_source"])


def unknown_families(context: Context, layers: Layers) -> Iterator[Finding]:
    """Names in linear_backend_per_quant that are no kernel family of this engine."""
    table = context.table
    known = {*table["families"], *(row["id"] for row in table["modelopt"]["codecs"])}
    for family in sorted(set(context.deployment.linear_backend_per_quant or ()) - known):
        yield Finding("flags", "warning", "unknown-linear-family",
                      f"linear_backend_per_quant names {family}, which is no kernel family: it "
                      "changes nothing", "Families: " + ", ".join(sorted(known)) + ".",
                      "model_executor/kernels/linear/__init__.py:_get_linear_backend")


def assumed_libraries(context: Context, layers: Layers) -> Iterator[Finding]:
    """Choices that rest on a library taken as usable, and what is chosen without it."""
    told: set[tuple[str, str]] = set()
    for layer in layers:
        for library in _assumed(context, layer):
            if (library, str(layer.kernel)) not in told:
                told.add((library, str(layer.kernel)))
                yield _assumption(context, layer, library)


def _assumption(context: Context, layer: Layer, library: str) -> Finding:
    row = context.table["libraries"][library]
    other = _without(layer, f"lib.{library}") or "no kernel of its list"
    return Finding("kernel selection", "info", "assumed-library",
                   f"{layer.kernel} assumes that {row['means']}; otherwise {other}",
                   f"--lib {library}=off shows that answer.", row["source"])


def _assumed(context: Context, layer: Layer) -> list[str]:
    chosen = layer.selection.chosen if layer.selection else None
    names = {c.fact[4:] for c in (chosen.checks if chosen else ()) if c.fact.startswith("lib.")}
    rows, given = context.table["libraries"], context.deployment.libs
    return sorted(n for n in names if n not in given and rows[n].get("package_of") not in given)


def _without(layer: Layer, fact: str) -> str | None:
    """Return the next candidate that passes and does not ask for `fact`."""
    tried = layer.selection.candidates if layer.selection else ()
    return next((c.kernel for c in tried if c.verdict == "pass"
                 and all(check.fact != fact for check in c.checks)), None)


RULES: tuple[Callable[[Context, Layers], Iterator[Finding]], ...] = (
    removed_environment, unread_environment, unreadable_environment, unknown_disabled_kernels,
    backend_without_kernel, unknown_families, assumed_libraries,
)
