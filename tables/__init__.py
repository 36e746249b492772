"""What is known: GPUs, engine versions, formats, model families, models. Decides nothing."""
