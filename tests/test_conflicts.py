"""What cannot be combined is refused, and what can be is not."""

import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from make_systems import systems
from omegaconf import OmegaConf
from refusals import refused

from ablate.config.check import check
from ablate.config.composition import Composition, compose
from ablate.config.conflicts import CONFLICTS, conflicts_of
from ablate.config.keys import option_content
from ablate.config.parts import OURS
from ablate.config.tree import config_files
from ablate.errors import UserError
from ablate.training.preflight import check_devices

pytestmark = pytest.mark.usefixtures("no_interpreter")
FILES = "model=transformer data=parallel data.source=a data.target=b"
# Every conflict, in as few compositions as there may be: how many are refused, and which.
REFUSED = """
1 data=tokens data.root=x data.documents=mask model=rnn_lm pos_enc=none
2 data=tokens data.root=x data.documents=pack model.attention=location model.mask=prefix
1 data=tokens data.root=x data.documents=align model.mixer=fixed
1 data=tokens data.root=x data.positions=document
1 task.loss_chunk=5 model=rnn_lm pos_enc=none
1 data=tokens data.root=x data.documents=mask data.positions=document pos_enc=rotary
1 data=tokens data.root=x data.documents=mask kernel=triton model.attention=additive trainer=gpu
3 model.heads=3 model.qk_norm=rms model.attention=location model.mixer=latent
1 model.mixer=differential pos_enc=rotary model.dim=24
1 model.kv_heads=3
1 model.init_depth_scale=zero model.residual=false
1 model.connection=sphere model.drop_path=0.1
1 model.connection=sphere model.init_depth_scale=zero
1 model.connection=rezero model.init_depth_scale=zero
1 model.connection=sphere model.mixer.exclusive=true
1 model.connection=sphere model.embedding_scale=2 pos_enc=rotary
2 model.unit_weights=true model.mixer=fixed model.ffn=moe
5 model.unit_weights=true model.embedding=normed model.init_std=1 model.base_dim=9 task.ema=0.9
2 model.unit_weights=true model.init_depth_scale=zero optimizer=schedule_free schedule=constant
2 model.mixer=latent model.attention=location model.connection=rezero model.residual=false
3 model.norm_type=batch model.bias=false model.activation_checkpointing=true trainer.max_steps=-1
3 model.mixer=differential model.dim=20 pos_enc=alibi model.softcap=2 kernel=sdpa
4 model.mixer=gla model.dim=20 model.connection=hyper model.norm=post kernel=flex
3 model.mixer=retention pos_enc=alibi model.norm_type=dyt model.norm=none optimizer=schedule_free
4 model.sink=zero model.normalizer=sigmoid pos_enc=rotary model.dim=36 model.heads=12 data=digits
3 model=vit model.mixer.key_shift=true model.mixer.short_conv=2 model.mask=window
3 model=vit pos_enc=learned_2d model.dim=5 model.heads=5 model.mask=causal model.patch=9
2 model=vit pos_enc=sinusoidal_2d model.dim=6 model.heads=2 model.norm=none model.norm_type=batch
3 pos_enc=relative model.attention=uniform model.drop_path=0.1 model.residual=false kernel=sdpa
2 model.attention=location model.attention.max_length=50 pos_enc=learned_2d
2 model=vit pos_enc=relative_2d model.attention=uniform model.dim=6 model.heads=2
3 model.share_layers=true model.depth=1 model.norm=none model.norm_type=rms model.freeze=encoder
1 model=transformer model.share_layers=true model.encoder.depth=1 model.decoder.depth=1
3 model=bert model.embedding_scale=2 task.random_share=0.3 data.seq_len=7
3 model=vit model.activation_checkpointing=true model.freeze=encoder model.norm_type=batch
1 model=transformer data=multi30k data.joint=false model.share_embeddings=true
5 model.ffn=none model.ffn_dim=64 model.base_dim=64 optimizer=soap model.attention=dot kernel=flex
4 model.base_dim=64 model.mixer=latent model.ffn=moe model.ffn_dim=8 model.init_std=0.1
3 model.base_dim=64 model.qk_norm=l2 model.embedding_scale=sqrt model.connection=hyper
1 model.base_heads=2
1 model.base_dim=64 optimizer=adam optimizer.weight_decay=0.1
4 model.base_depth=2 model.norm=post model.connection=rezero optimizer=soap
3 model.base_depth=2 model.residual=false optimizer=adam optimizer.weight_decay=0.1
4 model.base_dim=64 model.output_gate=head pos_enc=relative model.ffn=moe model.ffn.top_k=9
5 model=gpt model.ffn=moe model.ffn.top_k=1 compile=true model.mask=source trainer.strategy=fsdp
3 model=rnn_seq2seq model.dim=9 model.decoder=bahdanau model.input_feeding=true
1 model=rnn_seq2seq model.decoder=bahdanau model.bidirectional=false model.dim=9
2 model=rnn_lm model.residual=true model.embedding_dim=9
1 model=rnn_seq2seq model.decoder=bahdanau model.tie_embeddings=true
1 model=transformer model.cross_attention=uniform model.residual=false data=sort
1 model=transformer model.mixer=gla
2 model=transformer model.attention=uniform model.residual=false task.length_penalty=0.6
2 model=rnn_seq2seq model.attention=none model.normalizer=hard model.window=local_m
1 model=rnn_seq2seq model.attention=dot model.window=local_p kernel=sdpa
3 model=vit data=mnist model.patch=4 model.stride=5 task.mixup=0.2 data.batch_size=5
2 model=resnet model.norm_type=rms kernel=sdpa
1 model=timm pos_enc=alibi
2 model=bert model.mixer.value_embedding=true model.mask=prefix
1 task.multi_token=9 data.seq_len=8
1 model=gpt_seq2seq model.mixer=fixed
3 data=text_files task=classification model.tie_embeddings=false model.norm_type=batch task.mixup=1
4 init_from=x model.pretrained='hf:y' kernel=sdpa model.attention=additive model.mixer=convolution
1 optimizer=sgd optimizer.momentum=0 optimizer.nesterov=true
1 trainer.check_val_every_n_epoch=2 trainer.val_check_interval=9
2 trainer.max_steps=50 schedule.warmup=100 trainer=ddp model.norm_type=batch
3 +trainer.sync_batchnorm=true trainer.precision=16-mixed model.mixer=fixed model.attention=dot
4 trainer=fsdp +trainer.sync_batchnorm=true trainer.precision=64-true compile=true task=masked_lm
4 model.mixer=none model.normalizer=hard model.mask=none model.ffn=none model.embedding=onehot
2 model.mixer=fixed pos_enc=rotary model.embedding=word2vec model.embedding.freeze=true
4 model.mixer=convolution model.mask=window model.mixer.size=4 kernel=triton trainer=gpu
1 model=vit model.mixer=convolution
1 model=vit model.pool=mean model.mixer=convolution model.mask=causal
2 model=transformer model.embedding=onehot model.tie_embeddings=false model.share_embeddings=true
1 kernel=triton model.attention=gatv2 trainer=gpu trainer.precision=64-true
1 trainer.precision=fp8-mixed model.dim=24
1 model=transformer kernel=triton model.attention=gatv2 model.cross_attention=dot trainer=gpu
1 model=vit kernel=triton model.attention=additive pos_enc=relative_2d trainer=gpu
1 model=vit model.mask=window model.mask.size=2 kernel=triton model.attention=additive trainer=gpu
1 model=transformer kernel=flex model.cross_attention=additive trainer=gpu
1 init_optimizer=true
1 trainer.strategy=fsdp trainer.devices=2 init_from=RUN init_optimizer=true
2 trainer.shards=2
1 optimizer=schedule_free schedule=constant task.ema=0.9
1 task.ema=0.9 trainer.precision=bf16-true
"""
# Beside what is refused, and allowed.
ALLOWED = """
model=rnn_seq2seq model.attention=dot model.window=local_m kernel=sdpa
model=rnn_seq2seq model.window=local_p kernel=chunked
model=rnn_seq2seq model.attention=none model.input_feeding=true
model=rnn_seq2seq model.decoder=bahdanau model.tie_embeddings=true model.embedding_dim=64
model=rnn_seq2seq model.dim=9 model.bidirectional=false model.embedding=onehot
model=rnn_lm model.residual=true model.depth=2
model=transformer data=reverse model.share_embeddings=true model.cross_attention=uniform
model=transformer model.attention=uniform model.cross_attention=dot model.residual=false
pos_enc=relative model.attention=uniform pos_enc.keys=false
pos_enc=relative model.attention=location trainer.max_steps=-1 trainer.max_epochs=1
kernel=sdpa pos_enc=relative pos_enc.values=false
kernel=triton model.attention=additive pos_enc=relative pos_enc.values=false trainer=gpu
model=transformer kernel=triton model.attention=gatv2 trainer=gpu
model=rnn_seq2seq model.attention=additive model.window=local_m kernel=triton trainer=gpu
kernel=sdpa model.attention=uniform pos_enc=alibi
kernel=flex model.attention=cosine pos_enc=t5 trainer=gpu model.dropout=0
model=vit model.mask=causal model.pool=mean
model=vit model.mask=window model.mask.size=3
model=vit model.mask=window model.mask.size=2 model.pool=mean pos_enc=relative_2d
model=vit model.attention=location model.attention.max_length=17
model=vit data=mnist model.patch=4 model.stride=2
FILES data.tokenizer=word data.joint=true data.min_count=2 data.val_source=c data.val_target=d
FILES data.val_source=c data.val_target=d data.test_fraction=0.1
model=transformer data=copy data.min_length=25 model.mixer=none model.ffn=none
model.norm_type=batch trainer.devices=auto
model.norm_type=batch trainer=ddp trainer.devices=1
model.norm_type=batch trainer=gpu trainer.devices=[3]
model=transformer model.mixer=fixed model.attention=additive kernel=reference
model=vit model.mixer=none model.mask=none
model=vit model.mixer=convolution model.pool=mean
model.mixer=fixed model.mask=window
model=bert model.mask=causal task.mask_share=0.9 task.random_share=0.1
model=bert data.seq_len=7 task.next_sentence=false
model=resnet model.norm_type=layer trainer=ddp trainer.accelerator=cpu trainer.devices=2
model.embedding=word2vec model.embedding.freeze=true model.tie_embeddings=false
"""
# What a line says of other parts.
FACTS = [
    ("model=rnn_lm data=digits", "reads text or keys and values to recall"),
    ("model=vit data=cmudict", "is pairs of texts; use model=gpt_seq2seq, rnn_seq2seq or"),
    ("model=vit model.attention=location model.attention.max_length=16", "the 17 positions"),
    ("model=vit model.patch=3", "leaves pixels out at the border of images of 8 pixels"),
]


