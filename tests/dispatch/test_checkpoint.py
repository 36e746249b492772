"""What `where` may be, which files count, and what is noted: the reader's contract."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from quantplan.dispatch.checkpoint import read_checkpoint
from quantplan.dispatch.facts import Checkpoint, Tensor
from quantplan.tables.errors import CheckpointError, UsageError
from reading import note_ids, write_config
from sparse_checkpoint import CONFIG, Stored, write_folder

A, B = Stored("a.weight", "BF16", (4, 4)), Stored("b.weight", "F16", (2,))
BUNDLED = Checkpoint(name="llama-3.1-8b", origin="bundled", config=CONFIG)


@pytest.fixture(autouse=True)
def bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the bundled models: one name."""
    module = ModuleType("quantplan.dispatch.bundled")
    module.bundled_checkpoint = {"llama-3.1-8b": BUNDLED}.get  # type: ignore[attr-defined]
    module.closest_models = lambda name: ["llama-3.1-8b"] * (name == "lama")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quantplan.dispatch.bundled", module)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Stand in for the hub: note what it is asked."""
    asked: list[tuple[str, str | None]] = []

    def read_hub(repo_id: str, revision: str | None) -> Checkpoint:
        asked.append((repo_id, revision))
        return Checkpoint(name=repo_id, origin="hub", config={})

    module = ModuleType("quantplan.dispatch.hub")
    module.read_hub = read_hub  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quantplan.dispatch.hub", module)
    return asked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of two shards with an index: a.weight in one, b.weight in the other."""
    return write_folder(tmp_path / "model", CONFIG, [[A], [B]])


def test_mapping() -> None:
    quantization = {"quant_algo": "FP8"}
    checkpoint = read_checkpoint(
        CONFIG,
        tensors={"a": "BF16", "b": ("F8_E4M3", [4, 8]), "c": ("F32", ()), "d": ("U8", None)},
        side_files={"hf_quant_config.json": {"quantization": quantization}},
    )
    assert checkpoint.config is CONFIG
    assert checkpoint.name == "llama"
    assert checkpoint.origin == "mapping"
    assert checkpoint.side_files == {"hf_quant_config.json": {"quantization": quantization}}
    assert checkpoint.tensors == {
        "a": Tensor("BF16", None),
        "b": Tensor("F8_E4M3", (4, 8)),
        "c": Tensor("F32", ()),
        "d": Tensor("U8", None),
    }


def test_mapping_alone() -> None:
    checkpoint = read_checkpoint({})
    assert (checkpoint.name, checkpoint.tensors, checkpoint.notes) == ("config", None, ())


def test_folder(folder: Path) -> None:
    (folder / "hf_quant_config.json").write_text('{"producer": {"name": "modelopt"}}')
    (folder / "generation_config.json").write_text("not read")
    checkpoint = read_checkpoint(folder)
    assert checkpoint == read_checkpoint(str(folder))
    assert checkpoint.config == CONFIG
    assert checkpoint.side_files == {"hf_quant_config.json": {"producer": {"name": "modelopt"}}}
    assert checkpoint.tensors == {
        "a.weight": Tensor("BF16", (4, 4)),
        "b.weight": Tensor("F16", (2,)),
    }
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    assert checkpoint.file_bytes == sum(sizes)
    assert (checkpoint.name, checkpoint.origin, checkpoint.revision) == ("model", "folder", None)
    assert (checkpoint.fetched_bytes, checkpoint.notes) == (0, ())


@pytest.mark.parametrize(
    "name",
    [
        "hf_quant_config.json",
        "quantize_config.json",
        "quant_config.json",
        "quant_model_description.json",
    ],
)
def test_side_files_are_kept_verbatim(tmp_path: Path, name: str) -> None:
    (write_config(tmp_path) / name).write_text('{"bits": 4, "nested": {"x": [1, null]}}')
    side_files = read_checkpoint(tmp_path).side_files
    assert side_files == {name: {"bits": 4, "nested": {"x": [1, None]}}}


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(CONFIG).encode())
    assert read_checkpoint(tmp_path).config == CONFIG


def test_infinity_as_published_configs_hold_it(tmp_path: Path) -> None:
    """From config.json of nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4."""
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')
    assert read_checkpoint(tmp_path).config == {"time_step_limit": [0.0, float("inf")]}


def test_config_path_reads_no_weights(folder: Path) -> None:
    (folder / "quant_config.json").write_text("{}")
    checkpoint = read_checkpoint(folder / "config.json")
    assert checkpoint.tensors is None
    assert checkpoint.side_files == {"quant_config.json": {}}
    assert (checkpoint.name, checkpoint.origin) == ("model", "config.json")
    assert note_ids(checkpoint) == ["config-alone"]


def test_config_in_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert read_checkpoint("config.json").name == "model"
    assert read_checkpoint(".").name == "model"


def test_config_under_another_name(folder: Path) -> None:
    (folder / "config.json").rename(folder / "llama.json")
    (folder / "quant_config.json").write_text("{}")
    checkpoint = read_checkpoint(folder / "llama.json")
    assert (checkpoint.name, checkpoint.config, checkpoint.side_files) == ("llama", CONFIG, {})
    assert note_ids(checkpoint) == ["config-alone"]


def test_home_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert read_checkpoint("~/model").name == "model"


def test_a_snapshot_of_the_hub_cache_is_named_as_on_the_hub(folder: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshots = folder.parent / "models--meta-llama--Llama-3.1-8B" / "snapshots"
    snapshots.mkdir(parents=True)
    folder.rename(snapshots / commit)
    checkpoint = read_checkpoint(snapshots / commit)
    assert (checkpoint.name, checkpoint.revision) == ("meta-llama/Llama-3.1-8B", commit)


def test_bundled_name(hub: list[tuple[str, str | None]]) -> None:
    assert read_checkpoint("llama-3.1-8b") is BUNDLED
    assert hub == []


def test_a_path_wins_over_a_bundled_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    folder.rename("llama-3.1-8b")
    assert read_checkpoint("llama-3.1-8b").origin == "folder"


def test_hub_id(hub: list[tuple[str, str | None]]) -> None:
    assert read_checkpoint("Qwen/Qwen3-0.6B").origin == "hub"
    read_checkpoint("Qwen/Qwen3-0.6B", revision="v1")
    read_checkpoint("llama-3.1/8b", revision="v1")
    assert hub == [
        ("Qwen/Qwen3-0.6B", None),
        ("Qwen/Qwen3-0.6B", "v1"),
        ("llama-3.1/8b", "v1"),
    ]


@pytest.mark.parametrize(
    "where",
    ["./org/name", "/org/name", "~/org-name", "a/b/c", "org/name/", "../x", "org/config.json"],
)
def test_what_looks_like_a_path_is_no_hub_id(
    where: str, hub: list[tuple[str, str | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(where)
    assert str(error.value).startswith(f"{where} does not exist; wanted a folder, a config.json")
    assert hub == []


@pytest.mark.parametrize("where", ["lama", "org name/x", "org/", "-x/y", "org/näme"])
def test_neither_a_path_nor_a_name(where: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, CheckpointError)) as error:
        read_checkpoint(where)
    assert "wanted" in str(error.value)


def test_a_name_that_resembles_none() -> None:
    with pytest.raises(UsageError) as error:
        read_checkpoint("gemma")
    assert str(error.value).endswith(". `quantplan models` lists the bundled names.")


def test_an_unknown_name_says_what_it_could_be() -> None:
    with pytest.raises(UsageError) as error:
        read_checkpoint("lama")
    assert str(error.value) == (
        '"lama" is not a model; wanted a folder, a config.json, a bundled name or a hub id '
        "(org/name); found no such path and no such bundled name. Did you mean llama-3.1-8b?"
    )


@pytest.mark.parametrize("where", [None, 7, "", "  ", b"model", ["a"]])
def test_no_name_at_all(where: Any) -> None:
    with pytest.raises(UsageError, match="the model is not usable; wanted a folder"):
        read_checkpoint(where)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensors": {}}, "tensors goes with a parsed config only"),
        ({"side_files": {}}, "side_files goes with a parsed config only"),
        ({"revision": "main"}, "revision goes with a hub id only"),
    ],
)
def test_options_of_another_form(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_checkpoint(folder, **options)


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        ("bfloat16", '"bfloat16"'),
        (("bf16", (4,)), '"bf16"'),
        (("BF16", (-4,)), "a list of 2 values"),
        (("BF16", (True,)), "a list of 2 values"),
        (("BF16",), "a list of 1 values"),
        ((["BF16"], (4,)), "a list of 1 values"),
        (None, "null"),
    ],
)
def test_tensors_that_are_none(tensor: Any, found: str) -> None:
    with pytest.raises(UsageError) as error:
        read_checkpoint(CONFIG, tensors={"a": tensor})
    assert str(error.value).startswith('tensors["a"] is not usable; wanted ')
    assert str(error.value).endswith(f"; found {found}")


def test_text_config(tmp_path: Path) -> None:
    wrapper = {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": CONFIG}
    assert read_checkpoint(write_config(tmp_path, wrapper)).text_config == CONFIG
