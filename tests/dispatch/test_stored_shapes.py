"""Shapes and names of the headers against config.json: what the weight loader asserts
(model_executor/model_loader/weight_utils.py:default_weight_loader, linear.py weight loaders)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import AWQ_PARTS, FP8_PARTS, LLAMA, ask, found, only, starts, stored
from quantplan.dispatch.trace import Finding

LAYER = "model.layers.0"
Q_PROJ = f"{LAYER}.self_attn.q_proj"
# Llama-3.1-8B: 32 query and 8 KV heads of 128 features.
SHAPES = {"embed_tokens": (128256, 4096), "lm_head": (128256, 4096), "q_proj": (4096, 4096),
          "k_proj": (1024, 4096), "v_proj": (1024, 4096), "o_proj": (4096, 4096),
          "gate_proj": (14336, 4096), "up_proj": (14336, 4096), "down_proj": (4096, 14336)}
BF16 = {"weight": "BF16"}


def shaped(parts: dict[str, str], **changes: tuple[int, ...]) -> dict[str, Any]:
    """Return headers with the shapes of Llama-3.1-8B; CHANGES gives others by leaf."""
    shapes = {**SHAPES, **changes}
    headers: dict[str, Any] = {}
    for name, dtype in stored(parts).items():
        shape = shapes.get(name.split(".")[-2])
        headers[name] = (dtype, shape) if shape and name.endswith(".weight") else dtype
    return headers


def without(*parts: str, tensors: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return headers that lack the names holding one of PARTS."""
    return {name: value for name, value in (tensors or stored(BF16)).items()
            if not any(part in name for part in parts)}


# Shapes.


@pytest.mark.parametrize("quant, parts", [(None, BF16), ("fp8-dynamic", FP8_PARTS)])
def test_shapes_that_agree(quant: str | None, parts: dict[str, str]) -> None:
    answer = ask(quant, "8.9", tensors=shaped(parts))
    assert found(answer, "stored-shape") == found(answer, "layers-not-stored") == []
    assert starts(answer) == "yes"


@pytest.mark.parametrize("leaf, shape, told", [
    ("q_proj", (4096, 2048), "4096 x 2048, but config.json makes it 4096 x 4096"),
    ("k_proj", (4096, 4096), "4096 x 4096, but config.json makes it 1024 x 4096"),
    ("down_proj", (14336, 4096), "14336 x 4096, but config.json makes it 4096 x 14336"),
    ("up_proj", (14336, 4096, 1), "14336 x 4096 x 1, but config.json makes it 14336 x 4096")])
def test_a_shape_of_another_model(leaf: str, shape: tuple[int, ...], told: str) -> None:
    """Both layers differ and are told once."""
    answer = ask(None, "8.9", tensors=shaped(BF16, **{leaf: shape}))
    block = "mlp" if leaf in ("down_proj", "up_proj") else "self_attn"
    assert only(answer, "stored-shape") == Finding(
        "weight loading", "error", "stored-shape",
        f"{LAYER}.{block}.{leaf}.weight is stored as {told}",
        "config.json and the weight files are of two models.", "safetensors headers")
    assert answer.trace.outcome == "ok"
    assert starts(answer) == "no"


def test_the_vocabulary_is_compared() -> None:
    for leaf in ("embed_tokens", "lm_head"):
        finding = only(ask(None, tensors=shaped(BF16, **{leaf: (32000, 4096)})), "stored-shape")
        assert finding.message.endswith(
            f"{leaf}.weight is stored as 32000 x 4096, but config.json makes it 128256 x 4096")


def test_shapes_that_do_not_depend_on_tensor_parallelism() -> None:
    """Headers hold the whole model; a rank's share is 512 of 4096."""
    assert found(ask(None, tp=8, tensors=shaped(BF16)), "stored-shape") == []


def test_fp8_weights_have_the_config_s_shape() -> None:
    finding = only(ask("fp8-dynamic", tensors=shaped(FP8_PARTS, q_proj=(4096, 2048))),
                   "stored-shape")
    assert finding.message.startswith(f"{Q_PROJ}.weight is stored as 4096 x 2048")


