"""The lint laws of the GPU tables: each yields a sentence for every row that breaks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantplan.tables.gpu_rows import FIGURE_NAMES, GPU_FILES, lookup_key
from quantplan.tables.load import read_table
from quantplan.tables.name_laws import not_kebab, spellings, used_twice
from quantplan.tables.record import NamedTuple

CAPABILITIES = ("7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0",
                "12.0", "12.1")

FULL_RATE_FP16 = {"7.0": 1024, "7.5": 1024, "8.0": 2048, "8.6": 1024, "8.7": 2048, "8.9": 1024,
                  "9.0": 4096, "10.0": 8192, "10.3": 8192, "11.0": 8192, "12.0": 1024, "12.1": 1024}
"""Dense FP16 operations per SM and clock with FP32 accumulation, from the architecture whitepapers.

GeForce cards of 7.5 and later run at half of it, and so do L40, L20 and A10G.
"""

MODELLED_RATES = (512, 1024, 2048, 4096)
LEAST_ROWS = 60


class Entry(NamedTuple):
    """One GPU row with the file it stands in and that file's sources and chips."""

    file: str
    row: Mapping[str, Any]
    sources: Mapping[str, Any]
    chips: Mapping[str, Any]

    def breaks(self, field: str, problem: str) -> str:
        """Return the sentence that names file, row, field and problem."""
        return f"tables/gpus/{self.file}.yaml: gpus[{self.row['id']}]: {field}: {problem}"

    def value(self, field: str) -> float | None:
        """Return the figure's value, or None when the row has no such figure."""
        value: float | None = self.row[field]["value"] if field in self.row else None
        return value

    @property
    def capability(self) -> float:
        """Return the capability as a number that compares: 8.9 is below 10.0."""
        return float(self.row["capability"])


Entries = Sequence[Entry]


def gpu_entries() -> tuple[Entry, ...]:
    """Return every row of every GPU table; raise TableError when a table breaks its schema."""
    return tuple(
        Entry(file, row, table["sources"], table["chips"])
        for file in GPU_FILES
        for table in [read_table(f"gpus/{file}")]
        for row in table["gpus"]
    )


def law_catalogue_is_complete(rows: Entries) -> Iterator[str]:
    """At least 60 rows."""
    if len(rows) < LEAST_ROWS:
        yield f"tables/gpus: {len(rows)} rows; at least {LEAST_ROWS} are wanted"


def law_id_is_kebab(rows: Entries) -> Iterator[str]:
    """Ids and aliases are lower case words and numbers joined by hyphens."""
    yield from not_kebab(rows, "-", "id")


def law_alias_is_unique(rows: Entries) -> Iterator[str]:
    """No two spellings, of one row or of two, have the same lookup key."""
    yield from used_twice(rows, lookup_key)


def law_name_is_not_anothers_alias(rows: Entries) -> Iterator[str]:
    """A driver name is looked up as another GPU only where that GPU has the same driver name."""
    owners = {lookup_key(text): entry for entry in rows for text in spellings(entry)}
    for entry in rows:
        key = lookup_key(entry.row["name"])
        owner = owners.get(key)
        if owner is not None and lookup_key(owner.row["name"]) != key:
            yield entry.breaks("name", f"is an alias of {owner.row['id']}")


def law_capability_is_known(rows: Entries) -> Iterator[str]:
    """Every capability is one that CUDA has, written as the chip's."""
    for entry in rows:
        capability, chip = entry.row["capability"], entry.chips.get(entry.row["chip"])
        if capability not in CAPABILITIES:
            yield entry.breaks("capability", f"{capability} is none of CUDA's")
        elif chip is None:
            yield entry.breaks("chip", f"{entry.row['chip']} is not among the file's chips")
        elif chip["capability"] != capability:
            yield entry.breaks("capability", f"{capability}; {entry.row['chip']} has "
                               f"{chip['capability']}")


def law_source_exists(rows: Entries) -> Iterator[str]:
    """Every figure, also of a chip, names a source of its own file."""
    for entry in rows:
        figures = {name: entry.row[name] for name in FIGURE_NAMES if name in entry.row}
        chip = entry.chips.get(entry.row["chip"], {})
        if "full_sm_count" in chip:
            figures["chip"] = chip["full_sm_count"]
        for name, figure in figures.items():
            if figure["source"] not in entry.sources:
                yield entry.breaks(name, f"unknown source {figure['source']!r}")


def law_figures_are_positive(rows: Entries) -> Iterator[str]:
    """Every figure is above zero."""
    for entry in rows:
        for name in FIGURE_NAMES:
            value = entry.value(name)
            if value is not None and value <= 0:
                yield entry.breaks(name, f"{value} is not above zero")


def law_counts_are_whole(rows: Entries) -> Iterator[str]:
    """Multiprocessors, bytes and MiB are whole numbers."""
    for entry in rows:
        for name in ("sm_count", "l2_bytes", "memory_label_gb", "memory_nvml_mib"):
            value = entry.value(name)
            if value is not None and not isinstance(value, int):
                yield entry.breaks(name, f"{value} is not a whole number")


