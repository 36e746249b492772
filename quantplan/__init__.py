"""quantplan: which quantized kernel an LLM engine picks on a GPU, in which mode, and what fits."""

from __future__ import annotations

__version__ = "0.1.0"
