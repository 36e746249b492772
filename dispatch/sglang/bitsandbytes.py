"""bitsandbytes checkpoints and weights that it quantizes while loading
(layers/quantization/bitsandbytes.py). Which of its kernels runs is its own choice."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts
from quantplan.dispatch.sglang.fields import Config, names
from quantplan.dispatch.trace import refuse
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/bitsandbytes.py:BitsAndBytesConfig"
EXPERTS = "layers/quantization/bitsandbytes.py:BitsAndBytesMoEMethod._create_weights_8bit"
STORAGE = "uint8"


class BnbFields(NamedTuple):
    """What BitsAndBytesConfig keeps: the names that it leaves alone, and whether weights have 8
    bits."""

    skipped: tuple[str, ...]
    eight_bits: bool


def read(config: Config | None, context: Context) -> BnbFields:
    """Return the fields, or refuse as BitsAndBytesConfig does."""
    stored = (config or {}).get("bnb_4bit_quant_storage") or STORAGE
    if stored != STORAGE:
        raise refuse("config fields", "ValueError", f"Unsupported bnb_4bit_quant_storage: {stored}",
                     None, SOURCE, hint=f"Serve a checkpoint stored as {STORAGE}.")
    return BnbFields(names((config or {}).get("llm_int8_skip_modules"), "llm_int8_skip_modules"),
                     bool((config or {}).get("load_in_8bit")))


def assign(fields: BnbFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; embeddings and lm_head are none of the class's."""
    if site.module.split == "vocab":
        return None
    parts = site.path.split(".")
    places = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    if any(name in parts or name in places for name in fields.skipped):
        return unquantized("named in llm_int8_skip_modules")
    return Assignment("BitsAndBytesLinearMethod")


def experts(fields: BnbFields, context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment of routed experts, which no name leaves alone: those of 4 bits."""
    if fields.eight_bits:
        raise refuse("layer assignment", "NotImplementedError", "", site.path, EXPERTS,
                     hint="SGLang serves experts of 4 bits only.")
    return Assignment("BitsAndBytesMoEMethod")
