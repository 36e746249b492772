"""Bad input: one line with file, wanted and found; the right class; never a traceback."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from quantplan.dispatch.checkpoint import read_checkpoint
from quantplan.dispatch.config_file import parse_json
from quantplan.tables.errors import CheckpointError, NotKnownError, UsageError
from reading import refusal, write_config
from sparse_checkpoint import CONFIG

INDEX = "model.safetensors.index.json"


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


@pytest.mark.parametrize("content, said", [
    (b"", " is empty; wanted one JSON object"),
    (b"  \n", " is empty; wanted one JSON object"),
    (b"{'a': 1}", " is not JSON; found Expecting property name enclosed in double quotes at line 1 "
     "column 2"),
    (b'{"a": 1,\n "b"}', " is not JSON; found Expecting ':' delimiter at line 2 column 5"),
])
def test_not_json(tmp_path: Path, content: bytes, said: str) -> None:
    assert refusal(write_config(tmp_path, content)) == f"{tmp_path}/config.json{said}"


@pytest.mark.parametrize(
    ("content", "found"),
    [
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
def test_json_of_which_readers_differ(tmp_path: Path, content: bytes, found: str) -> None:
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
        ("auto_map", 1, "wanted an object; found 1"),
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


# Any bytes at all.

VALID_CONFIG = json.dumps(CONFIG).encode()


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
