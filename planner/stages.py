"""Pipeline stages: which layers of a model a rank of each holds."""

from __future__ import annotations

from quantplan.dispatch.formats import is_head
from quantplan.dispatch.structure import Module, Structure
from quantplan.tables.errors import UsageError
from quantplan.tables.record import NamedTuple

PARTITION = {"vllm": "VLLM_PP_LAYER_PARTITION", "sglang": "SGLANG_PP_LAYER_PARTITION"}
"""Engine -> the variable with the layers of each stage."""


class Stage(NamedTuple):
    """One stage: the layers from `start` up to `end`, which counts to the last where None."""

    start: int = 0
    end: int | None = None
    first: bool = True
    last: bool = True

    def holds(self, structure: Structure, module: Module, layer: int | None) -> bool:
        """Return whether a rank of this stage builds the module: what stands before the layers is
        the first stage's, what follows them the last one's, which has the embedding too where the
        head is tied to it (vllm 0.32.0 model_executor/models/utils.py:PPMissingLayer)."""
        if module.per_layer and layer is not None:
            return self.start <= layer and (self.end is None or layer < self.end)
        if structure.tied and module.split == "vocab" and not is_head(module):
            return self.first or self.last
        return self.first if _before_layers(structure, module) else self.last


def _before_layers(structure: Structure, module: Module) -> bool:
    for other in structure.modules:
        if other is module:
            return True
        if other.per_layer:
            return False
    return False


WHOLE = Stage()


def stages(
    layers: int, pp: int, partition: str | None = None, engine: str = "vllm"
) -> tuple[Stage, ...]:
    """Return the stages of `pp` ranks, by the engine's rule or by its variable, `partition`
    (vllm 0.32.0 and sglang 0.5.22 distributed/utils.py:get_pp_indices).

    Raises UsageError for more ranks than layers and a partition that is none.
    """
    sizes = (_even(layers, pp, engine) if partition is None
             else _given(partition, layers, pp, PARTITION[engine]))
    starts = [sum(sizes[:rank]) for rank in range(pp + 1)]
    return tuple(Stage(starts[rank], starts[rank + 1], rank == 0, rank == pp - 1)
                 for rank in range(pp))


def _even(layers: int, pp: int, engine: str) -> list[int]:
    """Return even sizes; vLLM leaves the last stage without further layers, SGLang begins there."""
    if not 1 <= pp <= layers:
        raise UsageError("pipeline parallel size", wanted=f"1 to {layers} (its layers)",
                         found=str(pp))
    sizes = [layers // pp] * pp
    first = 2 if engine == "vllm" else 1
    for place in range(first, layers % pp + first):
        sizes[-place] += 1
    return sizes


def _given(partition: str, layers: int, pp: int, variable: str) -> list[int]:
    try:
        sizes = [int(size) for size in partition.split(",")]
    except ValueError:
        sizes = []
    if len(sizes) != pp or sum(sizes) != layers:
        raise UsageError(variable, wanted=f"{pp} numbers of layers, {layers} in all",
                         found=repr(partition))
    return sizes
