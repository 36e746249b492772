"""Bad safetensors headers, shards and indexes: one line, the right class, never a traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from quantplan.dispatch.safetensors_header import read_header
from quantplan.tables.errors import CheckpointError
from reading import refusal, write_config
from sparse_checkpoint import CONFIG, Stored, write_folder, write_sparse

A, B = Stored("a.weight", "BF16", (4, 4)), Stored("b.weight", "BF16", (4, 4))
INDEX = "model.safetensors.index.json"


def write_weights(folder: Path, header: object, data_bytes: int, length: int | None = None) -> Path:
    """Write a config and a model.safetensors with any header, whose length may lie."""
    write_config(folder)
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write((len(text) if length is None else length).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + data_bytes)
    return folder


def tensor(start: int, end: int, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of two shards with an index."""
    return write_folder(tmp_path / "model", CONFIG, [[A], [B]])


# Headers.

TWO = {"a": tensor(0, 8), "b": tensor(8, 16)}


@pytest.mark.parametrize(
    ("header", "data_bytes", "length", "key_words"),
    [
        (TWO, 16, 10**9, ("100,000,000", "a header length of 1,000,000,000")),
        (TWO, 16, 1000, ("is truncated", "wanted the 1,008 bytes that its header declares")),
        ({"a": tensor(0, 8), "b": tensor(4, 12)}, 12, None, ("invalid offset for tensor `b`",)),
        ({"a": tensor(0, 8), "b": tensor(12, 20)}, 20, None, ("invalid offset for tensor `b`",)),
        ({"a": tensor(8, 0)}, 8, None, ("invalid offset for tensor `a`",)),
        ({"a": tensor(0, 8, (3,))}, 8, None, ("invalid shape, data type, or offset",)),
        ({"a": tensor(0, 8, (-2,))}, 8, None, ("integer `-2`",)),
        ({"a": tensor(0, 8, (2**63, 2**63))}, 8, None, ("overflow",)),
        ({"a": tensor(0, 8, dtype="F7")}, 8, None, ("unknown variant `F7`",)),
        ({"a": {"dtype": "F32"}}, 0, None, ("missing field",)),
        (b"{bad", 0, None, ("invalid JSON in header",)),
        (b"\xff\xfe{}", 0, None, ("invalid UTF-8 in header",)),
        (b"[1] ", 0, None, ("invalid JSON in header",)),
        (b'{"a":' * 5000, 0, None, ("recursion limit exceeded",)),
    ],
)
def test_bad_header(
    tmp_path: Path, header: Any, data_bytes: int, length: int | None, key_words: tuple[str, ...]
) -> None:
    line = refusal(write_weights(tmp_path, header, data_bytes, length))
    assert line.startswith(f"{tmp_path}/model.safetensors ")
    assert all(words in line for words in key_words)


def test_truncated_weights_tell_both_sizes(tmp_path: Path) -> None:
    write_weights(tmp_path, TWO, 15)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert refusal(tmp_path) == (
        f"{tmp_path}/model.safetensors is truncated; wanted the {size + 1} bytes that its header "
        f"declares; found {size} bytes. Fetch the file again."
    )


def test_weights_longer_than_the_header_says(tmp_path: Path) -> None:
    line = refusal(write_weights(tmp_path, TWO, 17))
    assert "model.safetensors is longer than its header says" in line


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_file_too_short_for_a_header(tmp_path: Path, content: bytes) -> None:
    (write_config(tmp_path) / "model.safetensors").write_bytes(content)
    line = refusal(tmp_path)
    assert line.endswith(f"wanted at least 8 bytes; found {len(content)} bytes")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX])
def test_git_lfs_pointer(folder: Path, name: str) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 4976698672\n"
    if name == "model.safetensors":
        (folder / INDEX).unlink()
    (folder / name).write_text(pointer)
    assert refusal(folder) == (
        f"{folder}/{name} is a Git LFS pointer, not the file itself. "
        "Run `git lfs pull` in the folder."
    )


