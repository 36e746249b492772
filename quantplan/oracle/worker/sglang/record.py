"""What a layer did when it was run: products, quantizations and operators, in order."""

from __future__ import annotations

from typing import Any, NamedTuple

PRODUCT, ACTIVATION, OPERATOR, CALL = "product", "activation", "operator", "call"
"""Kinds of steps: a matrix product; a quantization of activations, by how it scales; an operator
or Triton kernel of the engine; a call into a package that stands in for itself."""


class Step(NamedTuple):
    """One thing that was reached, with the dtypes of the tensors it was given (and of a product's
    result), its backend where it was called with one, and the bits of packed weights."""

    kind: str
    name: str
    dtypes: tuple[str, ...] = ()
    result: str | None = None
    backend: str | None = None
    bits: int | None = None


class ReachedError(BaseException):
    """A product was reached: which operator the layer calls is known, and nothing follows."""


class Record:
    """The steps of the layer that runs."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def begin(self) -> None:
        """Forget the last layer."""
        self.steps.clear()

    def add(self, kind: str, name: str, **more: Any) -> None:
        """Note one step."""
        self.steps.append(Step(kind, name, **more))


RECORD = Record()
"""One process runs one layer at a time."""


def dtype_name(tensor: Any) -> str:
    """Return the name of a tensor's dtype."""
    return str(tensor.dtype).removeprefix("torch.")
