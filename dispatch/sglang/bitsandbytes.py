"""bitsandbytes checkpoints and weights that it quantizes while loading
(layers/quantization/bitsandbytes.py). Which of its kernels runs is its own choice."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.fields import Config, names
from quantplan.dispatch.trace import refuse

SOURCE = "layers/quantization/bitsandbytes.py:BitsAndBytesConfig"
STORAGE = "uint8"


def read(config: Config | None, context: Context) -> tuple[str, ...]:
    """Return the names that the class leaves alone, or refuse as it does."""
    stored = (config or {}).get("bnb_4bit_quant_storage") or STORAGE
    if stored != STORAGE:
        raise refuse("config fields", "ValueError", f"Unsupported bnb_4bit_quant_storage: {stored}",
                     None, SOURCE, hint=f"Serve a checkpoint stored as {STORAGE}.")
    return names((config or {}).get("llm_int8_skip_modules"), "llm_int8_skip_modules")


def assign(fields: tuple[str, ...], context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; embeddings and lm_head are none of the class's."""
    if site.module.split == "vocab":
        return None
    parts = site.path.split(".")
    places = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    if any(name in parts or name in places for name in fields):
        return unquantized("named in llm_int8_skip_modules")
    return Assignment("BitsAndBytesLinearMethod")
