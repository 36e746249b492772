"""What serves a model that is quantized, or quantized again, while it loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.trace import Selection
from quantplan.dispatch.vllm import online
from quantplan.dispatch.vllm.context import Assignment, Context, Site, at_site
from quantplan.dispatch.vllm.experts import online as online_experts
from quantplan.dispatch.vllm.online_args import OnlineArgs
from quantplan.dispatch.vllm.online_layers import method_class
from quantplan.dispatch.vllm.serving import Serving


def online_serving(row: Mapping[str, Any], args: OnlineArgs, context: Context) -> Serving:
    """Return what serves a 16-bit checkpoint that is quantized while it loads."""
    def attention(site: Site) -> None:
        method_class(args, context, site.path, site.module.module, None)

    return Serving(row["id"], row["min_capability"],
                   lambda site: online.assign(args, at_site(context, site), site),
                   lambda experts: online_experts.plan(args, experts), online.after_selection,
                   kv_kinds=("attention", "mla"), kv_refined=attention)


def requantized(own: Serving, args: OnlineArgs, context: Context) -> Serving:
    """Return a checkpoint's serving with --quantization-config on top of it."""
    def after(
        context: Context, site: Site, assignment: Assignment, selection: Selection
    ) -> Assignment:
        if online.is_online(assignment):
            return online.after_selection(context, site, assignment, selection)
        return own.after(context, site, assignment, selection) if own.after else assignment

    return own._replace(
        assign=lambda site: online.over(args, at_site(context, site), site, own.assign(site)),
        assign_experts=lambda experts: online_experts.over(
            args, experts, own.assign_experts(experts)),
        after=after)
