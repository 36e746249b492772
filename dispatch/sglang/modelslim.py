"""Checkpoints that ModelSlim wrote for Ascend NPUs: on NVIDIA GPUs no layer of theirs runs, and
layers that the description does not name as the engine does stay in 16 bits
(layers/quantization/modelslim/modelslim.py:ModelSlimConfig)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts
from quantplan.dispatch.sglang.fields import Config
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

SOURCE = "layers/quantization/modelslim/modelslim.py:ModelSlimConfig"
PLAIN = "FLOAT"
LANGUAGE = "language_model."
EXPERTS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""Names of an expert's weights."""
HINT = "Serve a checkpoint for NVIDIA GPUs."


def read(config: Config | None, context: Context) -> Config:
    """Return the description: config.json's own quantization_config where there is one."""
    return config or {}


def assign(fields: Config, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; embeddings and lm_head are none of the class's."""
    if site.module.split == "vocab":
        return None
    if _is_plain(fields, context, site.path):
        return unquantized("the description calls it FLOAT")
    row = context.table["slim_schemes"].get(_named(fields, site.path))
    if row is None:
        return unquantized("the description names no scheme for it")
    refusal = refuse("weight loading", row["type"], row["message"], site.path, row["source"],
                     hint=HINT) if "type" in row else None
    return Assignment("ModelSlimLinearMethod", row["scheme"], "modelslim", refusal=refusal)


def experts(fields: Config, context: Context, site: Site, held: Experts) -> Assignment:
    """Refuse routed experts, which stand in the description or not."""
    missing = []
    for path in _candidates(site.path):
        for gate, up, down in EXPERTS:
            found = [name in fields for name in (
                f"{path}.0.{part}.weight" for part in (gate, up, down))]
            if any(found[:2]) and found[2]:
                raise NotKnownError("how ModelSlim's experts end the start on an NVIDIA GPU",
                                    hint=HINT)
            missing.append(f"{path} ({gate}/{up}={_word(any(found[:2]))}, {down}="
                           f"{_word(found[2])})")
    raise refuse("layer assignment", "ValueError", "Missing ModelSlim MoE quantization description "
                 f"for layer {site.path}: {'; '.join(missing)}", site.path,
                 f"{SOURCE}.get_moe_scheme", hint=HINT)


def _word(found: bool) -> str:
    return "found" if found else "missing"


def _candidates(path: str) -> list[str]:
    """Return the names that a layer may have in the description, its own first."""
    bare = [path, *([path.replace(".mlp.", ".block_sparse_moe.")] if ".mlp." in path else [])]
    return [*bare, *(name.removeprefix(LANGUAGE) if name.startswith(LANGUAGE) else LANGUAGE + name
                     for name in bare)]


def _named(fields: Config, path: str) -> str:
    """Return what the description says of the layer; an empty text where it says nothing."""
    said = (fields.get(f"{name}.weight") for name in _candidates(path))
    return str(next((word for word in said if word is not None), ""))


def _is_plain(fields: Config, context: Context, path: str) -> bool:
    name = path.rsplit(".", maxsplit=1)[-1]
    parts = context.packed.get(name, (name,))
    found = {_named(fields, path.replace(name, part)) == PLAIN for part in parts}
    if len(found) > 1:
        raise refuse("layer assignment", "ValueError", "Detected some but not all shards of "
                     f"{path} are quantized. All shards of fused layers to have the same "
                     "precision.", path, f"{SOURCE}.is_layer_skipped", hint=HINT)
    return found.pop()
