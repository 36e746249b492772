"""The GPUs that CUDA would see on this machine, read through NVML without starting CUDA.

CUDA_VISIBLE_DEVICES is read as the driver reads it: what CUDA 13.0 (driver 580.159.04) answered to
56 forms on two H200s is in tests/recorded_nvml/cuda-visible-devices.json. MIG follows NVIDIA's MIG
User Guide, "CUDA Device Enumeration": a process sees one instance, and then no whole GPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from quantplan.dispatch.facts import Gpu
from quantplan.dispatch.nvml import NAME_ONE, Card, Machine, Problem, clean_text, read_machine
from quantplan.tables.errors import UsageError
from quantplan.tables.record import NamedTuple

Item = Card | Problem


class Probe(NamedTuple):
    """The visible GPUs in driver order or in that of CUDA_VISIBLE_DEVICES, and what NVML adds.

    `cards[i]` holds the further facts of `gpus[i]`: UUID, ECC, MIG, busy processes, NVML's total.
    With no GPU, `problems[0]` says why.
    """

    gpus: tuple[Gpu, ...]
    driver: str | None
    cuda_driver: str | None
    problems: tuple[Problem, ...]
    cards: tuple[Card, ...]


def probe_gpus() -> Probe:
    """Return the GPUs of this machine that CUDA would see; never raises for what it finds."""
    return make_probe(read_machine(), os.environ)


def probe_gpu(index: int = 0) -> Gpu:
    """Return the visible GPU INDEX; raise UsageError with the reason when there is none."""
    probe = probe_gpus()
    if 0 <= index < len(probe.gpus):
        return probe.gpus[index]
    if not probe.gpus:
        raise UsageError(probe.problems[0].message, hint=probe.problems[0].hint)
    raise UsageError(f"this machine shows no GPU {index}",
                     wanted=f"an index from 0 to {len(probe.gpus) - 1}", found=str(index),
                     hint=f"Name one instead: {NAME_ONE}")


def make_probe(machine: Machine, env: Mapping[str, str]) -> Probe:
    """Return what CUDA would see of MACHINE in the environment ENV."""
    cards, problems = _visible_cards(machine, env)
    problems += [*_mixed(cards), *_order(machine, cards, env), *_memory(cards)]
    return Probe(tuple(_as_gpu(card) for card in cards), machine.driver, machine.cuda_driver,
                 tuple(problems), tuple(cards))


def _visible_cards(machine: Machine, env: Mapping[str, str]) -> tuple[list[Card], list[Problem]]:
    if machine.problem is not None:
        return [], [machine.problem]
    if not machine.cards:
        return [], [Problem("no-gpu", "the NVIDIA driver runs but finds no GPU",
                            f"Name one instead: {NAME_ONE}")]
    items, problems = _select(machine.cards, env.get("CUDA_VISIBLE_DEVICES"))
    cards, mig_problems = _without_split_gpus([item for item in items if isinstance(item, Card)])
    faults = [item for item in items if isinstance(item, Problem)]
    return cards, faults + mig_problems + problems


def _select(items: Sequence[Item], value: str | None) -> tuple[list[Item], list[Problem]]:
    """Return the GPUs or instances that CUDA_VISIBLE_DEVICES names, up to the first that is none.

    An entry that names nothing ends the list; one that names a GPU again leaves no GPU at all.
    """
    if value is None:
        return list(items), []
    picked: list[Item] = []
    entries = value.split(",")
    for place, entry in enumerate(entries):
        item = _named(entry, entries[0][:4], items)
        if item is None:
            rest = "".join(entries[place:]).strip()
            return picked, [_cut(value, entry, bool(picked))] if rest or not picked else []
        if any(item is other for other in picked):
            return [], [_hidden(value, f"{_quoted(entry)} names a GPU again")]
        picked.append(item)
    return picked, []


def _named(entry: str, kind: str, items: Sequence[Item]) -> Item | None:
    """Return what one entry names; the first entry's KIND holds for the whole list."""
    if kind in ("GPU-", "MIG-"):
        if not entry.startswith(kind):
            return None
        whole = [item for item in items if isinstance(item, Card)]
        parts = [part for card in whole for part in card.instances]
        found = [card for card in (whole if kind == "GPU-" else parts)
                 if _is_called(card, entry, whole)]
        return found[0] if len(found) == 1 else None
    # As strtoul: text after the digits is ignored, and the driver keeps 32 bits of the number.
    number = re.match(r"\s*([+-]?[0-9]{1,19})", entry)
    index = int(number[1]) % 2**32 if number else len(items)
    return items[index] if index < len(items) else None


def _is_called(card: Card, entry: str, whole: Sequence[Card]) -> bool:
    """Say whether ENTRY is the card's UUID, a beginning of it, or MIG-<GPU UUID>/<GI>/<CI>."""
    if entry.startswith("MIG-GPU-"):
        parent = next(gpu for gpu in whole if gpu.number == card.number)
        gpu_instance, compute_instance = card.instance_ids or (None, None)
        return entry == f"MIG-{parent.uuid}/{gpu_instance}/{compute_instance}"
    uuid = card.uuid or ""
    return bool(uuid) and uuid.lower().startswith(entry[: len(uuid)].lower())


