"""The checkpoint's tensors against what the engine plans: the second source of truth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from quantplan.dispatch.facts import Tensor
from quantplan.dispatch.renames import rename
from quantplan.dispatch.structure import Leaf
from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm.context import Context

PLAIN = ("BF16", "F16", "F32")
UNPACKED = (*PLAIN, "F8_E4M3", "I8")
CONSOLIDATED = re.compile(r"(^|\.)layers\.\d+\.attention\.w[qkvo]\.")
"""Mistral's own names (consolidated*.safetensors), which the engine maps to its modules."""
QUANTIZED_PARTS = ("weight", "qweight", "weight_packed")
SOURCE = "safetensors headers"


def stored_findings(context: Context, layers: Sequence[Layer]) -> Iterator[Finding]:
    """Yield what the headers contradict; nothing when no header could be read."""
    tensors = _engine_names(context)
    if tensors is not None:
        yield from _wrong_storage(context, layers, tensors)
        yield from _wrong_shapes(context, layers, tensors)
        yield from _missing_layers(context, layers, tensors)


def _engine_names(context: Context) -> Mapping[str, Tensor] | None:
    """Return the tensors under the names that the model class gives them."""
    tensors, renames = context.checkpoint.tensors, context.structure.renames
    if tensors is None or not renames:
        return tensors
    return {rename(name, renames): tensor for name, tensor in tensors.items()}


def _wrong_storage(
    context: Context, layers: Sequence[Layer], tensors: Mapping[str, Tensor]
) -> Iterator[Finding]:
    plain = [x.path for x in layers if _planned(x) and "plain" in _stored(context, x, tensors)]
    packed = [x.path for x in layers if _unplanned(x)
              and "quantized" in _stored(context, x, tensors)]
    if plain:
        yield Finding("weight loading", "error", "stored-unquantized",
                      f"{_count(plain)} planned as quantized but stored in 16 bits: loading "
                      "fails, or the weights are read wrongly",
                      "List them in the ignore entries of the quantization config.", SOURCE)
    if packed:
        yield Finding("weight loading", "error", "stored-quantized",
                      f"{_count(packed)} planned as 16-bit but stored quantized: the engine has no "
                      "parameter for those tensors",
                      "The quantization config is missing, or ignores too much.", SOURCE)


def _planned(layer: Layer) -> bool:
    method = layer.method or ""
    online = "Online" in method
    return layer.weighted and not online and not method.startswith("Unquantized")


def _unplanned(layer: Layer) -> bool:
    return layer.method == "UnquantizedLinearMethod"


def _count(paths: list[str]) -> str:
    more = f" and {len(paths) - 1} more layers are" if len(paths) > 1 else " is"
    return f"{paths[0]}{more}"


def _stored(context: Context, layer: Layer, tensors: Mapping[str, Tensor]) -> set[str]:
    """Return how a layer's leaves are stored: "plain", "quantized", both, or neither."""
    found = (_leaf(path, tensors) for path, _ in _leaves(context, layer))
    return {how for how in found if how}


def _leaf(path: str, tensors: Mapping[str, Tensor]) -> str | None:
    tensor = next((tensors[f"{path}.{part}"] for part in QUANTIZED_PARTS
                   if f"{path}.{part}" in tensors), None)
    if tensor is None:
        return None
    return "plain" if tensor.dtype in PLAIN else "quantized"


def _wrong_shapes(
    context: Context, layers: Sequence[Layer], tensors: Mapping[str, Tensor]
) -> Iterator[Finding]:
    """Unpacked weights are N x K; the loader asserts that each fits its parameter."""
    for _, path, leaf in _loaded(context, layers):
        tensor = tensors.get(f"{path}.weight")
        if tensor is None or tensor.shape is None or tensor.dtype not in UNPACKED:
            continue
        if tensor.shape != (leaf.n, leaf.k):
            yield Finding("weight loading", "error", "stored-shape",
                          f"{path}.weight is stored as {' x '.join(map(str, tensor.shape))}, but "
                          f"config.json makes it {leaf.n} x {leaf.k}",
                          "config.json and the weight files are of two models.", SOURCE)
            return


def _missing_layers(
    context: Context, layers: Sequence[Layer], tensors: Mapping[str, Tensor]
) -> Iterator[Finding]:
    if any(CONSOLIDATED.search(name) for name in tensors):
        return
    leaves = list(_loaded(context, layers))
    modules = {name.rpartition(".")[0] for name in tensors}
    # A tensor that is fused on disk stands under the layer's own path; the loader takes it.
    missing = [path for layer, path, _ in leaves
               if path not in modules and layer.path not in modules]
    if missing:
        count = len(leaves) - len(missing)
        yield Finding("weight loading", "error", "layers-not-stored",
                      f"{count or 'none'} of {len(leaves)} modules of this model have a tensor in "
                      f"the weight files; missing: {missing[0]}"
                      + (" ..." if len(missing) > 1 else ""),
                      "Fetch every weight file; check num_hidden_layers.", SOURCE)


def _loaded(
    context: Context, layers: Sequence[Layer]
) -> Iterator[tuple[Layer, str, Leaf]]:
    """Yield every leaf that the engine loads, with its layer and its path in the checkpoint."""
    for layer in layers:
        if layer.path != "lm_head" or not context.structure.tied:
            yield from ((layer, path, leaf) for path, leaf in _leaves(context, layer))


def _leaves(context: Context, layer: Layer) -> Iterator[tuple[str, Leaf]]:
    module = context.structure.module_of(layer.path, layer.layer_index)
    prefix = layer.path.removesuffix(module.name)
    return ((f"{prefix}{leaf.name}", leaf) for leaf in module.leaves)
