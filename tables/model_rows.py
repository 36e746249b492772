"""The schema of the bundled models: facts of a hub repository's config.json, row by row."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

MODEL_FILES = ("llama-2", "llama-3", "mistral", "qwen-2", "qwen-2.5", "qwen-3", "qwen-3-moe",
               "deepseek", "glm", "gpt-oss", "mimo", "minimax", "nemotron")
"""The tables under models/, in the order in which `quantplan models` lists them."""

CONFIG: Row = {
    "architectures": Field("list", "model classes", of=Field("text", "a class name")),
    "model_type": Field("text", "transformers model type"),
    "hidden_size": Field("int", "features of the residual stream"),
    "intermediate_size": Field("int", "features inside the MLP", required=False),
    "num_hidden_layers": Field("int", "decoder layers; absent where a list says them",
                               required=False),
    "num_attention_heads": Field("int", "query heads"),
    "num_key_value_heads": Field("int", "key and value heads", required=False),
    "head_dim": Field("int", "features of one head; absent where the file derives it",
                      required=False),
    "vocab_size": Field("int", "rows of the embedding, padding included"),
    "max_position_embeddings": Field("int", "longest sequence in tokens"),
    "hidden_act": Field("text", "activation of the MLP", required=False),
    "tie_word_embeddings": Field("flag", "whether lm_head is the embedding", required=False),
    "attention_bias": Field("flag", "whether attention projections have a bias", required=False),
    "mlp_bias": Field("flag", "whether MLP projections have a bias", required=False),
    "torch_dtype": Field("text", "dtype of the unquantized tensors", required=False,
                         choices=("bfloat16", "float16", "float32")),
    "dtype": Field("text", "the same, as newer files spell the key", required=False,
                   choices=("bfloat16", "float16", "float32")),
    "sliding_window": Field("scalar", "attention window in tokens, or null", required=False),
    "use_sliding_window": Field("flag", "whether the window applies", required=False),
    "quantization_config": Field("map", "the quantizer's own record, its keys as they are",
                                 required=False, of=Field("any", "a value")),
    "more": Field("map", "further keys of the file that its family's row reads: sizes of experts, "
                  "latent and state-space layers", required=False, of=Field("any", "a value")),
}

MODEL: Row = {
    "id": Field("text", "the name that the command line takes, in kebab case"),
    "aliases": Field("list", "other names for the same facts", of=Field("text", "a name")),
    "hub": Field("text", "hub repository that the facts are of"),
    "parameters_count": Field("int", "weights before any packing, tied ones once"),
    "parameters_kind": Field("text", "published: as published for the repository; computed: from "
                             "the sizes, where the hub counts packed tensors or further layers, "
                             "or its count was not read",
                             choices=("published", "computed")),
    "config": Field("row", "keys of config.json, as that file spells them", of=CONFIG),
    "source": Field("text", "hub repository and file"),
    "read_in": Field("list", "where the file, or a copy of it, was read",
                     of=Field("text", "a public place")),
    "kind": Field("text", "source: figures of a published file", choices=("source",)),
}

MODEL_DOCUMENT: Row = {
    "models": Field("list", "models", of=MODEL),
}
