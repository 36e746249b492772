"""Weight bytes of one rank, against public start-up logs and the engine's create_weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from known_models import model
from quantplan.dispatch.facts import Checkpoint, Tensor
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import as_format
from quantplan.planner.weights import CONFIG, HEADERS, Weights, count_parameters, weigh
from quantplan.tables.errors import CheckpointError, NotKnownError, UsageError
from quantplan.tables.load import read_table

FORMATS = [row["id"] for row in read_table("formats/formats")["formats"]]
LLAMA_LINEAR = 6_979_321_856
LLAMA_OTHER = 1_050_939_392

# "Model loading took" in GiB, vLLM 0.19.0 on H100 80GB, raw logs in the repository
# llm-d-incubation/llm-d-planner at d3121e05, accuracy/results/v0.19.0/logs. Only models whose
# tensors fill whole allocator blocks are here: for those the log is weights and rotary table.
LOGGED = [
    ("llama-3.1-8b", None, 1, "bfloat16", 14.99),
    ("llama-3.1-8b", None, 1, "float16", 14.99),
    ("llama-3.1-8b", None, 1, "float32", 29.98),
    ("llama-3.1-8b", None, 2, "bfloat16", 7.51),
    ("llama-3.1-8b", None, 4, "bfloat16", 3.77),
    ("llama-3.1-8b", "fp8-dynamic", 1, "bfloat16", 8.49),
    ("llama-3.1-8b", "w8a8-int8", 1, "float16", 8.49),
    ("llama-3.3-70b", "ct-fp8-dynamic", 2, "bfloat16", 33.88),
    ("llama-3.3-70b", "ct-fp8-dynamic", 4, "bfloat16", 16.96),
    ("qwen3-8b", None, 1, "bfloat16", 15.27),
    ("qwen3-14b", None, 1, "bfloat16", 27.52),
]


def weighed(checkpoint: Checkpoint, **options: Any) -> Weights:
    """Return the weights of a checkpoint."""
    return weigh(checkpoint, model_structure(checkpoint), **options)


def stored(checkpoint: Checkpoint, **changes: Tensor | None) -> Checkpoint:
    """Return a checkpoint with real headers: those its config implies, with changes by name."""
    tensors: dict[str, Tensor] = dict((as_like(checkpoint).tensors or {}).items())
    for name, tensor in changes.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    return Checkpoint(checkpoint.name, "folder", checkpoint.config, tensors=tensors)


def as_like(checkpoint: Checkpoint) -> Checkpoint:
    """Return the hypothetical checkpoint that has its tensors."""
    return checkpoint if checkpoint.tensors is not None else as_format(checkpoint, "bf16")


def lines(weights: Weights) -> Mapping[str, int]:
    """Return the bytes of each line."""
    return {line.name: line.bytes for line in weights.lines}


@pytest.mark.parametrize("name, form, tp, dtype, logged_gib", LOGGED)
def test_weights_and_rotary_table_are_what_the_engine_logged(
    name: str, form: str | None, tp: int, dtype: str, logged_gib: float
) -> None:
    checkpoint = as_format(model(name), form) if form else model(name)
    rotary = checkpoint.config["max_position_embeddings"] * 128 * (4 if dtype == "float32" else 2)
    found = weighed(checkpoint, tp=tp, dtype=dtype).bytes + rotary
    assert round(found / 2**30, 2) == logged_gib


# Bytes of Llama-3.1-8B's decoder linear layers, from create_weights of each method.
LINEAR_BYTES = {
    "bf16": 2 * LLAMA_LINEAR,
    "fp8": LLAMA_LINEAR + 32 * 7 * (4 + 4),
    "fp8-dynamic": LLAMA_LINEAR + 32 * 7 * 4,
    "fp8-block": LLAMA_LINEAR + LLAMA_LINEAR // 128**2 * 4,
    # One F32 scale per output feature: q 4096, k and v 1024, o 4096, gate and up 14336, down 4096.
    "ct-fp8-dynamic": LLAMA_LINEAR + 32 * 43_008 * 4,
    "ct-fp8-static": LLAMA_LINEAR + 32 * 7 * (4 + 4),
    "ct-fp8-block": LLAMA_LINEAR + LLAMA_LINEAR // 128**2 * 4,
    "awq": LLAMA_LINEAR // 2 + LLAMA_LINEAR // 128 * 2 + LLAMA_LINEAR // 128 // 2,
    # qzeros are allocated although symmetric; g_idx is not.
    "gptq": LLAMA_LINEAR // 2 + LLAMA_LINEAR // 128 * 2 + LLAMA_LINEAR // 128 // 2,
    "gptq-8bit": LLAMA_LINEAR + LLAMA_LINEAR // 128 * 2 + LLAMA_LINEAR // 128,
    # weight_shape: two I64 per engine layer, of which a decoder layer has four.
    "w4a16": LLAMA_LINEAR // 2 + LLAMA_LINEAR // 128 * 2 + 32 * 4 * 16,
    "w8a16": LLAMA_LINEAR + 32 * 43_008 * 2 + 32 * 4 * 16,
    "w8a8-int8": LLAMA_LINEAR + 32 * 43_008 * 4,
}


@pytest.mark.parametrize("form", LINEAR_BYTES)
def test_llama_8b_to_the_byte(form: str) -> None:
    found = weighed(as_format(model("llama-3.1-8b"), form))
    assert found.origin == CONFIG
    assert found.bytes == LINEAR_BYTES[form] + 2 * LLAMA_OTHER
    assert lines(found)["embeddings"] == lines(found)["lm_head"] == 128256 * 4096 * 2
    assert lines(found)["norms"] == 65 * 4096 * 2


def test_parameters_are_counted() -> None:
    assert count_parameters(model_structure(model("llama-3.1-8b"))) == (LLAMA_LINEAR, LLAMA_OTHER)
    # Qwen2.5-0.5B, model card: 0.49B, of which 0.36B are not embeddings; qkv biases, tied lm_head.
    linear, other = count_parameters(model_structure(model("qwen2.5-0.5b")))
    assert (linear + other, linear + other - 151936 * 896) == (494_032_768, 357_898_112)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen2.5-7b", "qwen3-8b"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_headers_and_sizes_agree(name: str, form: str, tp: int) -> None:
    made = as_format(model(name), form)
    try:
        wanted = weighed(made, tp=tp)
    except UsageError as error:
        with pytest.raises(UsageError, match="does not divide") as caught:
            weighed(stored(made), tp=tp)
        assert caught.value.what == error.what
        return
    found = weighed(stored(made), tp=tp)
    assert found.origin == HEADERS and not found.notes
    assert found.lines == wanted.lines


@pytest.mark.parametrize("tp, kv_heads", [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_replicated_beyond_their_number(
    tp: int, kv_heads: int
) -> None:
    found = weighed(model("llama-3.1-8b"), tp=tp)
    qkv = (4096 // tp + 2 * 128 * kv_heads) * 4096
    rest = (4096 * 4096 + 3 * 4096 * 14336) // tp
    assert lines(found)["linear weights"] == 2 * 32 * (qkv + rest)
    assert lines(found)["norms"] == 65 * 4096 * 2


def test_per_tensor_scales_are_replicated_and_group_scales_are_split() -> None:
    whole, half = (weighed(as_format(model("llama-3.1-8b"), "fp8"), tp=tp) for tp in (1, 2))
    assert lines(half)["weight scales"] == lines(whole)["weight scales"] == 32 * 7 * 4
    whole, half = (weighed(as_format(model("llama-3.1-8b"), "awq"), tp=tp) for tp in (1, 2))
    assert 2 * lines(half)["weight scales"] == lines(whole)["weight scales"]
    assert 2 * lines(half)["zero points"] == lines(whole)["zero points"]


def test_channel_scales_of_row_parallel_layers_are_replicated() -> None:
    # o_proj and down_proj keep all 4096 outputs on every rank.
    half = weighed(as_format(model("llama-3.1-8b"), "w8a8-int8"), tp=2)
    assert lines(half)["weight scales"] == 32 * 4 * ((6144 + 2 * 14336) // 2 + 2 * 4096)


def test_a_tied_lm_head_counts_once() -> None:
    found = weighed(model("qwen2.5-0.5b"))
    assert "lm_head" not in lines(found)
    assert found.bytes == 2 * 494_032_768
    assert lines(found)["biases"] == 24 * (896 + 2 * 128) * 2


def test_the_vocabulary_is_padded_to_64() -> None:
    found = weighed(model("llama-3.1-8b", vocab_size=32016), tp=2)
    assert lines(found)["embeddings"] == 32064 // 2 * 4096 * 2
    line = next(line for line in found.lines if line.name == "embeddings")
    assert "32,016 rows padded to a multiple of 64" in line.formula
    with pytest.raises(UsageError, match="embed_tokens does not divide over 3 ranks"):
        weighed(model("llama-3.1-8b", vocab_size=128), tp=3)


def test_a_group_that_a_rank_would_cut_is_refused() -> None:
    # 1152 / 2 = 576 = 4.5 groups of 128.
    made = as_format(model("llama-3.1-8b", intermediate_size=1152), "w4a16")
    with pytest.raises(UsageError, match=r"down_proj \(groups\) does not divide"):
        weighed(made, tp=2)


def test_groups_that_do_not_fill_the_inputs_are_refused() -> None:
    made = as_format(model("llama-3.1-8b", intermediate_size=1088), "w4a16")
    for checkpoint in (made, stored(made)):
        with pytest.raises(UsageError, match=r"1088 inputs of .*down_proj are not whole groups"):
            weighed(checkpoint)


def test_the_resolver_says_which_layers_are_quantized() -> None:
    made = as_format(model("llama-3.1-8b"), "fp8-dynamic")
    found = weighed(made, quantized=lambda path, layer: not (
        path.endswith("down_proj") and layer == 0) and path != "lm_head")
    down = 4096 * 14336
    assert lines(found)["linear weights"] == LLAMA_LINEAR + down
    assert lines(found)["weight scales"] == 4 * (32 * 7 - 1)
    line = found.lines[0]
    assert line.formula == f"{LLAMA_LINEAR - down:,} x 8 bits + {down:,} x 16 bits"


def test_a_quantized_lm_head_is_counted_so() -> None:
    made = as_format(model("llama-3.1-8b"), "awq")
    made.config["quantization_config"]["lm_head"] = True
    group = 128256 * 4096 // 128
    assert lines(weighed(made))["lm_head"] == 128256 * 4096 // 2 + group * 2 + group // 2


def test_ignored_layers_without_the_resolver_are_noted() -> None:
    made = as_format(model("llama-3.1-8b"), "fp8")
    made.config["quantization_config"]["ignored_layers"] = ["lm_head"]
    assert [note.id for note in weighed(made).notes] == ["ignored-layers-counted-quantized"]
    assert not weighed(made, quantized=lambda path, layer: path != "lm_head").notes


def test_an_unknown_format_needs_headers() -> None:
    config = model("llama-3.1-8b", quantization_config={"quant_method": "bitsandbytes"})
    with pytest.raises(NotKnownError, match="quant_method bitsandbytes"):
        weighed(config)


def test_the_files_own_bytes_stand_in_for_an_unknown_format() -> None:
    made = stored(as_format(model("llama-3.1-8b"), "ct-fp8-dynamic"))
    config = {**made.config, "quantization_config": {"quant_method": "quark"}}
    unknown = Checkpoint("m", "folder", config, tensors=made.tensors)
    for tp in (1, 2):
        found = weighed(unknown, tp=tp)
        assert found.title == "quant_method quark, as stored"
        scales = 2 * 32 * ((6144 + 2 * 14336) // tp + 2 * 4096)
        assert lines(found)["linear layers as stored"] == LLAMA_LINEAR // tp + scales


def test_an_unknown_tensor_is_not_split_by_guess() -> None:
    made = stored(as_format(model("llama-3.1-8b"), "gptq"))
    config = {**made.config, "quantization_config": {"quant_method": "quark"}}
    unknown = Checkpoint("m", "folder", config, tensors=made.tensors)
    assert weighed(unknown).bytes > 0
    with pytest.raises(NotKnownError, match=r"how .*self_attn\.\w+\.\w+ .* splits over 2"):
        weighed(unknown, tp=2)


def test_a_float32_file_is_served_in_16_bits() -> None:
    wide = as_format(model("llama-3.1-8b", torch_dtype="float32"), "fp8")
    config = {key: value for key, value in wide.config.items() if key != "quantization_config"}
    tensors = {name: tensor._replace(dtype="F32") for name, tensor in
               (as_format(model("llama-3.1-8b"), "bf16").tensors or {}).items()}
    checkpoint = Checkpoint("m", "folder", config, tensors=tensors)
    assert weighed(checkpoint).bytes == 2 * (LLAMA_LINEAR + LLAMA_OTHER)
    assert weighed(checkpoint, dtype="float32").bytes == 4 * (LLAMA_LINEAR + LLAMA_OTHER)


def test_a_layer_stored_in_16_bits_is_counted_so() -> None:
    prefix = "model.layers.0.mlp.down_proj."
    made = stored(as_format(model("llama-3.1-8b"), "fp8-dynamic"), **{
        prefix + "weight": Tensor("BF16", (4096, 14336)), prefix + "weight_scale": None})
    assert weighed(made).bytes == LINEAR_BYTES["fp8-dynamic"] - 4 + 4096 * 14336 + 2 * LLAMA_OTHER


def test_tensors_that_no_layer_loads_are_noted() -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": Tensor("F32", (64,)),
             "model.layers.0.self_attn.k_proj.k_scale": Tensor("F32", ()),
             "model.layers.0.self_attn.q_proj.bias": Tensor("F16", (4096,)),
             "vision_tower.patch.weight": Tensor("BF16", (10, 10))}
    found = weighed(stored(model("llama-3.1-8b"), **extra))
    assert found.lines == weighed(model("llama-3.1-8b")).lines
    assert [note.message for note in found.notes] == [
        "tensors of no layer of the engine's model: 1 (200 bytes in the file), not counted: "
        "vision_tower.patch.weight"]


def test_missing_modules_are_counted_from_sizes_and_noted() -> None:
    found = weighed(stored(model("llama-3.1-8b"), **{"model.layers.7.mlp.up_proj.weight": None}))
    assert found.bytes == 2 * (LLAMA_LINEAR + LLAMA_OTHER)
    assert [note.id for note in found.notes] == ["modules-without-tensors"]


def test_headers_without_shapes_fall_back_to_the_config() -> None:
    bare = Checkpoint("m", "mapping", model("llama-3.1-8b").config,
                      tensors={"model.norm.weight": Tensor("BF16")})
    assert weighed(bare).origin == CONFIG


@pytest.mark.parametrize("form, name, tensor", [
    ("bf16", "model.norm.weight", Tensor("BF16", (64, 64))),
    ("bf16", "lm_head.weight", Tensor("BF16", (128_258, 4096))),
    ("bf16", "model.layers.0.mlp.up_proj.weight", Tensor("BF16", (4096, 14336))),
    ("awq", "model.layers.0.mlp.up_proj.scales", Tensor("F16", (64, 14336))),
    ("fp8", "model.layers.0.mlp.up_proj.weight_scale", Tensor("F32", (14336, 1))),
])
def test_headers_that_contradict_the_config_are_refused(
    form: str, name: str, tensor: Tensor
) -> None:
    made = stored(as_format(model("llama-3.1-8b"), form), **{name: tensor})
    with pytest.raises(CheckpointError, match=r"in the safetensors headers; wanted .* by config"):
        weighed(made)


@pytest.mark.parametrize("name, form, shape", [
    ("weight_scale", "fp8", (1,)), ("weight_scale", "ct-fp8-dynamic", (14336,)),
    ("weight_scale", "ct-fp8-static", ()), ("input_scale", "ct-fp8-static", (1, 1)),
])
def test_sizes_of_1_may_be_left_out_or_added(name: str, form: str, shape: tuple[int, ...]) -> None:
    made = as_format(model("llama-3.1-8b"), form)
    odd = {f"model.layers.0.mlp.up_proj.{name}": Tensor("F32", shape)}
    assert weighed(stored(made, **odd)).lines == weighed(made).lines


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="dtype 'int4'; wanted one of bfloat16, float16, float32"):
        weighed(model("llama-3.1-8b"), dtype="int4")
