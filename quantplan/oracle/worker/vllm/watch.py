"""What the engine decides while it builds a model, noted without changing it.

Each check, candidate list and refusal is filed under the layer that is being built.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from quantplan.oracle.worker.modules import imported

LINEAR = "vllm.model_executor.kernels.linear"
LAYERS = (
    ("vllm.model_executor.layers.linear", "LinearBase"),
    ("vllm.model_executor.layers.vocab_parallel_embedding", "VocabParallelEmbedding"),
    ("vllm.model_executor.layers.fused_moe", "RoutedExperts"),
    ("vllm.model_executor.layers.attention.attention", "Attention"),
    ("vllm.model_executor.layers.attention.mla_attention", "MLAAttention"),
    ("vllm.model_executor.layers.attention.mm_encoder_attention", "MMEncoderAttention"),
)
"""Classes whose constructors choose kernels."""


class Note(NamedTuple):
    """One thing that the engine decided: `kind` is list, kernel, experts or attention."""

    layer: int
    kind: str
    name: str
    passed: bool
    reason: str | None = None
    names: tuple[str, ...] = ()


class Watch:
    """The notes of the model being built, and the layer whose constructor raised."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.failed: str | None = None
        self._building: list[int] = []
        self._checking = 0
        self._follow_layers()
        self._follow_linear_kernels()
        self._follow_experts()
        self._follow_attention()

    def begin(self) -> None:
        """Forget the last model."""
        self.notes.clear()
        self._building.clear()
        self.failed, self._checking = None, 0

    def of(self, layer: Any) -> list[Note]:
        """Return what was noted while `layer` was built."""
        return [note for note in self.notes if note.layer == id(layer)]

    def _note(self, kind: str, name: str, passed: bool, reason: Any = None,
              names: tuple[str, ...] = ()) -> None:
        layer = self._building[-1] if self._building else 0
        text = None if reason is None else str(reason)
        self.notes.append(Note(layer, kind, name, passed, text, names))

    def _follow_layers(self) -> None:
        for module, name in LAYERS:
            with suppress(ImportError, AttributeError):
                for layer in _family(getattr(imported(module), name)):
                    if "__init__" in vars(layer):
                        layer.__init__ = self._building_layer(layer.__init__)

    def _building_layer(self, build: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(build)

        @functools.wraps(build)
        def built(layer: Any, *given: Any, **named: Any) -> None:
            if self._building and self._building[-1] == id(layer):
                build(layer, *given, **named)  # a base class' constructor
                return
            self._building.append(id(layer))
            try:
                build(layer, *given, **named)
            except BaseException:
                self.failed = self.failed or _prefix(parameters, layer, given, named)
                raise
            self._building.pop()
        return built

    def _follow_linear_kernels(self) -> None:
        linear = imported(LINEAR)
        for kernel in _kernels(linear):
            for check in ("is_supported", "can_implement"):
                if check in vars(kernel):
                    original = vars(kernel)[check].__func__
                    setattr(kernel, check, classmethod(self._checked("kernel", original)))
        resolve = linear._resolve_backend_kernels

        @functools.wraps(resolve)
        def resolved(*given: Any, **named: Any) -> Any:
            kernels = resolve(*given, **named)
            names = tuple(kernel.__name__ for kernel in kernels)
            self._note("list", str(named.get("quantization")), True, names=names)
            return kernels
        linear._resolve_backend_kernels = resolved

    def _checked(self, kind: str, check: Callable[..., Any]) -> Callable[..., Any]:
        """Return `check` noting its verdict; checks that it makes itself are not the engine's."""
        @functools.wraps(check)
        def checked(candidate: Any, *given: Any, **named: Any) -> Any:
            with self._one_deeper() as outermost:
                verdict = check(candidate, *given, **named)
            if outermost:
                self._note(kind, candidate.__name__, bool(verdict[0]),
                           None if verdict[0] else verdict[1])
            return verdict
        return checked

    @contextmanager
    def _one_deeper(self) -> Iterator[bool]:
        self._checking += 1
        try:
            yield self._checking == 1
        finally:
            self._checking -= 1

    def _follow_experts(self) -> None:
        """Experts classes are imported when they are tried, so those to come are followed too."""
        modular = imported("vllm.model_executor.layers.fused_moe.modular_kernel")
        for experts in _family(modular.FusedMoEExperts):
            self._follow_experts_class(experts)

        def new_class(experts: Any, /, **named: Any) -> None:
            super(modular.FusedMoEExperts, experts).__init_subclass__(**named)
            self._follow_experts_class(experts)
        modular.FusedMoEExperts.__init_subclass__ = classmethod(new_class)

    def _follow_experts_class(self, experts: Any) -> None:
        own = vars(experts).get("is_supported_config")
        if isinstance(own, staticmethod):
            experts.is_supported_config = staticmethod(self._checked("experts", own.__func__))

    def _follow_attention(self) -> None:
        platform = type(imported("vllm.platforms").current_platform)
        ask = getattr(platform, "get_valid_backends", None)
        if ask is None:
            return

        @functools.wraps(ask)
        def asked(cls: Any, *given: Any, **named: Any) -> Any:
            valid, invalid = ask(*given, **named)
            for backend, why in invalid.items():
                reasons = why[1] if isinstance(why, tuple) else why
                self._note("attention", getattr(backend, "name", str(backend)), False,
                           ", ".join(map(str, reasons)))
            return valid, invalid
        platform.get_valid_backends = classmethod(asked)


def _family(base: Any) -> Iterator[Any]:
    yield base
    for child in base.__subclasses__():
        yield from _family(child)


def _kernels(linear: Any) -> set[Any]:
    """Return the kernel classes of the engine's linear candidate lists, and their bases."""
    lists = [value for name, value in vars(linear).items() if name.startswith("_POSSIBLE")]
    kernels = {kernel for by_platform in lists for row in by_platform.values() for kernel in row}
    kernels |= {value for value in vars(linear).values() if isinstance(value, type)
                and (hasattr(value, "can_implement") or hasattr(value, "is_supported"))}
    return {base for kernel in kernels for base in kernel.__mro__ if base is not object}


def _prefix(parameters: inspect.Signature, layer: Any, given: Any, named: Any) -> str | None:
    """Return the layer's path, as its constructor was told; none of an embedding, which a refusal
    does not name as no linear layer."""
    if type(layer).__name__ == "VocabParallelEmbedding":
        return None
    with suppress(TypeError):
        arguments = parameters.bind_partial(layer, *given, **named).arguments
        for name in ("prefix", "layer_name"):
            if arguments.get(name):
                return str(arguments[name])
    return None
