"""This machine's GPUs as NVML describes them: read once, closed again, nothing decided.

NVML numbers GPUs in PCI order, whatever CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER say. Only the
compute capability is required; any other fact that the driver withholds is None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from quantplan.tables.record import NamedTuple

NAME_ONE = "--gpu 4090, or --capability 8.9"

# NVML's own name buffer (NVML_DEVICE_NAME_V2_BUFFER_SIZE); no honest text is longer.
TEXT_LIMIT = 96

NEEDED = (
    "nvmlInit",
    "nvmlShutdown",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetCudaComputeCapability",
)

# nvmlReturn_t -> problem id, what is wrong, what mends it (nvml.h; the codes are NVML's ABI).
MACHINE_FAULTS: dict[int, tuple[str, str, str | None]] = {
    4: ("no-permission", "the NVIDIA driver refuses this user",
        "Check the rights on /dev/nvidia*"),
    9: ("driver-not-loaded", "the NVIDIA driver is not loaded",
        "Load its kernel module, or pass the GPU into the container"),
    12: ("no-driver", "NVML, the NVIDIA driver's library, is not found", None),
    15: ("gpu-lost", "a GPU is lost: it no longer answers on its bus", "Reboot"),
    18: ("driver-mismatch", "the NVIDIA driver's library and its kernel module differ in version",
         "Reboot to load the new module"),
    999: ("driver-unknown-error", "the NVIDIA driver answers with an unknown error",
          "Restart the container or the machine"),
}
GPU_FAULTS: dict[int, tuple[str, str, str | None]] = {
    3: ("no-capability", "the driver does not tell its compute capability", None),
    4: ("no-permission", "the NVIDIA driver refuses this user", "Check the rights on /dev/nvidia*"),
    15: ("gpu-lost", "it is lost and no longer answers on its bus", "Reboot"),
    16: ("gpu-reset", "it must be reset before use", "Run nvidia-smi --gpu-reset"),
}


class Problem(NamedTuple):
    """Something that keeps a GPU from being read or trusted, and what to do next."""

    id: str
    message: str
    hint: str


class Card(NamedTuple):
    """One GPU, or one MIG instance, as NVML describes it.

    `nvml_total_bytes` is what nvidia-smi shows; CUDA's total (and torch's, and vLLM's) is that
    less `reserved_bytes`. `number` is NVML's, an instance has its GPU's. `mig` says whether the
    GPU's MIG mode is on; `instance_ids` (GPU instance, compute instance) marks an instance.
    """

    number: int
    name: str
    capability: int
    uuid: str | None = None
    nvml_total_bytes: int | None = None
    reserved_bytes: int | None = None
    free_bytes: int | None = None
    sm_count: int | None = None
    mig: bool | None = None
    ecc: bool | None = None
    busy_processes: int | None = None
    instances: tuple[Card, ...] = ()
    instance_ids: tuple[int | None, int | None] | None = None


class Machine(NamedTuple):
    """What NVML says of this machine; `cards[i]` is GPU i, or why GPU i cannot be read."""

    driver: str | None = None
    cuda_driver: str | None = None
    cards: tuple[Card | Problem, ...] = ()
    problem: Problem | None = None


def read_machine() -> Machine:
    """Return this machine's driver and GPUs, or the problem that keeps NVML from answering."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return Machine(problem=_problem(
            "no-pynvml", "this machine's GPU cannot be read: the package nvidia-ml-py is missing",
            "Install nvidia-ml-py"))
    nvml: Any = pynvml
    if missing := [name for name in NEEDED if not hasattr(nvml, name)]:
        return Machine(problem=_problem(
            "old-pynvml", f"this machine's GPU cannot be read: pynvml has no {missing[0]}",
            "Install nvidia-ml-py 12.560 or newer in place of older pynvml packages"))
    return _read_open(nvml)


