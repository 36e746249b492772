"""The package humming's own reading of a layer's activations (humming/schema/), and what making the
tensors of a layer raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quantplan.dispatch.humming_numbers import Input
from quantplan.dispatch.humming_schemas import (
    Config,
    Fault,
    Rules,
    Stored,
    check_format,
    check_sizes,
    fields_of,
    number_format,
)
from quantplan.tables.record import NamedTuple


class Given(NamedTuple):
    """Activations as a schema has them; `late` as in `Stored`."""

    input: Input
    late: Fault | None = None


def input_schema(rules: Rules, config: Config | None) -> Given | None:
    """Return the activations of a layer's config, None where its method has no schema for them."""
    if config is None or config.get("quant_method") not in rules["input_schemas"]:
        return None
    method = config["quant_method"]
    return INPUTS[method](fields_of(rules["input_schemas"][method], config))


def check_tensors(
    stored: Stored, given: Given | None, n: int, k: int, experts: tuple[int, ...] = ()
) -> None:
    """Raise what making the tensors of one rank raises; `experts` is their number, in front."""
    if given is not None and given.late is not None:
        raise given.late
    check_sizes(stored, n, k, experts)


def _compressed_input(found: Config) -> Given:
    check_format(found)
    if not found.get("symmetric", True):
        raise Fault("ValueError", "asymmetric input quantization is not supported by humming")
    kinds = {("float", 8): "float8e4m3", ("float", 4): "float4e2m1", ("int", 8): "int8",
             ("int", 4): "int4"}
    kind, group = (found["type"], found["num_bits"]), found.get("group_size", 0)
    if kind not in kinds:
        return Given(Input(), Fault("ValueError", f"unsupported {kind[0]}{kind[1]}"))
    if group is None:
        return Given(Input(kinds[kind]), Fault(
            "TypeError", "'>' not supported between instances of 'NoneType' and 'int'"))
    return Given(Input(kinds[kind], group, mode=_compressed_mode(found, group)))


def _compressed_mode(found: Config, group: int) -> str:
    static = found["dynamic"] is False or found["dynamic"] == "local"
    if group <= 0:
        return "static_tensor" if static else "dynamic_token"
    if static:
        return "static_tensor_dynamic_group"
    twice = found["format"] == "nvfp4-pack-quantized"
    return "dynamic_group_token" if twice else "dynamic_group"


def _fp8_input(found: Config) -> Given:
    static = found.get("activation_scheme") == "static"
    return Given(Input("float8e4m3", mode="static_tensor" if static else "dynamic_token"))


def _modelopt_input(found: Config) -> Given:
    algo = found["quant_algo"].lower()
    if algo != "nvfp4":
        raise Fault("ValueError", f"unsupported modelopt algo: {algo}")
    return Given(Input("float4e2m1", 16, mode="static_tensor_dynamic_group"))


def _own_input(found: Config) -> Given:
    dtype, scale = found.get("a_dtype"), found.get("input_scale_dtype")
    mode = found.get("input_quant_mode")
    modes = ("none", "static_tensor", "dynamic_token", "dynamic_group",
             "static_tensor_dynamic_group", "dynamic_group_token")
    name = number_format(dtype) if dtype is not None else None
    scaled = number_format(scale) if scale is not None else None
    if mode is not None and mode not in modes:
        raise Fault("ValueError", f"{mode!r} is not a valid InputQuantizationMode")
    return Given(Input(name, int(found.get("input_scale_group_size") or 0), scaled, mode))


INPUTS: Mapping[str, Callable[[Config], Given]] = {
    "compressed-tensors": _compressed_input, "fp8": _fp8_input, "humming": _own_input,
    "modelopt": _modelopt_input,
}
