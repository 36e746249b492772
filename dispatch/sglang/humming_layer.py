"""One layer of SGLang's humming: its weights and activations, what allocating and converting them
raises, and what it computes (layers/quantization/humming.py:HummingLinearMethod,
HummingMoEMethod)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from quantplan.dispatch import blocks
from quantplan.dispatch.humming_numbers import Input, Weight
from quantplan.dispatch.humming_schemas import (
    Config,
    Fault,
    Scales,
    Stored,
    check_sizes,
    weight_schema,
)
from quantplan.dispatch.sglang.context import Assignment, Context, Site
from quantplan.dispatch.sglang.experts import Experts
from quantplan.dispatch.sglang.humming_inputs import Given, activations, facts_of
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

T = TypeVar("T")
SOURCE = "layers/quantization/humming.py"
HINT = "Drop --quantization humming, or give its variables another value."
W4AFP8_GROUP = 128


class Schemas(NamedTuple):
    """Configs of a layer's weights and activations: `stored` as the checkpoint has them, `forced`
    what they are turned into after loading; `online` weights are quantized while they load."""

    stored: Config
    given: Config | None = None
    forced: Config | None = None
    forced_given: Config | None = None
    online: bool = False


class Made(NamedTuple):
    """The schemas of a layer, built: `given` is what the tensors are made for, `runs` what the
    activations are in the end."""

    config: Config
    stored: Stored
    given: Given
    runs: Given
    weight: Weight


def build(context: Context, site: Site, schemas: Schemas) -> Made:
    """Return a layer's schemas, or refuse as building them raises."""
    rules, capability = context.table["humming"], context.gpu.capability

    def made() -> Made:
        stored = _weights(context, schemas.stored)
        forced = None if schemas.forced is None else _weights(context, schemas.forced)
        given = activations(rules, schemas.given, capability)
        over = activations(rules, schemas.forced_given, capability)
        given = given or over or Given(Input())
        return Made(schemas.stored, stored, given, over or given,
                    (forced or stored).weight)

    return _refusing(made, site, "layer assignment")


def _weights(context: Context, config: Config) -> Stored:
    if config["quant_method"] == "w4afp8":
        return Stored(Weight("uint4", W4AFP8_GROUP), W4AFP8_GROUP)
    stored = weight_schema(context.table["humming"], config)
    if config["quant_method"] == "humming":
        _check_own(stored)
    name = stored.weight.dtype
    unsigned = f"u{name}" if name.startswith("int") else name
    return stored._replace(weight=stored.weight._replace(dtype=unsigned))


def _check_own(stored: Stored) -> None:
    """Raise NotKnownError for forms of the package's own schema that no rule has."""
    scales: Scales = stored.scales
    plain = (scales.kind == "group" and stored.group > 0) or (
        scales.kind == "channel" and stored.group == 0)
    if not plain or stored.weight.zero_point or scales.second != "none" or scales.hadamard:
        raise NotKnownError("humming's own weights with other than scales of groups or channels",
                            hint="Leave the scale types and zero points at their defaults.")


def _refusing(step: Callable[[], T], site: Site, stage: str) -> T:
    """Return what a step returns; what it raises becomes a refusal of the layer."""
    try:
        return step()
    except Fault as fault:
        raise refuse(stage, fault.kind, fault.message, site.path,
                     f"{SOURCE}:HummingConfig.get_quant_config_for_layer", hint=HINT) from None


def linear_of(context: Context, site: Site, made: Made) -> Assignment:
    """Return the assignment of a linear layer, or refuse as allocating its tensors raises."""
    cut, tp = site.shard, context.deployment.tp
    block = _block(made)
    if block is not None and not site.module.facts.get("unchecked_blocks"):
        parts = cut.parts if blocks.is_split(cut, tp) else cut.parts[:-1]
        blocks.check_linear(block, cut, parts, tp, (
            site.path, f"{SOURCE}:_validate_block_fp8_partition_shape"))
    _refusing(lambda: _check_tensors(made, cut.n, cut.k), site, "layer assignment")
    late = _late(made, cut.n, cut.k)
    return Assignment("HummingLinearMethod", operators="humming", facts=_facts(context, made),
                      refusal=_after(late, site))


def _facts(context: Context, made: Made) -> dict[str, str]:
    return facts_of(context.table["humming"], context.gpu.capability, made.weight,
                    made.runs.input, context.dtype)


