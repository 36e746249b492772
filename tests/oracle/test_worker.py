"""The parts of the worker that need no engine: whose error it is, what stands in for a GPU machine,
what is read from shared objects, and the folder that the engine is given."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from quantplan.dispatch.checkpoint import read_checkpoint

from quantplan.oracle.worker.device import Nothing
from quantplan.oracle.worker.faults import described, not_the_engines, unwrapped
from quantplan.oracle.worker.stand_ins import StandInModule
from quantplan.oracle.worker.vllm.build import write_folder
from quantplan.oracle.worker.vllm.describe import find_kernel, rejected
from quantplan.oracle.worker.vllm.extensions import CAPABILITY_QUERIES, schemas, shared_objects
from quantplan.oracle.worker.vllm.groups import Group
from quantplan.oracle.worker.vllm.watch import Note


def caught(function: Any) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def reason(error: BaseException, absent: frozenset[str] = frozenset()) -> str | None:
    return not_the_engines(error, str(error), absent)


# Whose error it is.

STAND_IN = StandInModule(importlib.util.spec_from_loader("flashinfer", None))  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [
    ValueError("Unsupported num_bits = 8."), AssertionError(), KeyError("bits"),
    TypeError("'NoneType' object is not subscriptable"),
    ImportError("Please install torchao>=0.10.0 via `pip install torchao`"),
    ValueError("unsupported scheme QuantKey(f8e4m3fn,scale(f32,static,GroupShape(1, 128)))"),
    caught(lambda: None.get), caught(lambda: {}["bits"]),
], ids=repr)
def test_what_the_engine_raises_is_its_answer(error: BaseException) -> None:
    assert reason(error) is None


@pytest.mark.parametrize("error, said", [
    (caught(lambda: ModuleType("vllm._C").marlin), "the compiled module vllm._C is not loaded"),
    (ImportError("No module named 'numba'", name="numba"),
     "numba is not importable here: No module named 'numba'"),
    (RuntimeError("Found no NVIDIA driver on your system."),
     "it needs a device: Found no NVIDIA driver on your system."),
    (NotImplementedError("Cannot copy out of meta tensor; no data!"),
     "it needs a device: Cannot copy out of meta tensor; no data!"),
    (OSError("<model> does not appear to have a file named configuration_x.py."),
     "it needs code of the model folder: <model> does not appear to have a file named "
     "configuration_x.py."),
    (TypeError("unsupported operand: stand_in.flashinfer.x"),
     "it met a stand-in for a package: unsupported operand: stand_in.flashinfer.x"),
    (MemoryError(), "MemoryError on this machine"),
])
def test_what_the_emulation_raises_is_not(error: BaseException, said: str) -> None:
    assert reason(error) == said


def test_a_missing_tokenizer_is_not_the_engine_s_error() -> None:
    """models/deepseek_ocr.py looks its image token up while it is built."""
    tokenizer: Any = None
    with pytest.raises(AttributeError) as raised:
        tokenizer.vocab["<image>"]
    assert reason(raised.value) == "it needs the model's tokenizer"


def test_a_package_that_the_question_takes_away_is_the_engines_answer() -> None:
    error = ImportError("No module named 'torchao'", name="torchao.core")
    assert reason(error, frozenset({"torchao"})) is None
    assert reason(error) is not None


class ValidationError(ValueError):
    """As pydantic's: the engine's exception is in the context of its errors."""

    def errors(self) -> list[dict[str, Any]]:
        return [{"type": "literal_error", "msg": "Input should be 'a'"},
                {"type": "value_error", "msg": "Value error, no heads",
                 "ctx": {"error": ValueError("no heads")}}]


def test_a_validation_error_is_told_in_the_engines_words() -> None:
    assert unwrapped(ValidationError("2 validation errors for ModelConfig")) == "no heads"
    assert unwrapped(ValueError("plain")) == "plain"


def test_an_error_names_the_model_and_no_address() -> None:
    error = caught(lambda: (_ for _ in ()).throw(ValueError("/tmp/x/model: <f at 0x7f00>")))
    found = described(error, "model_build", "lm_head", "/tmp/x/model", "vllm/")
    assert (found["type"], found["message"], found["stage"], found["layer"]) == (
        "ValueError", "<model>: <f>", "model_build", "lm_head")


# What stands in.


def test_a_stand_in_serves_as_class_function_and_value() -> None:
    thing: Any = STAND_IN.cute.Tensor

    class Child(thing):  # type: ignore[misc]
        pass

    assert isinstance(thing(1, x=2)(3), thing.__mro__[1])
    assert Child().anything is not None
    assert thing[int] is thing
    assert STAND_IN.is_supported() is True
    assert STAND_IN.sm_count() + 2 == 3
    with pytest.raises(AttributeError):
        _ = thing.__wrapped__


def test_flashinfer_answers_what_selection_asks_of_it() -> None:
    spec = importlib.util.spec_from_loader("flashinfer.mla._sparse_mla_sm120", None)
    assert spec is not None
    sizes: Any = StandInModule(spec)._DECODE_DSV4_DISPATCH
    assert [(heads, 512) in sizes for heads in (1, 128, 129)] == [True, True, False]


SHELF = """
import importlib.util, sys
from quantplan.oracle.worker.vllm.packages import vllm_shelf
shelf = vllm_shelf()
shelf.stock({"flashinfer": True, "deep_gemm": False, "click": False})
found = {name: importlib.util.find_spec(name) is not None
         for name in ("flashinfer", "flashinfer_cubin", "deep_gemm", "conch", "quack", "yaml")}
