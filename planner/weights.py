"""Weight bytes of one tensor-parallel rank: from safetensors headers, else from the config's sizes.

Counted are the parameters as the engine creates them and loads the checkpoint into them, before a
kernel repacks or pads; allocator rounding and rotary tables are not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quantplan.dispatch.facts import Checkpoint, Deployment, MemoryFlags, Note
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import (
    HYPOTHETICAL,
    can_be_quantized,
    is_decoder_linear,
    is_head,
    is_left_out,
    is_quantized,
)
from quantplan.dispatch.structure import Module, Structure
from quantplan.dispatch.weight_format import WeightFormat, read_format
from quantplan.planner.bill import Bill
from quantplan.planner.cuts import Cut, cut_leaves
from quantplan.planner.experts import Spread, expert_tensors
from quantplan.planner.lines import BudgetLine, total_bytes
from quantplan.planner.parts import format_parts, plain_parts
from quantplan.planner.stages import WHOLE, Stage
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

HEADERS, CONFIG = "safetensors headers", "the config's sizes"

Quantized = Callable[[str, int], bool]


class Weights(NamedTuple):
    """What one rank's weights cost; `title` is the format in words, `origin` what was counted.

    `stage_bytes` are those of every pipeline stage, where there are several; `lines` are then of
    the first of those that hold most.
    """

    lines: tuple[BudgetLine, ...]
    title: str
    origin: str
    notes: tuple[Note, ...] = ()
    stage_bytes: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the bytes of one rank."""
        return total_bytes(self.lines)


def weigh(
    checkpoint: Checkpoint, structure: Structure, *, tp: int = 1, dtype: str = "bfloat16",
    quantized: Quantized | None = None, stage: Stage = WHOLE,
) -> Weights:
    """Return the weight bytes of a pipeline stage's rank 0, as created; all ranks of a
    tensor-parallel group hold as many.

    `dtype` is the serving dtype (bfloat16, float16, float32). `quantized(path, layer)` says, for
    engine paths such as model.layers.*.mlp.down_proj, which layers the engine quantizes (layer 0
    for lm_head); None means all linear layers of the decoder. Headers, where they have shapes, say
    it themselves. Raises NotKnownError for a format without a layout, UsageError for a layer that
    does not divide, CheckpointError for headers that contradict the config.
    """
    if checkpoint.origin != HYPOTHETICAL and has_shapes(checkpoint):
        from quantplan.planner.stored import weigh_stored

        return weigh_stored(checkpoint, structure, tp, dtype, stage)
    weights = read_format(checkpoint.served_config)
    lines = weigh_sizes(structure, weights, tp, dtype, quantized, stage)
    notes = _ignored(weights) if quantized is None else ()
    return Weights(lines, format_title(weights, dtype), CONFIG, notes)


def weighable(checkpoint: Checkpoint) -> bool:
    """Return whether every weight of the model has a row, and the bytes of the format and of what
    a token keeps are known."""
    from quantplan.planner.kv_cache import kv_cache
    from quantplan.tables.versions import default_version

    try:
        structure = model_structure(checkpoint, weighed=True)
        weigh(checkpoint, structure, tp=1, dtype="bfloat16")
        kv_cache(checkpoint, structure, None, Deployment(), MemoryFlags(),
                 version=default_version("vllm"), dtype="bfloat16")
    except NotKnownError:
        return False
    return True


def weigh_sizes(  # noqa: PLR0917 - a deployment's facts, each a word
    structure: Structure, weights: WeightFormat | None, tp: int, dtype: str,
    quantized: Quantized | None = None, stage: Stage = WHOLE,
) -> tuple[BudgetLine, ...]:
    """Return the bill of a model in the format `weights`, from the structure's sizes alone."""
    bill = Bill(structure.source)
    group = weights.group if weights else -1
    for module, layers, cuts in cut_modules(structure, tp, stage, group=group):
        times = _quantized_layers(module, layers, weights, quantized)
        for position, cut in enumerate(cuts):
            if times and weights is not None:
                for part in format_parts(weights, module, position, dtype):
                    bill.add(module, cut, part, times)
            for part in plain_parts(module, module.leaves[position], dtype):
                bill.add(module, cut, part, len(layers) - times)
    return bill.lines()


def cut_modules(
    structure: Structure, tp: int, stage: Stage = WHOLE, *, spread: Spread | None = None,
    group: int = -1,
) -> Iterator[tuple[Module, tuple[int, ...], list[Cut]]]:
    """Yield the stage's modules with weights of their own, the layers that have each, their cuts.

    Routed experts are two of them, spread as `spread` says, else cut as everything else; `group`
    is the inputs of one scale of quantized weights. Raises NotKnownError for a family whose rows
    do not hold every weight.
    """
    if not structure.complete:
        raise NotKnownError(f"the memory of a {structure.architecture}",
                            hint="`quantplan explain` answers for its kernels.")
    for module in structure.modules:
        layers = tuple(layer or 0 for layer in module.layers or (None,)
                       if stage.holds(structure, module, layer))
        if not layers:
            continue
        if module.kind == "experts":
            for stack, cuts in expert_tensors(module, spread or Spread(tp), group):
                yield stack, layers, cuts
        elif not is_left_out(module, structure):
            yield module, layers, cut_leaves(module, tp)


def _quantized_layers(
    module: Module, layers: tuple[int, ...], weights: WeightFormat | None,
    quantized: Quantized | None,
) -> int:
    if weights is None or not (can_be_quantized(module) or is_head(module)):
        return 0
    if quantized is None:
        return len(layers) if is_quantized(module, weights) else 0
    return sum(quantized(module.path, layer) for layer in layers)


def count_parameters(structure: Structure) -> tuple[int, int]:
    """Return the model's parameters: weights of decoder linear layers, and all others.

    The others are embeddings, an untied lm_head, norms and biases; vocabulary padding is left out.
    """
    linear = other = 0
    for module, layers, cuts in cut_modules(structure, 1):
        if module.kind == "copy":
            continue
        for leaf, cut in zip(module.leaves, cuts, strict=True):
            weights = leaf.n * cut.k * cut.copies * len(layers)
            linear += weights if is_decoder_linear(module) else 0
            other += 0 if is_decoder_linear(module) else weights
            other += leaf.n * cut.copies * len(layers) if module.bias else 0
    return linear, other


def has_shapes(checkpoint: Checkpoint) -> bool:
    """Return whether headers were read and every tensor in them has a shape."""
    tensors = checkpoint.tensors or {}
    return bool(tensors) and all(tensor.shape is not None for tensor in tensors.values())


def format_title(weights: WeightFormat | None, dtype: str) -> str:
    """Return a format in words; without one, the serving dtype's short name."""
    short = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    return weights.title if weights else short.get(dtype, dtype)


def _ignored(weights: WeightFormat | None) -> tuple[Note, ...]:
    if weights is None or not weights.ignored:
        return ()
    return (Note("ignored-layers-counted-quantized",
                 f"the config leaves {len(weights.ignored)} names unquantized, the first is "
                 f"{weights.ignored[0]!r}; every linear layer is counted as quantized",
                 "Read the safetensors headers, or let the engine's rules say which layers."),)
