"""Embeddings and lm_head of compressed-tensors checkpoints; the answers are those of the engine's
own code (compressed_tensors.py:CompressedTensorsConfig.get_quant_method)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, QWEN_72B, ask, message, quantization, scheme
from quantplan.tables.errors import CheckpointError

PACKED, PLAIN = "CompressedTensorsEmbeddingWNA16Int", "UnquantizedEmbeddingMethod"


def targeting(*targets: str, quant: str = "ct-w4a16", ignore: Any = (), **weights: Any
              ) -> dict[str, Any]:
    group = scheme(quant, weights=weights)["config_groups"]["group_0"]
    return quantization(quant, ignore=list(ignore),
                        config_groups={"group_0": {**group, "targets": list(targets)}})


def embedding(quant: dict[str, Any], model: dict[str, Any]) -> str | None:
    return ask(quant, "9.0", model=model).trace.layers[0].method


@pytest.mark.parametrize("target, llama, qwen", [
    ("re:.*embed_tokens", PLAIN, PACKED), ("model.embed_tokens", PLAIN, PACKED),
    ("Embedding", PACKED, PACKED), ("VocabParallelEmbedding", PACKED, PACKED),
    ("re:.*", PACKED, PACKED), ("re:^$", PACKED, PLAIN), ("Linear", PLAIN, PLAIN)])
def test_llama_s_embedding_has_no_name(target: str, llama: str, qwen: str) -> None:
    """models/llama.py builds it without a prefix, models/qwen2.py with one."""
    quant = targeting(target)
    assert (embedding(quant, LLAMA), embedding(quant, QWEN_72B)) == (llama, qwen)


@pytest.mark.parametrize("ignore, llama, qwen", [
    (["model.embed_tokens"], PACKED, PLAIN), (["re:.*"], PLAIN, PLAIN)])
def test_ignore_needs_the_name_too(ignore: list[str], llama: str, qwen: str) -> None:
    quant = targeting("Embedding", ignore=ignore)
    assert (embedding(quant, LLAMA), embedding(quant, QWEN_72B)) == (llama, qwen)


@pytest.mark.parametrize("quant, weights, words", [
    ("ct-fp8-dynamic", {}, "compressed-tensors embeddings only support weight-only INT "
     "group/channel (WNA16) quantization, got: num_bits=8 type='float' symmetric=True "
     "group_size=None strategy='channel' block_structure=None dynamic=False actorder=None "
     "scale_dtype=None zp_dtype=torch.float8_e4m3fn observer='minmax' observer_kwargs={}"),
    ("ct-w4a16", {"group_size": 48}, "")])
def test_what_an_embedding_refuses(quant: str, weights: dict[str, Any], words: str) -> None:
    """Groups that do not divide the hidden size end in an assertion without words."""
    assert message(ask(targeting("Embedding", quant=quant, **weights), "9.0")) == words


@pytest.mark.parametrize("quant, method, kernel", [
    ("ct-w4a16", "CompressedTensorsLinearMethod", "MacheteLinearKernel"),
    ("ct-fp8-dynamic", "CompressedTensorsLinearMethod", "CutlassFP8ScaledMMLinearKernel")])
def test_an_lm_head_is_a_linear_layer(quant: str, method: str, kernel: str) -> None:
    head = ask(targeting("lm_head", quant=quant), "9.0").trace.layers[-1]
    assert (head.path, head.method, head.kernel) == ("lm_head", method, kernel)


def test_an_lm_head_without_a_kernel_is_taken_for_an_embedding() -> None:
    """MXFP4 chooses its kernel in the constructor: that ValueError is swallowed, and the
    embedding's is told."""
    names = "MarlinMxFp4LinearKernel,HummingMxFp4LinearKernel"
    answer = ask(targeting("lm_head", quant="ct-mxfp4a16"), "9.0",
                 env={"VLLM_DISABLED_KERNELS": names})
    assert message(answer).startswith("compressed-tensors embeddings only support weight-only INT")


@pytest.mark.parametrize("changes, wanted", [
    ({"sparsity_config": {"targets": ["Linear"]}}, "sparsity_config: format; wanted text"),
    ({"config_groups": {"a": {"targets": ["re:.*self_attn$"], "weights": None}}},
     "config_groups: a: weights; wanted an object")])
def test_sections_that_the_engine_cannot_read(changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(CheckpointError, match=wanted):
        ask(quantization("ct-w4a16", **changes), "9.0")


@pytest.mark.parametrize("group", [
    {"targets": ["LlamaAttention"], "weights": None}, {"targets": [], "weights": None}])
def test_groups_that_are_never_read(group: dict[str, Any]) -> None:
    """from_config drops a group whose one target ends with Attention; nothing reads one without
    targets."""
    config = quantization("ct-w4a16")
    config["config_groups"]["group_1"] = group
    assert ask(config, "9.0").trace.outcome == "ok"
