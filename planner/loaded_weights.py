"""The weights of a deployment as loaded: the bill of what is created, and what loading adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment, Note
from quantplan.dispatch.structure import Structure
from quantplan.dispatch.trace import Layer, Trace
from quantplan.dispatch.weight_format import WeightFormat, read_format
from quantplan.planner.kept import Served
from quantplan.planner.lines import BudgetLine, total_bytes
from quantplan.planner.loaded import Loading, loaded_lines
from quantplan.planner.parameters import rank_layers
from quantplan.planner.rotary import RotaryTable, rotary_tables
from quantplan.planner.stages import PARTITION, Stage, stages
from quantplan.planner.weights import Quantized, Weights, weigh, weigh_sizes
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple


class Loader(NamedTuple):
    """What decides how a checkpoint is loaded: `trace` says which kernels, None where that is not
    known; `quantized` is as in planner.weights.weigh; `engine` of `version` loads it, None: the
    default one."""

    deployment: Deployment
    dtype: str
    capability: int
    trace: Trace | None
    quantized: Quantized | None = None
    pp: int = 1
    engine: str = "vllm"
    version: str | None = None


def weigh_loaded(checkpoint: Checkpoint, structure: Structure, loader: Loader) -> Weights:
    """Return the weights of one rank as the engine has them once it says "Model loading took".

    With several pipeline stages those of the heaviest, and the bytes of each. What is not known of
    loading is noted, and its bytes are left out. Raises what planner.weights.weigh raises.
    """
    found = [_stage(checkpoint, structure, loader, stage) for stage in _stages(structure, loader)]
    heaviest = max(found, key=lambda weights: weights.bytes)
    if loader.pp == 1:
        return heaviest
    sizes = tuple(weights.bytes for weights in found)
    each = ", ".join(f"{size / 2**30:.2f}" for size in sizes)
    note = Note("stage-weights", f"weights of the {loader.pp} pipeline stages: {each} GiB; counted "
                "is the heaviest", None, "info")
    return heaviest._replace(stage_bytes=sizes, notes=(*heaviest.notes, note))


def loaded_bytes(
    config: Mapping[str, Any], structure: Structure, weights: WeightFormat | None, loader: Loader
) -> int:
    """Return the same for a model in the format `weights`, of which no kernels are known; `config`
    is the language model's part of config.json."""
    return max(
        total_bytes(weigh_sizes(structure, weights, loader.deployment.tp, loader.dtype,
                                loader.quantized, stage))
        + total_bytes(_added(config, structure, weights, loader, stage)[0])
        for stage in _stages(structure, loader))


def _stages(structure: Structure, loader: Loader) -> tuple[Stage, ...]:
    return stages(structure.num_layers, loader.pp,
                  loader.deployment.env.get(PARTITION[loader.engine]), loader.engine)


def _stage(
    checkpoint: Checkpoint, structure: Structure, loader: Loader, stage: Stage
) -> Weights:
    created = weigh(checkpoint, structure, tp=loader.deployment.tp, dtype=loader.dtype,
                    quantized=loader.quantized, stage=stage)
    try:
        weights = read_format(checkpoint.served_config)
    except NotKnownError as error:
        return created._replace(notes=(*created.notes, Note(
            "loading-not-known", f"what loading adds is not counted: {error.what}", error.hint)))
    lines, notes = _added(checkpoint.text_config, structure, weights, loader, stage)
    return created._replace(lines=(*created.lines, *lines), notes=(*created.notes, *notes))


def _added(
    config: Mapping[str, Any], structure: Structure, weights: WeightFormat | None, loader: Loader,
    stage: Stage,
) -> tuple[tuple[BudgetLine, ...], tuple[Note, ...]]:
    """Return the lines of what loading adds on a stage, and what is not known of it."""
    tables, notes = _tables(config, structure, loader)
    layers = rank_layers(structure, weights, loader.deployment.tp, loader.dtype, loader.quantized,
                         stage)
    kernels = {} if loader.trace is None else {
        layer.path: _kernel(layer, loader.engine) for layer in loader.trace.layers}
    served = Served(loader.dtype, loader.capability, loader.engine, loader.version)
    found = Loading(served, kernels.get).load(layers, weights, tables)
    return tuple(loaded_lines(found, tables, loader.engine)), (*notes, *_unknown(found.unknown))


def _kernel(layer: Layer, engine: str) -> str | None:
    """Return the name of a layer's row in kept/ENGINE.yaml: in SGLang one operator serves methods
    that prepare it each their own way, in vLLM an experts backend stands in several lists."""
    if engine != "vllm":
        return layer.kernel and f"{layer.method}:{layer.kernel}"
    if layer.moe_backend is None or layer.selection is None:
        return layer.kernel
    return f"{layer.selection.family} {layer.moe_backend}"


def _tables(
    config: Mapping[str, Any], structure: Structure, loader: Loader
) -> tuple[tuple[RotaryTable, ...], tuple[Note, ...]]:
    flashinfer = loader.deployment.libs.get("flashinfer", True) is True
    try:
        return rotary_tables(config, structure, loader.dtype, flashinfer,
                             loader.engine), ()
    except NotKnownError as error:
        return (), (Note("rotary-table-not-known", f"not counted: {error.what}", error.hint),)


def _unknown(kernels: tuple[str, ...]) -> Iterator[Note]:
    for kernel in kernels:
        yield Note("kernel-memory-not-known", f"what {kernel} keeps of a layer is not known: its "
                   "tensors are counted as they were created")
