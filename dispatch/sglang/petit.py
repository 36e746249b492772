"""NVFP4 through Petit, which is made for AMD GPUs (layers/quantization/petit.py). ModelOpt's own
method serves every checkpoint that it would take, so that it only ever refuses."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site
from quantplan.dispatch.sglang.fields import Config, need
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

SOURCE = "layers/quantization/petit_utils.py:verify_petit_nvfp4_supported"


def read(config: Config | None, context: Context) -> None:
    """Refuse what the class refuses. Raises NotKnownError for what it takes."""
    assert config is not None, "the class asks for a file first"
    inner = need(config, "quantization")
    algo = inner.get("quant_algo")
    if algo != "NVFP4":
        raise refuse("config fields", "ValueError", "Petit currently only supports: NVFP4 "
                     "quantizations in sglang. Please check the `hf_quant_config.json` file for "
                     "your model's quant configuration.", None, SOURCE,
                     hint="Drop --quantization petit_nvfp4.")
    raise NotKnownError("NVFP4 checkpoints under petit_nvfp4",
                        hint="Drop --quantization petit_nvfp4: it needs an AMD GPU.")


def assign(fields: None, context: Context, site: Site) -> Assignment | None:
    """Return nothing: no config comes so far."""
    return None
