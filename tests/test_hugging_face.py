"""Weights and tokens of Hugging Face: outputs equal those of their models, all else is refused."""

import os
import re
import sys

import pytest
import torch
from make_model import normal
from torch.testing import assert_close

from ablate.config.composition import compose
from ablate.data.interface import Sizes
from ablate.data.tokenizer import ready_made
from ablate.errors import UserError
from ablate.training.build import build

transformers = pytest.importorskip("transformers")
WIDTH = ["model.dim=12", "model.depth=2", "model.heads=3"]
GPT2 = ["model=gpt", "model.ffn=gelu_tanh", *WIDTH]
VIT = ["model=vit", "model.patch=2", "model.norm_eps=1e-12", *WIDTH]
BERT = ["model=bert", "pos_enc=learned", *WIDTH]
BLOCKS = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
BLOCKS |= {"intermediate_size": 48}
LANGUAGE = {"vocab_size": 11, "length": 7}
CLASSES = LANGUAGE | {"classes": 3}
OF_CLASSES = ["data=text_files", "task=classification"]
TIE = "model.tie_embeddings"
IMAGES = {"image_size": (6, 6), "channels": 2, "classes": 3}
EQUAL = {"atol": 1e-11, "rtol": 1e-11}


class Data:
    """In place of data: what a model asks of it."""

    def __init__(self, sizes):
        self.sizes = Sizes(**sizes)


def gpt2(kind, **changes):
    sizes = {"vocab_size": 11, "n_positions": 7, "n_embd": 12, "n_layer": 2, "n_head": 3}
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "num_labels": 3}
    return made(kind, transformers.GPT2Config(**(sizes | special | changes)))


def vit(kind, **changes):
    sizes = {"image_size": 6, "patch_size": 2, "num_channels": 2, "num_labels": 3}
    return made(kind, transformers.ViTConfig(**(sizes | BLOCKS | changes)))


def made(kind, config):
    """Random weights, away from zeros and ones, which would hide a mistake. In float64, but with so
    few digits that neither saving them nor adding two in float32 rounds them."""
    rng = torch.Generator().manual_seed(0)
    network = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_((300 * torch.randn(parameter.shape, generator=rng)).round() / 1024)
    return network.double()


def ours(network, folder, sizes, *overrides):
    """The model that starts from a network, as it is built from a command line."""
    network.save_pretrained(folder)
    cfg = compose(*overrides, f"model.pretrained='hf:{folder}'")
    return build(cfg, Data(sizes)).double().eval()


def bert(kind, folder, **changes):
    """With a tokenizer beside it, whose [CLS], [SEP] and [MASK] are 3, 1 and 2."""
    from tokenizers import Tokenizer, models

    words = {word: n for n, word in enumerate(["[UNK]", "[SEP]", "[MASK]", "[CLS]", *"abcdefg"])}
    own = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("SEP", "MASK", "CLS")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, **names).save_pretrained(folder)
    sizes = {"vocab_size": 11, "max_position_embeddings": 9, "num_labels": 3}
    return made(kind, transformers.BertConfig(**(sizes | BLOCKS | changes)))


TOKENS = torch.randint(1, 11, (4, 7), generator=torch.Generator().manual_seed(1))
KEEP = torch.arange(7) < torch.tensor([[7], [5], [1], [6]])
PLACES = torch.arange(7).expand(4, 7)


def untaken(model):
    """What is new in it, and what of theirs is left over."""
    return model.started_from["new"], model.started_from["left"]


@pytest.mark.parametrize(
    ("tied", "act"), [(True, ("gelu_new", "gelu_tanh")), (False, ("relu", "relu"))]
)
def test_a_gpt2_has_equal_outputs(tied, act, tmp_path):
    theirs = gpt2("GPT2LMHeadModel", activation_function=act[0], tie_word_embeddings=tied)
    mine = ours(theirs, tmp_path, LANGUAGE, *GPT2, f"model.ffn={act[1]}", f"{TIE}={tied}")
    assert_close(mine(TOKENS), theirs(TOKENS).logits, **EQUAL)
    assert untaken(mine) == ([], [])


