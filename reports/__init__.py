"""How it is told: views (plain data), text tables, JSON schemas."""
