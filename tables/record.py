"""`NamedTuple` at the price of `collections.namedtuple`.

typing's own compiles every annotation of every field when a class is made: a fifth of what a short
answer costs. Annotations are for readers and type checkers here; nothing evaluates them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import namedtuple

    class _Made(type):
        """Makes a named tuple of a class statement, with its methods and defaults."""

        def __new__(cls, name, bases, space):
            fields = list(space.get("__annotations__", ()))
            made = namedtuple(name, fields, module=space["__module__"],
                              defaults=[space[field] for field in fields if field in space])
            for key, value in space.items():
                if key not in fields and key != "__classcell__":
                    setattr(made, key, value)
            return made

    _BASE = type.__new__(_Made, "NamedTuple", (), {})

    class _Entry:
        """Stands where `NamedTuple` is named as a base."""

        def __mro_entries__(self, bases):
            return (_BASE,)

    NamedTuple = _Entry()

__all__ = ["NamedTuple"]
