"""Started by its path with the engine's interpreter: makes quantplan importable there, then serves.

Only the root package is made known, by its own place: putting the folder that holds it on the path
would offer the engine whatever else is installed beside quantplan.
"""

import importlib.util
import os
import sys


def _make_known(name: str, folder: str) -> None:
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]
_make_known("quantplan", os.path.dirname(os.path.dirname(here)))

from quantplan.oracle.worker.nursery import main  # noqa: E402

sys.exit(main())