def test_a_gpt2_of_classes_has_equal_outputs(tmp_path):
    theirs = gpt2("GPT2ForSequenceClassification")
    mine = ours(theirs, tmp_path, CLASSES, *GPT2, *OF_CLASSES)
    padded = torch.where(KEEP, TOKENS, 0)  # which they look for
    expected = theirs(padded, attention_mask=KEEP.long()).logits
    assert_close(mine(padded, KEEP), expected, **EQUAL)


def test_fewer_positions_are_the_first_ones(tmp_path):
    theirs = gpt2("GPT2Model")
    mine = ours(theirs, tmp_path, LANGUAGE | {"length": 5}, *GPT2)
    expected = theirs(TOKENS[:, :5]).last_hidden_state @ theirs.wte.weight.T
    assert_close(mine(TOKENS[:, :5]), expected, **EQUAL)


def test_a_vit_has_equal_outputs_but_for_a_head_of_other_classes(tmp_path):
    theirs = vit("ViTForImageClassification")
    mine = ours(theirs, tmp_path, IMAGES, *VIT)
    images = normal(3, 2, 6, 6)
    assert_close(mine(images), theirs(images).logits, **EQUAL)
    other = ours(theirs.float(), tmp_path, IMAGES | {"classes": 5}, *VIT)
    assert untaken(other) == (["head.bias", "head.weight"], ["head.bias", "head.weight"])


def test_a_bert_has_equal_outputs(tmp_path):
    theirs = bert("BertForPreTraining", tmp_path)
    sizes = LANGUAGE | {"vocab_size": 14, "segments": 2, "next_sentence": True}
    mine = ours(theirs, tmp_path, sizes, *BERT)
    segments = (PLACES > 3).long()
    expected = theirs(TOKENS, token_type_ids=segments)
    logits, following = mine(TOKENS, PLACES, segments)
    assert_close(logits[..., :11], expected.prediction_logits, **EQUAL)
    assert_close(logits[..., 11:], logits[..., [3, 1, 2]])
    assert_close(following, expected.seq_relationship_logits, **EQUAL)
    again = torch.where(TOKENS == 3, 11, TOKENS)  # [CLS] by its other number
    assert_close(mine(again, PLACES, segments)[0], logits)
    assert untaken(mine) == ([], [])


def test_a_bert_without_segments_has_their_first_one(tmp_path):
    theirs = bert("BertForMaskedLM", tmp_path, tie_word_embeddings=False)
    mine = ours(theirs, tmp_path, LANGUAGE | {"vocab_size": 14}, *BERT, f"{TIE}=false")
    logits, _ = mine(TOKENS, PLACES)
    assert_close(logits[..., :11], theirs(TOKENS).logits, **EQUAL)
    assert_close(logits[..., 11:], logits[..., [3, 1, 2]])


def test_a_bert_of_classes_has_equal_outputs(tmp_path):
    theirs = bert("BertForSequenceClassification", tmp_path, hidden_act="relu")
    sizes = CLASSES | {"vocab_size": 14}
    mine = ours(theirs, tmp_path, sizes, *BERT, *OF_CLASSES, "model.ffn=relu")
    expected = theirs(TOKENS, attention_mask=KEEP.long()).logits
    assert_close(mine(TOKENS, KEEP), expected, **EQUAL)


def distilbert(kind):
    config = transformers.DistilBertConfig(vocab_size=11, dim=12, n_layers=1, n_heads=3)
    return made(kind, config)