def _cut(value: str, entry: str, shown: bool) -> Problem:
    if not shown:
        return _hidden(value, f"{_quoted(entry)} names none")
    return Problem("visible-cut", f"CUDA_VISIBLE_DEVICES={_quoted(value)} ends at "
                   f"{_quoted(entry)}, which names no GPU here: CUDA ignores it and what follows",
                   "Remove the entry, or name a GPU of nvidia-smi -L")


def _hidden(value: str, why: str) -> Problem:
    return Problem("visible-none",
                   f"CUDA_VISIBLE_DEVICES={_quoted(value)} hides every GPU of this machine: {why}",
                   f"Unset it, or name a GPU: {NAME_ONE}")


def _without_split_gpus(cards: list[Card]) -> tuple[list[Card], list[Problem]]:
    """Return what CUDA makes of GPUs in MIG mode: one instance, and then nothing else."""
    if chosen := [card for card in cards if card.instance_ids]:
        return chosen[:1], _only_first(chosen) if len(chosen) > 1 else []
    problems = [_unsplit(card) for card in cards if card.mig and not card.instances]
    for card in cards:
        if card.instances:
            return [card.instances[0]], [*problems, _split(card)]
    return [card for card in cards if not card.mig], problems


def _only_first(chosen: list[Card]) -> list[Problem]:
    return [Problem("mig-one", f"CUDA shows a process one MIG instance: {chosen[0].name}, the first"
                    f" of the {len(chosen)} named",
                    "Name one instance in CUDA_VISIBLE_DEVICES for each process")]


def _split(card: Card) -> Problem:
    count, first = len(card.instances), card.instances[0].name
    return Problem("mig-on", f"GPU {card.number} ({card.name}) is split into {count} MIG "
                   f"instances: CUDA shows the first, {first}, and nothing else",
                   "Choose one with CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L lists them)")


def _unsplit(card: Card) -> Problem:
    return Problem("mig-empty", f"GPU {card.number} ({card.name}) has MIG mode on and no instance: "
                   "CUDA cannot use it",
                   f"Create an instance or turn MIG off, or name a GPU: {NAME_ONE}")


def _mixed(cards: Sequence[Card]) -> list[Problem]:
    if len({(card.name, card.capability) for card in cards}) < 2:
        return []
    told = ", ".join(f"{place} {card.name} ({_capability_text(card)})"
                     for place, card in enumerate(cards))
    return [Problem("mixed-gpus", f"the visible GPUs differ: {told}",
                    "Show one kind with CUDA_VISIBLE_DEVICES, or name one: --gpu NAME")]


def _order(machine: Machine, cards: Sequence[Card], env: Mapping[str, str]) -> list[Problem]:
    """Return a problem where an index may mean another GPU to CUDA than to NVML."""
    by_uuid = env.get("CUDA_VISIBLE_DEVICES", "").startswith(("GPU-", "MIG-"))
    names = {card.name for card in machine.cards if isinstance(card, Card)}
    if not cards or by_uuid or len(names) < 2 or env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return []
    return [Problem("device-order", "GPU numbers here are the driver's, in PCI order: without "
                    "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA puts the fastest first, and numbers differ",
                    "Set CUDA_DEVICE_ORDER=PCI_BUS_ID")]


def _memory(cards: Sequence[Card]) -> list[Problem]:
    return [Problem("memory-unknown", f"the driver does not report the memory of GPU {card.number} "
                    f"({card.name})", "Pass what the engine may use: --gpu-mem 64GiB")
            for card in cards if card.nvml_total_bytes is None]


def _as_gpu(card: Card) -> Gpu:
    """Return the card as the engine sees it: CUDA's total is NVML's less what is reserved.

    Checked on an H200: cuDeviceTotalMem and cuMemGetInfo both give total - reserved, to the byte.
    Without the reserved part the kind is "driver-total", which is more than CUDA offers.
    """
    total_bytes, reserved_bytes = card.nvml_total_bytes, card.reserved_bytes
    kind = "driver" if reserved_bytes is not None else "driver-total"
    gpu = Gpu(
        name=card.name,
        capability=card.capability,
        sm_count=card.sm_count,
        memory_bytes=None if total_bytes is None else total_bytes - (reserved_bytes or 0),
        memory_free_bytes=card.free_bytes,
        memory_kind=None if total_bytes is None else kind,
        origin="driver",
    )
    return gpu if card.instance_ids else _with_catalogue(gpu)


def _with_catalogue(gpu: Gpu) -> Gpu:
    """Return the GPU with the catalogue's id and SM count, where the catalogue knows it."""
    from quantplan.dispatch.gpu import driver_gpu

    known = driver_gpu(gpu.name, gpu.memory_bytes)
    if known is None or known.capability != gpu.capability:
        return gpu
    return gpu._replace(id=known.id, sm_count=known.sm_count)


def _capability_text(card: Card) -> str:
    return f"{card.capability // 10}.{card.capability % 10}"


def _quoted(value: str) -> str:
    return f'"{clean_text(value) or ""}"'
