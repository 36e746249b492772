"""Which layers stay unquantized: each method matches its ignore list in its own way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import AWQ_PARTS, ask, quantization, stored
from quantplan.dispatch.trace import Refusal
from quantplan.dispatch.vllm.ignore import is_ignored, is_skipped
from quantplan.tables.engine_loading import load_engine

from quantplan import Explanation

TABLE = load_engine("vllm", "0.32.0")
PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
QKV = "model.layers.0.self_attn.qkv_proj"
GATE_UP = "model.layers.0.mlp.gate_up_proj"
DOWN = "model.layers.0.mlp.down_proj"
LAYER_0 = "model.layers.0.self_attn."

PARTLY = ("Detected some but not all shards of {} are quantized. All shards of fused layers to "
          "have the same precision.")
MIXED = ("Found different quantization schemes for the shards of {}. vLLM requires all to use the "
         "same scheme.")


def plain(answer: Explanation) -> list[str]:
    """Return the paths of the linear layers that stay in 16 bits, without model.layers."""
    assert answer.trace.error is None, answer.trace.error
    return [layer.path.removeprefix("model.layers.") for layer in answer.trace.layers
            if layer.method == "UnquantizedLinearMethod"]


def refused(answer: Explanation) -> tuple[str, str, str | None, str]:
    error = answer.trace.error
    assert error is not None
    return error.stage, error.type, error.layer, error.message


# fp8: whole names (utils/quant_utils.py:is_layer_skipped, skip_with_substr=False).


@pytest.mark.parametrize("names, path, skipped", [
    (["lm_head"], DOWN, False), ([DOWN], DOWN, True), (["down_proj"], DOWN, False),
    (["model.layers.0.mlp"], DOWN, False), (["re:.*down_proj"], DOWN, False),
    ([QKV], QKV, True), ([LAYER_0 + leaf for leaf in PACKED["qkv_proj"]], QKV, True),
    ([], QKV, False), (["model.layers.1.mlp.down_proj"], DOWN, False)])
def test_fp8_compares_whole_names(names: list[str], path: str, skipped: bool) -> None:
    assert is_skipped(path, names, PACKED, substring=False) is skipped


@pytest.mark.parametrize("leaves", [["q_proj"], ["k_proj", "v_proj"]])
def test_fp8_refuses_a_fused_layer_that_is_named_partly(leaves: list[str]) -> None:
    with pytest.raises(Refusal) as raised:
        is_skipped(QKV, [LAYER_0 + leaf for leaf in leaves], PACKED, substring=False)
    assert raised.value.error.message == PARTLY.format(QKV)


def test_fp8_partly_named_ends_start_up() -> None:
    """Row llama8b/fp8-ignore-part."""
    assert refused(ask("fp8-ignore-part", "8.9")) == (
        "layer assignment", "ValueError", QKV, PARTLY.format(QKV))


def test_fp8_reads_modules_to_not_convert_only_without_ignored_layers() -> None:
    """fp8.py:Fp8Config.from_config; the oracle answers the same."""
    both = quantization("fp8-dynamic", ignored_layers=[DOWN],
                        modules_to_not_convert=["model.layers.1.mlp.down_proj"])
    assert plain(ask(both)) == ["0.mlp.down_proj"]
    second = {**both, "ignored_layers": []}
    assert plain(ask(second)) == ["1.mlp.down_proj"]


def test_fp8_never_touches_lm_head() -> None:
    answer = ask(quantization("fp8-dynamic", lm_head=True))
    assert answer.trace.layers[-1].method == "UnquantizedEmbeddingMethod"


def test_a_layer_that_is_named_says_so() -> None:
    answer = ask(quantization("fp8-dynamic", ignored_layers=[DOWN]))
    assert [layer.why for layer in answer.trace.layers if layer.path == DOWN] == [
        "named in ignored_layers"]


# AWQ: contained words (skip_with_substr=True).


@pytest.mark.parametrize("names, path, skipped", [
    (["mlp.down_proj"], DOWN, True), (["down"], DOWN, True), (["model.layers.0"], DOWN, True),
    (["model.layers.1"], DOWN, False), (["lm_head"], DOWN, False), (["self_attn"], QKV, True),
    (["q_proj", "k_proj", "v_proj"], QKV, True), (["qkv"], QKV, True),
    (["gate_proj", "up_proj"], GATE_UP, True), (["gate"], GATE_UP, True), ([""], DOWN, True)])
def test_awq_looks_for_words(names: list[str], path: str, skipped: bool) -> None:
    assert is_skipped(path, names, PACKED, substring=True) is skipped


@pytest.mark.parametrize("word, path, trapped", [
    ("v_proj", QKV, True), ("up_proj", GATE_UP, True), ("q_proj", QKV, False),
    ("k_proj", QKV, False), ("gate_proj", GATE_UP, False)])
def test_the_last_leaf_s_name_is_part_of_the_fused_name(
    word: str, path: str, trapped: bool
) -> None:
    """"v_proj" is in "qkv_proj" and "up_proj" in "gate_up_proj": naming it alone leaves the whole
    fused layer in 16 bits, naming another leaf alone is refused. The oracle answers the same."""
    if trapped:
        assert is_skipped(path, [word], PACKED, substring=True) is True
        return
    with pytest.raises(Refusal) as raised:
        is_skipped(path, [word], PACKED, substring=True)
    assert raised.value.error.message == PARTLY.format(path)


def test_the_trap_in_a_whole_answer() -> None:
    answer = ask(quantization("awq4-g128", modules_to_not_convert=["v_proj"]), "8.0")
    assert plain(answer) == ["0.self_attn.qkv_proj", "1.self_attn.qkv_proj"]


def test_awq_partly_named_ends_start_up() -> None:
    """Row llama8b/awq4-skip-part."""
    assert refused(ask("awq4-skip-part", "8.0")) == (
        "layer assignment", "ValueError", QKV, PARTLY.format(QKV))


def test_awq_skips_by_word() -> None:
    """Row llama8b/awq4-skip."""
    assert plain(ask("awq4-skip", "8.0")) == ["0.mlp.down_proj", "1.mlp.down_proj"]


# AWQ without a list: the headers say what is stored in 16 bits.


@pytest.mark.parametrize("words, left", [
    ((), []),
    (("down_proj",), ["0.mlp.down_proj", "1.mlp.down_proj"]),
    (("self_attn",), ["0.self_attn.qkv_proj", "0.self_attn.o_proj", "1.self_attn.qkv_proj",
                      "1.self_attn.o_proj"]),
    (("layers.1.",), ["1.self_attn.qkv_proj", "1.self_attn.o_proj", "1.mlp.gate_up_proj",
                      "1.mlp.down_proj"])])
def test_awq_computes_its_list_from_the_headers(words: tuple[str, ...], left: list[str]) -> None:
    """auto_awq.py:AutoAWQConfig.maybe_update_config; the oracle answers the same."""
    answer = ask("awq4-g128", "8.0", tensors=stored(AWQ_PARTS, *words))
    assert plain(answer) == left


def test_awq_with_one_leaf_stored_in_16_bits() -> None:
    answer = ask("awq4-g128", "8.0", tensors=stored(AWQ_PARTS, "v_proj"))
    assert refused(answer) == ("layer assignment", "ValueError", QKV, PARTLY.format(QKV))


def test_a_list_in_the_config_is_not_extended_by_the_headers() -> None:
    quant = quantization("awq4-g128", modules_to_not_convert=["o_proj"])
    answer = ask(quant, "8.0", tensors=stored(AWQ_PARTS, "o_proj", "down_proj"))
    assert plain(answer) == ["0.self_attn.o_proj", "1.self_attn.o_proj"]


# GPTQ: a list of what is quantized, or the headers; then `dynamic`.


def test_gptq_quantizes_the_modules_that_the_config_lists() -> None:
    """utils/gptq_utils.py:is_layer_gptq_quantized, words in nested lists."""
    lists = [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["mlp.down_proj"]]
    answer = ask(quantization("gptq4-g128", modules_in_block_to_quantize=lists), "8.0")
    assert plain(answer) == ["0.self_attn.o_proj", "0.mlp.gate_up_proj", "1.self_attn.o_proj",
                             "1.mlp.gate_up_proj"]


def test_gptq_refuses_a_fused_layer_that_is_listed_partly() -> None:
    quant = quantization("gptq4-g128", modules_in_block_to_quantize=["self_attn.q_proj"])
    assert refused(ask(quant, "8.0")) == (
        "layer assignment", "ValueError", QKV, PARTLY.format(QKV))


def test_gptq_reads_the_headers_when_the_config_lists_nothing() -> None:
    answer = ask("gptq4-g128", "8.0", tensors=stored(AWQ_PARTS, "down_proj"))
    assert plain(answer) == ["0.mlp.down_proj", "1.mlp.down_proj"]


@pytest.mark.parametrize("dynamic, left", [
    ({"-:.*down_proj": {}}, ["0.mlp.down_proj", "1.mlp.down_proj"]),
    ({"-:.*qkv_proj": {}}, ["0.self_attn.qkv_proj", "1.self_attn.qkv_proj"]),
    ({"-:.*q_proj": {}}, []), ({"-:down_proj": {}}, []),
    ({r"-:model\.layers\.1\..*down.*": {}}, ["1.mlp.down_proj"]),
    ({"+:.*": {"bits": 8}, "-:.*down_proj": {}}, [])])
def test_gptq_dynamic_rules_skip_by_the_fused_name(dynamic: dict[str, Any], left: list[str]
                                                   ) -> None:
    """utils/gptq_utils.py:get_dynamic_override: re.match on the fused path, first rule wins; the
    oracle answers the same."""
    assert plain(ask(quantization("gptq4-g128", dynamic=dynamic), "8.0")) == left


def test_gptq_dynamic_rules_change_bits_and_group() -> None:
    """Row llama8b/gptq4-dynamic: o_proj in 8 bits."""
    answer = ask("gptq4-dynamic", "8.0")
    assert {layer.path.split(".")[-1]: layer.mode for layer in answer.trace.layers if layer.mode
            } == {"qkv_proj": "W4A16", "o_proj": "W8A16", "gate_up_proj": "W4A16"}


# compressed-tensors: names or expressions, every leaf (utils.py:should_ignore_layer).


@pytest.mark.parametrize("entries, path, ignored", [
    ((DOWN,), DOWN, True), (("down_proj",), DOWN, False), (("re:.*down_proj",), DOWN, True),
    (("re:down_proj",), DOWN, False), (("re:model.layers.0",), DOWN, True),
    (("re:.*self_attn.*",), QKV, True), (("re:.*(q|k|v)_proj$",), QKV, True),
    (("re:.*mlp.gate_proj", "re:.*mlp.up_proj"), GATE_UP, True), ((QKV,), QKV, True),
    (("Linear",), DOWN, False), ((), DOWN, False), (("lm_head",), "lm_head", True)])
def test_compressed_tensors_reads_names_and_expressions(
    entries: tuple[str, ...], path: str, ignored: bool
) -> None:
    assert is_ignored(TABLE, path, entries, PACKED) is ignored


def test_an_expression_that_fits_the_fused_name_only_ignores_it() -> None:
    """re:.*v_proj matches qkv_proj itself, as v_proj is its ending."""
    assert is_ignored(TABLE, QKV, ("re:.*v_proj",), PACKED) is True


@pytest.mark.parametrize("entries", [(LAYER_0 + "k_proj",), ("re:.*q_proj",)])
def test_compressed_tensors_refuses_a_fused_layer_that_is_ignored_partly(
    entries: tuple[str, ...]
) -> None:
    with pytest.raises(Refusal) as raised:
        is_ignored(TABLE, QKV, entries, PACKED)
    assert raised.value.error.message == MIXED.format(QKV)


def test_partly_ignored_ends_start_up() -> None:
    """Row llama8b/ct-ignore-part."""
    assert refused(ask("ct-ignore-part")) == (
        "layer assignment", "ValueError", QKV, MIXED.format(QKV))


def test_an_ignored_expression_in_a_whole_answer() -> None:
    """Row llama8b/ct-ignore-re."""
    answer = ask("ct-ignore-re")
    assert plain(answer) == ["0.self_attn.qkv_proj", "0.self_attn.o_proj", "1.self_attn.qkv_proj",
                             "1.self_attn.o_proj"]
    assert {layer.why for layer in answer.trace.layers if layer.method == "UnquantizedLinearMethod"
            } == {"named in ignore"}
