"""What cannot be combined is refused, and what can be is not."""

import pytest

from ablate.config.composition import compose
from ablate.config.conflicts import CONFLICTS
from ablate.config.keys import OURS, option_content
from ablate.config.stated import conflicts_of
from ablate.config.tree import config_dir
from ablate.errors import UserError

pytestmark = pytest.mark.usefixtures("no_interpreter")
FILES = "model=transformer data=parallel data.source=a data.target=b"
# Overrides that are refused, and a part of the line: an example of every conflict.
REFUSED = [
    ("model.heads=3", "model.heads=3 does not divide model.dim=128"),
    ("pos_enc=rotary model.dim=36 model.heads=12", "even head width"),
    ("model=vit pos_enc=learned_2d model.dim=5 model.heads=5", "even model.dim, not 5"),
    ("model=vit pos_enc=sinusoidal_2d model.dim=6 model.heads=2", "multiple of 4, not 6"),
    ("pos_enc=rotary model.attention=location", "model.attention=location does not compare"),
    ("pos_enc=rotary model.attention=uniform", "model.attention=uniform does not compare"),
    ("pos_enc=relative model.attention=uniform", "set pos_enc.keys=false"),
    ("model.attention=location model.attention.max_length=50", "the 64 positions of training"),
    (
        "model=vit model.attention=location model.attention.max_length=16",
        "model.attention.max_length=16 is shorter than the 17 positions",
    ),
    ("pos_enc=learned_2d", "pos_enc=learned_2d needs images"),
    ("model=vit model.mask=window", "model.mask.size=16 lets each of the 4 x 4 patches that"),
    ("model=vit pos_enc=relative_2d model.attention=uniform", "pos_enc=relative_2d needs a score"),
    (
        "model=vit pos_enc=relative_2d model.dim=6 model.heads=2",
        "pos_enc=relative_2d gives half of a head",
    ),
    ("pos_enc=relative_2d", "pos_enc=relative_2d needs images"),
    ("model=vit model.mask=causal", "set model.pool=mean"),
    ("model=vit model.mask=prefix", "model.mask=prefix with model.pool=class"),
    ("model.drop_path=0.1 model.residual=false", "model.residual=true"),
    ("model.share_layers=true model.depth=1", "model.share_layers=true has no effect"),
    (
        "model=transformer model.share_layers=true model.encoder.depth=1 model.decoder.depth=1",
        "no effect with model.encoder.depth=1 and model.decoder.depth=1",
    ),
    ("model=bert model.embedding_scale=2", "model.embedding_scale=2 has no effect where"),
    ("model.norm=none model.norm_type=rms", "model.norm_type=rms has no effect"),
    ("model.norm_type=batch model.bias=false", "always has a bias"),
    (
        "model.activation_checkpointing=true model.norm_type=batch",
        "model.norm_type=batch would count every",
    ),
    (
        "model=vit model.activation_checkpointing=true model.freeze=encoder",
        "model.activation_checkpointing=true has no effect",
    ),
    (
        "model=transformer data=multi30k data.joint=false model.share_embeddings=true",
        "model.share_embeddings=true needs one vocabulary",
    ),
    ("model=transformer model.share_embeddings=true", "sides, and data=dates has two"),
    (
        "model=transformer model.cross_attention=additive kernel=sdpa",
        "and model.cross_attention=additive is none",
    ),
    ("model=transformer model.norm_type=batch", "would take the padding of model=transformer"),
    ("model.ffn=none model.ffn_dim=64", "model.ffn_dim=64 has no effect"),
    ("model=rnn_seq2seq model.dim=9", "half of model.dim=9, which must be even"),
    (
        "model=rnn_seq2seq model.decoder=bahdanau model.bidirectional=false model.dim=9",
        "the larger of each pair of model.dim=9 numbers",
    ),
    ("model=rnn_seq2seq model.residual=true", "has no effect with model.depth=1"),
    ("model=rnn_lm model.residual=true", "has no effect with model.depth=1"),
    (
        "model=rnn_seq2seq model.decoder=bahdanau model.input_feeding=true",
        "model.decoder=bahdanau always feeds the context",
    ),
    (
        "model=rnn_seq2seq model.decoder=bahdanau model.tie_embeddings=true",
        "set model.embedding_dim=64",
    ),
    ("model=rnn_lm model.embedding_dim=9", "set model.embedding_dim=256"),
    (
        "model=transformer model.cross_attention=uniform model.residual=false",
        "model.cross_attention=uniform does not read the query",
    ),
    (
        "model=transformer model.attention=uniform model.residual=false",
        "set model.residual=true, or model.cross_attention=scaled_dot",
    ),
    ("model.attention=none", "model.attention=none leaves model=gpt nothing to read"),
    (
        "model=rnn_seq2seq model.attention=none model.normalizer=hard",
        "model.normalizer=hard has no effect with model.attention=none",
    ),
    ("model.normalizer=sparsemax kernel=sdpa", "model.normalizer=sparsemax is another"),
    (
        "model=rnn_seq2seq model.attention=none model.window=local_m",
        "model.window=local_m has no effect with model.attention=none",
    ),
    ("model=rnn_seq2seq pos_enc=rotary", "pos_enc=rotary has no effect on model=rnn_seq2seq"),
    ("model=rnn_lm pos_enc=learned", "pos_enc=learned has no effect on model=rnn_lm"),
    ("model=rnn_lm data=dates", "model=rnn_lm reads text"),
    (
        "model=rnn_lm data=digits",
        "model=rnn_lm reads text, preferences between texts or keys and values to recall, and",
    ),
    ("model=rnn_seq2seq data=digits", "data=digits is"),
    (
        "model=rnn_seq2seq model.attention=dot model.window=local_p kernel=sdpa",
        "does not return the weights, which model.window=local_p multiplies",
    ),
    (
        "model=rnn_seq2seq model.attention=none kernel=sdpa",
        "kernel=sdpa has no effect with model.attention=none",
    ),
    ("model=rnn_lm kernel=reference", "kernel=reference has no effect on model=rnn_lm"),
    ("model=vit model.patch=9", "which are 8 pixels a side"),
    ("model=vit model.patch=3", "leaves pixels out at the border of images of 8 pixels"),
    ("model=vit data=mnist model.patch=4 model.stride=5", "larger than model.patch=4"),
    ("model=vit model.pretrained=true", "model.pretrained=true: must be a text, or null"),
    ("model=timm model.pretrained=vit_tiny", "must be true or false"),
    ("model=resnet model.norm_type=rms", "model.norm_type=rms is no norm of model=resnet"),
    ("model=resnet kernel=sdpa", "kernel=sdpa has no effect on model=resnet"),
    ("model=resnet pos_enc=learned", "pos_enc=learned has no effect on model=resnet"),
    ("model=resnet data=pydoc", "model=resnet reads images, and data=pydoc is text"),
    (
        "model=resnet trainer=ddp trainer.accelerator=cpu trainer.devices=2",
        "model.norm_type=batch with several processes",
    ),
    ("model=captioner model.norm_type=rms", "model.norm_type=rms is no norm of model=captioner"),
    ("model=captioner model.dim=10", "model.dim=10 must be a multiple of 4"),
    ("model=captioner pos_enc=rotary", "attends from one to another"),
    ("model=captioner pos_enc=relative_2d", "attends from one to another"),
    ("model=captioner data=digits", "model=captioner reads images with captions, and data="),
    ("data=digit_strings", "values to recall, and data=digit_strings is images with"),
    ("model=vit data=digit_strings", "data=digit_strings is images with captions; use"),
    ("task=captioning", "task=captioning needs images with captions, and data=pydoc is text"),
    (
        "task=captioning",
        "task=captioning needs a model of captions, and model=gpt is one of",
    ),
    (
        "model=captioner task=seq2seq",
        "model=captioner is one of captions; use model=gpt_seq2seq, rnn_seq2seq or",
    ),
    (
        "model=captioner task.doubly_stochastic=1 model.normalizer=hard",
        "task.doubly_stochastic=1 has no gradient with model.normalizer=hard",
    ),
    (
        "model=captioner task.doubly_stochastic=1 model.attention=uniform",
        "task.doubly_stochastic=1 has no effect with model.attention=uniform",
    ),
    ("model=captioner data.min_digits=5", "data.min_digits=5 is above data.max_digits=4"),
    ("model=captioner data.width=31", "data.width=31 is too narrow for data.max_digits=4"),
    ("model=captioner model.attention=none", "model.attention=none leaves model=captioner"),
    ("model=captioner kernel=sparse", "kernel=sparse works along the edges of a graph"),
    ("model=timm pos_enc=alibi", "pos_enc=alibi has no effect on model=timm"),
    ("model=timm kernel=chunked", "kernel=chunked has no effect on model=timm"),
    ("data=digits", "values to recall, and data=digits is images"),
    ("model=vit data=pydoc", "model=vit reads images, and data=pydoc is text"),
    (
        "model=timm data=recall",
        "model=timm reads images, and data=recall is keys and values to recall",
    ),
    ("data=reverse", "values to recall, and data=reverse is pairs of texts; use model="),
    (
        "model=vit data=cmudict",
        "data=cmudict is pairs of texts; use model=gpt_seq2seq, rnn_seq2seq",
    ),
    ("data.vocab_size=300", "data.vocab_size=300: data.tokenizer=char takes what it finds"),
    (f"{FILES} data.tokenizer=word data.vocab_size=300", "data.tokenizer=word takes what it"),
    (f"{FILES} data.min_count=2", "data.min_count=2 has no effect with data.tokenizer=bpe"),
    (f"{FILES} data.val_source=c", "data.val_source=c and data.val_target=null: set both"),
    (f"{FILES} data.test_target=c", "data.test_source=null and data.test_target=c: set both"),
    (
        f"{FILES} data.val_source=c data.val_target=d data.val_fraction=0.1",
        "data.val_fraction=0.1 has no effect",
    ),
    (
        f"{FILES} data.test_source=c data.test_target=d data.test_fraction=0.1",
        "data.test_fraction=0.1 has no effect",
    ),
    ("model=transformer data=multi30k data.pair=[en,en]", "must be two different languages"),
    ("model=transformer data=sort data.min_length=28", "is above data.max_train_length=25"),
    ("data=recall", "task=causal_lm needs text, and data=recall is keys and values to recall"),
    ("task=classification", "task=classification needs images or texts with classes"),
    ("data=text_files", "task=causal_lm needs text, and data=text_files is texts with classes"),
    (
        "model=rnn_lm data=text_files task=classification",
        "is texts with classes; use model=bert or gpt",
    ),
    (
        "data=preferences task=reward model.tie_embeddings=false",
        "model.tie_embeddings=false unties an output map over tokens, which a model of scores",
    ),
    (
        "model=dit model.condition=cross_attention model.cross_attention=uniform"
        " model.residual=false",
        "model.condition=cross_attention with a score that does not read the query",
    ),
    (
        "data=speech model=transformer task=speech data.direction=recognition",
        "task=speech writes speech",
    ),
    ("model=gpt_seq2seq model.mixer=fixed", "model.mixer=fixed has a weight for each pair"),
    ("model=sam task.clicks=1", "model.mask_prompt=true has no effect with task.clicks=1"),
    ("model=gpt model.mask=source", "model.mask=source lets every position see the source"),
    ("data=preferences task=rlhf debug=overfit", "debug=overfit waits for a loss to fall"),
    ("data=preferences task=rlhf task.clip=0.1", "task.clip=0.1 is of task.algorithm=ppo"),
    (
        "data=preferences task=reward data.path=pairs data.temperature=2",
        "data.temperature=2 is for pairs that are made",
    ),
    (
        "data=preferences task=reward data.path=pairs data.train_examples=9",
        "data.train_examples=9 is for pairs that are made",
    ),
    (
        "data=preferences task=reward data.prompt=64 data.seq_len=64",
        "data.prompt=64 leaves no room for a response in data.seq_len=64",
    ),
    ("model=dit task.guidance=2 task.drop_caption=0", "task.guidance=2 needs what the model says"),
    ("model=sam data.size=8 data.scale=2", "data.size=8 is too small for digits"),
    ("model=captioner data.autoencoder=RUN", "model=captioner reads the images themselves"),
    ("model=autoencoder data.autoencoder=RUN", "is what model=autoencoder becomes"),
    (
        "data=preferences task=rlhf task.minibatches=2",
        "task.minibatches=2 is of task.algorithm=ppo",
    ),
    *(
        (
            f"data=preferences task=reward data.path=pairs data.{key}={value}",
            f"data.{key}={value} is for pairs that are made",
        )
        for key, value in (("val_examples", 9), ("test_examples", 9), ("writer", "RUN"))
    ),
    ("data=preferences task=rlhf data.path=pairs", "task.reward=null rewards by a rule"),
    (
        "model=dit task.noise=ddpm task.sampling_steps=2000",
        "task.sampling_steps=2000 is more than task.noise.timesteps",
    ),
    ("model=transformer data=dates task=speech", "task=speech needs a text and its speech"),
    ("model=dit model.residual=false", "model.condition=adaln_zero starts with sublayers"),
    (
        "data=text_files task=classification model.tie_embeddings=false",
        "model.tie_embeddings=false unties an output map over tokens",
    ),
    ("data=text_files task=classification task.mixup=0.2", "mix images, and data=text_files is"),
    ("model.freeze=encoder", "leaves nothing to train"),
    ("model=vit model.freeze=encoder model.norm_type=batch", "averages would go on changing"),
    ("init_from=x model.pretrained='hf:y'", "both say where the weights come from"),
    ("model.pretrained=gpt2", "must be hf:NAME_OR_PATH, or null"),
    ("model=transformer data=pydoc", "task=seq2seq needs pairs of texts, and data=pydoc is text"),
    ("task=seq2seq data=copy", "task=seq2seq needs a model of target tokens, and model=gpt"),
    (
        "model=rnn_seq2seq task=causal_lm",
        "model=rnn_seq2seq is one of target tokens; use model=gpt or rnn_lm, or task=seq2seq",
    ),
    ("model=transformer task.length_penalty=0.6", "has no effect with task.beam=1"),
    ("task=recall", "task=recall needs keys and values to recall, and data=pydoc is text"),
    ("model=vit task.mixup=0.2 data.batch_size=5", "data.batch_size=5 must be even"),
    ("kernel=sdpa model.attention=additive", "model.attention=additive is none"),
    ("kernel=sdpa pos_enc=relative", "pos_enc.values=false"),
    ("optimizer=sgd optimizer.momentum=0 optimizer.nesterov=true", "optimizer.momentum above 0"),
    ("trainer.max_steps=-1", "set trainer.max_steps or trainer.max_epochs"),
    ("trainer.max_steps=50 schedule.warmup=100", "schedule.warmup=100 is longer"),
    ("trainer.check_val_every_n_epoch=2", "set one null"),
    ("trainer=ddp model.norm_type=batch", "statistics of its own"),
    ("+trainer.sync_batchnorm=true", "trainer.sync_batchnorm=true needs GPUs"),
    ("trainer.strategy=fsdp", "trainer.strategy=fsdp splits a model over several processes"),
    ("trainer=fsdp +trainer.sync_batchnorm=true", "sync_batchnorm=true cannot be had with"),
    ("trainer=fsdp trainer.precision=64-true", 'trainer.precision="64-true" cannot be had with'),
    ("trainer=fsdp trainer.devices=2 model.norm_type=batch", "statistics of its own"),
    ("trainer.precision=16-mixed", "on a CPU use bf16-mixed"),
    ("trainer=fsdp compile=true", "which trainer.strategy=fsdp takes apart"),
    (
        "model.mixer=fixed model.attention=dot",
        "model.attention=dot acts inside attention, and model.mixer=fixed has none",
    ),
    ("model.mixer=none model.normalizer=hard", "model.normalizer=hard acts inside attention"),
    ("model.mixer=convolution kernel=sdpa", "kernel=sdpa acts inside attention"),
    ("model.mixer=fixed pos_enc=rotary", "pos_enc=rotary acts inside attention"),
    ("model=transformer model.mixer=fixed pos_enc=alibi", "pos_enc=alibi acts inside attention"),
    ("model.mixer=convolution model.mask=window", "model.mask=window restricts attention weights"),
    ("model.mixer=none model.mask=none", "model.mask=none has no effect with model.mixer=none"),
    ("model.mixer=none model.ffn=none", "disables every sublayer"),
    ("model=vit model.mixer=convolution", "set model.pool=mean"),
    (
        "model=vit model.pool=mean model.mixer=convolution model.mask=causal",
        "causal masking is not defined",
    ),
    ("model.mixer=convolution model.mixer.size=4", "model.mixer.size=4 must be an odd number"),
    ("model=gat model.mask=causal", "model.mask=causal goes by order, and the nodes"),
    ("model.mask=neighbours", "model.mask=neighbours needs a graph, and model=gpt reads none"),
    ("model=gat pos_enc=learned", "pos_enc=learned has no effect on model=gat, which takes none"),
    ("model=gat model.attention=location", "model.attention=location goes by order"),
    ("model.embedding=onehot", "reads out by the learned table of the embeddings"),
    (
        "model.embedding=word2vec model.embedding.freeze=true",
        "model.embedding.freeze=true would freeze the output map",
    ),
    (
        "model=transformer model.embedding=onehot model.tie_embeddings=false data=reverse"
        " model.share_embeddings=true",
        "model.share_embeddings=true gives both sides one learned table",
    ),
    ("kernel=triton model.attention=gatv2", "of NVIDIA and AMD, and trainer.accelerator=cpu is no"),
    (
        "kernel=triton model.attention=gatv2 trainer=gpu trainer.precision=64-true",
        "trainer.precision=64-true asks for more",
    ),
    ("kernel=triton trainer=gpu", "and model.attention=scaled_dot is none"),
    (
        "model=transformer kernel=triton model.attention=gatv2 model.cross_attention=dot"
        " trainer=gpu",
        "additive scores only, and model.cross_attention=dot is none",
    ),
    (
        "kernel=triton model.attention=additive model.normalizer=sparsemax trainer=gpu",
        "kernel=triton computes softmax alone, and model.normalizer=sparsemax is another",
    ),
    (
        "model=rnn_seq2seq model.attention=additive model.window=local_p kernel=triton trainer=gpu",
        "kernel=triton does not return the weights, which model.window=local_p multiplies",
    ),
    (
        "kernel=triton model.attention=additive pos_enc=relative trainer=gpu",
        "kernel=triton does not return the weights, which pos_enc=relative",
    ),
    (
        "model=vit kernel=triton model.attention=additive pos_enc=relative_2d trainer=gpu",
        "and pos_enc=relative_2d goes by rows and columns",
    ),
    (
        "model=vit model.mask=window model.mask.size=2 kernel=triton model.attention=additive"
        " trainer=gpu",
        "model.mask=window of an image is several",
    ),
    ("model=gat kernel=triton trainer=gpu", "and model.mask=neighbours goes along edges"),
    ("kernel=flex", "kernel=flex runs on GPUs of NVIDIA and AMD, and trainer.accelerator=cpu"),
    ("kernel=flex trainer=gpu model.dropout=0.1", "kernel=flex has no dropout of the weights"),
    (
        "kernel=flex trainer=gpu model.attention=additive",
        "kernel=flex computes scaled dot products",
    ),
    (
        "model=transformer kernel=flex model.cross_attention=additive trainer=gpu",
        "kernel=flex computes scaled dot products only, and model.cross_attention=additive is none",
    ),
    ("kernel=sparse", "kernel=sparse works along the edges of a graph alone"),
    ("model=gat model.mask=none kernel=sparse", "kernel=sparse works along the edges"),
    ("model=gat model.normalizer=sigmoid kernel=sparse", "kernel=sparse computes softmax alone"),
    ("model=gat model.depth=1", "model.depth=1 leaves model.dim and model.heads nothing to shape"),
    ("model=gat model.attention=uniform model.shared=false", "model.shared=false has no effect"),
    ("model=gat trainer=ddp trainer.accelerator=cpu trainer.devices=2", "data=karate is one graph"),
    ("data=karate", "values to recall, and data=karate is a graph; use model=gat, or"),
    (
        "model=gat data=digits",
        "model=gat reads a graph, and data=digits is images; use model=resnet, timm or vit",
    ),
    ("task=node_classification", "task=node_classification needs a graph, and data=pydoc is text"),
    (
        "task=node_classification",
        "needs a model of classes of nodes, and model=gpt is one of",
    ),
    (
        "model=bert data=digits",
        "model=bert reads text or texts with classes, and data=digits is images",
    ),
    (
        "model=bert data=recall",
        "task=masked_lm needs text, and data=recall is keys and values to recall",
    ),
    ("task=masked_lm", "task=masked_lm needs a model of masked tokens, and model=gpt is one of"),
    (
        "model=bert task=causal_lm",
        "use model=gpt or rnn_lm, or task=classification or masked_lm",
    ),
    ("model=bert pos_enc=sinusoidal_2d", "pos_enc=sinusoidal_2d needs images"),
    ("model=bert task.random_share=0.3", "task.mask_share=0.8 and task.random_share=0.3 are"),
    ("model=bert data.seq_len=7", "data.seq_len=7 leaves too little text"),
    (
        "model=bert pos_enc=learned model.mixer=none model.mask=causal",
        "model.mask=causal has no effect with model.mixer=none",
    ),
    (
        "model=gat task=causal_lm",
        "model=gat is one of classes of nodes; use model=gpt or rnn_lm",
    ),
    ("data=series", "values to recall, and data=series is a time series"),
    ("model=rnn_forecaster data=pydoc", "reads a time series, and data=pydoc is text"),
    ("model=transformer_forecaster data=digits", "and data=digits is images"),
    ("task=forecasting", "task=forecasting needs a time series, and data=pydoc is text"),
    ("task=forecasting", "use model=rnn_forecaster or transformer_forecaster"),
    (
        "model=rnn_forecaster task=causal_lm",
        "model=rnn_forecaster is one of next values; use model=gpt",
    ),
    ("model=rnn_forecaster pos_enc=learned", "pos_enc=learned has no effect on model=rnn_fo"),
    ("model=rnn_forecaster kernel=sdpa", "no effect with model.attention=none"),
    ("model=transformer_forecaster model.attention=none", "nothing to read"),
    ("model=transformer_forecaster pos_enc=learned_2d", "pos_enc=learned_2d needs images"),
    (
        "model=rnn_forecaster model.attention=location model.attention.max_length=9",
        "shorter than the 22 positions",
    ),
    ("model=rnn_forecaster data.columns=[x]", "data.columns=[x]: the sunspots have one column"),
    ("model=rnn_forecaster data.window=10 data.period=12", "repeats the last data.period=12"),
    ("model=rnn_forecaster data.val_fraction=0.6 data.test_fraction=0.4", "nothing to train on"),
    ("model.norm_type=batch trainer.devices=2", "statistics of its own"),
    ("model.norm_type=batch trainer.num_nodes=2", "statistics of its own"),
    ("model.norm_type=batch trainer=gpu trainer.devices=auto", "statistics of its own"),
]

