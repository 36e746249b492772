"""The engine itself, asked: runs its own selection functions and confronts them with our tables.

The engine lives in another process (`worker/`), started with the interpreter of the environment
that has it; nothing here imports torch or an engine. Nothing but this docstring may stand in this
file: the worker imports the package where quantplan is not installed.
"""
