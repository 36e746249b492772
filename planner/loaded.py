"""Weights as the engine has them once loaded: what it prints as "Model loading took", and as "mem
usage" of "Load weight end".

To the tensors that it creates come rotary tables and scales of attention; a kernel then pads,
repacks and frees; and PyTorch's allocator rounds every block up. The printed figure is
torch.cuda.memory_allocated() over what was there before (vllm 0.32.0
utils/mem_utils.py:DeviceMemoryProfiler, v1/worker/gpu_model_runner.py:GPUModelRunner.load_model),
with SGLang the difference of the GPU's free memory, in which whole segments count (sglang 0.5.22
model_executor/model_runner.py:ModelRunner.load_model).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from quantplan.dispatch.weight_format import WeightFormat
from quantplan.planner.allocator import Allocator, Block
from quantplan.planner.kept import Served, kept_tensors, kernel_row
from quantplan.planner.lines import EXACT, MODELLED, BudgetLine
from quantplan.planner.parameters import RankLayer
from quantplan.planner.rotary import RotaryTable
from quantplan.tables.record import NamedTuple

KernelOf = Callable[[str], "str | None"]
"""Path of a layer -> its kernel as in planner.kept.kernel_row, None where it has none."""
ATTENTION_SCALES_BYTES = {"vllm": (4, 4, 4, 4), "sglang": ()}
"""Of q, k, v and the probabilities, in float32 (vllm 0.32.0
model_executor/layers/attention/attention.py:set_default_quant_scales); SGLang's RadixAttention has
none but those of a quantized cache, and they fill no segment."""
SCALES_SOURCE = "vllm 0.32.0 model_executor/layers/attention/attention.py"
TITLES = {"vllm": "vllm 0.32.0", "sglang": "sglang 0.5.22"}
"""Engine -> the version that the sources of its rows are of."""
COUNTED = {"vllm": "blocks in use", "sglang": "segments"}
"""Engine -> what its printed figure is made of."""
ALLOCATOR_SOURCE = "torch 2.13 c10/cuda/CUDACachingAllocator.cpp"


class Loaded(NamedTuple):
    """What loading adds to the created weights, in bytes; `unknown` are kernels of which it is not
    known what they keep, `sources` those of the kernels that change anything."""

    repacked_bytes: int
    rotary_bytes: int
    scales_bytes: int
    rounded_bytes: int
    kernels: tuple[str, ...]
    unknown: tuple[str, ...]
    sources: tuple[str, ...]


class _Held:
    """A layer on the GPU: its tensors and their blocks."""

    def __init__(self, layer: RankLayer, blocks: list[Block | None]) -> None:
        self.layer, self.blocks = layer, blocks


class Loading:
    """A model being loaded on one rank: `layers` in the engine's order."""

    def __init__(self, served: Served, kernel_of: KernelOf) -> None:
        self._served, self._kernel_of = served, kernel_of
        self._attention = ATTENTION_SCALES_BYTES[served.engine]
        self._memory = Allocator()
        self._created = self._kept = self._scales = 0
        self._kernels: dict[str, bool] = {}

    def load(
        self, layers: Iterable[RankLayer], weights: WeightFormat | None,
        tables: tuple[RotaryTable, ...],
    ) -> Loaded:
        """Return what loading adds to the tensors of `layers`."""
        held = list(self._build(layers, tables))
        self._memory.empty_cache()
        for layer in held:
            if weights is not None and layer.layer.quantized:
                self._prepare(layer, weights)
        self._memory.empty_cache()
        rotary = sum(table.bytes for table in tables)
        asked = self._created + self._kept + rotary + self._scales
        changed = tuple(name for name, known in self._kernels.items() if known)
        counted = (self._memory.allocated_bytes if self._served.engine == "vllm"
                   else self._memory.reserved_bytes)
        return Loaded(self._kept, rotary, self._scales, counted - asked,
                      changed, tuple(sorted(self._kernels.keys() - set(changed))),
                      tuple(sorted({_source(name, self._served.engine) for name in changed})))

    def _build(
        self, layers: Iterable[RankLayer], tables: tuple[RotaryTable, ...]
    ) -> Iterator[_Held]:
        left = list(tables)
        for layer in layers:
            if layer.module.kind == "attention":
                for table in left:
                    self._compute(table)
                left = []
                self._memory.take_all(self._attention)
                self._scales += sum(self._attention)
            sizes = [tensor.bytes for tensor in layer.tensors]
            self._created += sum(sizes)
            yield _Held(layer, self._memory.take_all(sizes))

    def _compute(self, table: RotaryTable) -> None:
        """Take a rotary table and give back what its computation needs on the way (vllm 0.32.0
        model_executor/layers/rotary_embedding/base.py:RotaryEmbeddingBase)."""
        half = table.rows * table.features // 2 * 4
        way = self._memory.take_all([table.rows * 4, half, half, half])
        wide = self._memory.take(2 * half)
        for block in way:
            self._memory.give_back(block)
        if table.element_bytes != 4:
            self._memory.take(table.bytes)
            self._memory.give_back(wide)

    def _prepare(self, held: _Held, weights: WeightFormat) -> None:
        """Let the layer's kernel replace its tensors, each before the old one is freed."""
        kernel = self._kernel_of(held.layer.path)
        if kernel is None:
            return
        row = kernel_row(kernel, self._served.engine)
        self._kernels.setdefault(kernel, row is not None)
        kept = kept_tensors(held.layer, weights, row, self._served)
        for tensor in kept:
            if not tensor.made_anew:
                continue
            self._memory.take(tensor.bytes)
            self._kept += tensor.bytes
            if tensor.replaces is not None:
                self._memory.give_back(held.blocks[tensor.replaces])
                self._kept -= held.layer.tensors[tensor.replaces].bytes


def _source(kernel: str, engine: str) -> str:
    row = kernel_row(kernel, engine)
    return str(row["source"]) if row else ""


def loaded_lines(
    found: Loaded, tables: tuple[RotaryTable, ...], engine: str = "vllm"
) -> Iterator[BudgetLine]:
    """Yield the lines of what loading adds; the bytes of repacking are negative where more is freed
    than padded."""
    of = TITLES[engine]
    if found.repacked_bytes:
        yield BudgetLine(
            "kernel repacking", found.repacked_bytes,
            f"{' and '.join(found.kernels)}: what is kept minus what was created",
            f"{of} " + ", ".join(found.sources), EXACT)
    if tables:
        formula = " + ".join(f"{t.rows:,} positions x {t.features} x {t.element_bytes} bytes"
                             for t in tables)
        yield BudgetLine("rotary tables", found.rotary_bytes, formula,
                         f"{of} {tables[0].source}", EXACT)
    if found.scales_bytes:
        layers = found.scales_bytes // sum(ATTENTION_SCALES_BYTES[engine])
        yield BudgetLine("attention scales", found.scales_bytes,
                         f"{layers} layers x 4 scales x 4 bytes", SCALES_SOURCE, EXACT)
    yield BudgetLine("allocator rounding", found.rounded_bytes, f"{COUNTED[engine]} minus what was "
                     "asked for, every allocation in load order",
                     ALLOCATOR_SOURCE, MODELLED)