def law_sm_count_fits_the_chip(rows: Entries) -> Iterator[str]:
    """No GPU enables more multiprocessors than its chip has."""
    for entry in rows:
        full = entry.chips.get(entry.row["chip"], {}).get("full_sm_count", {}).get("value")
        count = entry.value("sm_count")
        if full is not None and count is not None and count > full:
            yield entry.breaks("sm_count", f"{count}; {entry.row['chip']} has {full}")


def law_driver_memory_is_near_label(rows: Entries) -> Iterator[str]:
    """The driver reports 90 to 100 % of the label, and torch no more than nvidia-smi."""
    for entry in rows:
        limit_gib = entry.row["memory_label_gb"]["value"]
        nvml_mib = entry.value("memory_nvml_mib")
        totals = (("memory_nvml_mib", None if nvml_mib is None else nvml_mib / 1024),
                  ("memory_torch_gib", entry.value("memory_torch_gib")))
        for name, gib in totals:
            if gib is None:
                continue
            if not 0.9 * entry.row["memory_label_gb"]["value"] <= gib <= limit_gib:
                yield entry.breaks(name, f"{gib:.2f} GiB; 90 to 100 % of the label and no more "
                                   f"than {limit_gib:.2f} GiB is wanted")
            limit_gib = min(limit_gib, gib)


def law_int8_needs_75(rows: Entries) -> Iterator[str]:
    """No INT8 tensor peak below capability 7.5."""
    return _paths_below(rows, "dense_int8_tops", 7.5)


def law_bf16_needs_80(rows: Entries) -> Iterator[str]:
    """No BF16 tensor peak below capability 8.0."""
    return _paths_below(rows, "dense_bf16_tflops", 8.0)


def law_fp8_needs_89(rows: Entries) -> Iterator[str]:
    """No FP8 tensor peak below capability 8.9."""
    return _paths_below(rows, "dense_fp8_tflops", 8.9)


def law_fp4_needs_100(rows: Entries) -> Iterator[str]:
    """No FP4 tensor peak below capability 10.0."""
    return _paths_below(rows, "dense_fp4_tflops", 10.0)


def law_bf16_equals_fp16(rows: Entries) -> Iterator[str]:
    """From capability 8.0 on, BF16 and FP16 with FP32 accumulation have the same peak."""
    for entry in rows:
        fp16, bf16 = entry.value("dense_fp16_tflops"), entry.value("dense_bf16_tflops")
        if entry.capability >= 8.0 and fp16 != bf16:
            yield entry.breaks("dense_bf16_tflops", f"{bf16}; FP16 is {fp16}")


def law_fp8_is_twice_fp16(rows: Entries) -> Iterator[str]:
    """FP8 with FP32 accumulation has twice the peak of FP16, to 2 %."""
    for entry in rows:
        fp16, fp8 = entry.value("dense_fp16_tflops"), entry.value("dense_fp8_tflops")
        if fp16 is not None and fp8 is not None and abs(fp8 / fp16 - 2) > 0.04:
            yield entry.breaks("dense_fp8_tflops", f"{fp8}; FP16 is {fp16}")


def law_peak_is_dense(rows: Entries) -> Iterator[str]:
    """FP16 per SM and clock is 85 to 103 % of a dense rate: a sparse peak is twice that."""
    for entry in rows:
        rate = _operations_per_clock(entry, "dense_fp16_tflops")
        if rate is None:
            continue
        full = FULL_RATE_FP16[entry.row["capability"]]
        halved = entry.row["segment"] == "geforce"
        wanted = (full // 2,) if halved else (full, full // 2)
        if not any(0.85 <= rate / one <= 1.03 for one in wanted):
            yield entry.breaks("dense_fp16_tflops", f"{rate:.0f} operations per SM and clock; "
                               f"{' or '.join(map(str, wanted))} is the dense rate")


def law_modelled_peak_follows(rows: Entries) -> Iterator[str]:
    """A modelled peak is sm_count x boost_mhz x a rate of the tensor cores, to 0.5 %."""
    for entry in rows:
        for name in FIGURE_NAMES:
            if entry.row.get(name, {}).get("kind") != "modelled":
                continue
            rate = _operations_per_clock(entry, name)
            if rate is None or all(abs(rate / one - 1) > 0.005 for one in MODELLED_RATES):
                yield entry.breaks(name, "does not follow from sm_count and boost_mhz")


def _paths_below(rows: Entries, field: str, least: float) -> Iterator[str]:
    for entry in rows:
        if field in entry.row and entry.capability < least:
            yield entry.breaks(field, f"capability {entry.row['capability']} has no such path")


def _operations_per_clock(entry: Entry, field: str) -> float | None:
    peak, count, mhz = entry.value(field), entry.value("sm_count"), entry.value("boost_mhz")
    if peak is None or count is None or mhz is None:
        return None
    return peak * 1e6 / (count * mhz)


LAWS = (
    law_catalogue_is_complete,
    law_id_is_kebab,
    law_alias_is_unique,
    law_name_is_not_anothers_alias,
    law_capability_is_known,
    law_source_exists,
    law_figures_are_positive,
    law_counts_are_whole,
    law_sm_count_fits_the_chip,
    law_driver_memory_is_near_label,
    law_int8_needs_75,
    law_bf16_needs_80,
    law_fp8_needs_89,
    law_fp4_needs_100,
    law_bf16_equals_fp16,
    law_fp8_is_twice_fp16,
    law_peak_is_dense,
    law_modelled_peak_follows,
)
