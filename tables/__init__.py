"""What is known: GPUs, engine versions, formats, model families, bundled models. Decides nothing."""
