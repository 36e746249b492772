"""The GPU that a name or a compute capability means, from the tables of `tables/gpus/`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from quantplan.dispatch.facts import Gpu
from quantplan.tables.errors import UsageError
from quantplan.tables.gpu_rows import GPU_FILES, lookup_key
from quantplan.tables.load import read_table
from quantplan.tables.near_names import did_you_mean, near_names

GpuRow = Mapping[str, Any]

_LONGEST_NAME = 80
_LEAST, _MOST = 60, 121
_NEXT_STEP = "`quantplan gpus` lists them; --capability 8.9 works without a name."


def find_gpu(text: str) -> Gpu:
    """Return the GPU whose id, alias or name TEXT is; raise UsageError when none or several are.

    Case, spaces, hyphens and the words NVIDIA, GeForce and Tesla do not count. A bare family name
    is the alias of its most common variant: "a100" is the A100 SXM 80 GB.
    """
    if len(text) > _LONGEST_NAME:
        raise UsageError(f"the GPU name {text[:20]!r}... cannot be one",
                         wanted=f"at most {_LONGEST_NAME} characters", found=str(len(text)),
                         hint=_NEXT_STEP)
    key = lookup_key(text)
    row = _rows_by_alias().get(key)
    if row is not None:
        return gpu_of(row)
    named = _rows_by_name().get(key, ())
    if len(named) == 1:
        return gpu_of(named[0])
    raise _several(text, named) if named else _unknown(text, key)


def driver_gpu(name: str, memory_bytes: int | None) -> Gpu | None:
    """Return the GPU that the driver calls NAME, or None where the tables hold none or several.

    Variants that share a name (RTX 3080 of 10 and 12 GB, the Orin modules) are told apart by the
    driver's total of `memory_bytes`: it is 90 to 100 % of the label of the right one.
    """
    rows = _rows_by_name().get(lookup_key(name), ())
    if memory_bytes is not None:
        rows = tuple(row for row in rows if 0.9 <= memory_bytes / _label_bytes(row) <= 1)
    return gpu_of(rows[0]) if len(rows) == 1 else None


def all_gpus() -> tuple[GpuRow, ...]:
    """Return every row of the GPU tables, oldest architecture first (schema: `GPU_ROW`)."""
    return tuple(row for file in GPU_FILES for row in read_table(f"gpus/{file}")["gpus"])


def gpu_of(row: GpuRow) -> Gpu:
    """Return the facts of a GPU table's row.

    `memory_bytes` is torch's total or, where none is known, nvidia-smi's ("driver"); else the label
    times 2^30 ("label"), which exceeds what the driver will report by up to a tenth.
    """
    memory_bytes, memory_kind = _memory(row)
    return Gpu(
        name=row["name"],
        capability=int(row["capability"].replace(".", "")),
        sm_count=row["sm_count"]["value"] if "sm_count" in row else None,
        memory_bytes=memory_bytes,
        memory_kind=memory_kind,
        id=row["id"],
        named_by_driver="name_from" not in row,
        memory_mib=int(row["memory_nvml_mib"]["value"]) if "memory_nvml_mib" in row else None,
    )


def capability_gpu(text: str) -> Gpu:
    """Return an unnamed GPU of capability TEXT ("8.9" or "89"); raise UsageError outside 6.0-12.1.

    Nothing but the capability is known of it: no multiprocessors, no memory.
    """
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9])|([0-9]{1,2})([0-9])", text.strip())
    digits = "".join(part for part in match.groups() if part) if match else ""
    if not digits or not _LEAST <= int(digits) <= _MOST:
        raise UsageError(f"{text[:_LONGEST_NAME]!r} is not a compute capability",
                         wanted="6.0 to 12.1, such as 8.9 or 89",
                         hint="`quantplan gpus` shows the capability of every GPU it knows.")
    capability = int(digits)
    return Gpu(name=f"Emulated GPU {capability // 10}.{capability % 10}",
               capability=capability, origin="capability", named_by_driver=False)


def _memory(row: GpuRow) -> tuple[int, str]:
    if "memory_torch_gib" in row:
        return round(row["memory_torch_gib"]["value"] * 2**30), "driver"
    if "memory_nvml_mib" in row:
        return int(row["memory_nvml_mib"]["value"]) * 2**20, "driver"
    return _label_bytes(row), "label"


def _label_bytes(row: GpuRow) -> int:
    return int(row["memory_label_gb"]["value"]) * 2**30


@cache
def _rows_by_alias() -> dict[str, GpuRow]:
    return {lookup_key(text): row for row in all_gpus() for text in (row["id"], *row["aliases"])}


@cache
def _rows_by_name() -> dict[str, tuple[GpuRow, ...]]:
    found: dict[str, tuple[GpuRow, ...]] = {}
    for row in all_gpus():
        for key in {lookup_key(row["name"]), lookup_key(row.get("vendor_name", row["name"]))}:
            found[key] = (*found.get(key, ()), row)
    return found


def _several(text: str, rows: tuple[GpuRow, ...]) -> UsageError:
    return UsageError(f"GPU {text!r} may mean several", wanted="one id",
                      found=", ".join(row["id"] for row in rows),
                      hint=f"Name one of them. {_NEXT_STEP}")


def _unknown(text: str, key: str) -> UsageError:
    older = next((row["capability"] for row in read_table("older/gpus")["cards"]
                  if key in row["names"]), None)
    if older is not None:
        return _too_old(text, older)
    near = _near_ids(key)
    return UsageError(f"no GPU is called {text!r}", wanted="an id, alias or name of the catalogue",
                      hint=f"{did_you_mean(near)} {_NEXT_STEP}".lstrip())


def _too_old(text: str, capability: str) -> UsageError:
    askable = int(capability.replace(".", "")) >= _LEAST
    return UsageError(f"GPU {text!r} is of capability {capability}",
                      wanted="7.0 or newer: older cards are not in the catalogue",
                      hint=f"--capability {capability} asks anyway." if askable
                      else "Capabilities below 6.0 cannot be asked about.")


def _near_ids(key: str) -> list[str]:
    known = {name: rows[0]["id"] for name, rows in _rows_by_name().items()}
    known |= {alias: row["id"] for alias, row in _rows_by_alias().items()}
    longer = sorted(alias for alias in known if len(key) > 1 and key in alias)
    near = near_names(key, known, count=4, cutoff=0.7)
    return list(dict.fromkeys(known[alias] for alias in (*longer, *near)))[:4]
