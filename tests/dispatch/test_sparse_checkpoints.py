"""Full-size checkpoints, read through their headers: every count and byte against known truth."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from math import prod
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from quantplan.dispatch.checkpoint import read_checkpoint
from quantplan.dispatch.facts import Tensor
from sparse_checkpoint import ITEM_BYTES, KINDS, build, build_trillion

# 32 layers x (q 4096 + k 1024 + v 1024 + o 4096 + gate 14336 + up 14336 outputs x 4096 inputs
# + down 4096 x 14336).
LINEAR_PARAMS = 6_979_321_856
# Embedding and lm_head (128256 x 4096 each) and 65 norms of 4096.
OTHER_PARAMS = 1_050_939_392
OTHER_BYTES = 2 * OTHER_PARAMS
LAYERS = 32


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sparse")
    return {kind: build(root / kind, kind) for kind in KINDS}


def tensor_bytes(tensor: Tensor) -> int:
    assert tensor.shape is not None
    return ITEM_BYTES[tensor.dtype] * prod(tensor.shape)


def header_length_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")


def test_bf16_has_the_published_sizes(folders: dict[str, Path]) -> None:
    """File sizes as the hub lists them for meta-llama/Llama-3.1-8B; 8,030,261,248 parameters."""
    sizes = [file.stat().st_size for file in sorted(folders["bf16"].glob("*.safetensors"))]
    assert sizes == [4_976_698_672, 4_999_802_720, 4_915_916_176, 1_168_138_808]
    checkpoint = read_checkpoint(folders["bf16"])
    assert checkpoint.tensors is not None
    assert sum(map(tensor_bytes, checkpoint.tensors.values())) == 16_060_522_496
    assert checkpoint.file_bytes == sum(sizes)
    assert len(checkpoint.tensors) == 291
    assert checkpoint.notes == ()


@pytest.mark.parametrize("kind", KINDS)
def test_no_disk_is_used(folders: dict[str, Path], kind: str) -> None:
    blocks = sum(file.stat().st_blocks for file in folders[kind].iterdir())
    assert blocks * 512 < 1_000_000


@pytest.mark.parametrize(
    ("kind", "linear_bytes", "count"),
    [
        ("bf16", 2 * LINEAR_PARAMS, 291),
        # Two F32 scalars for each of 224 linear layers.
        ("fp8", LINEAR_PARAMS + 2 * 4 * 224, 739),
        # One F32 scale for each 128 x 128 block.
        ("fp8-block", LINEAR_PARAMS + 4 * LINEAR_PARAMS // 128**2, 515),
        # One BF16 scale for each of 43,008 output features of a layer.
        ("fp8-dynamic", LINEAR_PARAMS + 2 * 43_008 * LAYERS, 515),
        # Four bits a weight, then F16 scales and four-bit zeros for each group of 128.
        ("awq", LINEAR_PARAMS // 2 + LINEAR_PARAMS // 128 * 2 + LINEAR_PARAMS // 256, 739),
        # The same, and an I32 group index for each of 38,912 input features of a layer.
        (
            "gptq",
            LINEAR_PARAMS // 2 + LINEAR_PARAMS // 128 * 2 + LINEAR_PARAMS // 256 + 4 * 38_912 * 32,
            963,
        ),
        # Symmetric: no zeros; two I64 for each of 224 shapes.
        ("w4a16", LINEAR_PARAMS // 2 + LINEAR_PARAMS // 128 * 2 + 16 * 224, 739),
    ],
)
def test_bytes(folders: dict[str, Path], kind: str, linear_bytes: int, count: int) -> None:
    checkpoint = read_checkpoint(folders[kind])
    assert checkpoint.tensors is not None
    assert len(checkpoint.tensors) == count
    assert sum(map(tensor_bytes, checkpoint.tensors.values())) == linear_bytes + OTHER_BYTES
    assert checkpoint.notes == ()
    assert (checkpoint.name, checkpoint.origin) == (kind, "folder")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("fp8", {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale": ("F32", ())}),
        ("fp8-block", {"weight_scale_inv": ("F32", (32, 112))}),
        ("fp8-dynamic", {"weight_scale": ("BF16", (4096, 1))}),
        ("awq", {"qweight": ("I32", (14336, 512)), "qzeros": ("I32", (112, 512))}),
        ("gptq", {"qweight": ("I32", (1792, 4096)), "g_idx": ("I32", (14336,))}),
        ("w4a16", {"weight_packed": ("I32", (4096, 1792)), "weight_scale": ("BF16", (4096, 112))}),
    ],
)
def test_down_proj(
    folders: dict[str, Path], kind: str, expected: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    """N = 4096, K = 14336, group 128: the shapes that AutoAWQ, GPTQModel and others write."""
    tensors = read_checkpoint(folders[kind]).tensors
    assert tensors is not None
    for part, tensor in expected.items():
        assert tensors[f"model.layers.31.mlp.down_proj.{part}"] == tensor


@pytest.mark.parametrize("kind", KINDS)
def test_embedding_head_and_norms_stay_bf16(folders: dict[str, Path], kind: str) -> None:
    tensors = read_checkpoint(folders[kind]).tensors
    assert tensors is not None
    assert tensors["model.embed_tokens.weight"] == ("BF16", (128256, 4096))
    assert tensors["lm_head.weight"] == ("BF16", (128256, 4096))
    shapes = Counter(tensor for name, tensor in tensors.items() if "norm" in name)
    assert shapes == {("BF16", (4096,)): 65}


# Not ru_maxrss: a child inherits the peak of the process that started it.
TRILLION = """
import re, sys
from pathlib import Path
from quantplan.dispatch.checkpoint import read_checkpoint
checkpoint = read_checkpoint(sys.argv[1])
objects = len(set(map(id, checkpoint.tensors.values())))
print(len(checkpoint.tensors), objects, checkpoint.file_bytes, "numpy" in sys.modules,
      re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status is Linux only")
def test_a_trillion_parameters_fit_in_200_mb(tmp_path: Path) -> None:
    folder = build_trillion(tmp_path / "trillion")
    header_bytes = sum(map(header_length_bytes, folder.glob("*.safetensors")))
    assert header_bytes > 20_000_000
    answer = subprocess.run(
        [sys.executable, "-c", TRILLION, str(folder)], capture_output=True, text=True, check=True
    )
    count, objects, file_bytes, numpy, peak_kib = answer.stdout.split()
    assert int(objects) == 16  # one for each dtype and shape
    linears = 60 * 385 * 3 + 3 + 61 * 5
    assert int(count) == linears * 3 + 61 * 4 + 60 * 2 + 3
    attention = 1536 * 7168 + 12288 * 1536 + 576 * 7168 + 16384 * 512 + 7168 * 8192
    fp8 = 60 * 385 * 3 * 2048 * 7168 + 3 * 18432 * 7168 + 61 * attention
    bf16 = 2 * 163840 * 7168 + 7168 + 61 * (2 * 7168 + 1536 + 512) + 60 * 384 * 7168
    weight_bytes = fp8 + linears * 8 + 2 * bf16 + 60 * 384 * 4
    assert int(file_bytes) == weight_bytes + header_bytes + 8 * 160
    assert numpy == "False"
    assert int(peak_kib) * 1024 < 200_000_000
