"""Every table against its schema, its compiled form and the laws that a schema cannot say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.tables import attention_laws
from quantplan.tables.citations import sources
from quantplan.tables.compiling import compile_index, compile_table
from quantplan.tables.coverage_rows import coverage_is_known
from quantplan.tables.errors import TableError
from quantplan.tables.family_index import NAME
from quantplan.tables.load import (
    compiled_path,
    parse_table,
    read_sources,
    table_names,
)
from quantplan.tables.mode_rows import modes
from quantplan.tables.moe_laws import MOE_FACTS, MOE_LAWS, moe_conditions, moe_requirements
from quantplan.tables.platform_laws import PLATFORM_LAWS
from quantplan.tables.sglang_laws import SGLANG_LAWS
from quantplan.tables.tuned_rows import TUNED_LAWS, tuned_conditions

Engine = Mapping[str, Any]
Law = Callable[[Engine], Iterator[str]]
PREDICATES = ("min", "max", "equals", "not_equals", "in", "not_in", "multiple_of", "divides")
SOURCE = re.compile(r"^[\w./-]+(\.py|\.yaml)?(:[\w.]+)?$")


def lint() -> list[str]:
    """Return every violation in every table, each naming file, row and field."""
    from quantplan.tables import family_laws, gpu_laws, model_laws, version_laws

    found: list[str] = []
    for name in table_names():
        found += check_table(name)
    if not found:
        found += stale_compiled(NAME, compile_index(), "tables/families")
        found += [v for law in version_laws.LAWS for v in law(version_laws.version_entries())]
    found += [v for law in gpu_laws.LAWS for v in law(gpu_laws.gpu_entries())]
    found += [v for law in model_laws.LAWS for v in law(model_laws.model_entries())]
    return found + family_laws.family_violations()


def check_table(name: str) -> list[str]:
    """Return the violations of one table: schema, laws of its kind, stale compiled form."""
    try:
        value = parse_table(name, *read_sources(name))
    except TableError as error:
        return [str(error)]
    laws = next((laws for folder, laws in LAWS.items() if name.startswith(folder)), ())
    found = [f"tables/{name}.yaml: {violation}" for law in laws for violation in law(value)]
    return [*found, *stale_compiled(name, compile_table(name), f"tables/{name}.yaml")]


def stale_compiled(name: str, text: str, made_from: str) -> Iterator[str]:
    """The compiled form holds what the YAML says."""
    try:
        with open(compiled_path(name), encoding="utf-8") as file:
            fresh = file.read() == text
    except OSError:
        fresh = False
    if not fresh:
        yield f"{made_from}: compiled form is stale; run `quantplan tables compile`"


def ids_are_unique(engine: Engine) -> Iterator[str]:
    """No two rows of a list share an id."""
    for field, rows in engine.items():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict) and "id" in rows[0]:
            ids = [row["id"] for row in rows]
            yield from (f"{field}: id {i} twice" for i in sorted({x for x in ids
                                                                  if ids.count(x) > 1})
                        if field != "overrides")


def kernels_are_known(engine: Engine) -> Iterator[str]:
    """Every kernel named by a family, a backend or another kernel has a row."""
    known = {row["id"] for row in engine["kernels"]}
    named = [(f"families[{f['id']}]", k) for f in engine["families"] for k in f["kernels"]]
    named += [(f"families[{f['id']}].pins", pin["kernel"]) for f in engine["families"]
              for pin in f.get("pins", ())]
    named += [(f"linear_backends[{b}]", k) for b, ks in engine["linear_backends"].items()
              for k in ks]
    named += [(f"kernels[{row['id']}]", row[part]) for row in engine["kernels"]
              for part in ("base", "fallback") if part in row]
    yield from (f"{where}: no kernel row {kernel}" for where, kernel in named
                if kernel not in known)


def kernels_are_used(engine: Engine) -> Iterator[str]:
    """Every kernel row is named by a family or by another kernel."""
    used = {k for f in engine["families"] for k in f["kernels"]}
    used |= {row[part] for row in engine["kernels"] for part in ("base", "fallback")
             if part in row}
    yield from (f"kernels[{row['id']}]: in no family" for row in engine["kernels"]
                if row["id"] not in used)


def one_predicate_each(engine: Engine) -> Iterator[str]:
    """Every requirement has exactly one predicate."""
    for where, row in requirements(engine):
        count = sum(name in row for name in PREDICATES)
        if count != 1:
            yield f"{where}: {count} predicates; wanted 1"


def facts_are_known(engine: Engine) -> Iterator[str]:
    """Every fact that is tested is one that the resolver provides."""
    known = {f"lib.{row['id']}" for row in engine["libraries"]}
    known |= {f"env.{row['id']}" for row in engine["environment"]} | FACTS
    for where, row in requirements(engine):
        names = {row["fact"], *row.get("when", {})} | (
            {row["divides"]} if "divides" in row else set())
        yield from (f"{where}: unknown fact {name}" for name in sorted(names - known))
    for where, when in _conditions(engine):
        yield from (f"{where}: unknown fact {name}" for name in sorted(set(when) - known))


def _conditions(engine: Engine) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every `when` that is no requirement's, with the place it stands in."""
    for kernel in engine["kernels"]:
        for row in kernel.get("mode_when", ()):
            yield f"kernels[{kernel['id']}].mode_when", row["when"]
    for family in engine["families"]:
        for row in family.get("pins", ()):
            yield f"families[{family['id']}].pins", row["when"]
    yield from moe_conditions(engine)
    yield from tuned_conditions(engine)


