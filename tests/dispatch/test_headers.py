"""Safetensors headers: what is read, and that numpy neither comes in nor is harmed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from quantplan.dispatch import safetensors_header
from quantplan.dispatch.facts import Tensor
from quantplan.dispatch.safetensors_header import DTYPES, read_header
from sparse_checkpoint import Stored, write_sparse


def write_header(path: Path, header: object, data_bytes: int, *, length: int | None = None) -> Path:
    """Write any header over `data_bytes` of weights; `length` may lie about the header's size."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write((len(text) if length is None else length).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + data_bytes)
    return path


def test_names_dtypes_and_shapes(tmp_path: Path) -> None:
    stored = [
        Stored("a.weight", "F8_E4M3", (14336, 4096)),
        Stored("a.weight_scale", "F32", ()),
        Stored("a.g_idx", "I32", (4096,)),
    ]
    write_sparse(tmp_path / "x.safetensors", stored)
    assert read_header(str(tmp_path / "x.safetensors")) == {
        "a.weight": Tensor("F8_E4M3", (14336, 4096)),
        "a.weight_scale": Tensor("F32", ()),
        "a.g_idx": Tensor("I32", (4096,)),
    }


def test_no_tensor_at_all(tmp_path: Path) -> None:
    assert read_header(str(write_header(tmp_path / "x.safetensors", {}, 0))) == {}


def test_equal_tensors_are_one_object(tmp_path: Path) -> None:
    write_sparse(tmp_path / "x.safetensors", [Stored(name, "BF16", (8, 8)) for name in "ab"])
    tensors = read_header(str(tmp_path / "x.safetensors"))
    assert tensors["a"] is tensors["b"]


def test_a_header_in_the_hub_cache_is_a_link(tmp_path: Path) -> None:
    write_sparse(tmp_path / "blob", [Stored("a", "BF16", (2,))])
    (tmp_path / "x.safetensors").symlink_to(tmp_path / "blob")
    assert list(read_header(str(tmp_path / "x.safetensors"))) == ["a"]


def test_dtypes_are_those_of_the_library(tmp_path: Path) -> None:
    """The library lists its dtypes when it meets another one."""
    from safetensors import SafetensorError, safe_open

    entry = {"dtype": "X", "shape": [], "data_offsets": [0, 1]}
    path = write_header(tmp_path / "x.safetensors", {"a": entry}, 1)
    with (
        pytest.raises(SafetensorError) as error,
        safetensors_header._numpy_stand_in(),
    ):
        safe_open(str(path), framework="np")
    listed = str(error.value).partition("expected one of ")[2].split("`")[1::2]
    # 0.6.2 lists all but the last three.
    assert set(listed) <= DTYPES <= {*listed, "C64", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}


NO_NUMPY = """
import sys
from quantplan.dispatch.safetensors_header import read_header
print(len(read_header(sys.argv[1])), "numpy" in sys.modules, "torch" in sys.modules)
"""


def test_numpy_stays_out_of_a_fresh_process(tmp_path: Path) -> None:
    write_sparse(tmp_path / "x.safetensors", [Stored("a", "BF16", (2,))])
    command = [sys.executable, "-c", NO_NUMPY, str(tmp_path / "x.safetensors")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == "1 False False\n"


def test_the_stand_in_leaves_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    with pytest.raises(ZeroDivisionError), safetensors_header._numpy_stand_in():
        assert isinstance(sys.modules["numpy"], ModuleType)
        raise ZeroDivisionError
    assert "numpy" not in sys.modules


def test_a_numpy_that_is_there_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ModuleType("numpy")
    monkeypatch.setitem(sys.modules, "numpy", real)
    with safetensors_header._numpy_stand_in():
        assert sys.modules["numpy"] is real
    write_sparse(tmp_path / "x.safetensors", [Stored("a", "BF16", (2,))])
    read_header(str(tmp_path / "x.safetensors"))
    assert sys.modules["numpy"] is real


LATE_NUMPY = """
import sys
from pathlib import Path
folder = Path(sys.argv[1])
from quantplan.dispatch.safetensors_header import read_header
read_header(str(folder / "x.safetensors"))
(folder / "numpy.py").write_text("float32 = 'f4'\\ndef frombuffer(**rest): return Array()\\n"
    "class Array:\\n    def view(self, **rest): return self\\n"
    "    def reshape(self, shape): return 'loaded by the real numpy'\\n")
sys.path.insert(0, sys.argv[1])
from safetensors import safe_open
with safe_open(str(folder / "x.safetensors"), framework="np") as file:
    print(file.get_tensor("a"))
"""


def test_a_caller_who_loads_tensors_later_gets_the_real_numpy(tmp_path: Path) -> None:
    """The library keeps the first module it saw; a module written afterwards plays numpy here."""
    write_sparse(tmp_path / "x.safetensors", [Stored("a", "F32", (2,))])
    command = [sys.executable, "-c", LATE_NUMPY, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.stdout == "loaded by the real numpy\n", answer.stderr
