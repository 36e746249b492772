"""What the engine would do: checkpoint facts, GPU facts, predicates, resolver, trace."""
