"""The GPU tables against their laws, and their figures against the documents that print them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from quantplan.tables import gpu_laws
from quantplan.tables.errors import TableError
from quantplan.tables.gpu_laws import LAWS, Entry, gpu_entries
from quantplan.tables.gpu_rows import GPU_FILES, lookup_key
from quantplan.tables.load import parse_table, table_names

MIB = 2**20


def figure(value: float, kind: str = "spec", source: str = "sheet") -> dict[str, Any]:
    """Return a figure as the tables write it."""
    return {"value": value, "kind": kind, "source": source}


def entry(**changes: Any) -> Entry:
    """Return a lawful row of a made-up capability 8.9 card, with CHANGES."""
    row: dict[str, Any] = {
        "id": "x1", "name": "NVIDIA X1", "aliases": [], "segment": "data-centre",
        "architecture": "ada", "chip": "AD999", "capability": "8.9", "sm_count": figure(100),
        "boost_mhz": figure(2000), "l2_bytes": figure(48 * MIB), "memory_label_gb": figure(24),
        "memory_nvml_mib": figure(23000), "memory_torch_gib": figure(22.0),
        "dense_fp16_tflops": figure(204.8, "modelled"),
        "dense_bf16_tflops": figure(204.8, "modelled"),
        "dense_fp8_tflops": figure(409.6, "modelled"),
    }
    row.update(changes)
    chips = {"AD999": {"capability": "8.9", "full_sm_count": figure(144)}}
    return Entry("made-up", row, {"sheet": {"title": "a sheet", "date": "2026"}}, chips)


def without(row: Entry, *fields: str) -> Entry:
    """Return the row without FIELDS."""
    kept = {name: value for name, value in row.row.items() if name not in fields}
    return row._replace(row=kept)


def broken_by(law: Callable[..., Iterator[str]], *rows: Entry) -> list[str]:
    """Return what LAW says of ROWS."""
    return list(law(rows))


BAD: list[tuple[str, tuple[Entry, ...], str]] = [
    ("law_catalogue_is_complete", (entry(),), "1 rows; at least 60"),
    ("law_id_is_kebab", (entry(id="X1"),), "'X1' is not kebab case"),
    ("law_id_is_kebab", (entry(aliases=["x--1"]),), "'x--1' is not kebab case"),
    ("law_alias_is_unique", (entry(), entry(id="x2", aliases=["x-1"])), "'x-1' already means x1"),
    ("law_alias_is_unique", (entry(aliases=["x-1"]),), "'x-1' already means x1"),
    ("law_name_is_not_anothers_alias", (entry(), entry(id="x2", name="GeForce X1 Ti"),
                                        entry(id="x3", aliases=["x1-ti"])),
     "gpus[x2]: name: is an alias of x3"),
    ("law_capability_is_known", (entry(capability="8.8"),), "8.8 is none of CUDA's"),
    ("law_capability_is_known", (entry(chip="AD998"),), "AD998 is not among the file's chips"),
    ("law_capability_is_known", (entry(capability="9.0"),), "9.0; AD999 has 8.9"),
    ("law_source_exists", (entry(sm_count=figure(100, source="nowhere")),),
     "sm_count: unknown source 'nowhere'"),
    ("law_figures_are_positive", (entry(l2_bytes=figure(0)),), "l2_bytes: 0 is not above zero"),
    ("law_counts_are_whole", (entry(sm_count=figure(99.5)),), "99.5 is not a whole number"),
    ("law_sm_count_fits_the_chip", (entry(sm_count=figure(145)),), "145; AD999 has 144"),
    ("law_driver_memory_is_near_label", (entry(memory_nvml_mib=figure(24577)),),
     "memory_nvml_mib: 24.00 GiB"),
    ("law_driver_memory_is_near_label", (entry(memory_nvml_mib=figure(22000)),),
     "memory_nvml_mib: 21.48 GiB"),
    ("law_driver_memory_is_near_label", (entry(memory_torch_gib=figure(22.5)),),
     "no more than 22.46 GiB"),
    ("law_int8_needs_75", (entry(capability="7.0", dense_int8_tops=figure(1)),), "no such path"),
    ("law_bf16_needs_80", (entry(capability="7.5"),), "dense_bf16_tflops: capability 7.5"),
    ("law_fp8_needs_89", (entry(capability="8.6"),), "dense_fp8_tflops: capability 8.6"),
    ("law_fp4_needs_100", (entry(capability="9.0", dense_fp4_tflops=figure(1)),), "9.0"),
    ("law_bf16_equals_fp16", (entry(dense_bf16_tflops=figure(409.6)),), "409.6; FP16 is 204.8"),
    ("law_fp8_is_twice_fp16", (entry(dense_fp8_tflops=figure(819.2)),), "819.2; FP16 is 204.8"),
    ("law_peak_is_dense", (entry(dense_fp16_tflops=figure(409.6)),), "2048 operations"),
    ("law_peak_is_dense", (entry(segment="geforce"),), "512 is the dense rate"),
    ("law_modelled_peak_follows", (entry(dense_fp8_tflops=figure(400, "modelled")),),
     "does not follow from sm_count and boost_mhz"),
    ("law_modelled_peak_follows", (without(entry(), "boost_mhz"),), "dense_fp8_tflops: does not"),
]


@pytest.mark.parametrize(("law", "rows", "says"), BAD)
def test_law_is_tripped(law: str, rows: tuple[Entry, ...], says: str) -> None:
    """A minimal bad row is named with its file, its id and the reason."""
    sentences = broken_by(getattr(gpu_laws, law), *rows)
    assert len([sentence for sentence in sentences if says in sentence]) == 1, sentences
    assert all(sentence.startswith("tables/gpus") for sentence in sentences)


def test_every_law_has_a_bad_example() -> None:
    """BAD covers LAWS, and LAWS holds every function called law_*."""
    laws = [law.__name__ for law in LAWS]
    assert {law for law, _, _ in BAD} == set(laws)
    assert sorted(laws) == sorted(name for name in dir(gpu_laws) if name.startswith("law_"))


def test_lawful_row_breaks_nothing() -> None:
    """The base of the bad rows breaks no law but that of the number of rows."""
    broken = [law.__name__ for law in LAWS if broken_by(law, entry())]
    assert broken == ["law_catalogue_is_complete"]


def test_real_rows_break_no_law() -> None:
    """Every row of tables/gpus passes every law."""
    rows = gpu_entries()
    assert [sentence for law in LAWS for sentence in law(rows)] == []


def test_every_gpu_file_is_listed() -> None:
    """GPU_FILES names the files of tables/gpus, no more and no fewer."""
    found = [name.split("/")[1] for name in table_names() if name.startswith("gpus/")]
    assert sorted(found) == sorted(GPU_FILES)


def test_every_source_and_chip_is_used() -> None:
    """A source or a chip that no row refers to is a leftover."""
    for file in GPU_FILES:
        rows = [row for row in gpu_entries() if row.file == file]
        chips = {row.row["chip"] for row in rows}
        figures = [value for row in rows for value in row.row.values() if isinstance(value, dict)]
        figures += [chip["full_sm_count"] for chip in rows[0].chips.values()
                    if "full_sm_count" in chip]
        assert chips == set(rows[0].chips), file
        assert {value["source"] for value in figures} == set(rows[0].sources), file


def test_unquoted_capability_is_refused() -> None:
    """The schema wants capabilities as text: unquoted 12.0 would compare as a float."""
    text = ('sources: {}\nchips: {}\ngpus:\n  - {id: a, name: A, aliases: [], segment: dgx, '
            'architecture: ada, chip: C, capability: 12.0, '
            'memory_label_gb: {value: 1, kind: spec, source: s}}\n')
    with pytest.raises(TableError, match=r"gpus\[a\]: capability: wrong type") as caught:
        parse_table("gpus/ada", text.encode())
    assert "quotes" in str(caught.value)


def test_unknown_kind_is_refused() -> None:
    """A figure's kind is one of four words."""
    row = deepcopy(dict(gpu_entries()[0].row))
    row["sm_count"] = figure(80, "guess")
    from quantplan.tables.gpu_rows import GPU_ROW
    from quantplan.tables.schema import problems

    assert [str(problem) for problem in problems(row, GPU_ROW, "row")] == [
        "row: sm_count: kind: unknown value; wanted one of spec, measured, exact, modelled; "
        "found 'guess'"]


