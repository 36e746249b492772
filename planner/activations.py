"""The peak of the profile run: its sampler or its layers, whichever needs more.

Both run over the same tensors: the hidden states of all tokens stay until the run ends, experts
keep their workspace, and the sampler's rows come when the layers are done.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.dispatch.structure import TEXT, Module, Structure
from quantplan.dispatch.trace import Trace
from quantplan.planner.lines import EXACT, MEASURED, MODELLED, BudgetLine
from quantplan.planner.serving import Serving
from quantplan.tables.record import NamedTuple

ASSUMED_MULTIPROCESSORS = 132
FLOAT32_BYTES = 4
ALLOCATOR_SLACK_BYTES = 16 * 2**20
"""How far sums of tensors may be below the allocator's peak: its segments and small tensors."""


class Run(NamedTuple):
    """What the profile run multiplies: sizes of one rank; `item_bytes` of the serving dtype."""

    structure: Structure
    serving: Serving
    tp: int
    pp: int
    item_bytes: int
    multiprocessors: int = ASSUMED_MULTIPROCESSORS

    @property
    def tokens(self) -> int:
        """Return the tokens of the run."""
        return self.serving.max_num_batched_tokens

    @property
    def hidden_bytes(self) -> int:
        """Return the bytes of the hidden states of all tokens."""
        return self.tokens * self.structure.sizes["hidden_size"] * self.item_bytes


def profile_line(run: Run) -> BudgetLine:
    """Return the peak of the profile run over what stays: the larger of sampler and layers."""
    sampler, layers = _sampler(run), _layers(run)
    larger = max(sampler, layers, key=lambda line: line.bytes)
    other = layers if larger is sampler else sampler
    note = f"; {other.name.removeprefix('profile run: ')} would take {other.bytes / 2**30:.2f} GiB"
    return larger._replace(formula=larger.formula + note)


def _sampler(run: Run) -> BudgetLine:
    """Return what is alive while the last stage samples a token for every sequence."""
    serving, rules = run.serving, run.serving.rules
    copies = rules.rule("sampler_copies", serving.facts)
    rows, vocab = serving.fewest_seqs, run.structure.sizes["vocab_size"]
    per_logit = copies.value["model"] * run.item_bytes + copies.value["float32"] * FLOAT32_BYTES
    buffer = _row_buffer(run, rows, vocab)
    states = run.hidden_bytes + 2 * rows * run.hidden_bytes // run.tokens
    received = 2 * run.hidden_bytes if run.pp > 1 else 0
    blas = rules.rule("blas_workspace", serving.facts).bytes
    size = rows * vocab * per_logit + buffer + states + received + blas
    formula = (f"{rows:,} sequences x {vocab:,} logits x {per_logit} bytes"
               + (f" + {buffer:,} bytes of top-k rows" if buffer else "")
               + f" + {states + received:,} bytes of hidden states + {blas:,} bytes of cuBLAS")
    return BudgetLine("profile run: sampler", size, formula,
                      f"vllm {rules.version} {copies.origin}", MODELLED, ALLOCATOR_SLACK_BYTES)


def _row_buffer(run: Run, rows: int, vocab: int) -> int:
    """Return the bytes of the top-k kernel's rows: one per program
    (vllm v1/sample/ops/topk_topp_triton.py:apply_top_k_top_p_triton)."""
    if not run.serving.rules.rule("sampler_row_buffer", run.serving.facts).value or rows < 8:
        return 0
    programs = min(run.multiprocessors, rows)
    power = 1 << (programs - 1).bit_length()
    return min(power, run.multiprocessors) * vocab * FLOAT32_BYTES


def _layers(run: Run) -> BudgetLine:
    """Return what is alive while the widest layer's activation runs."""
    rules = run.serving.rules
    copies = rules.rule("layer_hidden_copies", run.serving.facts)
    blas = rules.rule("blas_workspace", run.serving.facts)
    width = max((_width(module, run.tp) for module in run.structure.modules
                 if module.stack == TEXT), default=0)
    stages = 2 if run.pp > 1 else 0
    size = (run.tokens * width * run.item_bytes
            + round(run.hidden_bytes * (copies.value + stages)) + blas.bytes)
    formula = (f"{run.tokens:,} tokens x ({width:,} features of the widest layer + "
               f"{copies.value + stages:g} x {run.structure.sizes['hidden_size']:,} hidden) x "
               f"{run.item_bytes} bytes + {blas.bytes:,} bytes of cuBLAS")
    return BudgetLine("profile run: layers", size, formula,
                      f"vllm {rules.version} {copies.origin}", MEASURED,
                      round(run.hidden_bytes * (copies.plus_minus or 0)))


def _width(module: Module, tp: int) -> int:
    """Return the features per token of a column-parallel layer on one rank and of what its
    activation makes of them: half as many where a gate is fused with it."""
    if module.kind != "linear" or module.split != "column":
        return 0
    outputs = sum(leaf.n for leaf in module.leaves) // tp
    return outputs + outputs // (2 if len(module.leaves) == 2 else 1)


def expert_lines(
    run: Run, trace: Trace | None, expert_parallel: bool
) -> Iterator[BudgetLine]:
    """Yield what the experts' kernels keep: both workspaces for all routed tokens
    (vllm model_executor/layers/fused_moe/modular_kernel.py:FusedMoEKernelModularImpl)."""
    module = next((m for m in run.structure.modules if m.kind == "experts"), None)
    if module is None:
        return
    facts, kernel = module.facts, _experts_kernel(trace)
    rule = run.serving.rules.rule("experts_workspace",
                                  {"experts.kernel": kernel} if kernel else {})
    inner = facts["intermediate"] // (1 if expert_parallel else run.tp)
    n, k = (2 if facts.get("gated", True) else 1) * inner, facts["hidden"]
    elements = [max(int(part["n"] * n), part["k"] * k)
                for part in (rule.value["first"], rule.value["second"])]
    rows = run.tokens * facts["top_k"]
    first = max(rows * elements[0], run.tokens * k)
    size = (first + rows * elements[1]) * run.item_bytes
    yield BudgetLine(
        "experts' workspace", size,
        f"{run.tokens:,} tokens x {facts['top_k']} experts x ({elements[0]:,} + {elements[1]:,}) "
        f"features x {run.item_bytes} bytes, {kernel or 'kernel not known'}",
        f"vllm {run.serving.rules.version} {rule.origin}", rule.kind,
        size if rule.kind == MODELLED else 0)


def _experts_kernel(trace: Trace | None) -> str | None:
    layers = trace.layers if trace else ()
    return next((layer.selection.kernel for layer in layers
                 if layer.moe_backend is not None and layer.selection), None)


def count_lines(run: Run) -> Iterator[BudgetLine]:
    """Yield what Model Runner V2 keeps of every sequence and token of the vocabulary."""
    rule = run.serving.rules.rule("request_counts", run.serving.facts)
    if not rule.value:
        return
    rows, vocab = run.serving.max_num_seqs, run.structure.sizes["vocab_size"]
    words = -(-vocab // 32)
    yield BudgetLine("token counts of requests", rows * (vocab + words) * FLOAT32_BYTES,
                     f"{rows:,} sequences x ({vocab:,} counts + {words:,} words of bits) x 4 bytes",
                     f"vllm {run.serving.rules.version} {rule.source}", EXACT)
