"""The parts of SGLang's worker that need no engine and no torch: what is recorded of a layer and
what comes of it, stand-ins, model files, groups, and the engine's own arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quantplan.oracle.cases import Case
from quantplan.oracle.compare import differences, row_differences
from quantplan.oracle.worker.sglang.caches import Caches
from quantplan.oracle.worker.sglang.digest import digest
from quantplan.oracle.worker.sglang.groups import QuietGroup
from quantplan.oracle.worker.sglang.leaves import MXFP8_GPUS, PREPARATIONS, PRODUCTS, QUANTIZERS
from quantplan.oracle.worker.sglang.packages import PACKAGES, TURNED_OFF_BY
from quantplan.oracle.worker.sglang.record import ACTIVATION, OPERATOR, PRODUCT, Step

# What a layer computes. Steps and answers are those of SGLang 0.5.22 (tests/golden rows named).


def product(name: str, **more: Any) -> Step:
    return Step(PRODUCT, name, **more)


@pytest.mark.parametrize("steps, kernel, act, mode, fused", [
    # llama8b|fp8_dyn|sm90
    ([Step(ACTIVATION, "per_token"), product("fp8_scaled_mm")],
     "fp8_scaled_mm", "per_token", "W8A8_fp8", None),
    # llama8b|fp8_dyn|sm120: unit scales and two products behind
    ([Step(ACTIVATION, "per_token"), product("torch._scaled_mm", result="float32")],
     "torch._scaled_mm", "per_token", "W8A8_fp8", False),
    ([Step(ACTIVATION, "static"), product("torch._scaled_mm", result="bfloat16")],
     "torch._scaled_mm", "static", "W8A8_fp8", True),
    # llama8b|awq_g128|sm80 and sm75, llama8b|gptq8_g128|sm90
    ([product("gptq_marlin_gemm", bits=4)], "gptq_marlin_gemm", "none", "W4A16", None),
    ([product("awq_dequantize")], "awq_dequantize", "none", "W4A16", None),
    ([product("gptq_marlin_gemm", bits=8)], "gptq_marlin_gemm", "none", "W8A16", None),
    ([Step(ACTIVATION, "fp4"), Step(OPERATOR, "fp4_gemm")],
     "fp4_gemm", "fp4", "W4A4_nvfp4", None),
    ([Step(ACTIVATION, "group"), product("w8a8_block_fp8_matmul_deepgemm")],
     "w8a8_block_fp8_matmul_deepgemm", "group", "W8A8_fp8", None),
    ([product("flashinfer_mxfp8_blockscaled_linear", backend="cute-dsl")],
     "flashinfer_mxfp8_blockscaled_linear", "mxfp8_in_kernel", "W8A8_mxfp8", None),
    ([product("torch.mm", result="bfloat16")], "torch.mm", "none", "W16A16", None),
    ([Step(ACTIVATION, "group"), product("w8a8_block_int8_matmul")],
     "w8a8_block_int8_matmul", "group", "W8A8_int8", None),
])
def test_the_last_step_is_what_is_multiplied(
    steps: list[Step], kernel: str, act: str, mode: str, fused: bool | None
) -> None:
    found = digest(steps)
    assert (found["kernel"], found["act"], found["mode"], found["fused"]) == (
        kernel, act, mode, fused)


def test_the_backend_that_a_product_is_called_with_is_told() -> None:
    assert digest([product("mm_bf16_fp4", backend="cute-dsl")])["kernel_backend"] == "cute-dsl"
    assert digest([Step(OPERATOR, "fp4_gemm", backend="x")])["kernel_backend"] is None


def test_a_layer_that_reached_no_product_says_nothing() -> None:
    assert digest([Step(ACTIVATION, "static")]) == {}


def test_no_leaf_is_of_two_kinds() -> None:
    names = [*PRODUCTS, *QUANTIZERS, *PREPARATIONS]
    assert len(set(names)) == len(names)


def test_mxfp8_backends_serve_the_gpus_of_flashinfers_table() -> None:
    assert [name for name, gpus in MXFP8_GPUS.items() if 100 in gpus] == [
        "cutlass", "trtllm", "cute-dsl"]
    assert [name for name, gpus in MXFP8_GPUS.items() if 120 in gpus] == ["cutlass"]


# Stand-ins.

STAND_INS = """
import importlib.util
from quantplan.oracle.worker.sglang.packages import hide_from_others, sglang_shelf
shelf = sglang_shelf()
hide_from_others(shelf)
shelf.stock({"deep_gemm": False, "flashinfer": True})
asked = {"__name__": "sglang.srt.utils", "find": importlib.util,
         "names": ("deep_gemm", "flashinfer", "cudnn")}
