"""Which room may import which, and what `explain` and `budget` never import."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import LLAMA, quantization
from quantplan.dispatch.checkpoint import read_checkpoint
from quantplan.dispatch.formats import as_format
from sparse_checkpoint import Stored, write_folder

ROOT = Path(__file__).parents[1]
ROOMS = {
    "tables": set(),
    "dispatch": {"tables"},
    "planner": {"tables", "dispatch"},
    "kernels": {"tables", "dispatch"},
    "reports": {"tables", "dispatch", "planner", "kernels"},
    "quantplan": {"tables", "dispatch", "planner", "kernels", "reports"},
}
"""ARCHITECTURE.md: what each room may import besides itself."""

WORKER = ROOT / "quantplan" / "oracle" / "worker"
"""What runs with the engine's interpreter, where nothing else of ours is installed."""

FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
HEAVY = {"torch", "triton", "numpy"}
NEVER = {*HEAVY, "transformers", "huggingface_hub", "jinja2", "tabulate", "yaml", "pynvml",
         "safetensors", "jsonschema", "requests", "urllib3", "httpx", "asyncio"}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every module that a file imports, anywhere in it, and the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield str(node.module), node.lineno
            if node.module == "quantplan":
                yield from ((f"quantplan.{alias.name}", node.lineno) for alias in node.names)


def imports_by_name(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports through importlib.import_module("NAME")."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            yield from (str(a.value) for a in node.args if isinstance(a, ast.Constant))


def room_of(module: str) -> str | None:
    """Return the room of a module of ours: quantplan.tables.load is of tables."""
    parts = module.split(".")
    if parts[0] != "quantplan":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "quantplan"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    wrong = [f"{name(path)}:{line}: {room} imports {module}" for module, line in imports(path)
             if room_of(module) not in (None, room, *ROOMS[room])]
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=name)
def test_torch_and_its_kin_are_for_kernels_and_the_engines_worker(path: Path) -> None:
    if path.relative_to(ROOT).parts[0] != "kernels" and WORKER not in path.parents:
        found = {module.split(".")[0] for module, _ in imports(path)}
        assert found & HEAVY == set()
        named = {module.split(".")[0] for module in imports_by_name(path)}
        assert named & {"torch", "triton", "transformers", "vllm"} == set()


def test_the_engines_worker_and_the_rest_import_nothing_of_each_other() -> None:
    worker = "quantplan.oracle.worker"
    for path in FILES:
        ours = {module for module, _ in imports(path) if room_of(module)}
        theirs = {module for module in ours if f"{module}.".startswith(f"{worker}.")}
        assert (ours - theirs if WORKER in path.parents else theirs) == set(), path


def test_every_room_has_modules_and_a_docstring() -> None:
    for room in ROOMS:
        assert ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())), room
    for path in FILES:
        assert ast.get_docstring(ast.parse(path.read_text())) or path.name == "__main__.py", path


def test_rooms_import_nothing_by_its_bare_name() -> None:
    """`tables`, `kernels` and the others are other projects' names (design.md, section 2)."""
    for path in FILES:
        bare = {module.split(".")[0] for module, _ in imports(path)} & (set(ROOMS) - {"quantplan"})
        assert bare == set(), path


# What a question imports.

REPORT = """
import json, sys
sys.argv = ["quantplan"] + json.loads(sys.argv[1])
from quantplan.cli import main
try:
    main()
except SystemExit as stop:
    code = stop.code
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def modules(*arguments: str) -> set[str]:
    """Return the modules that a command has imported when it ends, which must be with 0 or 1."""
    done = subprocess.run([sys.executable, "-c", REPORT, json.dumps(arguments)], text=True,
                          capture_output=True, check=True, timeout=60, env=dict(os.environ))
    code, found = json.loads(done.stderr.splitlines()[-1])
    assert code in (0, 1), done.stderr
    return set(found)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """Return a folder whose headers agree with a bundled model's config."""
    found = as_format(read_checkpoint("qwen2.5-0.5b"), "bf16")
    assert found.tensors is not None
    stored = [Stored(name, tensor.dtype, tensor.shape or ()) for name, tensor
              in found.tensors.items()]
    return str(write_folder(tmp_path / "weights", dict(found.config), [stored]))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(
        {**LLAMA, "quantization_config": quantization("fp8-static")}))
    return str(tmp_path)


@pytest.mark.parametrize("command", [["explain", "--gpu", "4090"],
                                     ["explain", "--gpu", "4090", "--format", "json"],
                                     ["explain", "--gpu", "4090", "-v", "--why-not", "Machete"],
                                     ["budget", "--gpu-mem", "24GiB"],
                                     ["budget", "--gpu", "4090", "--format", "json"]],
                         ids=" ".join)
@pytest.mark.parametrize("model", ["folder", "weights", "bundled", "hypothetical"])
def test_a_question_imports_nothing_heavy(
    folder: str, weights: str, command: list[str], model: str
) -> None:
    asked = {"folder": [folder], "weights": [weights], "bundled": ["llama-3.1-8b"],
             "hypothetical": ["llama-3.1-8b", "--as", "awq"]}[model]
    found = modules(command[0], *asked, *command[1:])
    reader = {"safetensors"} if model == "weights" else set()
    assert {module.split(".")[0] for module in found} & NEVER == reader


def test_a_stale_table_imports_yaml() -> None:
    """The list above is of modules that could be there: yaml is, once a table must be parsed."""
    assert "yaml" in modules("tables", "lint")


def test_importing_the_package_imports_none_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", "import quantplan, sys; print(*sys.modules)"],
                          text=True, capture_output=True, check=True, timeout=60)
    ours = {module for module in done.stdout.split() if module.startswith("quantplan.")}
    assert ours == set()


def test_public_names_are_there() -> None:
    import quantplan

    assert set(quantplan.__all__) >= {"explain", "budget", "__version__"}
    assert all(getattr(quantplan, public) for public in quantplan.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        _ = quantplan.nope
