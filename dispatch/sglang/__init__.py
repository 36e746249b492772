"""What SGLang would do: its own order of steps, its names, and the operator of each layer."""
