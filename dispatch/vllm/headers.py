"""What AWQ and GPTQ read from the safetensors headers: which modules are stored quantized
(transformers_utils/config.py:get_safetensors_params_metadata)."""

from __future__ import annotations

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.structure import Structure

PLAIN_DTYPES = ("F16", "BF16", "F32")


def quantized_modules(checkpoint: Checkpoint) -> list[str]:
    """Return the modules holding at least one tensor that is not 16 or 32-bit float, sorted."""
    tensors = checkpoint.tensors or {}
    return sorted({name.rsplit(".", 1)[0] for name, tensor in tensors.items()
                   if tensor.dtype not in PLAIN_DTYPES})


def unquantized_modules(checkpoint: Checkpoint) -> list[str]:
    """Return the modules all of whose tensors are 16 or 32-bit float, sorted."""
    tensors = checkpoint.tensors or {}
    modules = {name.rsplit(".", 1)[0] for name in tensors}
    return sorted(modules - set(quantized_modules(checkpoint)))


def assumed_plain(checkpoint: Checkpoint, structure: Structure) -> list[str]:
    """Return the routers where no header could be read: AutoAWQ and GPTQModel leave them in 16 bits
    and do not list them, so that only the headers would say so."""
    if checkpoint.tensors is not None:
        return []
    return structure.routers()