def rows(table: str) -> list[str]:
    texts = [globals()[table], *(getattr(system, table, "") for system in systems())]
    return [row for row in "".join(texts).replace("FILES", FILES).split("\n") if row]


def refusals(overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        compose(*overrides.split())
    assert "\n" not in str(caught.value)
    return [str(one) for one in caught.value.args]


def patterns() -> dict[str, re.Pattern[str]]:
    """What every conflict of ours says, with any values in it."""
    targets = [str(option_content(f)[0].get("_target_")) for f in config_files("*/*.yaml")]
    own = [c for target in targets if target.startswith(OURS) for c in conflicts_of(target)]
    said = {c.says: re.split(r"\{:?[\w.]+\}", c.says) for c in [*CONFLICTS, *own]}
    return {says: re.compile(".*?".join(map(re.escape, parts))) for says, parts in said.items()}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_conflict_refuses_a_composition(every: int) -> None:
    known, seen = patterns(), set()
    for row in rows("REFUSED")[::every]:
        count, _, overrides = row.partition(" ")
        lines = refusals(overrides)
        assert len(lines) == int(count), overrides
        for line in lines:
            found = {says for says, pattern in known.items() if pattern.search(line)}
            assert found, f"{overrides}: {line}"
            seen |= found
    # Of mixers that none of ours is: test_layers.py.
    others = {says for says in known if says.startswith("model.mixer={model.mixer} reads ")}
    assert every > 1 or seen == known.keys() - others


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_what_can_be_combined_is_not_refused(every: int) -> None:
    for overrides in rows("ALLOWED")[::every]:
        compose(*overrides.split())


@pytest.mark.parametrize(("overrides", "part"), FACTS)
def test_a_refusal_says_what_goes_together(overrides: str, part: str) -> None:
    assert any(part in line for line in refusals(overrides))


# A composition is checked as a whole, and against this machine and its folders


def test_all_conflicts_are_said_at_once() -> None:
    mistakes = (
        "model=vit model.mask=causal pos_enc=rotary model.attention=uniform model.dropout=2"
        " model.norm=none model.norm_type=rms"
    )
    parts = ("model.pool=mean", "does not compare", "model.dropout=2", "rms")
    with refused(*parts):
        compose(*mistakes.split())


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("model.dim", "${model.width}", r"model\.width"),
        ("study", 3, r"study=3: is not a value; set study\.arm, "),
    ],
)
def test_what_no_command_line_can_set_is_one_line_too(key: str, value: object, line: str) -> None:
    cfg = compose()
    OmegaConf.update(cfg, key, value, merge=False)
    with pytest.raises(UserError, match=line):
        check(cfg)


