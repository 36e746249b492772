"""What the engine builds for a model: modules and their checkpoint leaves, in whole-model sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from quantplan.dispatch.facts import Note
from quantplan.dispatch.renames import Renames
from quantplan.tables.record import NamedTuple

ROUTER = "GateLinear"
"""The engine's class of routers (model_executor/layers/fused_moe/router/gate_linear.py)."""

TENSORS = ("tensor", "copy")
"""Kinds of modules that are one tensor: a weight, or what is made of one after loading."""

TEXT = "text"
"""The stack of layers of the language model."""


class Leaf(NamedTuple):
    """One checkpoint module, whole: n output features, k input features (None for a vector)."""

    name: str
    n: int
    k: int | None


class Heads(NamedTuple):
    """How a qkv split counts: query heads, kv heads, features of a head and of a value head."""

    query: int
    kv: int
    dim: int
    value_dim: int


class Groups(NamedTuple):
    """The groups of a Mamba mixer, and which output partitions there is one of per group."""

    number: int
    parts: tuple[int, ...]


class Module(NamedTuple):
    """One engine module: its path (with * for the layer index), class, split and leaves.

    `layers` are the indices at which it stands when the path holds *; `parts` the sizes of its
    output partitions; `facts` what attention and experts are asked about (whole-model numbers);
    `quantized` is false for modules that the engine builds without the quantization config, unless
    its class is in `quantized_by`, and `plain_under` are the classes that never quantize it; under
    those in `replicated_under`, and where experts are sequence-parallel those of
    `sequence_parallel`, no rank cuts it; `known_as` is the name that the engine gives the
    module (its prefix), whose layer index starts from `known_from`; `whole` are the output
    partitions that no rank cuts; the engine pads one rank's outputs to a multiple of `aligned`,
    and with `whole_blocks` the size that ranks cut to whole weight blocks;
    `before` and `after` are the rules that its class asks around building it; no rank cuts it
    where ranks do not divide `replicated_unless`, and `most_ranks` at most; `known_under` are the
    names that it has under some config classes instead; with `built_last` it stands in every layer
    before any is built; `dtype` is what it is built in where that is not the model's.
    """

    path: str
    module: str
    split: str
    bias: bool
    leaves: tuple[Leaf, ...]
    kind: str = "linear"
    layers: tuple[int, ...] = ()
    quantized: bool = True
    parts: tuple[int, ...] = ()
    heads: Heads | None = None
    facts: Mapping[str, Any] = {}
    stack: str = TEXT
    known_as: str = ""
    quantized_by: tuple[str, ...] = ()
    plain_under: tuple[str, ...] = ()
    replicated_under: tuple[str, ...] = ()
    groups: Groups | None = None
    whole: tuple[int, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    known_from: int = 0
    sequence_parallel: bool = False
    aligned: int = 1
    whole_blocks: bool = False
    replicated_unless: int | None = None
    most_ranks: int | None = None
    known_under: Mapping[str, str] = {}
    built_last: bool = False
    dtype: str | None = None

    def quantized_under(self, config_class: str | None) -> bool:
        """Return whether the engine builds the module with this class' quantization config."""
        built = self.quantized or config_class in self.quantized_by
        return built and config_class not in self.plain_under

    @property
    def name(self) -> str:
        """Return the last part of the path: qkv_proj, lm_head."""
        return self.path.rsplit(".", 1)[-1]

    @property
    def per_layer(self) -> bool:
        """Return whether there is one of these in every decoder layer that `layers` names."""
        return "*" in self.path

    def leaf_path(self, leaf: str) -> str:
        """Return the checkpoint module path of `leaf`, with * for the layer index."""
        if self.kind in TENSORS:
            return self.path.rpartition(".")[0]
        return ".".join((*self.path.split(".")[:-1], leaf)) if "." in self.path else leaf

    def path_at(self, index: int | None) -> str:
        """Return the module's path in layer `index`."""
        return self.path if index is None else self.path.replace("*", str(index), 1)

    def known_at(self, index: int | None, config_class: str | None = None) -> str:
        """Return the name that the engine gives the module in layer `index` under a config
        class."""
        known = self.known_under.get(str(config_class), self.known_as)
        return known if index is None else known.replace("*", str(self.known_from + index), 1)


class Structure(NamedTuple):
    """What the engine builds for a model; `packed` maps a fused layer's name to its leaves'.

    `complete` says that every weight of the model is a leaf of a module, `mapped` that the class
    has a mapper, whether or not it renames anything, `wrapper` that the class reads text_config,
    `sequence_parallel` that its experts can split tokens over tensor parallel ranks;
    `packed_outside` is `packed` as the engine has it while it builds the other stacks than the
    language model's, None where that is the same; `acts_said` is how the class words
    `accepted_acts`; `left_out` notes the sizes that config.json leaves to its class;
    `kv_heads_said` that its projections say in words which heads do not divide over the ranks.
    """

    architecture: str
    family: str
    model_type: str
    num_layers: int
    sizes: Mapping[str, int]
    tied: bool
    modules: tuple[Module, ...]
    packed: Mapping[str, tuple[str, ...]]
    hidden_act: str
    accepted_acts: tuple[str, ...]
    source: str
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    max_window_layers: int | None = None
    complete: bool = False
    wrapper: bool = False
    renames: tuple[Renames, ...] = ()
    replaced: tuple[Mapping[str, Any], ...] = ()
    mapped: bool = True
    sequence_parallel: bool = False
    packed_outside: Mapping[str, tuple[str, ...]] | None = None
    acts_said: str = "silu is supported for now"
    left_out: Note | None = None
    kv_heads_said: bool = False

    def module_of(self, path: str, index: int | None = None) -> Module:
        """Return the module that stands at a concrete or starred layer path in layer `index`."""
        wanted = path if index is None else path.replace(f".{index}.", ".*.", 1)
        return next(m for m in self.modules
                    if m.path == wanted and (index is None or index in m.layers))

    def routers(self) -> list[str]:
        """Return the paths of the routers, which the usual quantizers leave in 16 bits."""
        return [module.path_at(index) for module, index in self.sites()
                if module.module == ROUTER or module.facts.get("router")]

    def sites(self) -> Iterator[tuple[Module, int | None]]:
        """Yield every module with its layer index, in the order in which the engine builds them."""
        for key, group in groupby(self.modules, _built_with):
            modules = list(group)
            if key is None:
                yield from ((module, None) for module in modules)
                continue
            for index in sorted({index for m in modules for index in m.layers}):
                yield from ((m, index) for m in modules if index in m.layers)


def _built_with(module: Module) -> tuple[str, bool] | None:
    """Return what modules share that the engine builds layer by layer; None outside of layers."""
    return (module.stack, module.built_last) if module.per_layer else None
