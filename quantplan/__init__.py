"""quantplan: which quantized kernel an LLM engine picks on a GPU, in which mode, and what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantplan.api import Explanation, budget, explain

__version__ = "0.1.0"
__all__ = ["Explanation", "__version__", "budget", "explain"]


def __getattr__(name: str) -> Any:
    """Return a public name, importing its module on first use (start-up stays cheap)."""
    if name in __all__:
        from quantplan import api

        return getattr(api, name)
    raise AttributeError(f"module 'quantplan' has no attribute {name!r}")
