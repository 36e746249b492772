"""The schema of what loading takes besides the weights of a checkpoint: rotary tables, and what
kernels keep of a layer's tensors."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

SOURCE = Field("text", "engine file and symbol")
ARCHITECTURES = Field("list", "model classes", of=Field("text", "an architecture"))

MODEL_TYPES = Field("list", "values of model_type", of=Field("text", "a type"))

ROTARY_DOCUMENT: Row = {
    "types": Field("list", "positions of a rope's table, by rope_type", of={
        "types": Field("list", "values of rope_type", of=Field("text", "a type")),
        "rows": Field("text", "which positions", choices=(
            "max_position", "max_position_by_factor", "original_by_factor",
            "original_and_max_position", "both_and_joined")),
        "dtype": Field("text", "of the table where it is not the serving dtype", required=False,
                       choices=("F32",)),
        "source": SOURCE,
    }),
    "mrope": Field("row", "ropes with mrope_section", of={
        "factor": Field("int", "times as many positions"), "source": SOURCE}),
    "latent_float32": Field("row", "yarn of latent attention: in float32 where FlashInfer can be "
                            "used", of={
                                "head_sizes": Field("list", "for these", of=Field("int", "size")),
                                "source": SOURCE}, required=False),
    "mrope_once": Field("list", "classes that build theirs for as many positions as others", of={
        "architectures": ARCHITECTURES, "source": SOURCE}, required=False),
    "without": Field("list", "classes without a rope", of={
        "architectures": ARCHITECTURES, "because": Field("text", "how they know positions")},
        required=False),
    "float32": Field("list", "classes whose table is in float32", of={
        "architectures": ARCHITECTURES, "source": SOURCE}, required=False),
    "shares": Field("list", "classes that rotate a part of a head where the config says none", of={
        "architectures": ARCHITECTURES, "of": Field("int", "the part: 1 of how many"),
        "source": SOURCE}, required=False),
    "indexers": Field("list", "classes whose indexer has a table of its own", of={
        "architectures": ARCHITECTURES, "source": SOURCE}, required=False),
    "sliding": Field("list", "models whose sliding layers have a plain rope of their own", of={
        "model_types": MODEL_TYPES, "kind": Field("text", "which rope", choices=("plain",)),
        "source": SOURCE}, required=False),
    "full_head_dim": Field("row", "where the heads of full attention have another size", of={
        "field": Field("text", "the config's field"), "source": SOURCE}, required=False),
    "positions": Field("list", "max_position_embeddings where config.json says none", of={
        "model_types": MODEL_TYPES, "number": Field("int", "positions"), "source": SOURCE},
        required=False),
}

KEPT_SIZES = (
    "n", "k", "n_tile", "k_tile", "n_16", "n_32", "k_32", "n_64", "k_64", "n_128", "k_128", "n_256",
    "k_256", "experts", "groups", "groups_tile", "groups_2", "groups_4", "groups_8", "groups_128",
    "k_blocks", "k_blocks_4", "0", "1", "2", "8",
)
KEPT_DOCUMENT: Row = {
    "kernels": Field("list", "what kernels keep of a layer", of={
        "kernels": Field("list", "class names; of routed experts the list and the backend",
                         of=Field("text", "a kernel")),
        "keeps": Field("list", "tensors that are made anew", of={
            "of": Field("text", "the tensor in whose place it stands", choices=(
                "weight", "scale", "tensor_scale", "channel_scale", "zero_point",
                "activation_scale", "bias")),
            "dims": Field("list", "its sizes", of=Field("text", "a size", choices=KEPT_SIZES)),
            "dtype": Field("text", "safetensors dtype; model: the serving dtype, weight: as many "
                           "bits as a weight; else the tensor's own", required=False),
            "only": Field("text", "for such formats only", required=False,
                          choices=("symmetric", "asymmetric", "channels", "blocks")),
            "number": Field("int", "how many such tensors, where not one", required=False),
            "min_capability": Field("int", "from this compute capability x 10", required=False),
            "below_capability": Field("int", "below this one", required=False),
            "beside": Field("flag", "the created tensor stays beside it", required=False),
            "oldest": Field("text", "from this version of the engine", required=False),
            "newest": Field("text", "up to this one", required=False),
        }),
        "source": SOURCE,
    }),
}
