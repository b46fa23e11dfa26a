"""BERT (Devlin et al. 2019): transformers' BertModel, BertForPreTraining and those for one task.

Our vocabulary is theirs with [CLS], [SEP] and [MASK] repeated at its end (ablate.data.masked), so
their rows are copied there. If our model has no segments, the embedding of their first segment is
added to every position, which is equivalent.
"""

from typing import Any

import torch
from torch import Tensor

from ablate.errors import UserError
from ablate.training.pretrained.hugging_face import sizes, special_tokens

NETWORKS = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
)
TOP = {
    "embeddings.word_embeddings": "embedding",
    "embeddings.token_type_embeddings": "segment_embedding",
    "embeddings.LayerNorm": "stack.embedding_norm",
    "pooler.dense": "pooler.dense",
    "cls.predictions.transform.dense": "head.dense",
    "cls.predictions.transform.LayerNorm": "head.norm",
    "cls.seq_relationship": "next_sentence",
    "classifier": "classifier",
}
BLOCK = {
    "attention.self.query": "attention.function.query",
    "attention.self.key": "attention.function.key",
    "attention.self.value": "attention.function.value",
    "attention.output.dense": "attention.function.out",
    "attention.output.LayerNorm": "attention.norm_after",
    "intermediate.dense": "feed_forward.function.up",
    "output.dense": "feed_forward.function.down",
    "output.LayerNorm": "feed_forward.norm_after",
}
POSITIONS = "stack.pos_enc.table"


def parts(network: Any, what: str) -> dict[str, Any]:
    config = network.config
    if config.is_decoder:
        raise UserError(f"{what}: is a decoder; an encoder can be read")
    return sizes(config, config.hidden_act, what) | {
        "model": "bert",
        "model.norm": "post",
        "model.embedding": "learned",
        "model.norm_eps": config.layer_norm_eps,
        "model.mask": "none",
        "model.tie_embeddings": config.tie_word_embeddings,
    }


def translate(network: Any, target: dict[str, Tensor], what: str) -> dict[str, Tensor]:
    """Its state dict under our names, with the first positions only, as many as ours."""
    ours: dict[str, Tensor] = {}
    tied = network.config.tie_word_embeddings
    for full, value in network.state_dict().items():
        path, _, kind = full.removeprefix("bert.").rpartition(".")
        if path == "embeddings.position_embeddings":
            ours[POSITIONS] = value[: len(target[POSITIONS])]
        elif path == "cls.predictions.decoder":
            if not tied:  # else copies of the token embedding and of the bias
                ours[f"head.out.{kind}"] = value
        elif (path, kind) == ("cls.predictions", "bias"):
            if tied:  # else not used
                ours["head.bias.weight"] = value
        elif path.startswith("encoder.layer."):
            _, _, layer, part = path.split(".", 3)
            ours[f"stack.blocks.{layer}.{BLOCK.get(part, part)}.{kind}"] = value
        else:
            ours[f"{TOP.get(path, path)}.{kind}"] = value
    act = network.config.hidden_act
    if "head.dense.weight" in ours.keys() & target.keys() and act != "gelu":
        raise UserError(
            f"{what}: predicts tokens through {act}, and model=bert through gelu; without its head"
            " it can be loaded: task=classification"
        )
    again = torch.tensor(special_tokens(what))
    for table in ("embedding.weight", "head.bias.weight", "head.out.weight", "head.out.bias"):
        if table in ours:
            ours[table] = torch.cat([ours[table], ours[table][again]])
    if "segment_embedding.weight" not in target:
        ours[POSITIONS] = ours[POSITIONS] + ours.pop("segment_embedding.weight")[0]
    return ours