def _after(fault: Fault | None, site: Site) -> Exception | None:
    """Return what ends the start once weights are loaded."""
    return None if fault is None else refuse(
        "weight loading", fault.kind, fault.message, site.path,
        f"{SOURCE}:HummingLinearMethod.process_weights_after_loading", hint=HINT)


def _block(made: Made) -> tuple[int, int] | None:
    """Return (N, K) of FP8's own blocks, None for other scales."""
    if made.config["quant_method"] != "fp8" or made.stored.scales.kind != "block":
        return None
    return made.stored.scales.rows, made.stored.weight.group


def _check_tensors(made: Made, n: int, k: int, experts: tuple[int, ...] = ()) -> None:
    """Raise what making the tensors of one product raises."""
    check_sizes(made.stored, n, k, experts)
    if made.given.early is not None and not experts:
        raise made.given.early
    if made.stored.weight.group > k or k % 8:
        raise NotKnownError(f"humming over {k} input features",
                            hint="Whole groups, and multiples of 8, are in the table only.")


def _late(made: Made, n: int, k: int, experts: tuple[int, ...] = ()) -> Fault | None:
    """Return what converting the weights of one product raises."""
    method, group = made.config["quant_method"], made.stored.weight.group
    if made.stored.ordered:
        return Fault("AssertionError")
    if method == "awq" or "awq" in str(made.config.get("packing_format", "")):
        bits = made.config["bits"]
        return Fault("AssertionError") if (n * bits // 32) % bits or k % 32 else None
    if made.stored.scales.kind == "block":
        rows = made.stored.scales.rows
        held = n if method == "fp8" else n // rows * rows
        groups = -(-k // group) if method == "fp8" else k // group
        if (held, groups) != (n, k // group):
            return Fault("AssertionError", "weight_scale shape mismatched: attr['shape']="
                         f"{(*experts, n, k // group)}, tensor.shape=torch.Size("
                         f"{[*experts, held, groups]})")
    return made.runs.late


def check_runner(context: Context, site: Site) -> None:
    """Refuse another runner of experts than humming's."""
    asked = context.facts["moe.backend"]
    if asked not in ("auto", "humming"):
        raise refuse("kernel selection", "ValueError", "Humming quantization for MoE only supports "
                     f"moe_runner_backend='auto' or 'humming', got {asked!r}.", site.path,
                     f"{SOURCE}:HummingMoEMethod.create_moe_runner",
                     hint="Leave --moe-backend at auto.")


def experts_of(context: Context, site: Site, made: Made, held: Experts) -> Assignment:
    """Return the assignment of routed experts, or refuse as allocating their tensors raises."""
    front = (held.number,)
    products = ((2 * held.intermediate, held.hidden), (held.hidden, held.intermediate))

    def check() -> None:
        for n, k in products:
            _check_w4afp8(made, k)
            _check_tensors(made, n, k, front)

    if made.stored.late is not None and made.stored.late.kind == "TypeError":
        raise NotKnownError("humming's experts with packed scales that have no groups",
                            hint="Its linear layers refuse such scales.")
    _refusing(check, site, "layer assignment")
    late = _late_halves(made, held) or next(filter(None, (
        _late(made, n, k, front) for n, k in products)), None)
    return Assignment("HummingMoEMethod", operators="experts_humming", facts=_facts(context, made),
                      refusal=_after(late, site))


def _check_w4afp8(made: Made, k: int) -> None:
    if made.config["quant_method"] == "w4afp8" and k % W4AFP8_GROUP:
        raise Fault("ValueError", f"W4AFP8 shape_k = {k} must be divisible by group_size = "
                    f"{W4AFP8_GROUP}. Choose a tensor-parallel configuration whose local K "
                    "dimension preserves quantization groups.")


def _late_halves(made: Made, held: Experts) -> Fault | None:
    """Return what converting gate and up, stored as one, raises: one scale of a tensor is not the
    two of its halves, nor are the blocks of both those of each."""
    scales = made.stored.scales
    if scales.kind == "tensor":
        return Fault("AssertionError") if held.number % 2 == 0 else Fault(
            "RuntimeError", f"shape '[-1, 2, 1]' is invalid for input of size {held.number}")
    if _block(made) is None:
        return None
    whole, half = -(-2 * held.intermediate // scales.rows), -(-held.intermediate // scales.rows)
    return None if whole == 2 * half else Fault(
        "RuntimeError", f"split_with_sizes expects split_sizes to sum exactly to {whole} (input "
        f"tensor's size at dimension -2), but got split_sizes=[{half}, {half}]")
