"""Number formats as the package humming names them, and the weights and activations made of them
(humming/dtypes.py)."""

from __future__ import annotations

import re
from functools import cache

from quantplan.tables.record import NamedTuple


class Number(NamedTuple):
    """A number format: float8e4m3 has 4 exponent and 3 mantissa bits, integers have neither."""

    name: str
    bits: int
    whole: bool
    exponent: int = 0
    mantissa: int = 0

    @property
    def fp8(self) -> bool:
        """Return whether this is an 8-bit float."""
        return not self.whole and self.bits == 8

    @property
    def fp4(self) -> bool:
        """Return whether this is a 4-bit float."""
        return not self.whole and self.bits == 4


class Weight(NamedTuple):
    """Weights: their format, the features of one scale (0: all of K), its format (None: 16 bits),
    and whether there are zero points."""

    dtype: str
    group: int = 0
    scale: str | None = None
    zero_point: bool = False


class Input(NamedTuple):
    """Activations as asked for; dtype None stands for 16 bits, `mode` is how their scales are
    found (humming 0.1.17 config/enum.py:InputQuantizationMode)."""

    dtype: str | None = None
    group: int = 0
    scale: str | None = None
    mode: str | None = None


SIXTEEN = {"float16": Number("float16", 16, False, 5, 10),
           "bfloat16": Number("bfloat16", 16, False, 8, 7)}
E4M3, E3M4, E8M0 = "float8e4m3", "float8e3m4", "float8e8m0"


@cache
def number(name: str) -> Number:
    """Return the format called `name`: float16, uint4, float4e2m1."""
    if name in SIXTEEN:
        return SIXTEEN[name]
    whole = re.fullmatch(r"u?int(\d+)", name)
    if whole:
        return Number(name, int(whole[1]), True)
    bits, exponent, mantissa = (int(n) for n in re.findall(r"\d+", name))
    return Number(name, bits, False, exponent, mantissa)