def test_packed_weights_and_unknown_shapes_are_not_compared() -> None:
    """Eight 4-bit weights share an I32: qweight is 4096 x 512 for 4096 x 4096."""
    packed = {name: ("I32", (4096, 512)) if name.endswith(".qweight") else dtype
              for name, dtype in stored(AWQ_PARTS).items()}
    assert found(ask("awq4-g128", tensors=packed), "stored-shape") == []
    uint8 = {**shaped(BF16), f"{Q_PROJ}.weight": ("U8", (4096, 2048))}
    assert found(ask(None, tensors=uint8), "stored-shape") == []
    assert found(ask(None, tensors=stored(BF16)), "stored-shape") == []


# Layers without tensors.


@pytest.mark.parametrize("tensors, told", [
    (stored(BF16, layers=1), "9 of 16 modules of this model have a tensor in the weight files; "
                             "missing: model.layers.1.self_attn.q_proj ..."),
    (without(f"{Q_PROJ}."), "15 of 16 modules of this model have a tensor in the weight files; "
                            f"missing: {Q_PROJ}"),
    (without("lm_head"), "15 of 16 modules of this model have a tensor in the weight files; "
                         "missing: lm_head")])
def test_layers_that_no_file_holds(tensors: dict[str, str], told: str) -> None:
    """2 layers of 7 leaves, the embedding and lm_head are 16 modules."""
    answer = ask(None, "8.9", tensors=tensors)
    assert only(answer, "layers-not-stored") == Finding(
        "weight loading", "error", "layers-not-stored", told,
        "Fetch every weight file; check num_hidden_layers.", "safetensors headers")
    assert starts(answer) == "no"


@pytest.mark.parametrize("tensors", [{}, {"encoder.weight": "F32"}])
def test_headers_of_another_model(tensors: dict[str, str]) -> None:
    answer = ask(None, "8.9", tensors=tensors)
    message = only(answer, "layers-not-stored").message
    assert message.endswith("of 16 modules of this model have a tensor in the weight files; "
                            "missing: model.embed_tokens ...")
    assert not message[0].isdigit()
    assert starts(answer) == "no"


def test_no_headers_say_nothing() -> None:
    answer = ask(None, "8.9", tensors=None)
    assert answer.trace.findings == ()
    assert starts(answer) == "yes"


def test_more_layers_than_the_config_has_say_nothing() -> None:
    """The loader reads what it asks for; num_hidden_layers was lowered on purpose."""
    answer = ask(None, "8.9", tensors=stored(BF16, layers=3))
    assert found(answer, "layers-not-stored") == []


@pytest.mark.parametrize("parts, quant", [(AWQ_PARTS, "awq4-g128"), (FP8_PARTS, "fp8-dynamic")])
def test_quantized_tensors_count_as_stored(parts: dict[str, str], quant: str) -> None:
    assert found(ask(quant, "8.9", tensors=stored(parts)), "layers-not-stored") == []


def test_a_tied_head_is_not_stored() -> None:
    """LlamaForCausalLM.__init__ ties lm_head to the embedding; the file need not hold it."""
    tied = {**LLAMA, "tie_word_embeddings": True}
    assert found(ask(None, model=tied, tensors=without("lm_head")), "layers-not-stored") == []
    wrong = shaped(BF16, lm_head=(32000, 4096))
    assert found(ask(None, model=tied, tensors=wrong), "stored-shape") == []


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_mistral_s_consolidated_names_are_not_compared(prefix: str) -> None:
    """models/mistral.py maps layers.0.attention.wq to self_attn.q_proj."""
    names = [f"{prefix}layers.{index}.attention.w{leaf}.weight" for index in range(2)
             for leaf in "qkvo"]
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    answer = ask(None, model=mistral, tensors=dict.fromkeys(names, "BF16"))
    assert found(answer, "layers-not-stored") == []
    others = {f"{prefix}layers.0.attention.query.weight": "BF16"}
    assert only(ask(None, model=mistral, tensors=others), "layers-not-stored").severity == "error"


def test_layers_that_are_fused_on_disk_are_stored() -> None:
    """linear.py:QKVParallelLinear.weight_loader takes a tensor "already fused on disk"."""
    tensors = stored({"weight": "BF16"})
    for index in range(2):
        for leaf in ("q_proj", "k_proj", "v_proj"):
            del tensors[f"model.layers.{index}.self_attn.{leaf}.weight"]
        tensors[f"model.layers.{index}.self_attn.qkv_proj.weight"] = "BF16"
    answer = ask(None, "8.9", tensors=tensors)
    assert found(answer, "layers-not-stored") == []
