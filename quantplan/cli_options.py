"""Options that several commands have: the checkpoint, the GPU, and the engine's own flags."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.core import ParameterSource

from quantplan.completion import format_names, gpu_names, model_names
from quantplan.dispatch.facts import A2A_BACKENDS, ROLES


def model_options(
    command: Callable[..., None], *, required: bool = True
) -> Callable[..., None]:
    """Add MODEL and what says which checkpoint and GPU are meant."""
    for option in (
        click.option("--capability", metavar="8.9", help="A compute capability instead of a GPU."),
        click.option("--gpu", metavar="NAME", shell_complete=gpu_names,
                     help="A GPU of the catalogue (`quantplan gpus`); default: this machine's."),
    ):
        command = option(command)
    return checkpoint_options(command, required=required)


def optional_model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the same where another option may say which model is meant."""
    return model_options(command, required=False)


def given_options(context: click.Context) -> set[str]:
    """Return the parameters that the command line gave a value."""
    return {name for name in context.params
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def checkpoint_options(
    command: Callable[..., None], *, required: bool = True
) -> Callable[..., None]:
    """Add MODEL and what says which checkpoint is meant."""
    for option in (
        click.option("--as", "as_format", metavar="FORMAT", shell_complete=format_names,
                     help="The same model as a hypothetical checkpoint: fp8, fp8-block, awq, gptq, "
                     "w4a16, w8a8-int8 ..."),
        click.option("--revision", metavar="REV", help="Hub revision."),
        click.argument("model", shell_complete=model_names, required=required),
    ):
        command = option(command)
    return command


def deployment_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the engine's own flags that change selection or memory."""
    for option in (
        click.option("--kv-cache-dtype", default="auto", metavar="DTYPE", show_default=True),
        click.option("--quantization", "-q", metavar="METHOD", help="As the engine's flag."),
        click.option("--dtype", default="auto", metavar="DTYPE", show_default=True),
        click.option("--tp", "--tensor-parallel-size", "--tp-size", "tp",
                     type=click.IntRange(1, 1024), default=1, show_default=True,
                     help="Tensor parallel size."),
    ):
        command = option(command)
    return command


def selection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the engine's further flags that change selection, its environment and libraries."""
    for option in (
        click.option("--lib", "libs", multiple=True, metavar="NAME=on|off|unknown|installed",
                     help="Library presence, e.g. flashinfer=off."),
        click.option("--env", multiple=True, metavar="KEY=VALUE", help="Engine environment."),
        click.option("--trust-remote-code", is_flag=True,
                     help="As the engine's flag: go on where the checkpoint needs config code of "
                     "its own; it is never run here."),
        click.option("--allow-deprecated-quantization", is_flag=True),
        click.option("--block-size", type=click.IntRange(1), metavar="TOKENS",
                     help="KV cache block."),
        click.option("--kv-cache-dtype-skip-layers", multiple=True, metavar="LAYER",
                     help="Repeatable: a layer index, or sliding_window."),
        click.option("--mm-encoder-attn-dtype", metavar="DTYPE", help="As the engine's flag."),
        click.option("--mm-encoder-attn-backend", metavar="NAME", help="As the engine's flag."),
        click.option("--attention-config", metavar="JSON", help="As the engine's flag."),
        click.option("--quantization-config", metavar="JSON", help="As the engine's flag: what to "
                     "quantize while the checkpoint loads."),
        click.option("--attention-backend", metavar="NAME", help="As the engine's flag."),
        click.option("--dp", "--data-parallel-size", "dp", type=click.IntRange(1, 1024),
                     default=1, show_default=True, help="Data parallel size."),
        click.option("--enable-expert-parallel", "--ep", is_flag=True,
                     help="Whole experts on every rank."),
        click.option("--moe-backend", default="auto", metavar="NAME", show_default=True),
        click.option("--kernel-config", metavar="JSON", help="As the engine's flag: "
                     "linear_backend_per_quant, a backend per kernel family."),
        click.option("--linear-backend", default="auto", metavar="NAME", show_default=True),
    ):
        command = option(command)
    return command


def sglang_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that only SGLang has."""
    command = click.option("--page-size", type=click.IntRange(1), metavar="TOKENS",
                           help="As SGLang's flag.")(command)
    for flag in ("--mm-attention-backend", "--decode-attention-backend",
                 "--prefill-attention-backend"):
        command = click.option(flag, metavar="NAME", help="As SGLang's flag.")(command)
    for flag in ("--fp4-gemm-backend", "--fp8-gemm-backend"):
        command = click.option(flag, default="auto", metavar="NAME", show_default=True,
                               help="As SGLang's flag.")(command)
    return command


def memory_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that change how much memory the engine takes and what for."""
    for option in (
        click.option("--limit-mm-per-prompt", metavar="JSON", help="As vLLM's flag."),
        click.option("--speculative-config", metavar="JSON", help="As vLLM's flag."),
        click.option("--dcp", "--decode-context-parallel-size", "dcp",
                     type=click.IntRange(1, 1024), default=1, show_default=True,
                     help="As vLLM's flag."),
        click.option("--num-gpu-blocks-override", type=click.IntRange(1), metavar="BLOCKS",
                     help="As vLLM's flag."),
        click.option("--kv-cache-memory-bytes", metavar="20GiB",
                     help="As vLLM's flag: the KV cache's own size."),
        click.option("--gpu-memory-utilization", type=float, metavar="FRACTION",
                     help="As vLLM's flag. Default: the engine's own."),
        click.option("--enable-prefix-caching/--no-enable-prefix-caching",
                     "enable_prefix_caching", default=None, help="As vLLM's flag."),
        click.option("--enforce-eager", is_flag=True, help="As vLLM's flag: no CUDA graphs."),
        click.option("--max-num-batched-tokens", type=click.IntRange(1), metavar="TOKENS",
                     help="As vLLM's flag."),
        click.option("--max-num-seqs", type=click.IntRange(1), metavar="REQUESTS",
                     help="As vLLM's flag."),
        click.option("--max-model-len", metavar="TOKENS",
                     help="As vLLM's flag: 8192, 32k, or auto for the longest that fits."),
        click.option("--pp", "--pipeline-parallel-size", "pp", type=click.IntRange(1, 1024),
                     default=1, show_default=True, help="Pipeline parallel size."),
    ):
        command = option(command)
    return command


def sglang_memory_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add SGLang's own flags of memory."""
    for name, names in (("--disaggregation-mode", ROLES), ("--moe-a2a-backend", A2A_BACKENDS)):
        command = click.option(name, type=click.Choice(names), default=names[0],
                               show_default=True, help="As SGLang's flag.")(command)
    for name in ("--dp-size", "--attn-dp-size"):
        command = click.option(name, type=click.IntRange(1, 1024), default=1, show_default=True,
                               help="As SGLang's flag.")(command)
    command = click.option("--enable-dp-attention", is_flag=True,
                           help="As SGLang's flag.")(command)
    for flag, metavar, kind in (
        ("--speculative-num-draft-tokens", "TOKENS", click.IntRange(1)),
        ("--speculative-algorithm", "NAME", str),
        ("--max-mamba-cache-size", "SLOTS", click.IntRange(1)),
        ("--mamba-full-memory-ratio", "RATIO", float),
        ("--swa-full-tokens-ratio", "RATIO", float),
        ("--cuda-graph-max-bs-decode", "REQUESTS", click.IntRange(1)),
        ("--context-length", "TOKENS", click.IntRange(1)),
        ("--max-total-tokens", "TOKENS", click.IntRange(1)),
        ("--max-running-requests", "REQUESTS", click.IntRange(1)),
        ("--chunked-prefill-size", "TOKENS", int),
        ("--mem-fraction-static", "FRACTION", float),
    ):
        command = click.option(flag, type=kind, metavar=metavar, help="As SGLang's flag.")(command)
    return click.option("--disable-cuda-graph", is_flag=True, help="As SGLang's flag.")(command)


def answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what else can be asked of a budget."""
    for option in (
        click.option("--svg", metavar="FILE", help="Write the picture of the memory as SVG."),
        click.option("--context", "context_tokens", type=click.IntRange(1), metavar="TOKENS",
                     help="Tokens of one of --users' requests; default: the model's own longest."),
        click.option("--users", "user_count", type=click.IntRange(1), metavar="N",
                     help="The smallest share of the GPU that serves N requests at once."),
        click.option("--gpus", "gpu_count", type=click.IntRange(2, 1024), metavar="N",
                     help="Every way to share the model over N such GPUs: tp, pp, ep, dp."),
        click.option("--formats", "formats_asked", is_flag=True,
                     help="Other formats and FP8 KV cache: memory, mode and kernels on this GPU."),
        click.option("--levers", "levers_asked", is_flag=True,
                     help="What each flag would gain, most first."),
    ):
        command = option(command)
    return command


assume_nearest = click.option(
    "--assume-nearest", is_flag=True,
    help="Answer for a version without a table from the nearest one; the answer says so.")