OWN = {gpt2: GPT2, vit: VIT, bert: BERT}
# Another network, what is changed of it and of our model, and what is said.
REFUSED = [
    (gpt2, "GPT2Model", {}, ["model.norm=post", "model.attention=dot"],
     "this model: model.attention=scaled_dot model.norm=pre"),
    (gpt2, "GPT2LMHeadModel", {"tie_word_embeddings": False}, [],
     "than this model: model.tie_embeddings=false"),
    (gpt2, "GPT2Model", {"n_inner": 20}, [], "20 x 12 there and 48 x 12 here"),
    (gpt2, "GPT2Model", {"activation_function": "silu"}, [], "its activation is silu"),
    (gpt2, "GPT2Model", {"scale_attn_by_inverse_layer_idx": True}, [],
     "its scaling of the scores is not supported"),
    (vit, "ViTModel", {"image_size": [6, 24]}, [], "reads images or patches of 6 x 24"),
    (bert, "BertForMaskedLM", {"hidden_act": "relu"}, ["model.ffn=relu"],
     "through relu, and model=bert through gelu"),
    # Its classes are those of tokens, in a matrix of the same name and shape.
    (bert, "BertForTokenClassification", {}, OF_CLASSES,
     "a BertForTokenClassification; known: BertModel, "),
    (distilbert, "DistilBertModel", {}, GPT2, "is a distilbert; only gpt2, bert and vit"),
]  # fmt: skip


@pytest.mark.parametrize(("network", "kind", "changes", "overrides", "says"), REFUSED)
def test_what_does_not_fit_is_refused(network, kind, changes, overrides, says, tmp_path):
    chosen = overrides if overrides == GPT2 else [*OWN[network], *overrides]
    sizes = IMAGES if "model=vit" in chosen else CLASSES if overrides == OF_CLASSES else LANGUAGE
    if network is bert:
        sizes, changes = sizes | {"vocab_size": 14}, changes | {"folder": tmp_path}
    theirs = network(kind, **changes)
    line = rf"\A.*{re.escape(str(tmp_path))}.*{re.escape(says)}[^\n]*\Z"
    with pytest.raises(UserError, match=line):
        ours(theirs, tmp_path, sizes, *chosen)


def test_a_path_that_is_none_is_refused_in_one_line(tmp_path):
    wanted = compose(*GPT2, f"model.pretrained='hf:{tmp_path}/no'")
    with pytest.raises(UserError, match=r"\Amodel\.pretrained=hf:.*/no could not be loaded.*\Z"):
        build(wanted, Data(LANGUAGE))
    with pytest.raises(UserError, match=r"^data\.tokenizer=hf:.*could not be loaded"):
        ready_made(f"hf:{tmp_path}/no")
    with pytest.raises(UserError, match="must be hf:NAME_OR_PATH, or null"):
        compose(*GPT2, "model.pretrained=gpt2")
    gpt2("GPT2Model").save_pretrained(tmp_path / "no")
    os.truncate(tmp_path / "no" / "model.safetensors", 900)
    with pytest.raises(UserError, match=r"\Amodel\.pretrained=hf:.*/no could not be loaded.*\Z"):
        build(wanted, Data(LANGUAGE))


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'ablate-attention\[hf\]'"):
        build(compose(*GPT2, "model.pretrained='hf:gpt2'"), Data(LANGUAGE))
    with pytest.raises(UserError, match=r"pip install 'ablate-attention\[hf\]'"):
        ready_made("hf:gpt2")


def test_tokens_are_theirs(tmp_path):
    from tokenizers import ByteLevelBPETokenizer

    text = "the cat sat on a mat, and saw that all was well. " * 9
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator([text], vocab_size=280)
    saved = transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer)
    saved.save_pretrained(tmp_path)
    mine = ready_made(f"hf:{tmp_path}")
    assert mine.encode(text) == trained.encode(text).ids
    assert mine.decode(mine.encode(text)) == text
    assert mine.vocab_size == trained.get_vocab_size()
    assert mine.label(mine.encode(" cat")[0]) != ""