exec("found = [find.find_spec(name) is not None for name in names]", asked)
print(asked["found"], importlib.util.find_spec("flashinfer"))
from quantplan.oracle.worker.sglang import kernels
kernels.is_tensor = lambda value: False
import cuda.bindings.driver, sgl_kernel
from sgl_kernel.scalar_type import scalar_types
from triton_kernels.numerics_details.mxfp import MXFP_BLOCK_SIZE
import triton_kernels.matmul, cutlass.utils
print(scalar_types.uint4b8.size_bits, MXFP_BLOCK_SIZE, cutlass.utils.ceil_div(9, 4))
print([f.name for f in __import__("dataclasses").fields(triton_kernels.matmul.PrecisionConfig)])
@cutlass.jit
def own(): return 5
class Config(cutlass.Base): pass
print(own(), Config().anything is not None, list(cutlass.names), (cutlass.A | None) is not None)
print(isinstance(3, cutlass.Int), cutlass.make().x.__module__)
shelf.stock({"deep_gemm": True, "cudnn": True})
import cudnn, deep_gemm
print(cudnn.backend_version(), deep_gemm.get_num_sms())
"""


def test_stand_ins_are_seen_by_the_engine_alone_and_hold_what_it_computes_with() -> None:
    done = subprocess.run([sys.executable, "-c", STAND_INS], capture_output=True,
                          text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[False, True, False] None", "4 32 3",
        "['flex_ctx', 'weight_scale', 'b_mx_scale', 'b_microblock_size']",
        "5 True [] True", "False stand_in.cutlass", "92301 132"]


def test_a_library_without_which_the_engine_is_no_module_is_turned_off_by_its_variable() -> None:
    """fp8_utils.py imports flashinfer whatever is_flashinfer_available says."""
    assert set(TURNED_OFF_BY) <= set(PACKAGES)


def test_a_group_has_no_communicator() -> None:
    group = QuietGroup(4)
    assert (group.world_size, group.ca_comm, group.all_reduce("x")) == (4, None, "x")
    assert group.device_group.size() == 4


REGISTRY = """
import sys, types
package = types.ModuleType("sglang.srt.models")
package.__path__ = [sys.argv[1]]
sys.modules |= {"sglang": types.ModuleType("sglang"), "sglang.srt": types.ModuleType("sglang.srt"),
                "sglang.srt.models": package}