# Shards and their index.


def test_missing_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert refusal(folder) == (
        f"{folder} lacks 1 shard: model-00002-of-00002.safetensors; wanted 2 shards; found 1. "
        "Fetch the missing files again."
    )


def test_missing_shard_without_an_index(folder: Path) -> None:
    (folder / INDEX).unlink()
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert refusal(folder) == (
        f"{folder} lacks 1 shard: model-00001-of-00002.safetensors; wanted 2 shards; found 1. "
        "Fetch the missing files again."
    )


def test_absurd_shard_count(tmp_path: Path) -> None:
    write_sparse(write_config(tmp_path) / "model-00001-of-99999999999999.safetensors", [A])
    line = refusal(tmp_path)
    assert line.startswith(f"{tmp_path} lacks 99,999,999,999,998 shards: model-00000000000002-of-")


def test_all_shards_missing(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert refusal(folder).startswith(
        f"{folder} lacks 2 shards: model-00001-of-00002.safetensors, model-00002-of-00002"
    )


def test_index_naming_a_tensor_that_no_shard_holds(folder: Path) -> None:
    write_sparse(folder / "model-00002-of-00002.safetensors", [Stored("c", "BF16", (2,))])
    line = refusal(folder)
    assert line.startswith(f"{folder}/{INDEX} names 1 tensor that no shard holds; ")
    assert line.endswith("found b.weight. Fetch the index and the shards of one revision.")


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("../model.safetensors", '"../model.safetensors"'),
        ("/etc/passwd", '"/etc/passwd"'),
        ("a\\b.safetensors", '"a\\\\b.safetensors"'),
        ("sub/model.safetensors", '"sub/model.safetensors"'),
        ("pytorch_model.bin", '"pytorch_model.bin"'),
        ("..", '".."'),
        (7, "7"),
        (None, "null"),
        (["x"], "a list of 1 values"),
    ],
)
def test_index_naming_something_else(folder: Path, file: Any, found: str) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a.weight": file}}))
    assert refusal(folder) == (
        f"{folder}/{INDEX} names a file that is not a safetensors file of its folder; "
        f"wanted plain names ending in .safetensors; found {found}"
    )


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": ["a"]}'])
def test_index_without_a_map(folder: Path, content: str) -> None:
    (folder / INDEX).write_text(content)
    assert refusal(folder).startswith(f"{folder}/{INDEX} has no weight_map; wanted ")


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: index.write_text('{"weight_map": {"a": "x.safetensors", "a": "y"}}'),
        lambda index: index.write_bytes(b"\xff"),
    ],
)
def test_index_that_is_not_json(folder: Path, damage: Callable[[Path], int]) -> None:
    damage(folder / INDEX)
    assert refusal(folder).startswith(f"{folder}/{INDEX} is not JSON that every reader agrees on")


def test_an_empty_index(folder: Path) -> None:
    (folder / INDEX).write_text("")
    assert refusal(folder).startswith(f"{folder}/{INDEX} is empty; wanted one JSON object")


def test_too_large_an_index(folder: Path) -> None:
    with (folder / INDEX).open("wb") as file:
        file.truncate((256 << 20) + 1)
    assert "wanted at most 268,435,456 bytes" in refusal(folder)


# Any bytes at all.

VALID_HEADER = json.dumps(TWO).encode()


def damaged(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return any bytes, and valid bytes with one slice replaced."""
    places = st.tuples(st.integers(0, len(valid)), st.integers(0, 8), st.binary(max_size=8))
    return st.binary() | places.map(lambda cut: valid[: cut[0]] + cut[2] + valid[cut[0] + cut[1] :])


@given(text=damaged(VALID_HEADER))
def test_any_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(len(VALID_HEADER).to_bytes(8, "little") + text + bytes(16))
    try:
        assert isinstance(read_header(str(path)), dict)
    except CheckpointError as error:
        assert str(error).isprintable()
