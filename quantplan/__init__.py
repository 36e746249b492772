"""quantplan: which quantized kernel an LLM engine picks on a GPU, in which mode, and what fits."""

from __future__ import annotations

import os.path
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantplan.api import Explanation, explain
    from quantplan.engines import EngineAnswers, explain_engines
    from quantplan.gpu_matrix import matrix
    from quantplan.memory import budget
    from quantplan.memory_answers import choices, fits, formats, levers, users
    from quantplan.memory_check import check_budget
    from quantplan.oracle.verification import Verification, verify
    from quantplan.planner.matrix import Matrix
    from quantplan.platforms import PlatformExplanation, explain_platform
    from quantplan.upgrade import Upgrade, diff

_HERE = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_HERE, "tables")):
    # A checkout keeps the rooms beside this folder, and `python -m` puts the checkout first.
    __path__.append(os.path.dirname(_HERE))

__version__ = "0.1.0"
__all__ = ["EngineAnswers", "Explanation", "Matrix", "PlatformExplanation", "Upgrade",
           "Verification", "__version__", "budget", "check_budget", "choices", "diff", "explain",
           "explain_engines", "explain_platform", "fits", "formats", "levers", "matrix", "users",
           "verify"]

_HOMES = {"Explanation": "api", "Upgrade": "upgrade", "budget": "memory", "diff": "upgrade",
          "explain": "api", "EngineAnswers": "engines", "explain_engines": "engines",
          "check_budget": "memory_check",
          "Matrix": "planner.matrix", "matrix": "gpu_matrix",
          **dict.fromkeys(("choices", "fits", "formats", "levers", "users"), "memory_answers"),
          "PlatformExplanation": "platforms", "explain_platform": "platforms",
          "Verification": "oracle.verification",
          "verify": "oracle.verification"}
"""Public name -> the module that has it."""


def __getattr__(name: str) -> Any:
    """Return a public name, importing its module on first use (start-up stays cheap)."""
    if name in _HOMES:
        return getattr(import_module(f"quantplan.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'quantplan' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return list(__all__)
