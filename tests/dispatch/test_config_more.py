"""Duplicate keys of large objects, and the ends of what a config's numbers may be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA
from quantplan.dispatch.config_file import BOUNDS, FLAGS, check_config, parse_json, read_json
from quantplan.tables.errors import CheckpointError

ODD = [True, 1.0, "128", [], [128.0], {}]


def large(keys: int, *more: str) -> bytes:
    """Return an object of KEYS fields and MORE, as JSON."""
    pairs = [f'"key{index}": {index}' for index in range(keys)]
    return ("{" + ", ".join([*pairs, *more]) + "}").encode()


# Duplicate keys: RFC 8259 leaves their meaning open.


@pytest.mark.parametrize("again", ["key0", "key199999", "key100000"])
def test_one_duplicate_among_200_000_keys(tmp_path: Path, again: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(large(200_000, f'"{again}": 0'))
    with pytest.raises(CheckpointError) as raised:
        read_json(str(path))
    assert str(raised.value) == (
        f"{path} is not JSON that every reader agrees on; wanted one JSON object in UTF-8; found "
        f'the key "{again}" twice')


def test_a_large_object_without_duplicates_is_read() -> None:
    found = parse_json(large(200_000), "config.json")
    assert len(found) == 200_000
    assert found["key199999"] == 199_999


def test_every_key_twice_names_the_first() -> None:
    pairs = [f'"key{index}": 0' for index in range(1000)]
    with pytest.raises(CheckpointError, match=r'found the key "key0" twice$'):
        parse_json(large(1000, *pairs), "config.json")


def test_a_duplicate_with_the_same_value_or_by_an_escape_is_one() -> None:
    for text in ('{"a": 1, "a": 1}', '{"a": 1, "\\u0061": 2}'):
        with pytest.raises(CheckpointError, match=r'found the key "a" twice$'):
            parse_json(text.encode(), "config.json")


def test_keys_that_differ_in_case_or_place_are_two() -> None:
    assert parse_json(b'{"a": {"a": 1}, "A": {"a": 2}}', "x") == {"a": {"a": 1}, "A": {"a": 2}}


# Numbers.


@pytest.mark.parametrize("field", list(BOUNDS))
def test_a_number_at_its_ends_and_beyond(field: str) -> None:
    bound = BOUNDS[field]
    for inside in (bound.low, bound.high):
        check_config({field: inside})
    null = " or null" if bound.null else ""
    for beyond in (bound.low - 1, bound.high + 1):
        with pytest.raises(CheckpointError) as raised:
            check_config({field: beyond})
        assert str(raised.value) == (
            f"config.json: {field} is not usable; wanted an integer from {bound.low:,} to "
            f"{bound.high:,}{null}; found {beyond}")


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", ["head_dim", "hidden_size", "num_key_value_heads",
                                   "sliding_window", "max_window_layers"])
@pytest.mark.parametrize("inside", ["", "text_config."])
def test_a_size_is_a_whole_number(field: str, value: Any, inside: str) -> None:
    config = {"text_config": {field: value}} if inside else {field: value}
    with pytest.raises(CheckpointError, match=f"^config\\.json: {inside}{field} is not usable"):
        check_config(config)


def test_the_head_size_that_a_config_may_have() -> None:
    """0 would be read as "derived" by getattr(...) or ...; it is refused, null is not."""
    assert (BOUNDS["head_dim"].low, BOUNDS["head_dim"].null) == (1, True)
    check_config({**LLAMA, "head_dim": None})
    with pytest.raises(CheckpointError, match=r"head_dim is not usable; .*; found 0$"):
        check_config({**LLAMA, "head_dim": 0})


@pytest.mark.parametrize("field", FLAGS)
def test_flags_may_be_absent_or_null(field: str) -> None:
    for value in (True, False, None):
        check_config({field: value})
    with pytest.raises(CheckpointError, match=r'wanted true or false; found "true"$'):
        check_config({field: "true"})


def test_digits_that_python_would_not_read() -> None:
    text = json.dumps({"hidden_size": 1}).replace("1", "9" * 401)
    with pytest.raises(CheckpointError, match=r"found an integer of 401 digits$"):
        parse_json(text.encode(), "config.json")
    assert parse_json(text.replace("9" * 401, "9" * 400).encode(), "x")["hidden_size"] > 0
