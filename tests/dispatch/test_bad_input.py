"""Bad input: one line with file, wanted and found; the right class; never a traceback."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from quantplan.dispatch.checkpoint import read_checkpoint
from quantplan.dispatch.config_file import parse_json
from quantplan.dispatch.safetensors_header import read_header
from quantplan.tables.errors import CheckpointError, NotKnownError, QuantplanError, UsageError
from sparse_checkpoint import CONFIG, Stored, write_folder, write_sparse

A, B = Stored("a.weight", "BF16", (4, 4)), Stored("b.weight", "BF16", (4, 4))
INDEX = "model.safetensors.index.json"


def refusal(where: Any, error: type[QuantplanError] = CheckpointError) -> str:
    """Return the one line that reading raises, of exactly this class and without a cause."""
    with pytest.raises(QuantplanError) as raised:
        read_checkpoint(where)
    assert type(raised.value) is error
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    line = str(raised.value)
    assert line.isprintable()
    return line


def write_config(folder: Path, content: bytes | str | dict[str, Any] = CONFIG) -> Path:
    if isinstance(content, dict):
        content = json.dumps(content)
    data = content if isinstance(content, bytes) else content.encode()
    (folder / "config.json").write_bytes(data)
    return folder


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


# The path.


def test_missing_file(tmp_path: Path) -> None:
    line = refusal(tmp_path / "gone" / "config.json")
    assert line.startswith(f"{tmp_path}/gone/config.json does not exist; wanted a folder")


def test_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "x.json").symlink_to(tmp_path / "gone")
    assert refusal(tmp_path / "x.json").endswith("found a link to a missing file")


def test_empty_folder(tmp_path: Path) -> None:
    line = refusal(tmp_path)
    assert line.startswith(
        f"{tmp_path} has no config.json; wanted config.json; found nothing. Give"
    )


@pytest.mark.parametrize(
    ("name", "key_words"),
    [
        ("params.json", ("Mistral's own layout", "that has config.json")),
        ("adapter_config.json", ("LoRA adapter", "Give its base model")),
        ("model-Q4_K_M.gguf", ("model-Q4_K_M.gguf (GGUF is not read)",)),
        ("snapshots", ("hub's cache", "under snapshots/")),
        ("notes.txt", ("found 1 other name.",)),
    ],
)
def test_folder_without_config(tmp_path: Path, name: str, key_words: tuple[str, ...]) -> None:
    (tmp_path / name).touch()
    line = refusal(tmp_path)
    assert f"{tmp_path} has no config.json" in line
    assert all(words in line for words in key_words)


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json", "model.safetensors"])
def test_fifo_does_not_block(tmp_path: Path, name: str) -> None:
    write_config(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    line = refusal(tmp_path)
    assert line == (
        f"{tmp_path}/{name} cannot be read; wanted a regular file; found a named pipe (FIFO)"
    )


def test_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    assert refusal(tmp_path).endswith("wanted a regular file; found a folder")


def test_device() -> None:
    line = refusal("/dev/null")
    assert line == "/dev/null cannot be read; wanted a regular file; found a device"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_unreadable_file(tmp_path: Path) -> None:
    (write_config(tmp_path) / "config.json").chmod(0)
    assert refusal(tmp_path).endswith("found Permission denied")


def test_a_name_with_control_characters_stays_one_line(tmp_path: Path) -> None:
    line = refusal(f"{tmp_path}/\n\x1b[31m")
    assert line.startswith(f"'{tmp_path}/\\n\\x1b[31m' does not exist")


def test_nul_in_a_path() -> None:
    assert "does not exist" in refusal("/model\0/x")


@pytest.mark.parametrize("name", ["model.safetensors", INDEX, "params.json", "quant_config.json"])
def test_one_file_of_a_model(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    line = refusal(tmp_path / name, UsageError)
    assert "is one file of a model" in line
    assert line.endswith("Give the folder that holds it, with its config.json.")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.gguf"])
def test_pickle_or_gguf(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert f"{name} is never opened" in refusal(tmp_path / name)


def test_another_file(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("{}")
    assert "model.txt is not a model" in refusal(tmp_path / "model.txt", UsageError)


# JSON.


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"  \n", "an empty file"),
        (b"{'a': 1}", "Expecting property name enclosed in double quotes at line 1 column 2"),
        (b'{"a": 1,\n "b"}', "Expecting ':' delimiter at line 2 column 5"),
        (b'{"a": NaN}', "NaN, which is not JSON"),
        (b'{"a": 1e999}', "a number beyond a double: 1e999"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "an integer of 5,001 digits"),
        (b'{"hidden_size": 1, "hidden_size": 2}', 'the key "hidden_size" twice'),
        (b'{"a": {"b\\n": 1, "b\\n": 1}}', 'the key "b\\n" twice'),
        (b'{"a": "\xe9"}', "byte 0xe9 at 7"),
        ('{"a": 1}'.encode("utf-16"), "byte 0xff at 0"),
        (b'{"a": "\\ud800"}', "an unpaired surrogate escape"),
    ],
)
def test_not_json(tmp_path: Path, content: bytes, found: str) -> None:
    assert refusal(write_config(tmp_path, content)) == (
        f"{tmp_path}/config.json is not JSON that every reader agrees on; "
        f"wanted one JSON object in UTF-8; found {found}"
    )


@pytest.mark.parametrize(
    ("content", "found"),
    [("[]", "a list of 0 values"), ("7", "7"), ('"x"', '"x"'), ("null", "null"), ("true", "true")],
)
def test_not_an_object(tmp_path: Path, content: str, found: str) -> None:
    line = refusal(write_config(tmp_path, content))
    assert line == f"{tmp_path}/config.json is not an object; wanted {{...}}; found {found}"


@pytest.mark.parametrize("depth", [65, 900, 100_000])
def test_deep_nesting(tmp_path: Path, depth: int) -> None:
    line = refusal(write_config(tmp_path, '{"a": ' + "[" * depth + "]" * depth + "}"))
    assert line == f"{tmp_path}/config.json nests too deep; wanted at most 64 levels; found more"


def test_nesting_at_the_limit(tmp_path: Path) -> None:
    write_config(tmp_path, '{"a": ' + "[" * 63 + "]" * 63 + "}")
    assert "a" in read_checkpoint(tmp_path).config


def test_a_mapping_that_holds_itself() -> None:
    config: dict[str, Any] = {}
    config["a"] = config["b"] = config
    assert refusal(config) == "config.json nests too deep; wanted at most 64 levels; found more"


def test_too_large_a_config(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate((16 << 20) + 1)
    assert refusal(tmp_path).endswith(
        "config.json is too large; wanted at most 16,777,216 bytes; found 16,777,217 bytes"
    )


def test_side_file_that_is_not_json(tmp_path: Path) -> None:
    (write_config(tmp_path) / "hf_quant_config.json").write_text("{")
    assert f"{tmp_path}/hf_quant_config.json is not JSON" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"side_files": {"a.json": "{}"}}, 'side_files["a.json"] is not usable; wanted a mapping'),
        ({"side_files": []}, "side_files is not usable; wanted a mapping; found a list of 0"),
        ({"tensors": ["a"]}, "tensors is not usable; wanted a mapping; found a list of 1 values"),
    ],
)
def test_what_goes_with_a_mapping(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        read_checkpoint(CONFIG, **options)
    assert str(error.value).startswith(told)


# Fields.

SIZE = "wanted an integer from 1 to 1,048,576"


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("hidden_size", -4096, f"{SIZE}; found -4096"),
        ("hidden_size", 0, f"{SIZE}; found 0"),
        ("hidden_size", 4096.0, f"{SIZE}; found 4096.0"),
        ("hidden_size", "4096", f'{SIZE}; found "4096"'),
        ("hidden_size", True, f"{SIZE}; found true"),
        ("hidden_size", None, f"{SIZE}; found null"),
        ("hidden_size", {}, f"{SIZE}; found an object of 0 fields"),
        ("hidden_size", float("inf"), f"{SIZE}; found Infinity"),
        ("hidden_size", 10**300, f"{SIZE}; found {'1' + '0' * 56}..."),
        ("num_hidden_layers", 10_001, "wanted an integer from 1 to 10,000; found 10001"),
        ("intermediate_size", -1, "wanted an integer from 1 to 16,777,216 or null; found -1"),
        ("num_attention_heads", 0, "wanted an integer from 1 to 65,536; found 0"),
        ("num_key_value_heads", 0, "wanted an integer from 1 to 65,536 or null; found 0"),
        ("head_dim", 1 << 17, "wanted an integer from 1 to 65,536 or null; found 131072"),
        ("vocab_size", 1 << 29, "wanted an integer from 1 to 268,435,456; found 536870912"),
        (
            "max_position_embeddings",
            (1 << 31) + 1,
            "wanted an integer from 1 to 2,147,483,648; found 2147483649",
        ),
        ("num_experts", -1, "wanted an integer from 0 to 1,048,576 or null; found -1"),
        ("kv_lora_rank", "512", 'wanted an integer from 0 to 16,777,216 or null; found "512"'),
        ("architectures", "Llama", 'wanted a list of class names; found "Llama"'),
        ("architectures", [""], "wanted a list of class names; found a list of 1 values"),
        ("architectures", [7], "wanted a list of class names; found a list of 1 values"),
        ("torch_dtype", 16, "wanted a string; found 16"),
        ("tie_word_embeddings", "false", 'wanted true or false; found "false"'),
        ("quantization_config", "fp8", 'wanted an object; found "fp8"'),
        ("quantization_config", [], "wanted an object; found a list of 0 values"),
        ("compression_config", 1, "wanted an object; found 1"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "text_config."])
def test_field(tmp_path: Path, prefix: str, field: str, value: Any, told: str) -> None:
    config = {**CONFIG, field: value}
    write_config(tmp_path, {"text_config": config} if prefix else config)
    line = refusal(tmp_path)
    assert line == f"{tmp_path}/config.json: {prefix}{field} is not usable; {told}"


def test_fields_of_a_mapping() -> None:
    line = refusal({"hidden_size": -1})
    assert line == f"config.json: hidden_size is not usable; {SIZE}; found -1"


def test_text_config_that_is_no_object(tmp_path: Path) -> None:
    line = refusal(write_config(tmp_path, {"text_config": 7}))
    assert line.endswith("text_config is not usable; wanted an object; found 7")


@pytest.mark.parametrize("field", ["num_key_value_heads", "head_dim", "intermediate_size"])
def test_null_where_it_stands_for_derived(field: str) -> None:
    assert read_checkpoint({**CONFIG, field: None}).config[field] is None


def test_null_configs() -> None:
    config = {**CONFIG, "quantization_config": None, "text_config": None, "architectures": None}
    assert read_checkpoint(config).text_config == config


def test_one_value_per_layer_is_a_layout_without_a_rule() -> None:
    line = refusal({**CONFIG, "intermediate_size": [16384, 8192]}, NotKnownError)
    assert "intermediate_size is not usable" in line
    assert line.endswith("found a list of 2 values")


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
        lambda index: index.write_text(""),
    ],
)
def test_index_that_is_not_json(folder: Path, damage: Callable[[Path], int]) -> None:
    damage(folder / INDEX)
    assert refusal(folder).startswith(f"{folder}/{INDEX} is not JSON that every reader agrees on")


def test_too_large_an_index(folder: Path) -> None:
    with (folder / INDEX).open("wb") as file:
        file.truncate((256 << 20) + 1)
    assert "wanted at most 268,435,456 bytes" in refusal(folder)


# Any bytes at all.

VALID_CONFIG = json.dumps(CONFIG).encode()
VALID_HEADER = json.dumps(TWO).encode()


def damaged(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return any bytes, and valid bytes with one slice replaced."""
    places = st.tuples(st.integers(0, len(valid)), st.integers(0, 8), st.binary(max_size=8))
    return st.binary() | places.map(lambda cut: valid[: cut[0]] + cut[2] + valid[cut[0] + cut[1] :])


@given(data=damaged(VALID_CONFIG))
def test_any_config_is_read_or_refused(data: bytes) -> None:
    try:
        assert isinstance(parse_json(data, "config.json"), dict)
    except CheckpointError as error:
        assert str(error).isprintable()


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
