"""Which config group serves a layer of a compressed-tensors checkpoint, and lists that are none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, quantization, scheme
from quantplan.dispatch.vllm.ignore import find_target
from quantplan.tables.errors import CheckpointError

from quantplan import Explanation

PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
QKV = "model.layers.0.self_attn.qkv_proj"
DOWN = "model.layers.0.mlp.down_proj"
LAYER_0 = "model.layers.0.self_attn."


def plain(answer: Explanation) -> list[str]:
    """Return the paths of the linear layers that stay in 16 bits, without model.layers."""
    assert answer.trace.error is None, answer.trace.error
    return [layer.path.removeprefix("model.layers.") for layer in answer.trace.layers
            if layer.method == "UnquantizedLinearMethod"]


@pytest.mark.parametrize("targets, path, module, found", [
    (["Linear"], DOWN, "RowParallelLinear", "Linear"), (["linear"], DOWN, "RowParallelLinear",
                                                        "linear"),
    (["Row"], DOWN, "RowParallelLinear", "Row"), (["Linear"], "lm_head", "ParallelLMHead", None),
    (["Linear", DOWN], DOWN, "RowParallelLinear", DOWN),
    (["Linear", "re:.*down_proj"], DOWN, "RowParallelLinear", "re:.*down_proj"),
    (["re:.*q_proj"], QKV, "QKVParallelLinear", None),
    (["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"], QKV, "QKVParallelLinear", "re:.*v_proj"),
    ([LAYER_0 + leaf for leaf in PACKED["qkv_proj"]], QKV, "QKVParallelLinear",
     LAYER_0 + "q_proj"),
    (["re:.*lm_head", "Linear"], "lm_head", "ParallelLMHead", "re:.*lm_head"),
    ([], DOWN, "RowParallelLinear", None)])
def test_a_target_is_found_by_name_then_leaves_then_class(
    targets: list[str], path: str, module: str, found: str | None
) -> None:
    assert find_target(path, module, targets, PACKED) == found


def test_a_layer_that_no_group_targets_stays_in_16_bits() -> None:
    answer = ask(scheme("ct-fp8-dynamic", targets=["re:.*self_attn.*"]))
    assert plain(answer) == ["0.mlp.gate_up_proj", "0.mlp.down_proj", "1.mlp.gate_up_proj",
                             "1.mlp.down_proj"]
    assert {layer.why for layer in answer.trace.layers if layer.method == "UnquantizedLinearMethod"
            } == {"no config group targets it"}


def test_lm_head_is_quantized_when_a_target_names_it() -> None:
    """vllm-dispatch: lm_head is quantized when a target matches it and ignore does not."""
    quant = scheme("ct-fp8-dynamic", targets=["Linear", "re:.*lm_head"])
    assert ask(quant).trace.layers[-1].method == "UnquantizedEmbeddingMethod"
    assert ask({**quant, "ignore": []}).trace.layers[-1].kernel == "CutlassFP8ScaledMMLinearKernel"


def test_two_groups_serve_their_own_layers() -> None:
    """Row llama8b/ct-mixed/90: attention FP8, MLP 4-bit."""
    modes = {layer.path.split(".")[-1]: layer.mode for layer in ask("ct-mixed").trace.layers
             if layer.mode}
    assert modes == {"qkv_proj": "W8A8_fp8", "o_proj": "W8A8_fp8", "gate_up_proj": "W4A16",
                     "down_proj": "W4A16"}


# Lists that are none: refused by name, never matched letter by letter.


@pytest.mark.parametrize("quant, field", [
    ("fp8-dynamic", "ignored_layers"), ("fp8-dynamic", "modules_to_not_convert"),
    ("awq4-g128", "modules_to_not_convert"), ("gptq4-g128", "modules_in_block_to_quantize"),
    ("ct-fp8-dynamic", "ignore")])
@pytest.mark.parametrize("value", ["lm_head", 5, True, [None], [1], {"lm_head": 1}, [["x"], 3]],
                         ids=repr)
def test_a_list_of_another_type_is_refused(quant: str, field: str, value: Any) -> None:
    """The engine walks a string letter by letter, or crashes; no answer can be right."""
    with pytest.raises(CheckpointError) as raised:
        ask(quantization(quant, **{field: value}))
    assert field in str(raised.value)


def test_no_list_at_all_is_not_a_null_list() -> None:
    """compressed_tensors.py: config.get("ignore", []), so null fails at the first layer with a
    TypeError where a missing field does not."""
    absent = quantization("ct-fp8-dynamic")
    del absent["ignore"]
    assert ask(absent).trace.outcome == "ok"
    try:
        answer = ask(quantization("ct-fp8-dynamic", ignore=None))
    except CheckpointError as error:
        assert "ignore" in str(error)
        return
    assert answer.trace.outcome == "error"


@pytest.mark.parametrize("quant", [
    quantization("ct-fp8-dynamic", ignore=["re:("]), scheme("ct-fp8-dynamic", targets=["re:*"]),
    quantization("gptq4-g128", dynamic={"-:(": {}}),
    quantization("gptq4-g128", dynamic={"+:*": {}})])
def test_what_is_no_expression_is_named(quant: Any) -> None:
    with pytest.raises(CheckpointError, match=r"^pattern '[(*]' in the quantization config; wanted "
                                              r"a regular expression; found "):
        ask(quant)


def test_a_list_of_every_module_of_every_layer() -> None:
    names = [f"model.layers.{i}.self_attn.{leaf}" for i in range(80) for leaf in PACKED["qkv_proj"]]
    answer = ask(quantization("ct-fp8-dynamic", ignore=names), model={**LLAMA,
                                                                      "num_hidden_layers": 80})
    assert len(plain(answer)) == 80