# CUDA's GPUs, and whether there is Apple's.
CPU, TWO_GPUS, APPLE, BOTH = (0, False), (2, False), (0, True), (2, True)


@pytest.mark.parametrize(
    ("here", "overrides", "line"),
    [
        *((CPU, f"trainer.devices={devices}", "") for devices in ("8", "auto")),
        (CPU, "trainer=fsdp trainer.accelerator=cpu trainer.devices=2", ""),
        (CPU, "trainer=gpu", "trainer.accelerator=gpu: .*trainer=cpu"),
        (CPU, "trainer.devices=[0]", r"trainer.devices=\[0\]: .*set .*trainer.devices=1$"),
        (CPU, "trainer=ddp trainer.devices=[0,1]", "trainer.devices=2$"),
        (CPU, "trainer.accelerator=auto trainer.precision=16-mixed", "needs a GPU"),
        (TWO_GPUS, "trainer=gpu trainer.devices=[0,1]", ""),
        (TWO_GPUS, "trainer.accelerator=auto trainer.precision=16-mixed", ""),
        (TWO_GPUS, "trainer=ddp trainer.devices=3", "trainer.devices=3: this machine has 2 GPU"),
        (TWO_GPUS, "trainer=gpu trainer.devices=[2]", r"=\[2\]: this machine has 2 GPU"),
        (TWO_GPUS, "trainer=gpu trainer.devices=[1,1]", "duplicate device"),
        (TWO_GPUS, "trainer=ddp trainer.devices=2", "hydra.launcher.gpus_per_run=1 shows"),
        (APPLE, "trainer=gpu", ""),
        (APPLE, "trainer=ddp", "trainer.strategy=ddp cannot run on Apple's GPU"),
        (BOTH, "trainer.accelerator=cuda trainer.devices=2", ""),
        (BOTH, "trainer.accelerator=mps trainer.devices=2", "this machine has 1 GPU"),
    ],
)
def test_devices_are_those_of_the_machine(here, overrides, line, monkeypatch):
    cuda, mps = here
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends, "mps", SimpleNamespace(is_available=lambda: mps))
    with pytest.raises(UserError, match=line) if line else nullcontext():
        check_devices(Composition(compose(*overrides.split())).cfg, int("gpus_per_run" in line))
