"""How an AutoRound checkpoint stores its weights: integers packed as GPTQ's or as AWQ's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.weight_format import Config, WeightFormat, not_known

GPTQ, AWQ = "auto_round:auto_gptq", "auto_round:auto_awq"
UNQUANTIZED_BITS = 16


def auto_round_format(section: Config) -> WeightFormat:
    """Return the format of an AutoRound config (vllm 0.32.0 model_executor/layers/quantization/
    inc/inc.py:INCConfig, config_parser.py:INCLayerConfig).

    Raises NotKnownError for numbers other than integers and for layers of several formats.
    """
    packing = section.get("packing_format") or GPTQ
    bits, group = section.get("bits"), section.get("group_size")
    if section.get("data_type", "int") != "int" or packing not in (GPTQ, AWQ) or not (
            isinstance(bits, int) and bits in (2, 4, 8) and isinstance(group, int)):
        raise not_known(f"auto-round {section.get('data_type', 'int')}{bits} in {packing}",
                        f"integers of 2, 4 or 8 bits in {GPTQ} or {AWQ}")
    symmetric = section.get("sym", True) is not False
    own = {"bits": bits, "group_size": group, "sym": symmetric}
    rules = dict(_rules(section))
    head = rules.pop("lm_head", {"bits": UNQUANTIZED_BITS})
    plain = [name for name, rule in rules.items() if rule.get("bits", bits) >= UNQUANTIZED_BITS]
    if any({**own, **rule} != own for name, rule in rules.items() if name not in plain):
        raise not_known("auto-round with layers of several formats", "one format for all layers")
    layout = "gptq" if _is_gptq(packing, section) else "awq"
    return WeightFormat(layout, bits, group, lm_head=head.get("bits", bits) < UNQUANTIZED_BITS,
                        ignored=tuple(plain), symmetric=symmetric)


def _rules(section: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names that have a rule of their own, with what decides their bytes."""
    found = section.get("extra_config")
    for name, rule in (found if isinstance(found, Mapping) else {}).items():
        yield str(name), {field: rule[field] for field in ("bits", "group_size", "sym")
                          if isinstance(rule, Mapping) and rule.get(field) is not None}


def _is_gptq(packing: str, section: Config) -> bool:
    backend = str(section.get("backend") or section.get("vllm_backend") or "auto")
    return packing == GPTQ or "gptq" in backend
