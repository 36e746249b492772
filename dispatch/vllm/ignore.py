"""The ignore lists, each matched the way its method does. Layer names are concrete paths."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from functools import lru_cache

from quantplan.dispatch.expressions import search
from quantplan.dispatch.predicates import fill
from quantplan.dispatch.targets import fused_target, named_target
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Table, trait
from quantplan.tables.record import NamedTuple

Packed = Mapping[str, Sequence[str]]

SKIP_SOURCE = "model_executor/layers/quantization/utils/quant_utils.py:is_layer_skipped"
SCHEME_SOURCE = (
    "model_executor/layers/quantization/compressed_tensors/utils.py:should_ignore_layer")


def is_skipped(path: str, names: Sequence[str], packed: Packed, substring: bool) -> bool:
    """Return whether fp8 (exact names) or AWQ (substrings) leaves `path` unquantized.

    Refuses, as the engine does, when only some leaves of a fused layer are named.
    """
    def matches(candidate: str) -> bool:
        return any(n in candidate for n in names) if substring else candidate in names

    name = path.rsplit(".", 1)[-1]
    if matches(path):
        return True
    if name not in packed:
        inside = "experts" in path and not substring
        return inside and any(path in n for n in names if "experts" in n)
    verdicts = [matches(path.replace(name, leaf)) for leaf in packed[name]]
    if any(verdicts) and not all(verdicts):
        raise partly_quantized(path, SKIP_SOURCE)
    return all(verdicts)


def is_excluded(path: str, names: tuple[str, ...], packed: Packed) -> bool:
    """Return whether ModelOpt's wildcards leave `path` unquantized: a whole name (or those of all
    leaves of a fused layer), a part of the path, or a wildcard that fits all of it
    (model_executor/layers/quantization/modelopt.py:ModelOptQuantConfigBase.is_layer_excluded)."""
    if not names:
        return False
    return (is_skipped(path, names, packed, substring=False) or _holds(path, names)
            or any(regex.match(path) for regex in _wildcards(names)))


LANGUAGE = "language_model."


def _holds(path: str, names: tuple[str, ...]) -> bool:
    """Return whether a name is a part of the path, counted without language_model. too."""
    short = path.removeprefix(LANGUAGE)
    return any((name in path or name in short) and name != path for name in names)


@lru_cache(maxsize=8)
def _wildcards(names: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(translate(name)) for name in names if any(c in name for c in "*?["))


def partly_quantized(path: str, source: str) -> Exception:
    """Return the refusal of a fused layer whose leaves disagree about being quantized."""
    return refuse("layer assignment", "ValueError",
                  f"Detected some but not all shards of {path} are quantized. All shards of "
                  "fused layers to have the same precision.", path, source,
                  hint="List every leaf of the fused layer, or none.")


class Patterns(NamedTuple):
    """An ignore list split into whole names and regular expressions (it may hold hundreds)."""

    names: frozenset[str]
    regexes: tuple[str, ...]

    def match(self, value: str) -> bool:
        """Return whether a name equals `value` or an expression matches its start."""
        return value in self.names or any(search(regex, value) for regex in self.regexes)


@lru_cache(maxsize=8)
def patterns_of(entries: tuple[str, ...]) -> Patterns:
    """Return compressed-tensors entries (names, or expressions after re:) ready to match."""
    return Patterns(frozenset(e for e in entries if not e.startswith("re:")),
                    tuple(e[3:] for e in entries if e.startswith("re:")))


def is_ignored(table: Table, path: str, entries: tuple[str, ...], packed: Packed) -> bool:
    """Return whether compressed-tensors' `ignore` (names or re: patterns) names all of `path`."""
    patterns = patterns_of(entries)
    name = path.rsplit(".", 1)[-1]
    by_pattern = name not in packed or trait(table, "ct_ignores_fused_by_pattern")
    if patterns.match(path) if by_pattern else path in patterns.names:
        return True
    if name not in packed:
        return False
    verdicts = [patterns.match(path.replace(name, leaf)) for leaf in packed[name]]
    if any(verdicts) and not all(verdicts):
        raise different_schemes(table, path, packed[name])
    return all(verdicts)


def different_schemes(table: Table, path: str, leaves: Sequence[str]) -> Exception:
    """Return the refusal of a fused layer of which only some leaves are ignored."""
    words = {"path": path, "leaves": str(list(leaves))}
    return refuse("layer assignment", "ValueError", fill(trait(table, "ct_partly_ignored"), words),
                  path, SCHEME_SOURCE, hint="Ignore every leaf of the fused layer, or none.")


def find_target(path: str, module: str, targets: Sequence[str], packed: Packed) -> str | None:
    """Return the config-group target that serves a layer: by name, by all leaves, by class name
    (model_executor/layers/quantization/compressed_tensors/utils.py:find_matched_target)."""
    return (named_target(path, targets) or fused_target(path, targets, packed)
            or named_target(module, targets, contains=True))
