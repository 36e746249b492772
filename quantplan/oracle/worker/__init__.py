"""The other side of the pipe: runs where the engine is importable, and needs nothing else of ours.

It imports torch, transformers and the engine, and is started by path (`worker/__main__.py`), so
that the engine's environment needs no quantplan in it.
"""
