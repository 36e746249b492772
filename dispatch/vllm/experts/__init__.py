"""The routed experts of mixture-of-experts layers (model_executor/layers/fused_moe/)."""
