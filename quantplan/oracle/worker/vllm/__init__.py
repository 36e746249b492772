"""vLLM's side of the worker."""