def placeholders_are_facts(engine: Engine) -> Iterator[str]:
    """Every {placeholder} of an engine text is a fact of that row's layer."""
    known = {f"lib.{row['id']}" for row in engine["libraries"]} | FACTS
    for where, row in requirements(engine):
        for field in ("says", "plain"):
            for name in re.findall(r"\{([a-z][\w.]*)\}", row.get(field, "")):
                if name not in known:
                    yield f"{where}: {field}: unknown placeholder {{{name}}}"


def methods_have_classes(engine: Engine) -> Iterator[str]:
    """Every registered method is served by a config class with a row."""
    known = {row["id"] for row in engine["config_classes"]}
    yield from (f"methods[{row['id']}]: no config class {row['config_class']}"
                for row in engine["methods"] if row["config_class"] not in known)


def names_are_methods(engine: Engine) -> Iterator[str]:
    """Every override answers, and every deprecation names, a registered method."""
    known = {row["id"] for row in engine["methods"]}
    for row in engine["overrides"]:
        if ("answer" in row) is ("raises" in row):
            yield f"overrides[{row['id']}]: wanted either an answer or what it raises"
        elif row.get("answer", row["id"]) not in known:
            yield f"overrides[{row['id']}]: answer {row['answer']} is no method"
    yield from (f"deprecated_methods: {name} is no method"
                for name in engine["deprecated_methods"] if name not in known)


def family_texts_fill(engine: Engine) -> Iterator[str]:
    """Every {word} of a family's texts is one that the walk fills in."""
    for family in engine["families"]:
        for field, text in family["texts"].items():
            yield from (f"families[{family['id']}].texts.{field}: unknown word {{{word}}}"
                        for word in re.findall(r"\{(\w+)\}", text) if word not in TEXT_WORDS)


def modes_have_words(engine: Engine) -> Iterator[str]:
    """Every kernel's mode is a mode of tables/modes, or is filled from facts."""
    known = set(modes())
    for kernel in engine["kernels"]:
        for mode in (kernel["mode"], *(row["mode"] for row in kernel.get("mode_when", ()))):
            facts = re.findall(r"\{([\w.]+)\}", mode)
            yield from (f"kernels[{kernel['id']}]: mode: unknown fact {fact}"
                        for fact in facts if fact not in FACTS)
            if not facts and mode not in known:
                yield f"kernels[{kernel['id']}]: mode {mode} has no row in tables/modes"


def sources_name_files(engine: Engine) -> Iterator[str]:
    """Every source is an engine file, with the symbol where there is one."""
    for where, source in sources(engine):
        file = source.split(":")[0]
        named = "/" in file or file.endswith(".py")
        if not (SOURCE.match(source) and named) and not source.startswith("cuobjdump"):
            yield f"{where}: source {source!r} is no file:symbol"


def requirements(engine: Engine) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every requirement row with the place it stands in."""
    for kernel in engine["kernels"]:
        for phase in ("supported", "implement", "runs"):
            for position, row in enumerate(kernel.get(phase, ())):
                yield f"kernels[{kernel['id']}].{phase}[{position}]", row
    for algo in engine["modelopt"]["algos"]:
        for position, row in enumerate(algo.get("requires", ())):
            yield f"modelopt.algos[{algo['id']}].requires[{position}]", row
    for position, row in enumerate(engine["modelopt"]["codec_requires"]):
        yield f"modelopt.codec_requires[{position}]", row
    yield from attention_laws.requirements(engine["attention"])
    yield from moe_requirements(engine)


FACTS = MOE_FACTS | {
    "gpu.platform", "gpu.capability", "gpu.family", "gpu.name", "gpu.capability_text",
    "gpu.below_80",
    "gpu.fp8_tensor_cores", "gpu.prefers_humming", "flag.linear_backend", "flag.moe_backend",
    "dtype.model", "model.type", "layer.n", "layer.k", "layer.n_full", "layer.k_full",
    "quant.weight_scale", "quant.act_scale", "quant.act_static", "quant.weight_type",
    "quant.bits", "quant.group_size", "quant.zero_points", "quant.act_type", "quant.act_mode",
    "quant.act_key", "quant.act_group", "quant.act_text", "humming.act",
    "quant.pack_factor", "quant.channelwise", "quant.g_idx", "quant.grouped",
    "quant.group_is_full_k", "quant.weight_only", "quant.codec", "quant.block",
} | attention_laws.FACTS
"""Facts besides lib.* and env.*: dispatch/vllm/context.py, fp8.py, integers.py; attention's own."""

TEXT_WORDS = ("kernel", "minimum", "capability", "reason")
"""What dispatch/candidates.py fills into a family's texts."""

ENGINE_LAWS: tuple[Law, ...] = (
    names_are_methods, *attention_laws.LAWS, family_texts_fill, modes_have_words,
    ids_are_unique, kernels_are_known, kernels_are_used, one_predicate_each, facts_are_known,
    placeholders_are_facts, methods_have_classes, sources_name_files,
    coverage_is_known,
)

LAWS: Mapping[str, tuple[Law, ...]] = {
    "engines/vllm/": (*ENGINE_LAWS, *MOE_LAWS, *TUNED_LAWS, *PLATFORM_LAWS),
    "engines/sglang/": (*SGLANG_LAWS, *PLATFORM_LAWS, ids_are_unique, sources_name_files),
}
"""Where a table stands -> the laws of its kind."""
