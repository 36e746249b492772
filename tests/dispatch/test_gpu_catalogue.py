"""Looking a GPU up by the names people and drivers give it, or by its capability alone."""

from __future__ import annotations

import pytest
from quantplan.dispatch.gpu import all_gpus, capability_gpu, driver_gpu, find_gpu, gpu_of
from quantplan.tables.errors import UsageError
from quantplan.tables.gpu_rows import lookup_key
from quantplan.tables.load import read_table

GIB = 2**30

NAMES = [
    ("4090", "rtx-4090"), ("rtx4090", "rtx-4090"), ("RTX 4090", "rtx-4090"),
    ("rtx-4090", "rtx-4090"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("GeForce 4090", "rtx-4090"),
    ("a100", "a100-sxm-80gb"), ("a100-80g", "a100-sxm-80gb"), ("A100 80GB", "a100-sxm-80gb"),
    ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"), ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
    ("a100-40g", "a100-sxm-40gb"), ("h100", "h100-sxm-80gb"), ("H100-80GB", "h100-sxm-80gb"),
    ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"), ("h200", "h200-sxm-141gb"), ("l4", "l4"),
    ("NVIDIA L40S", "l40s"), ("v100", "v100-sxm2-32gb"), ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
    ("Tesla T4", "t4"), ("b200", "b200"), ("NVIDIA B300 SXM6 AC", "b300"), ("gb200", "gb200"),
    ("NVIDIA GH200 480GB", "gh200-96gb"), ("5060 ti", "rtx-5060-ti-16gb"), ("dgx spark", "gb10"),
    ("NVIDIA GeForce RTX 5060 Ti 8GB", "rtx-5060-ti-8gb"), ("A6000", "rtx-a6000"),
    ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"), ("Quadro RTX 6000", "quadro-rtx-6000"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
    ("NVIDIA RTX A2000", "rtx-a2000-6gb"), ("NVIDIA RTX A2000 12GB", "rtx-a2000-12gb"),
]


@pytest.mark.parametrize(("text", "gpu"), NAMES)
def test_name_finds_gpu(text: str, gpu: str) -> None:
    """Ids, aliases, driver names and vendor names lead to one row."""
    assert find_gpu(text).id == gpu


def test_every_id_and_alias_finds_its_own_row() -> None:
    """No spelling of the tables leads elsewhere."""
    for row in all_gpus():
        assert {find_gpu(text).id for text in (row["id"], *row["aliases"])} == {row["id"]}


def test_facts_of_h100() -> None:
    """The H100 as vLLM 0.19.0 logged it: 79.19 GiB in total."""
    gpu = find_gpu("h100")
    assert (gpu.name, gpu.capability, gpu.sm_count) == ("NVIDIA H100 80GB HBM3", 90, 132)
    assert (gpu.memory_bytes, gpu.memory_kind) == (round(79.19 * GIB), "driver")
    assert (gpu.memory_free_bytes, gpu.origin, gpu.capability_text) == (None, "catalogue", "9.0")


def test_nvml_total_stands_in_for_torch_total() -> None:
    """No torch total of an H200 NVL was found: nvidia-smi's 143771 MiB is used."""
    gpu = find_gpu("h200-nvl")
    assert (gpu.memory_bytes, gpu.memory_kind) == (143771 * 2**20, "driver")


def test_label_stands_in_for_driver_total() -> None:
    """No driver total of a Quadro GV100 was found: its 32 GB count as GiB and are marked so."""
    gpu = find_gpu("gv100")
    assert (gpu.memory_bytes, gpu.memory_kind) == (32 * GIB, "label")


def test_unknown_count_stays_unknown() -> None:
    """The L2's multiprocessors have no source: no guess."""
    assert find_gpu("l2").sm_count is None


@pytest.mark.parametrize(("text", "near"), [
    ("4900", "rtx-4090"), ("l40ss", "l40s"), ("h100sxn", "h100-sxm-80gb"),
    ("rtx 6000", "quadro-rtx-6000"), ("rtx 6000", "rtx-6000-ada"), ("a10000", "a100-sxm-80gb"),
])
def test_unknown_name_gets_a_guess(text: str, near: str) -> None:
    """A misspelt name is an error with the nearest ids and the way around names."""
    with pytest.raises(UsageError) as caught:
        find_gpu(text)
    line = str(caught.value)
    assert line.startswith(f"no GPU is called {text!r}; wanted an id, alias or name")
    guesses = line.partition("Did you mean ")[2].partition("?")[0]
    assert near in guesses.split(", ")
    assert line.endswith("`quantplan gpus` lists them; --capability 8.9 works without a name.")


@pytest.mark.parametrize("text", ["", "nvidia", "mi300x", "8.9"])
def test_name_with_no_neighbour(text: str) -> None:
    """What resembles nothing gets no guess."""
    with pytest.raises(UsageError) as caught:
        find_gpu(text)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("text, capability, hint", [
    ("1080", "6.1", "--capability 6.1 asks anyway."),
    ("GeForce GTX 1080 Ti", "6.1", "--capability 6.1 asks anyway."),
    ("Tesla P100", "6.0", "--capability 6.0 asks anyway."),
    ("m40", "5.2", "Capabilities below 6.0 cannot be asked about."),
])
def test_a_card_older_than_the_catalogue(text: str, capability: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu(text)
    assert str(caught.value) == (
        f"GPU {text!r} is of capability {capability}; wanted 7.0 or newer: older cards are not in "
        f"the catalogue. {hint}")


def test_older_names_are_spelled_as_they_are_looked_up_and_in_no_catalogue() -> None:
    names = [name for row in read_table("older/gpus")["cards"] for name in row["names"]]
    assert [lookup_key(name) for name in names] == names
    assert len(set(names)) == len(names)
    known = {lookup_key(text) for row in all_gpus()
             for text in (row["id"], row["name"], *row["aliases"])}
    assert not known & set(names)


def test_control_characters_are_not_printed() -> None:
    """A name is echoed with its control characters escaped."""
    with pytest.raises(UsageError) as caught:
        find_gpu("\x1b[31m4090")
    assert str(caught.value).startswith(r"no GPU is called '\x1b[31m4090'; ")


def test_endless_name() -> None:
    """A name of a megabyte is refused before it is compared with anything."""
    with pytest.raises(UsageError, match="at most 80 characters; found 1000000"):
        find_gpu("4" * 1_000_000)


def test_ambiguous_name_lists_the_ids() -> None:
    """NVML calls every Orin module "Orin (nvgpu)"."""
    with pytest.raises(UsageError) as caught:
        find_gpu("Orin (nvgpu)")
    assert str(caught.value).startswith(
        "GPU 'Orin (nvgpu)' may mean several; wanted one id; found jetson-agx-orin-64gb, "
        "jetson-agx-orin-32gb, jetson-orin-nx-16gb, jetson-orin-nx-8gb, jetson-orin-nano-8gb. ")


@pytest.mark.parametrize(("name", "memory_bytes", "gpu"), [
    ("NVIDIA GeForce RTX 3080", 10240 * 2**20, "rtx-3080-10gb"),
    ("NVIDIA GeForce RTX 3080", 12288 * 2**20, "rtx-3080-12gb"),
    ("NVIDIA GB300", 256703 * 2**20, "gb300-dgx-station"),
    ("NVIDIA GB300", 284208 * 2**20, "gb300"),
    ("Orin (nvgpu)", 62827 * 2**20, "jetson-agx-orin-64gb"),
    ("NVIDIA Thor", 125748 * 2**20, "jetson-t5000"),
    ("NVIDIA GeForce RTX 2060", 6144 * 2**20, "rtx-2060-6gb"), ("NVIDIA L40S", None, "l40s"),
])
def test_memory_tells_namesakes_apart(name: str, memory_bytes: int | None, gpu: str) -> None:
    """Variants with one driver name differ in the driver's total (totals of public logs)."""
    found = driver_gpu(name, memory_bytes)
    assert found is not None
    assert found.id == gpu


@pytest.mark.parametrize(("name", "memory_bytes"), [
    ("NVIDIA GeForce RTX 3080", None), ("NVIDIA GeForce RTX 3080", 20480 * 2**20),
    ("Orin (nvgpu)", 7607 * 2**20), ("NVIDIA GeForce RTX 2080 Ti", 22528 * 2**20),
    ("NVIDIA X9000", None), ("4090", None),
])
def test_unclear_driver_name_is_nothing(name: str, memory_bytes: int | None) -> None:
    """Unknown or unsold sizes, two that fit, a stranger and an alias: no GPU, no error."""
    assert driver_gpu(name, memory_bytes) is None


@pytest.mark.parametrize(("text", "capability"), [
    ("8.9", 89), ("89", 89), (" 8.9 ", 89), ("7.0", 70), ("6.0", 60), ("10.0", 100), ("100", 100),
    ("12.1", 121), ("121", 121),
])
def test_capability_makes_a_gpu(text: str, capability: int) -> None:
    """A capability alone gives a GPU of which nothing else is known."""
    gpu = capability_gpu(text)
    assert (gpu.capability, gpu.origin) == (capability, "capability")
    assert (gpu.id, gpu.sm_count, gpu.memory_bytes) == (None, None, None)
    assert gpu.name == f"Emulated GPU {gpu.capability_text}"


@pytest.mark.parametrize("text", ["", "9", "5.9", "59", "13.0", "130", "8.90", "sm_89", "-8.9",
                                  "8,9", "\u0668.\u0669", "8.9x", "1e2", "4090"])
def test_bad_capability(text: str) -> None:
    """Anything else is refused with the range and both spellings."""
    with pytest.raises(UsageError) as caught:
        capability_gpu(text)
    assert str(caught.value).startswith(
        f"{text!r} is not a compute capability; wanted 6.0 to 12.1, such as 8.9 or 89. ")


def test_every_row_becomes_a_gpu() -> None:
    """Every row has a capability of 7.0 to 12.1 and a memory total."""
    for row in all_gpus():
        gpu = gpu_of(row)
        assert 70 <= gpu.capability <= 121
        assert gpu.memory_bytes is not None
        assert gpu.memory_kind in ("driver", "label")
