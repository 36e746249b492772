"""Laws of the resolver: they hold for every question, whatever the tables say."""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask_row, golden_rows
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.predicates import FAIL, PASS
from quantplan.dispatch.shard import shard
from quantplan.dispatch.trace import STAGES

from quantplan import Explanation

ROWS = list(golden_rows().values())
STARTING = [row for row in ROWS if row["expect"]["outcome"] == "ok"
            and any(layer.get("kernel") for layer in row["expect"]["layers"])
            and not (row["case"].get("dtype") == "bfloat16" and row["case"]["capability"] < 80)]
LIBRARIES = ("flashinfer", "deep_gemm", "humming", "conch", "b12x", "cutedsl")

laws = settings(max_examples=120, deadline=None, derandomize=True, database=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def without(row: dict[str, Any], *names: str) -> Explanation:
    """Return our answer to a row's case with more kernels disabled."""
    case = deepcopy(row["case"])
    env = case.get("env") or {}
    given_names = [name for name in env.get("VLLM_DISABLED_KERNELS", "").split(",") if name]
    case["env"] = {**env, "VLLM_DISABLED_KERNELS": ",".join((*given_names, *names))}
    return ask_row({**row, "case": case})


def with_lib(row: dict[str, Any], library: str, state: bool | None) -> Explanation:
    case = deepcopy(row["case"])
    case["libs"] = {**(case.get("libs") or {}), library: state}
    return ask_row({**row, "case": case})


def choices(answer: Explanation) -> dict[str, tuple[str | None, str | None]]:
    """Return path -> kernel and mode."""
    return {layer.path: (layer.kernel, layer.mode) for layer in answer.trace.layers}


# The same question, the same answer.


@laws
@given(st.sampled_from(ROWS))
def test_the_same_input_gives_the_same_trace(row: dict[str, Any]) -> None:
    """Also after the question's own objects went through JSON."""
    first, again = ask_row(row), ask_row(json.loads(json.dumps(row)))
    assert first.trace == again.trace
    assert first.to_dict() == again.to_dict()


@laws
@given(st.sampled_from(ROWS))
def test_asking_changes_nothing_of_what_was_given(row: dict[str, Any]) -> None:
    before = json.dumps(row)
    ask_row(row).to_dict()
    assert json.dumps(row) == before


# Kernels that are disabled.


@laws
@given(st.data())
def test_removing_a_loser_changes_no_kernel_and_no_mode(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(STARTING))
    answer = ask_row(row)
    winners = {layer.kernel for layer in answer.trace.layers}
    losers = sorted({candidate.kernel for layer in answer.trace.layers if layer.selection
                     and layer.module != "Attention" for candidate in layer.selection.candidates}
                    - winners)
    if losers:
        loser = data.draw(st.sampled_from(losers))
        assert choices(without(row, loser)) == choices(answer)


@laws
@given(st.sampled_from(STARTING))
def test_disabling_the_winners_yields_the_next_that_passes_or_an_error(row: dict[str, Any]
                                                                      ) -> None:
    answer = ask_row(row)
    winners = sorted({str(layer.kernel) for layer in answer.trace.layers
                      if layer.kernel and layer.module != "Attention"})
    expected: dict[str, str | None] = {}
    for layer in answer.trace.layers:
        if layer.selection and layer.module != "Attention":
            expected[layer.path] = next(
                (c.kernel for c in layer.selection.candidates
                 if c.verdict == PASS and c.kernel not in winners), None)
    left = without(row, *winners)
    if left.trace.error:
        refused_after = "PTPC" in left.trace.error.message
        assert None in expected.values() or refused_after
        return
    found = {layer.path: layer.kernel for layer in left.trace.layers
             if layer.selection and layer.module != "Attention"}
    assert found == expected


@laws
@given(st.sampled_from(ROWS))
def test_a_choice_is_the_first_pass_and_its_rejects_did_not_pass(row: dict[str, Any]) -> None:
    for layer in ask_row(row).trace.layers:
        selection = layer.selection
        if selection is None or selection.kernel is None:
            continue
        verdicts = [candidate.verdict for candidate in selection.candidates]
        names = [candidate.kernel for candidate in selection.candidates]
        position = names.index(selection.kernel)
        assert len(names) == len(set(names))
        assert verdicts[position] == PASS
        assert PASS not in verdicts[:position]
        assert [c.considered for c in selection.candidates] == [
            i <= position for i in range(len(names))]
        for candidate in selection.rejected:
            assert candidate.decisive is not None
            assert candidate.decisive.verdict != PASS
            assert candidate.reason


# Libraries that are not known.


@laws
@given(st.sampled_from(STARTING), st.sampled_from(LIBRARIES))
def test_an_unknown_library_lies_between_absent_and_present(row: dict[str, Any], library: str
                                                            ) -> None:
    """The choice is that without the library, the first alternative that with it."""
    unknown = with_lib(row, library, None)
    absent, present = with_lib(row, library, False), with_lib(row, library, True)
    if absent.trace.error or present.trace.error or unknown.trace.error:
        assert absent.trace.error
        return
    for layer, off, on in zip(unknown.trace.layers, absent.trace.layers, present.trace.layers,
                              strict=True):
        if layer.selection is None:
            continue
        others = layer.selection.alternatives
        assert layer.kernel == off.kernel
        assert (others[0].kernel if others else layer.kernel) == on.kernel
        assert all(fact.startswith(f"lib.{library}") for other in others for fact in other.if_facts)
    differs = [layer.kernel for layer in absent.trace.layers] != [
        layer.kernel for layer in present.trace.layers]
    assert (unknown.trace.outcome == "conditional") is differs


# Words.


@laws
@given(st.sampled_from(ROWS))
def test_every_failure_names_what_is_and_what_must_be(row: dict[str, Any]) -> None:
    answer = ask_row(row)
    failed = answer.trace.error.selection if answer.trace.error else None
    selections = [layer.selection for layer in answer.trace.layers] + [failed]
    checks = [check for selection in selections if selection
              for candidate in selection.candidates for check in candidate.checks]
    for check in checks:
        if check.verdict == FAIL and not check.id.endswith(".disabled"):
            assert " is " in check.text and "; must " in check.text
        assert check.source
    assert {finding.stage for finding in answer.trace.findings} <= set(STAGES)
    if answer.trace.error:
        assert answer.trace.error.stage in STAGES
        assert answer.trace.error.source


# Sizes.

HEADS = st.sampled_from([(8, 2), (16, 4), (32, 8), (32, 32), (64, 8), (28, 4), (14, 2), (40, 8)])


@laws
@given(HEADS, st.sampled_from([64, 80, 128]), st.integers(1, 300), st.integers(1, 200_000),
       st.integers(0, 6))
def test_twice_the_ranks_never_hold_more_each(
    heads: tuple[int, int], head_dim: int, intermediate: int, vocab: int, doublings: int
) -> None:
    """n x k of every layer whose size divides both ways."""
    config = {**LLAMA, "num_attention_heads": heads[0], "num_key_value_heads": heads[1],
              "head_dim": head_dim, "hidden_size": heads[0] * head_dim,
              "intermediate_size": intermediate * 64, "vocab_size": vocab}
    structure = model_structure(Checkpoint("x", "mapping", config))
    tp = 2**doublings
    for module in structure.modules:
        if module.leaves:
            one, two = shard(module, tp), shard(module, 2 * tp)
            if one.divides and two.divides:
                assert two.n * two.k <= one.n * one.k
                assert (two.n_full, two.k_full) >= (one.n_full, one.k_full)
                assert one.n == sum(one.parts)