def clean_text(value: object) -> str | None:
    """Return driver or environment text as one printable line of at most 96 characters, or None."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        return None
    printable = "".join(letter for letter in text if letter.isprintable())
    return " ".join(printable.split())[:TEXT_LIMIT] or None


def _read_open(nvml: Any) -> Machine:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Machine(problem=_machine_fault(error))
    try:
        cards = tuple(_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        driver = clean_text(_ask(nvml, "nvmlSystemGetDriverVersion"))
        return Machine(driver, _cuda_text(_ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")), cards)
    except nvml.NVMLError as error:
        return Machine(problem=_machine_fault(error))
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _machine_fault(error: Any) -> Problem:
    found = MACHINE_FAULTS.get(error.value)
    told = found or ("nvml-error", f"NVML answers {clean_text(str(error))!r}", None)
    return _problem(told[0], f"this machine's GPU cannot be read: {told[1]}", told[2])


def _gpu_fault(index: int, error: Any) -> Problem:
    found = GPU_FAULTS.get(error.value)
    told = found or ("nvml-error", f"NVML answers {clean_text(str(error))!r}", None)
    return _problem(told[0], f"GPU {index} cannot be read: {told[1]}", told[2])


def _problem(id: str, message: str, fix: str | None) -> Problem:
    hint = f"{fix}, or name a GPU: {NAME_ONE}" if fix else f"Name one instead: {NAME_ONE}"
    return Problem(id, message, hint)


def _read_gpu(nvml: Any, index: int) -> Card | Problem:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError as error:
        return _gpu_fault(index, error)
    if not (0 < major < 100 and 0 <= minor < 10):
        return _problem("no-capability", f"GPU {index} cannot be read: the driver tells the "
                        f"impossible compute capability {major}.{minor}", None)
    name = clean_text(_ask(nvml, "nvmlDeviceGetName", handle)) or f"unnamed GPU {index}"
    card = _read_facts(nvml, handle, Card(index, name, 10 * major + minor))
    card = card._replace(ecc=_first_flag(_ask(nvml, "nvmlDeviceGetEccMode", handle)),
                         mig=_first_flag(_ask(nvml, "nvmlDeviceGetMigMode", handle)))
    return card._replace(instances=_read_instances(nvml, handle, card)) if card.mig else card


def _read_facts(nvml: Any, handle: Any, card: Card) -> Card:
    """Return CARD with what a GPU and a MIG instance answer alike."""
    total_bytes, reserved_bytes, free_bytes = _read_memory(nvml, handle)
    processes = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    return card._replace(
        uuid=clean_text(_ask(nvml, "nvmlDeviceGetUUID", handle)),
        nvml_total_bytes=total_bytes,
        reserved_bytes=reserved_bytes,
        free_bytes=free_bytes,
        busy_processes=len(processes) if isinstance(processes, list) else None,
    )


def _read_memory(nvml: Any, handle: Any) -> tuple[int | None, int | None, int | None]:
    """Return NVML's total, reserved and free bytes; only the second form tells the reserved."""
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle,
                  version=getattr(nvml, "nvmlMemory_v2", 0x02000028))
    if memory is None:
        memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    total_bytes = getattr(memory, "total", 0)
    if total_bytes <= 0:
        return None, None, None
    return (total_bytes, _up_to(getattr(memory, "reserved", None), total_bytes - 1),
            _up_to(getattr(memory, "free", None), total_bytes))


def _read_instances(nvml: Any, parent: Any, card: Card) -> tuple[Card, ...]:
    """Return the MIG instances of CARD; NVML's count is of slots, and empty slots are errors."""
    slots = _ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", parent) or 0
    found = []
    for slot in range(slots):
        handle = _ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", parent, slot)
        if handle is not None:
            found.append(_read_instance(nvml, handle, card))
    return tuple(found)


def _read_instance(nvml: Any, handle: Any, parent: Card) -> Card:
    told = clean_text(_ask(nvml, "nvmlDeviceGetName", handle)) or parent.name
    name = told if "MIG" in told else f"{told} MIG"
    card = _read_facts(nvml, handle, Card(parent.number, name, parent.capability))
    attributes = _ask(nvml, "nvmlDeviceGetAttributes", handle)
    card = card._replace(
        sm_count=getattr(attributes, "multiprocessorCount", None) or None,
        mig=True,
        ecc=parent.ecc,
        instance_ids=(_ask(nvml, "nvmlDeviceGetGpuInstanceId", handle),
                      _ask(nvml, "nvmlDeviceGetComputeInstanceId", handle)),
    )
    if card.nvml_total_bytes is None and (size := getattr(attributes, "memorySizeMB", 0)):
        card = card._replace(nvml_total_bytes=size << 20)
    return card


def _ask(nvml: Any, function: str, *arguments: Any, **options: Any) -> Any:
    """Return an optional fact, or None where the driver or this pynvml does not offer it."""
    try:
        ask: Callable[..., Any] = getattr(nvml, function)
        return ask(*arguments, **options)
    except (nvml.NVMLError, AttributeError, TypeError, UnicodeError):
        return None


def _first_flag(modes: Any) -> bool | None:
    """Return the current one of NVML's (current, pending) pair."""
    return bool(modes[0]) if modes else None


def _up_to(value: int | None, limit: int) -> int | None:
    return value if value is not None and 0 <= value <= limit else None


def _cuda_text(version: int | None) -> str | None:
    """Return 12040 as "12.4" (nvmlSystemGetCudaDriverVersion: 1000 * major + 10 * minor)."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else None
