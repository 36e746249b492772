"""A config is what someone else wrote: whatever is in it, there is an answer or a refusal."""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, quantization, stored
from quantplan.dispatch.expressions import search
from quantplan.dispatch.time_limit import limited
from quantplan.tables.errors import CheckpointError, QuantplanError, TableError

from quantplan import explain

laws = settings(max_examples=120, deadline=None, derandomize=True, database=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

JUNK = st.sampled_from([
    "", "x", "4", "-1", "re:(", "re:*", "float", "group", "true", "\ud800", "é\x00\n", None, True,
    False, -1, 0, 1, 3, 7, 16, 64, 10**30, -10**30, 1.5, 4.0, 128.0, 1e300, [], [None], [1], ["a"],
    [["a"]], [{}], ["re:("], [0, 0], [128], [-128, 128], [128.5, 128], ["128", "x"], {}, {"a": 1},
    {"": None}, {"(": {}}, {"-:(": {}}, {"a": {"b": [1, {"c": None}]}}]).map(deepcopy)
FIELDS = st.sampled_from([
    "quant_method", "activation_scheme", "weight_block_size", "ignored_layers",
    "modules_to_not_convert", "bits", "w_bit", "group_size", "q_group_size", "zero_point",
    "lm_head", "desc_act", "sym", "dynamic", "modules_in_block_to_quantize", "config_groups",
    "format", "ignore", "kv_cache_scheme", "sparsity_config", "checkpoint_format", "quant_algo",
    "producer", "quantization", "version"])
KINDS = st.sampled_from([
    "fp8-static", "fp8-block128", "fp8-ignore-lm", "awq4-g128", "awq4-skip", "gptq4-g128",
    "gptq4-dynamic", "gptq8-gchan", "ct-fp8-dynamic", "ct-fp8-block", "ct-fp8-kv", "ct-w4a16",
    "ct-w8a8-int8", "ct-mixed", "ct-mxfp4", "ct-mxfp8", "fbgemm", "nomethod"])
CAPABILITIES = st.sampled_from(["7.0", "7.5", "8.0", "8.9", "9.0", "10.0", "12.0"])


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a config."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(
        node, list) else ()
    return [place for key, item in items for place in ((*path, key), *places(item, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a golden quantization_config in which one or two values are junk, gone or new."""
    config: dict[str, Any] = quantization(draw(KINDS))
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.booleans()) and (known := places(config)):
            *outer, last = draw(st.sampled_from(known))
            node: Any = config
            for key in outer:
                node = node[key]
            if draw(st.integers(0, 4)):
                node[last] = draw(JUNK)
            else:
                del node[last]
        else:
            config[draw(FIELDS)] = draw(JUNK)
    return config


def answers_or_refuses(config: Any, **options: Any) -> None:
    """Ask; anything but an answer or a refusal that is not our own bug fails the test."""
    try:
        answer = explain(config, **options)
    except QuantplanError as error:
        assert not isinstance(error, TableError)
        assert error.exit_code in (2, 3, 4)
        assert str(error).strip()
        return
    assert answer.trace.outcome in ("ok", "error", "conditional")
    json.dumps(answer.to_dict())


@settings(laws, max_examples=1200)
@given(mutated(), CAPABILITIES, st.sampled_from([1, 2, 8]))
def test_a_junk_config_is_answered_or_refused_never_a_crash(
    config: dict[str, Any], capability: str, tp: int
) -> None:
    answers_or_refuses({**LLAMA, "quantization_config": config}, capability=capability, tp=tp)


@settings(laws, max_examples=300)
@given(mutated(), st.sampled_from([None, "gptq", "awq", "fp8", "compressed-tensors"]),
       st.sampled_from(["quantize_config.json", "quant_config.json", "hf_quant_config.json"]))
def test_a_junk_side_file_is_answered_or_refused_never_a_crash(
    config: dict[str, Any], requested: str | None, file: str
) -> None:
    answers_or_refuses(LLAMA, capability="9.0", quantization=requested, side_files={file: config})


@laws
@given(st.sampled_from([None, "gptq", "awq", "fp8"]), st.sampled_from(["quantize_config.json",
                                                                       "quant_config.json"]))
def test_an_empty_side_file_is_answered_or_refused(requested: str | None, file: str) -> None:
    answers_or_refuses(LLAMA, capability="9.0", quantization=requested, side_files={file: {}})


@settings(laws, max_examples=300)
@given(st.sampled_from([*LLAMA, "head_dim", "sliding_window", "mlp_bias", "use_sliding_window",
                        "text_config", "dtype"]), JUNK,
       st.sampled_from([None, "fp8-block128", "awq4-g128", "gptq4-g128"]))
def test_a_junk_model_is_answered_or_refused_never_a_crash(
    field: str, value: Any, quant: str | None
) -> None:
    config = {**LLAMA, field: value}
    if quant:
        config["quantization_config"] = quantization(quant)
    answers_or_refuses(config, capability="9.0")


@laws
@given(st.sampled_from(["fp8-dynamic", "awq4-g128", "gptq4-g128", "ct-fp8-dynamic"]),
       st.dictionaries(st.sampled_from(sorted(stored({"weight": "BF16", "qweight": "I32"}))),
                       st.sampled_from(["BF16", "F32", "I32", "F8_E4M3", "I8", "BOOL"]),
                       max_size=12))
def test_any_headers_are_answered(quant: str, tensors: dict[str, str]) -> None:
    """Headers may lack every tensor, or hold some with any dtype."""
    assert ask(quant, "8.9", tensors=tensors).trace.outcome in ("ok", "error")


OPTIONS = ("gpu", "capability", "engine", "engine_version", "tp", "dtype", "quantization",
           "kv_cache_dtype", "env", "libs", "linear_backend", "moe_backend", "tensors",
           "side_files", "revision", "as_format", "allow_deprecated_quantization")


@settings(laws, max_examples=400)
@given(st.sampled_from(OPTIONS), JUNK, st.sampled_from(["fp8-dynamic", "awq4-g128", "ct-w4a16"]))
def test_a_junk_option_is_answered_or_refused_never_a_crash(
    name: str, value: Any, quant: str
) -> None:
    config = {**LLAMA, "quantization_config": quantization(quant)}
    given_options: dict[str, Any] = {"capability": "9.0", name: value}
    if name == "gpu":
        del given_options["capability"]
    answers_or_refuses(config, **given_options)


@laws
@given(st.sampled_from(["VLLM_DISABLED_KERNELS", "VLLM_BATCH_INVARIANT", "VLLM_USE_DEEP_GEMM",
                        "VLLM_MARLIN_INPUT_DTYPE", "OTHER"]), JUNK,
       st.sampled_from(["flashinfer", "humming", "other"]), JUNK)
def test_junk_variables_and_libraries_are_answered_or_refused(
    variable: str, value: Any, library: str, state: Any
) -> None:
    config = {**LLAMA, "quantization_config": quantization("awq4-g128")}
    answers_or_refuses(config, capability="9.0", env={variable: value})
    answers_or_refuses(config, capability="9.0", libs={library: state})


def test_an_expression_that_never_ends_is_stopped() -> None:
    """Nested repeats of a checkpoint's ignore list; the engine itself would hang."""
    with pytest.raises(CheckpointError, match="take too long to match"), limited(0.2):
        search(r"(\w+\.?)+!", "model.layers.0.self_attn.qkv_proj.and_longer_still")
