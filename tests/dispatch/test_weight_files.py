"""Which files of a folder hold the weights, and what is noted about them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from quantplan.dispatch.checkpoint import read_checkpoint
from reading import note_ids, write_config
from sparse_checkpoint import CONFIG, Stored, write_folder, write_sparse

A, B = Stored("a.weight", "BF16", (4, 4)), Stored("b.weight", "F16", (2,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of two shards with an index: a.weight in one, b.weight in the other."""
    return write_folder(tmp_path / "model", CONFIG, [[A], [B]])


def test_single_file(tmp_path: Path) -> None:
    write_sparse(write_config(tmp_path) / "model.safetensors", [A, B])
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.tensors is not None
    assert sorted(checkpoint.tensors) == ["a.weight", "b.weight"]
    assert checkpoint.notes == ()


def test_shards_without_an_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    checkpoint = read_checkpoint(folder)
    assert checkpoint.tensors is not None
    assert sorted(checkpoint.tensors) == ["a.weight", "b.weight"]
    assert checkpoint.notes == ()


def test_shards_counted_from_zero(tmp_path: Path) -> None:
    write_config(tmp_path)
    write_sparse(tmp_path / "model-00000-of-00002.safetensors", [A])
    write_sparse(tmp_path / "model-00001-of-00002.safetensors", [B])
    assert len(read_checkpoint(tmp_path).tensors or ()) == 2


def test_consolidated_beside_model_files_is_left_out(tmp_path: Path) -> None:
    write_sparse(write_config(tmp_path) / "model.safetensors", [A])
    write_sparse(tmp_path / "consolidated.safetensors", [B])
    checkpoint = read_checkpoint(tmp_path)
    assert list(checkpoint.tensors or ()) == ["a.weight"]
    assert checkpoint.file_bytes == (tmp_path / "model.safetensors").stat().st_size
    assert checkpoint.notes == (
        (
            "weight-files-left-out",
            "1 safetensors file not read: model files are beside them: consolidated.safetensors",
            None,
            "warning",
        ),
    )


def test_consolidated_alone_is_read(tmp_path: Path) -> None:
    write_config(tmp_path)
    write_sparse(tmp_path / "consolidated-00001-of-00002.safetensors", [A])
    write_sparse(tmp_path / "consolidated-00002-of-00002.safetensors", [B])
    checkpoint = read_checkpoint(tmp_path)
    assert sorted(checkpoint.tensors or ()) == ["a.weight", "b.weight"]
    assert checkpoint.notes == ()


def test_consolidated_with_an_index(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors")]:
        file.rename(folder / file.name.replace("model", "consolidated"))
    index = folder / "model.safetensors.index.json"
    text = index.read_text().replace("model-", "consolidated-")
    (folder / "consolidated.safetensors.index.json").write_text(text)
    index.unlink()
    assert sorted(read_checkpoint(folder).tensors or ()) == ["a.weight", "b.weight"]


def test_files_that_the_index_does_not_name(folder: Path) -> None:
    write_sparse(folder / "consolidated.safetensors", [A, B])
    checkpoint = read_checkpoint(folder)
    assert note_ids(checkpoint) == ["weight-files-left-out"]
    assert "not named by model.safetensors.index.json" in checkpoint.notes[0].message


def test_a_tensor_that_the_index_does_not_name(folder: Path) -> None:
    write_sparse(folder / "model-00002-of-00002.safetensors", [B, Stored("c", "BF16", (2,))])
    checkpoint = read_checkpoint(folder)
    assert sorted(checkpoint.tensors or ()) == ["a.weight", "b.weight", "c"]
    message = "1 tensor in the shards but not in model.safetensors.index.json: c"
    assert checkpoint.notes == (("stale-index", message, None, "warning"),)


def test_a_tensor_in_two_shards(folder: Path) -> None:
    write_sparse(folder / "model-00002-of-00002.safetensors", [A, B])
    message = "1 tensor stored in more than one file: a.weight"
    assert read_checkpoint(folder).notes == (("duplicate-tensor", message, None, "warning"),)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["pytorch_model.bin"], "1 weight file"),
        (["consolidated.00.pth"], "1 weight file"),
        (["model.pt"], "1 weight file"),
        (["model-Q4_K_M.gguf"], "1 weight file"),
        (["a.bin", "b.bin", "training_args.bin"], "2 weight files"),
    ],
)
def test_pickles_and_gguf_are_named_not_opened(
    tmp_path: Path, files: list[str], named: str
) -> None:
    write_config(tmp_path)
    for file in files:
        # Protocol 0 of a pickle that would run a command when loaded.
        (tmp_path / file).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.tensors is None
    assert checkpoint.file_bytes == 24 * (2 if "2" in named else 1)
    assert note_ids(checkpoint) == ["weights-not-read"]
    assert checkpoint.notes[0].message.startswith(f"{named} without a safetensors header")


def test_no_weights(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_config(tmp_path))
    assert (checkpoint.tensors, checkpoint.file_bytes) == (None, None)
    assert note_ids(checkpoint) == ["no-weights"]


def test_numbers_of_many_names_are_told_short(folder: Path) -> None:
    extra = [Stored(f"x{number}", "BF16", (2,)) for number in range(1500)]
    write_sparse(folder / "model-00002-of-00002.safetensors", [B, *extra])
    message = read_checkpoint(folder).notes[0].message
    assert message.startswith("1,500 tensors in the shards but not in ")
    assert message.endswith(": x0, x1, x10 and 1,497 more")
