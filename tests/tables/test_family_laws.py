"""What the laws of model families find in a row that breaks them."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables import family_laws

LAWFUL: dict[str, Any] = {
    "id": "x", "biases": {"qkv": []}, "sizes": [{"id": "hidden", "fields": ["hidden_size"]}],
    "modules": [{"path": "a.*.o", "leaves": [{"name": "o", "n": "hidden", "k": "hidden"}]}],
}


def found(**changes: Any) -> list[str]:
    return [said for law in family_laws.LAWS for said in law(LAWFUL | changes)]


def test_the_tables_keep_the_laws() -> None:
    assert family_laws.family_violations() == []


def test_a_lawful_family_breaks_none() -> None:
    assert found() == []


@pytest.mark.parametrize(("changes", "said"), [
    ({"modules": [{"path": "a", "leaves": [{"name": "o", "n": "q", "k": "hidden"}]}]},
     "a: no size q"),
    ({"modules": [{"path": "a", "split": "qkv", "heads": ["h", "hidden", "hidden"]}]},
     "a: no size h"),
    ({"sizes": [{"id": "hidden", "product": ["x", 2]}]}, "sizes[hidden]: no size x"),
    ({"sizes": [{"id": "hidden"}]}, "sizes[hidden]: nothing says what it is"),
    ({"sizes": [{"id": "hidden", "fields": ["a"], "sum": [1, 2]}]},
     "sizes[hidden]: fields and sum says what it is"),
    ({"modules": [{"path": "a", "stack": "vision"}]}, "a: no stack vision"),
    ({"modules": [{"path": "a", "bias": "o"}]}, "a: no bias rule o"),
    ({"modules": [{"path": "a", "kind": "attention", "facts": {"sink": True}}]},
     "a: no meaning of the fact sink"),
    ({"defaults": [{"model_types": ["m", "n"]}, {"model_types": ["m"]}]}, "defaults: m twice"),
])
def test_a_broken_row_is_named(changes: dict[str, Any], said: str) -> None:
    assert said in found(**changes)
