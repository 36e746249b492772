"""What the facts of modules mean that families give: whole-model numbers, before any sharding."""

from __future__ import annotations

from collections.abc import Mapping

ATTENTION_FACTS: Mapping[str, str] = {
    "heads": "query heads of the whole model",
    "kv_heads": "key-value heads of the whole model",
    "kv_unshared": "true: the class divides its key-value heads by the ranks, also where these are "
                   "more",
    "head_dim": "features of a query and key head; of latent attention: of a cached token",
    "v_head_dim": "features of a value head where the engine's class passes them apart",
    "window": "sliding window in tokens; absent: the one that every layer has, or none",
    "chunk": "tokens of a local chunk",
    "sinks": "true: the class passes attention sinks",
    "alibi": "true: the class passes ALiBi slopes",
    "alibi_sqrt": "true: it wants the square root of ALiBi's distances (use_alibi_sqrt)",
    "lookback": "true: a chunk also attends to the one before it (chunk_lookback)",
    "lookback_said": "true: the class passes chunk_lookback, whatever its value",
    "softcap": "cap of the logits; absent or 0: none",
    "mm_prefix": "true, or the text vision: image tokens attend to each other",
    "causal": "false: encoder-only attention",
    "without_cache_config": "true: the class does not pass the cache config, so --kv-cache-dtype "
                            "does not reach the layer",
    "kv_shared": "true: the layer uses the KV cache of an earlier one",
    "topk_blocks": "blocks that sparse attention chooses",
    "sparse_block": "tokens of a block that sparse attention chooses",
    "q_lora_rank": "features of the query's latent",
    "kv_lora_rank": "features of the latent that is cached",
    "qk_nope_head_dim": "features of a head without position",
    "qk_rope_head_dim": "features of a head with position",
    "index_topk": "tokens that an indexer chooses",
    "groups": "groups of a state-space mixer",
    "state": "features of a state of a state-space mixer",
    "key_heads": "key heads of linear attention",
    "key_head_dim": "features of a key head of linear attention",
}
"""Facts of modules of kind attention, mla and part (dispatch/vllm/attention_facts.py)."""

EXPERTS_FACTS: Mapping[str, str] = {
    "experts": "routed experts of the whole model",
    "top_k": "experts of a token",
    "hidden": "features of a token",
    "intermediate": "features between an expert's matrices",
    "least_shard": "features of the intermediate size that a rank must hold at least",
    "activation": "value of the engine's MoEActivation",
    "gated": "whether there is a gate beside the up projection",
    "bias": "whether experts have a bias",
    "scoring": "scoring_func: softmax, sigmoid, sqrtsoftplus",
    "renormalize": "whether the chosen experts' scores are made to add up to one",
    "score_bias": "whether a bias corrects the scores (e_score_correction_bias)",
    "grouped": "whether experts are chosen by groups (use_grouped_topk)",
    "groups": "groups of experts",
    "topk_groups": "groups that a token chooses",
    "routed_scaling": "factor of the routed experts' output; absent: 1",
    "hash_routing": "whether a table, not a score, chooses the experts",
    "routing": "member of the engine's RoutingMethodType, where a class sets its own",
    "router_dtype": "dtype of the router's logits; absent: the model's",
    "router_weight_on_input": "whether scores multiply the input",
    "swiglu_limit": "clamp of SwiGLU; absent: none",
    "swiglu_alpha": "slope of SwiGLU's gate; absent: plain SiLU",
    "swiglu_beta": "what is added to SwiGLU's up projection; absent: nothing",
    "situ_beta": "beta of SiTU",
    "situ_linear_beta": "linear beta of SiTU",
    "names": "checkpoint names of gate, up and down projection",
}
"""Facts of modules of kind experts (dispatch/vllm/experts/facts.py, routing.py)."""