@pytest.mark.parametrize(("text", "key"), [
    ("NVIDIA GeForce RTX 4090", "rtx4090"), ("rtx-4090", "rtx4090"), ("A100 80GB", "a10080g"),
    ("a100-80g", "a10080g"), ("Tesla T4", "t4"), ("GB200", "gb200"), ("Orin (nvgpu)", "orin"),
    ("NVIDIA", ""), ("H200 141 GiB", "h200141g"),
])
def test_lookup_key(text: str, key: str) -> None:
    """Case, maker, series, spaces and the spelling of gigabytes do not count."""
    assert lookup_key(text) == key


V100 = "NVIDIA Tesla V100 whitepaper WP-08608-001, table 1"
TURING = "NVIDIA Turing whitepaper WP-09183-001, appendix A"
A100 = "NVIDIA A100 whitepaper, tables 1 and 4"
GA102 = "NVIDIA Ampere GA102 whitepaper, table 9"
ADA = "NVIDIA Ada whitepaper, table 2"
H100 = "NVIDIA H100 whitepaper, table 3"
BLACKWELL = "NVIDIA RTX Blackwell whitepaper, appendix"
FACTS: list[tuple[str, str, float, str]] = [
    ("v100-sxm2-32gb", "sm_count", 80, V100),
    ("v100-sxm2-32gb", "l2_bytes", 6144 * 1024, V100),
    ("v100-sxm2-32gb", "dense_fp16_tflops", 125, "NVIDIA V100 datasheet"),
    ("v100s-pcie-32gb", "bandwidth_gb_per_s", 1134, "NVIDIA V100 datasheet"),
    ("t4", "dense_int8_tops", 130, "NVIDIA T4 datasheet"),
    ("t4", "memory_nvml_mib", 15360, "modal-labs/modal-client#2797"),
    ("rtx-2080-ti", "sm_count", 68, TURING),
    ("rtx-2080-ti", "l2_bytes", 5632 * 1024, TURING),
    ("rtx-2080-ti", "dense_fp16_tflops", 53.8, TURING),
    ("a100-sxm-80gb", "sm_count", 108, A100),
    ("a100-sxm-80gb", "l2_bytes", 40960 * 1024, A100),
    ("a100-sxm-80gb", "dense_bf16_tflops", 312, A100),
    ("a100-sxm-80gb", "dense_int8_tops", 624, A100),
    ("a100-sxm-80gb", "bandwidth_gb_per_s", 2039, "NVIDIA A100 datasheet"),
    ("a100-sxm-80gb", "memory_nvml_mib", 81920, "modal-labs/modal-client#2797"),
    ("a100-pcie-80gb", "bandwidth_gb_per_s", 1935, "NVIDIA A100 datasheet"),
    ("a100-sxm-40gb", "bandwidth_gb_per_s", 1555, A100),
    ("a30", "dense_fp16_tflops", 165, "NVIDIA A30 datasheet"),
    ("a10g", "sm_count", 80, "torch.cuda.get_device_properties on an AWS g5 instance"),
    ("a40", "dense_int8_tops", 299.3, "NVIDIA A40 datasheet"),
    ("rtx-3090", "sm_count", 82, GA102),
    ("rtx-3090", "l2_bytes", 6144 * 1024, GA102),
    ("rtx-3090", "dense_fp16_tflops", 71, GA102),
    ("l4", "sm_count", 58, "NVIDIA L4: 7424 CUDA cores, 128 a multiprocessor"),
    ("l4", "dense_fp16_tflops", 121, "NVIDIA L4 datasheet: 242 with sparsity"),
    ("l40s", "sm_count", 142, "NVIDIA L40S datasheet: 18176 CUDA cores"),
    ("l40s", "l2_bytes", 98304 * 1024, ADA),
    ("l40s", "bandwidth_gb_per_s", 864, "NVIDIA L40S datasheet"),
    ("l40s", "dense_fp8_tflops", 733, "NVIDIA L40S datasheet"),
    ("rtx-4090", "sm_count", 128, ADA),
    ("rtx-4090", "l2_bytes", 73728 * 1024, ADA),
    ("rtx-4090", "bandwidth_gb_per_s", 1008, ADA),
    ("rtx-4090", "dense_fp16_tflops", 165.2, ADA),
    ("rtx-4090", "dense_fp8_tflops", 330.3, ADA),
    ("rtx-4090", "dense_int8_tops", 660.6, ADA),
    ("h100-sxm-80gb", "sm_count", 132, H100),
    ("h100-sxm-80gb", "l2_bytes", 50 * MIB, H100),
    ("h100-sxm-80gb", "bandwidth_gb_per_s", 3352, H100),
    ("h100-sxm-80gb", "dense_fp8_tflops", 1978.9, H100),
    ("h100-sxm-80gb", "memory_nvml_mib", 81559, "modal-labs/modal-client#2797"),
    ("h100-sxm-80gb", "memory_torch_gib", 79.19, "vLLM 0.19.0 logs of llm-d-planner"),
    ("h100-pcie-80gb", "sm_count", 114, H100),
    ("h20-96gb", "dense_fp8_tflops", 296, "Tom's Hardware, H20, L20 and L2 specifications"),
    ("h200-sxm-141gb", "l2_bytes", 60 * MIB, "read on an H200, driver 580.159.04"),
    ("b200", "sm_count", 148, "pytorch/ao#4002"),
    ("b200", "l2_bytes", 126.5 * MIB, "pytorch/ao#4002"),
    ("b200", "memory_torch_gib", 178.35, "pytorch/ao#4002"),
    ("b200", "dense_fp4_tflops", 9000, "NVIDIA Blackwell Technical Brief, table 3"),
    ("gb200", "dense_fp8_tflops", 5000, "NVIDIA Blackwell Technical Brief, table 3"),
    ("rtx-5090", "sm_count", 170, BLACKWELL),
    ("rtx-5090", "l2_bytes", 98304 * 1024, BLACKWELL),
    ("rtx-5090", "dense_fp4_tflops", 1676, BLACKWELL),
    ("rtx-5090", "bandwidth_gb_per_s", 1792, BLACKWELL),
    ("rtx-5080", "memory_torch_gib", 15.48, "vllm-project/vllm#14452"),
    ("gb10", "memory_torch_gib", 121.69, "MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47"),
    ("gb10", "l2_bytes", 24 * MIB, "huggingface/kernels#283"),
    ("jetson-agx-orin-64gb", "l2_bytes", 4 * MIB, "Jetson AGX Orin technical brief v1.2"),
    ("jetson-t5000", "dense_fp8_tflops", 517, "huggingface.js#1710"),
]


@pytest.mark.parametrize(("gpu", "field", "value", "document"), FACTS)
def test_figure_is_that_of_its_document(gpu: str, field: str, value: float, document: str) -> None:
    """Well-known figures, each as DOCUMENT prints it."""
    rows = {row.row["id"]: row.row for row in gpu_entries()}
    assert rows[gpu][field]["value"] == value, document


CAPABILITIES = [
    ("v100-sxm2-16gb", "7.0"), ("t4", "7.5"), ("a100-sxm-40gb", "8.0"), ("rtx-3090", "8.6"),
    ("jetson-orin-nano-8gb", "8.7"), ("l40s", "8.9"), ("h20-96gb", "9.0"), ("gb200", "10.0"),
    ("gb300", "10.3"), ("jetson-t5000", "11.0"), ("rtx-pro-6000", "12.0"), ("gb10", "12.1"),
]


@pytest.mark.parametrize(("gpu", "capability"), CAPABILITIES)
def test_capability_is_that_of_nvidias_list(gpu: str, capability: str) -> None:
    """NVIDIA's "CUDA GPU Compute Capability" page; Thor is 11.0 since CUDA 13."""
    rows = {row.row["id"]: row.row for row in gpu_entries()}
    assert rows[gpu]["capability"] == capability
