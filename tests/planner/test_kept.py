"""What kernels keep of a layer, against the engine's own modules.

kept_answers.jsonl: vLLM 0.32.0 built a model of one layer in each format, on an emulated GPU and on
tensors without values, and prepared its weights; per layer the bytes of its parameters before and
after. "odd" has sizes that fill no kernel's tiles; `backend` is --linear-backend.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from known_models import model
from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import as_format
from quantplan.dispatch.gpu import capability_gpu
from quantplan.dispatch.resolve import resolve
from quantplan.dispatch.weight_format import read_format
from quantplan.planner.kept import Served, kept_tensors, kernel_row, marlin_tiles
from quantplan.planner.parameters import RankLayer, rank_layers
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.load import read_table

BASE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
        "intermediate_size": 5632, "num_hidden_layers": 1, "num_attention_heads": 16,
        "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "tie_word_embeddings": False}
MODELS = {"base": BASE, "odd": {**BASE, "intermediate_size": 1760, "num_key_value_heads": 1,
                                "head_dim": 64, "num_attention_heads": 17, "hidden_size": 1088}}
ANSWERS = [json.loads(line) for line in
           (Path(__file__).parent / "kept_answers.jsonl").read_text().splitlines()]


def kept(layer: RankLayer, checkpoint: Checkpoint, trace: Any, capability: int) -> list[int]:
    """Return the bytes of what is kept of a layer."""
    weights = read_format(checkpoint.served_config)
    kernel = next((found.kernel for found in trace.layers if found.path == layer.path), None)
    if weights is None or not layer.quantized or kernel is None:
        return [tensor.bytes for tensor in layer.tensors]
    return [tensor.bytes for tensor in
            kept_tensors(layer, weights, kernel_row(kernel), Served(trace.dtype, capability))
            if tensor.bytes]


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: f"{row['format']}-{row['capability']}-"
                         f"{row['model']}-{row.get('backend', 'auto')}")
def test_created_and_kept_to_the_byte(row: dict[str, Any]) -> None:
    checkpoint = as_format(Checkpoint("m", "mapping", MODELS[row["model"]]), row["format"])
    gpu = capability_gpu(str(row["capability"]))
    deployment = Deployment(linear_backend=row.get("backend", "auto"))
    trace = resolve(checkpoint, load_engine("vllm"), gpu, deployment)
    plain = {layer.path for layer in trace.layers if (layer.method or "").startswith("Unq")}
    layers = rank_layers(model_structure(checkpoint), read_format(checkpoint.served_config), 1,
                         trace.dtype, lambda path, i: path.replace("*", str(i)) not in plain)
    found = {layer.path.rpartition(".")[2]:
             [sorted(tensor.bytes for tensor in layer.tensors),
              sorted(kept(layer, checkpoint, trace, gpu.capability))] for layer in layers}
    assert {name: found[name] for name in row["layers"]} == row["layers"]


# marlin_utils.py:marlin_padded_nk: multiples of (64, 128) or of (128, 64), whichever is cheaper.
@pytest.mark.parametrize("n, k, group, tiles", [
    (4096, 4096, 128, (4096, 4096)), (1088, 1760, -1, (1088, 1792)), (1984, 64, 32, (2048, 64)),
    (64, 96, 96, (128, 192)),
])
def test_marlins_tiles(n: int, k: int, group: int, tiles: tuple[int, int]) -> None:
    assert marlin_tiles(n, k, group) == tiles


@pytest.mark.parametrize("form, gpu, line_bytes", [
    ("fp8", "80", 43008 * 2 - 7 * 4 - 7 * 4),
    ("fp8", "90", 43008 * 4 - 7 * 4 - 3 * 4),
    ("awq", "90", 0), ("w8a8", "90", 0), ("fp8-block", "90", 0),
])
def test_what_sglang_keeps_of_a_layer(form: str, gpu: str, line_bytes: int) -> None:
    """sglang 0.5.22: a scale per output, in the serving dtype for Marlin
    (marlin_utils_fp8.py:prepare_fp8_layer_for_marlin), else float32 (fp8_utils.py:
    convert_to_channelwise), in place of one per checkpoint module, and one
    activation scale or none; others keep their sizes. 43,008 are the outputs of a layer."""
    checkpoint = as_format(model("llama-3.1-8b"), form)
    trace = resolve(checkpoint, load_engine("sglang"), capability_gpu(gpu), Deployment())
    rows = {layer.path: kernel_row(f"{layer.method}:{layer.kernel}", "sglang")
            for layer in trace.layers if layer.path.startswith("model.layers.0.") and layer.kernel}
    layers = rank_layers(model_structure(checkpoint), read_format(checkpoint.served_config), 1,
                         trace.dtype)
    weights = read_format(checkpoint.served_config)
    assert weights is not None
    grown = sum(
        tensor.bytes - layer.tensors[tensor.replaces or 0].bytes
        for layer in layers if layer.layer == 0 and layer.quantized
        for tensor in kept_tensors(layer, weights, rows[layer.path],
                                   Served(trace.dtype, int(gpu), "sglang")))
    assert grown == line_bytes


def test_rows_of_experts_name_a_list_and_a_backend_of_the_engine() -> None:
    lists = load_engine("vllm")["experts_lists"]
    known = {f"{name} {backend['id']}" for name, row in lists.items()
             for backend in (lists[row["like"]] if "like" in row else row)["backends"]}
    named = {name for row in read_table("kept/vllm")["kernels"] for name in row["kernels"]
             if " " in name}
    assert named
    assert named <= known