ALLOWED = [
    "model=rnn_seq2seq model.attention=dot model.window=local_m kernel=sdpa",
    "model=rnn_seq2seq model.window=local_p kernel=chunked",
    "model=rnn_seq2seq model.attention=none model.input_feeding=true",
    "model=rnn_seq2seq model.decoder=bahdanau model.tie_embeddings=true model.embedding_dim=64",
    "model=rnn_seq2seq model.dim=9 model.bidirectional=false",
    "model=rnn_lm model.residual=true model.depth=2",
    "model=transformer model.share_embeddings=true data=reverse",
    "model=transformer model.cross_attention=uniform model.norm=pre",
    "model=transformer model.attention=uniform model.cross_attention=dot model.residual=false",
    "model=rnn_lm data=shakespeare",
    "pos_enc=relative model.attention=uniform pos_enc.keys=false",
    "pos_enc=relative model.attention=location",
    "kernel=sdpa pos_enc=relative pos_enc.values=false",
    "kernel=triton model.attention=additive pos_enc=relative pos_enc.values=false trainer=gpu",
    "model=transformer kernel=triton model.attention=gatv2 trainer=gpu",
    "model=rnn_seq2seq model.attention=additive model.window=local_m kernel=triton trainer=gpu",
    "model=gat model.mask=none kernel=triton trainer=gpu",
    "kernel=sdpa model.attention=uniform pos_enc=alibi",
    "kernel=flex model.attention=cosine pos_enc=t5 trainer=gpu model.dropout=0",
    "model=vit model.mask=causal model.pool=mean",
    "model=vit model.mask=window model.mask.size=3",
    "model=vit model.mask=window model.mask.size=2 model.pool=mean pos_enc=relative_2d",
    "model=vit model.attention=location model.attention.max_length=17",
    "model=vit data=mnist model.patch=4 model.stride=2",
    "model=vit model.norm_type=batch",
    "model=timm +model.args.in_chans=1",
    "trainer.max_steps=50 schedule.warmup=50",
    "trainer.max_steps=5",
    f"{FILES} data.tokenizer=word data.min_count=2 data.joint=true",
    f"{FILES} data.val_source=c data.val_target=d data.test_fraction=0.1",
    "model=transformer data=copy data.min_length=25",
    "data.tokenizer=bpe data.vocab_size=300",
    "trainer=ddp trainer.accelerator=cpu trainer.devices=2",
    "model.norm_type=batch trainer.devices=auto",
    "model.norm_type=batch trainer=ddp trainer.devices=1",
    "model.norm_type=batch trainer=gpu trainer.devices=[3]",
    "trainer.max_steps=-1 trainer.max_epochs=1",
    "model=transformer model.mixer=fixed model.attention=additive kernel=reference",
    "model=transformer model.mixer=none model.ffn=none",
    "model=vit model.mixer=none model.mask=none",
    "model=vit model.mixer=convolution model.pool=mean",
    "model.mixer=fixed model.mask=window",
    "model.mixer=convolution pos_enc=none",
    "model=bert pos_enc=none model.mixer=none",
    "model=bert model.mask=causal",
    "model=bert data.seq_len=7 task.next_sentence=false",
    "model=bert task.mask_share=0.9 task.random_share=0.1",
    "model=resnet model.norm_type=layer trainer=ddp trainer.accelerator=cpu trainer.devices=2",
    "model=captioner pos_enc=learned_2d model.gate=se model.normalizer=hard",
    "model=captioner task.doubly_stochastic=1 model.attention=location kernel=sdpa",
    "model=gat model.mask=none kernel=chunked",
    "model=gat model.normalizer=sparsemax",
    "model=gat model.attention=dot kernel=sdpa",
    "model=gat model.attention=cosine model.shared=false",
    "model=rnn_forecaster data.test_fraction=null data.window=12 data.period=12",
    "model=rnn_forecaster model.attention=additive kernel=reference",
    "model.embedding=word2vec",
    "model.embedding=word2vec model.embedding.freeze=true model.tie_embeddings=false",
    "model=rnn_seq2seq model.embedding=onehot",
    "+optimizer.amsgrad=true",
    "+trainer.benchmark=true",
    "model=captioner compile=true",
    "model=rnn_lm compile=true",
]


def refusal(overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        compose(*overrides.split())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("overrides", ALLOWED)
def test_what_can_be_combined_is_not(overrides: str) -> None:
    compose(*overrides.split())


@pytest.mark.parametrize(("overrides", "part"), REFUSED)
def test_what_cannot_be_combined_is_refused(overrides: str, part: str) -> None:
    assert part in refusal(overrides)


@pytest.mark.slow
def test_every_conflict_has_an_example() -> None:
    lines = [refusal(overrides) for overrides, _ in REFUSED]
    of_parts = {
        conflict
        for file in config_dir().glob("*/*.yaml")
        if (target := str(option_content(file)[0].get("_target_"))).startswith(OURS)
        for conflict in conflicts_of(target)
    }
    for conflict in [*CONFLICTS, *of_parts]:
        start = conflict.says.split("{")[0] or conflict.says.split("}")[1].split("{")[0]
        assert any(start in line for line in lines), conflict.says
