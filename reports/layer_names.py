"""How rows of layers are called: shortened paths, and which layers each is where paths recur."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from quantplan.dispatch.trace import Layer
from quantplan.reports.explain_view import star_path

MOST_RUNS = 4
"""Runs of indices that are told; of more, all but the last one are left out."""

LANGUAGE = re.compile(r"^(language_model\.|model\.)*layers\.\*\.")
"""Where the layers of a language model stand, in a wrapper too."""

Row = tuple[str, Sequence[int]]
"""A row's path with * for the layer index, and the indices that it stands for."""


def short_path(layer: Layer) -> str:
    """Return a row's path as a table shows it: a layer of the language model by its end."""
    return LANGUAGE.sub("", star_path(layer))


def told_apart(rows: Sequence[Row], counted: bool = False) -> list[str]:
    """Return the rows' paths: those of several rows with the layers that each is of, others with
    how many they are if `counted`."""
    often = Counter(path for path, _ in rows)
    return [f"{path} ({layer_words(indices)})" if often[path] > 1 and indices else
            f"{path} ({len(indices) or 1})" if counted else path for path, indices in rows]


def layer_words(indices: Sequence[int]) -> str:
    """Return "layer 3" or "layers 0-2, 7"."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    if len(words) > MOST_RUNS:
        words[MOST_RUNS - 1:] = [f"{words[MOST_RUNS - 1]} ... {words[-1]}"]
    return f"layer{'' if words == [str(indices[0])] else 's'} {', '.join(words)}"