print(found)
import flashinfer.gemm
print(flashinfer.gemm.anything.__module__)
fa4 = "vllm.vllm_flash_attn.cute.interface"
print(shelf.find_spec(fa4) is not None)
shelf.stock({"flashinfer": False, "flashinfer_installed": True, "flash_attn_4": False})
print(shelf.find_spec(fa4) is not None)
print([importlib.util.find_spec(name) is not None for name in ("flashinfer", "flashinfer_cubin")])
"""


def test_packages_are_there_as_the_question_says() -> None:
    done = subprocess.run([sys.executable, "-c", SHELF], capture_output=True, text=True,
                          check=True, timeout=60)
    assert done.stdout.splitlines() == [
        "{'flashinfer': True, 'flashinfer_cubin': True, 'deep_gemm': False, 'conch': False, "
        "'quack': True, 'yaml': True}", "stand_in.flashinfer.gemm", "True", "False",
        "[True, False]"]


def test_groups_and_streams_take_every_call() -> None:
    group = Group(4)
    assert (group.world_size, group.ranks, group.barrier()) == (4, [0, 1, 2, 3], None)
    with Nothing() as stream:
        assert stream.wait_stream(stream) is None


# Shared objects.


def test_operators_are_read_from_a_shared_object(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "fa").mkdir(parents=True)
    path = tmp_path / "vllm" / "_C.abi3.so"
    path.write_bytes(b"\x7fELF\0marlin_gemm(Tensor a,\n  int b) -> Tensor\0x -> y\0"
                     b"rms_norm(Tensor! out) -> ()\0marlin_gemm(Tensor other) -> Tensor\0")
    (tmp_path / "vllm" / "fa" / "_fa2.abi3.so").write_bytes(b"")
    assert schemas(str(path)) == {"marlin_gemm": "marlin_gemm(Tensor a, int b) -> Tensor",
                                  "rms_norm": "rms_norm(Tensor! out) -> ()"}
    assert sorted(name for name, _ in shared_objects(str(tmp_path / "vllm"))) == [
        "vllm._C", "vllm.fa._fa2"]


@pytest.mark.parametrize("query, served", [
    ("cutlass_scaled_mm_supports_fp8", {89, 90, 100, 110, 120}),
    ("cutlass_scaled_mm_supports_block_fp8", {90, 100, 110, 120}),
    ("cutlass_group_gemm_supported", {90, 100, 110}),
    ("cutlass_scaled_mm_supports_fp4", {100, 110, 120}),
    ("mxfp4_experts_quant_supported", {100, 110}),
])
def test_capability_queries_answer_as_the_machine_code(query: str, served: set[int]) -> None:
    """The comparisons of the compiled functions, read from the machine code of both wheels."""
    asked = (70, 75, 80, 86, 89, 90, 100, 110, 120)
    assert {capability for capability in asked if CAPABILITY_QUERIES[query](capability)} == served


# The answer.


def notes(*rows: tuple[str, bool, str | None]) -> list[Note]:
    return [Note(1, "kernel", name, passed, why) for name, passed, why in rows]


def test_kernels_in_front_of_the_choice_were_turned_down() -> None:
    """B is disabled, and C passed its own checks but not one of the engine's."""
    seen = notes(("A", True, None), ("A", False, "too wide"), ("C", True, None), ("D", True, None))
    assert list(rejected(("A", "B", "C", "D", "E"), seen, "D")) == [
        ["A", "too wide"], ["B", None], ["C", None]]


def test_a_forced_kernel_that_failed_outside_the_list_was_turned_down() -> None:
    assert list(rejected((), notes(("F", False, "no fp4")), "M")) == [["F", "no fp4"]]


class MarlinLinearKernel:
    """Named as the engine's base class of its kernels is matched."""


class MPLinearKernel(MarlinLinearKernel):
    pass


def test_a_kernel_is_found_through_methods_and_schemes() -> None:
    kernel = MPLinearKernel()
    method = SimpleNamespace(scheme=SimpleNamespace(kernel=kernel), other=3)
    assert find_kernel(method) is kernel
    assert find_kernel(SimpleNamespace(x=1)) is None
    assert find_kernel(None) is None


def test_the_engine_is_given_a_folder_with_headers_and_no_weights(tmp_path: Path) -> None:
    folder = str(tmp_path / "model")
    write_folder(folder, {"config": {"model_type": "llama"}, "tensors": {"a.weight": "BF16"},
                          "side_files": {"hf_quant_config.json": {"x": 1}}})
    found = read_checkpoint(folder)
    assert found.config == {"model_type": "llama"}
    assert found.side_files["hf_quant_config.json"] == {"x": 1}
    assert found.tensors is not None
    assert {name: tensor.dtype for name, tensor in found.tensors.items()} == {"a.weight": "BF16"}
    assert json.loads((tmp_path / "model" / "config.json").read_text()) == {"model_type": "llama"}
