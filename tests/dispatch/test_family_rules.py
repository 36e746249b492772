"""What model classes ask while they are built: the engine's answers to bundled models with few
layers and changed sizes (vLLM 0.32.0, unquantized)."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.dispatch.bundled import bundled_checkpoint

from quantplan import Explanation, explain
from quantplan.oracle.grid_models import cut

NO_GROUPS = {"n_group": None, "topk_group": None}
FEW_EXPERTS = "Tensor parallel size 16 is greater than the number of experts 8."
ONE_GROUP = ("If tensor parallel world size does not divide num_groups, then num_groups must equal "
             "1.")


def answer(name: str, capability: str, tp: int, **changes: Any) -> Explanation:
    """Return the answer for the bundled model NAME without its quantization, cut and changed."""
    checkpoint = bundled_checkpoint(name)
    assert checkpoint is not None
    config = {key: value for key, value in cut(checkpoint.config).items()
              if key != "quantization_config"}
    return explain({**config, **changes}, engine_version="0.32.0", capability=capability, tp=tp)


@pytest.mark.parametrize(("name", "tp", "changes", "kind", "message"), [
    ("deepseek-r1", 1, {"hidden_act": "gelu"}, "ValueError",
     "Unsupported activation: gelu. Only silu is supported for now."),
    ("deepseek-r1", 1, NO_GROUPS, "ValueError",
     "num_expert_group and topk_group must be provided when use_grouped_topk is True"),
    ("qwen3-30b-a3b", 16, {"num_experts": 8}, "ValueError", FEW_EXPERTS),
    ("minimax-m2.5", 16, {"num_local_experts": 8}, "ValueError", FEW_EXPERTS),
    ("nemotron-h-56b", 8, {"mamba_num_heads": 12, "n_groups": 4}, "AssertionError",
     "Tensor parallel world size must divide num heads."),
    ("nemotron-h-56b", 8, {"n_groups": 4}, "AssertionError", ONE_GROUP),
])
def test_a_class_refuses(
    name: str, tp: int, changes: dict[str, Any], kind: str, message: str
) -> None:
    error = answer(name, "9.0", tp, **changes).trace.error
    assert error is not None
    assert (error.type, error.message) == (kind, message)


@pytest.mark.parametrize(("name", "tp", "changes"), [
    ("deepseek-r1", 16, {"n_routed_experts": 8, "n_group": 1, "topk_group": 1}),
    ("nemotron-h-56b", 8, {"n_groups": 1}),
    ("nemotron-3-ultra-550b-a55b", 1, {}),
])
def test_a_class_does_not_ask(name: str, tp: int, changes: dict[str, Any]) -> None:
    """DeepSeek's experts may be fewer than ranks; one Mamba group is copied to every rank."""
    assert answer(name, "9.0", tp, **changes).trace.error is None


@pytest.mark.parametrize(("capability", "tp", "names"), [
    ("10.3", 8, {"fused_qkv_a_proj", "q_b_proj"}),
    ("10.3", 4, {"fused_qkv_a_proj"}),
    ("10.0", 8, set()),
])
def test_glm_replaces_methods_of_small_shapes(capability: str, tp: int, names: set[str]) -> None:
    layers = answer("glm-5", capability, tp).trace.layers
    assert {layer.path.rsplit(".", 1)[-1] for layer in layers
            if layer.method == "GLM52LowLatencyLinearMethod"} == names
