"""Names of torch's dtypes, as configs spell them and as torch prints them (torch 2.13)."""

from __future__ import annotations

NAMES = frozenset((
    "bfloat16", "float16", "float32", "float64", "float4_e2m1fn_x2", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "bool", "complex32",
    "complex64", "complex128", *(f"int{bits}" for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
    *(f"uint{bits}" for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)), "qint8", "qint32", "quint8",
    "quint4x2", "quint2x4", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"))
ALIASES = {"bit": "uint1", "cdouble": "complex128", "cfloat": "complex64", "chalf": "complex32",
           "double": "float64", "float": "float32", "half": "float16", "int": "int32",
           "long": "int64", "short": "int16"}


def printed(text: str) -> str | None:
    """Return how torch prints the dtype that `text` names, with or without torch. in front; None
    where it names none."""
    name = text.removeprefix("torch.")
    name = ALIASES.get(name, name)
    return f"torch.{name}" if name in NAMES else None
