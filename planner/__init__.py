"""Does it fit, and what would be better: weights, KV cache, budget."""
