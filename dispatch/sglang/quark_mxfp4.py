"""MXFP4 that Quark's class makes while loading: AMD GPUs only
(layers/quantization/quark/quark.py:QuarkConfig)."""

from __future__ import annotations

from fnmatch import translate

from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts
from quantplan.dispatch.sglang.fields import Config, names
from quantplan.dispatch.sglang.quark import own_method
from quantplan.dispatch.sglang.quark_names import is_excluded
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

SOURCE = "layers/quantization/quark/quark.py:QuarkConfig"
KEPT = ("re:.*gate$", "re:.*router", "re:.*lm_head", "re:.*embed_tokens")
"""What is never quantized so."""
DEEPSEEK = ("re:.*model.layers.61.*", "re:.*self_attn.*", "re:.*mlp.gate$")
KEPT_TOO = {
    "deepseek_v3": DEEPSEEK, "deepseek_v32": DEEPSEEK, "deepseek_v4": DEEPSEEK,
    "qwen3_5_moe": ("re:.*n_proj_a", "re:.*in_proj_b", "re:.*in_proj_qkv", "re:.*in_proj_z",
                    "re:.*o_proj", "re:.*out_proj", "re:.*qkv_proj", "re:.*shared_expert")}
"""Model type -> what else is not, where the checkpoint names nothing itself."""
NVFP4 = ("modelopt", "modelopt_fp4", "nvfp4")
HINT = "Drop --quantization quark_mxfp4: it needs an AMD GPU."


def read(config: Config | None, context: Context) -> tuple[str, ...]:
    """Return the names that the class leaves alone, or refuse checkpoints that it does not take.
    Raises NotKnownError for those of mixed precision and Quark's own of NVFP4."""
    own = KEPT_TOO.get(str(context.checkpoint.config.get("model_type")), ())
    if config is None:
        return (*KEPT, *own)
    algo = str(config.get("quant_algo") or "").upper()
    weight = (config.get("global_quant_config") or {}).get("weight")
    if algo == "MIXED_PRECISION" or isinstance(weight, list):
        raise NotKnownError("--quantization quark_mxfp4 over this checkpoint", hint=HINT)
    method = own_method(config)
    if method in NVFP4 and algo in ("", "NVFP4", "FP4"):
        listed = next((config[key] for key in ("ignore", "exclude_modules", "exclude")
                       if config.get(key)), ())
        return (*KEPT, *(map(_expression, names(listed, "ignore")) if listed else own))
    if method in ("compressed-tensors", "compressed_tensors"):
        raise _refused("Online MXFP4 requantization from compressed-tensors NVFP4 checkpoints is "
                       "not supported at this time.")
    if method != "fp8" or config.get("activation_scheme") != "dynamic":
        raise _refused("Requantization into quark_mxfp4 is not supported, from the original "
                       f"quant_method={method} and "
                       f"activation_scheme={config.get('activation_scheme')}.")
    return (*KEPT, *own)


def _expression(name: str) -> str:
    return name if name.startswith("re:") else f"re:{translate(name)}"


def _refused(message: str) -> Exception:
    return refuse("config fields", "NotImplementedError", message, None, SOURCE, hint=HINT)


def assign(fields: tuple[str, ...], context: Context, site: Site) -> Assignment | None:
    """Return nothing for embeddings; refuse the first linear layer that is not left alone."""
    if site.module.split == "vocab":
        return None
    if is_excluded(context, site.path, fields):
        return unquantized("Quark leaves it alone")
    raise _elsewhere(site, "")


def experts(
    fields: tuple[str, ...], context: Context, site: Site, held: Experts
) -> Assignment | None:
    """Return nothing for routed experts that are left alone, else refuse them."""
    if is_excluded(context, site.path, fields):
        return None
    raise _elsewhere(site, "for MoE layers ")


def _elsewhere(site: Site, what: str) -> Exception:
    return refuse("layer assignment", "NotImplementedError", f"Online MXFP4 quantization {what}"
                  "requires an AMD ROCm device with FP4 hardware support (gfx95x, e.g. MI355x).",
                  site.path, SOURCE, hint="Choose another --quantization on an NVIDIA GPU.")
