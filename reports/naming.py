"""What engines are called in a text."""

from __future__ import annotations

from quantplan.dispatch.trace import Trace

ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}


def engine_named(engine: str, version: str) -> str:
    """Return an engine and its version as a person names them."""
    return f"{ENGINE_NAMES.get(engine, engine)} {version}"


def engine_words(trace: Trace) -> str:
    """Return the engine and the version whose table answers, as a person names them."""
    return engine_named(trace.engine, trace.version)
