"""vLLM's own steps, in its own order, each citing the engine file and symbol it mirrors."""