from quantplan.oracle.worker.sglang.registry import Classes, read_classes_when_asked
read_classes_when_asked()
models = sys.modules["sglang.srt.models.registry"].ModelRegistry.models
print(sys.modules["sglang.srt.models.registry"].FOUND, "sglang.srt.models.b" in sys.modules)
print(models.get("B").__name__, "C" in models, models["C"].__name__, "NoSuch" in models)
print("sglang.srt.models.a" in sys.modules)
"""


def test_a_model_class_is_imported_when_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "registry.py").write_text(
        "import pkgutil, types\nimport sglang.srt.models as m\n"
        "FOUND = list(pkgutil.iter_modules(m.__path__, 'sglang.srt.models.'))\n"
        "ModelRegistry = types.SimpleNamespace(models={})\n")
    (tmp_path / "a.py").write_text("class A: pass\nEntryClass = A\n")
    (tmp_path / "b.py").write_text("class B: pass\nclass C: pass\nEntryClass = [B, C]\n")
    (tmp_path / "c.py").write_text("class NoSuch: pass\n")
    done = subprocess.run([sys.executable, "-c", REGISTRY, str(tmp_path)], capture_output=True,
                          text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[] False", "B True C False", "False"]


def test_answers_that_the_engine_keeps_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import cache

    asked: list[int] = []

    @cache
    def capability() -> int:
        asked.append(1)
        return len(asked)

    module = ModuleType("sglang.srt.utils.fake")
    vars(module).update(capability=capability, other=3)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    caches = Caches()
    assert capability() == 1
    caches.clear()
    assert capability() == 2


# The question and the answer.


def test_options_are_the_servers_own_arguments() -> None:
    case = Case("a", "fp8", {}, 90, {
        "tp": 4, "enable_expert_parallel": True, "moe_backend": "triton", "quantization": None,
        "fp8_gemm_backend": "cutlass", "fp4_gemm_backend": "marlin", "kv_cache_dtype": "fp8_e4m3"})
    assert case.question("sglang") == {
        "config": {}, "side_files": {}, "tensors": None, "flags": {
            "tp_size": 4, "ep_size": 4, "moe_runner_backend": "triton",
            "fp8_gemm_runner_backend": "cutlass", "fp4_gemm_runner_backend": "marlin",
            "kv_cache_dtype": "fp8_e4m3"}}


ROW: dict[str, Any] = {
    "path": "model.layers.0.mlp.down_proj", "module": "RowParallelLinear", "method": "M",
    "scheme": None, "kernel": "fp8_scaled_mm", "mode": "W8A8_fp8", "act": "per_token", "n": 4,
    "k": 8, "fused": None, "kernel_backend": None}
OURS = {**ROW, "family": "fp8", "candidates": [], "why": None, "rejected": [],
        "findings": []}


@pytest.mark.parametrize("field, value", [
    ("act", "static"), ("fused", True), ("kernel_backend", "cutlass"), ("kernel", "torch.mm"),
    ("n", 5), ("scheme", "S"), ("moe_runner_backend", "triton")])
def test_every_field_that_the_worker_tells_is_compared(field: str, value: Any) -> None:
    (found,) = row_differences("x", OURS, {**ROW, field: value})
    assert (found.field, found.engines) == (field, value)


def test_what_the_worker_does_not_tell_is_not_compared() -> None:
    """Layers whose product needs loaded weights are not run (bitsandbytes, GGUF)."""
    untold = {name: ROW[name] for name in ("path", "module", "method", "scheme", "n", "k")}
    assert list(row_differences("x", OURS, untold)) == []


def test_a_failure_of_the_first_forward_wants_a_finding() -> None:
    engine = {**ROW, "forward_error": "NotImplementedError: no kernel"}
    (found,) = row_differences("x", OURS, engine)
    assert (found.field, found.engines) == ("first forward", "NotImplementedError: no kernel")
    assert list(row_differences("x", {**OURS, "findings": ["no-operator"]}, engine)) == []


def test_the_dtype_of_the_cache_is_compared() -> None:
    model = {"outcome": "ok", "layers": [], "error": None, "method": {
        "resolved": "fp8", "config_class": "C", "min_capability": 80, "steps": []},
        "deployment": {"dtype": "bfloat16"}, "kv_cache": {"resolved": "bfloat16"}}
    engine = {"outcome": "ok", "layers": [], "method": "fp8", "config_class": "C",
              "min_capability": 80, "dtype": "bfloat16", "kv_cache_dtype": "float8_e4m3fn"}
    assert [(d.field, d.ours, d.engines) for d in differences(model, engine)] == [
        ("kv_cache_dtype", "bfloat16", "float8_e4m3fn")]


@pytest.mark.parametrize("mine, its, same", [
    ("only {'a', 'b'}", "only {'b', 'a'}", True),
    ("Weight {'x': 1, 'y': 'z'}", "Weight {'y': 'z', 'x': 1}", True),
    ("Weight {'x': 1}", "Weight {'x': 2}", False)])
def test_sets_and_mappings_in_messages_have_no_order(mine: str, its: str, same: bool) -> None:
    error = {"type": "ValueError", "layer": None, "source": None, "stage": None}
    found = list(differences({"outcome": "error", "error": {**error, "message": mine}},
                             {"outcome": "error", "error": {**error, "message": its}}))
    assert (found == []) is same


def test_it_needs_nothing_of_ours_but_itself(tmp_path: Path) -> None:
    from quantplan.oracle.engine_process import WORKER

    start = {"paths": [], "emulate": True, "only_version": True, "engine": "sglang"}
    done = subprocess.run([sys.executable, "-I", "-S", WORKER], input=json.dumps(start) + "\n",
                          capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
                          env={"PATH": os.environ["PATH"]})
    assert json.loads(done.stdout) == {"fault": "torch is not importable"}
