"""Our models against other people's of the same size: forward and backward, the same numbers in.

    python benchmarks/others.py vit                  # timm's VisionTransformer
    python benchmarks/others.py vit gpt bert         # several, and all of them: all
    python benchmarks/others.py gpt --dtype bfloat16 # both under autocast, as bf16-mixed has it
    python benchmarks/others.py nanogpt --sources DIR --device cuda --dtype bfloat16
    python benchmarks/others.py joeynmt --sources DIR      # its RNN and Transformer, and decoding

`pip install 'ablate-attention[bench]'` brings those that are packages. DIR holds clones of those
that are not: DIR/nanoGPT, DIR/joeynmt (which needs sentencepiece, subword-nmt, importlib_metadata).
--root DIR: Cora, DIR/cora.npz, for gat and gatv2.

All ways take turns, five rounds; a ratio is the median over the rounds of our seconds / theirs.
Each has as many parameters as the other where that is possible; else the numbers of both are given.
No optimizer step is included. On a CPU seconds are CPU time, of all threads: OMP_NUM_THREADS=1. Of
a language model the tokens a second are given too, and their share of the machine's peak: the
arithmetic of Chowdhery et al. 2022 (PaLM, appendix B), 6 N + 12 layers x width x length a token,
over the rate of one large matrix product measured in the same run.
"""

import argparse
import importlib.util
import logging
import statistics
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tables import head, row
from torch import Tensor, nn
from turns import cuda_clock, in_turns, ratio, seconds

import ablate
from ablate.data.interface import Sizes
from ablate.data.pairs import EOS
from ablate.decode.search import beam_search, greedy
from ablate.systems.graphs.graph import GraphSizes
from ablate.task.cross_entropy import CrossEntropy
from ablate.training.build import make, make_model

ROUNDS, PASSES = 5, 3
Step = Callable[[], object]


class Case(NamedTuple):
    """Two models of one size, the targets and the inputs of both."""

    whose: str
    theirs: nn.Module
    ours: nn.Module
    targets: Tensor
    inputs: tuple[Tensor, ...]


class Options(NamedTuple):
    sources: Path
    root: str


def ours(*overrides: str, kind: type[Sizes] = Sizes, **sizes: Any) -> nn.Module:
    """The model of that composition, of sizes that no data has to give."""
    cfg = ablate.compose(*overrides, "model.dropout=0.0")
    data = SimpleNamespace(sizes=kind(**sizes))
    model = make_model(cfg, data, make(cfg.kernel))  # type: ignore[arg-type]
    model.initialize(0)
    return model.train()


class Logits(nn.Module):
    """A model of Hugging Face, whose output has more than logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(*inputs).logits
        return logits


def vit(options: Options) -> Case:
    """Images of 32 x 32 in patches of 4, 192 wide, 6 blocks, 3 heads; 32 at once."""
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 192, "depth": 6, "num_heads": 3}
    theirs = VisionTransformer(**sizes, num_classes=10).train()
    return Case("timm's ViT", theirs, *vit_of_ours())


def vit_hf(options: Options) -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 6}
    images = {"image_size": 32, "patch_size": 4, "num_attention_heads": 3, "num_labels": 10}
    none = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    theirs = ViTForImageClassification(ViTConfig(**sizes, **images, **none)).train()
    return Case("Hugging Face's ViT", Logits(theirs), *vit_of_ours())


def vit_of_ours() -> tuple[nn.Module, Tensor, tuple[Tensor, ...]]:
    keys = ("model.patch=4", "model.dim=192", "model.depth=6", "model.heads=3")
    mine = ours("model=vit", *keys, image_size=(32, 32), channels=3, classes=10)
    return mine, torch.randint(10, (32,)), (torch.randn(32, 3, 32, 32),)


def resnet(options: Options) -> Case:
    """ResNet-20 with squeeze and excitation on 32 x 32 pixels: timm's blocks in our order."""
    from timm.layers import SEModule
    from timm.models.resnet import BasicBlock

    class Theirs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
            )
            blocks, inputs = [], 16
            for width in (16, 32, 64):
                for number in range(3):
                    down, stride = None, 2 if width > 16 and number == 0 else 1
                    if stride == 2:
                        down = nn.Sequential(
                            nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
                        )
                    se = {"attn_layer": lambda c, **_: SEModule(c, rd_channels=c // REDUCTION)}
                    blocks.append(BasicBlock(inputs, width, stride, down, **se))
                    inputs = width
            self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(64, 10)

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3)))
            return logits

    keys = ("model=resnet", "model.gate=se", f"model.gate.reduction={REDUCTION}", "model.depth=3")
    cfg = ablate.compose(*keys)
    mine = make(cfg.model, image_size=(32, 32), channels=3, classes=10, _convert_="all")
    mine.initialize(0)
    case = Case("timm's SE blocks", Theirs(), mine, torch.randint(10, (32,)), ())
    return case._replace(inputs=(torch.randn(32, 3, 32, 32),))


REDUCTION = 8


def gpt(options: Options) -> Case:
    """256 wide, 4 blocks, 8 heads, 1,024 tokens in the vocabulary; 8 sequences of 128."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": 128, "vocab_size": 1024}
    none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(**sizes, **none, use_cache=False, bos_token_id=0, eos_token_id=0)
    mine = ours(*GPT, "model.ffn=gelu_tanh", vocab_size=1024, length=128)
    return Case("Hugging Face's GPT-2", Logits(GPT2LMHeadModel(config)), mine, *texts())


GPT = ("model.dim=256", "model.depth=4", "model.heads=8")


def texts() -> tuple[Tensor, tuple[Tensor]]:
    return torch.randint(1024, (8, 128)), (torch.randint(1024, (8, 128)),)


def x_transformers(options: Options) -> Case:
    """The same size as a decoder of x-transformers, whose attention has no biases."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=256, depth=4, heads=8, attn_dim_head=32, attn_flash=True)
    theirs = TransformerWrapper(num_tokens=1024, max_seq_len=128, attn_layers=layers)
    mine = ours(*GPT, "model.tie_embeddings=false", vocab_size=1024, length=128)
    return Case("x-transformers", theirs, mine, *texts())


def bert(options: Options) -> Case:
    """256 wide, 4 blocks, 8 heads; every token of 8 texts of 128 is predicted, as theirs does."""
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    tokens = {"num_attention_heads": 8, "vocab_size": 1024, "max_position_embeddings": 128}
    none = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    theirs = Logits(BertForMaskedLM(BertConfig(**sizes, **tokens, **none)))
    keys = ("model=bert", *GPT, "pos_enc=learned")
    mine = ours(*keys, vocab_size=1024, length=128, segments=2)

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.positions = mine, torch.arange(128).expand(8, -1)

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.model(tokens, self.positions)[0]
            return logits

    return Case("Hugging Face's BERT", theirs, Mine(), *texts())


def transformer(options: Options) -> Case:
    """128 wide, 2 + 2 layers, 4 heads: torch's, with embeddings; 32 pairs of 32 tokens."""

    class Theirs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = nn.ModuleList(nn.Embedding(1000, 128) for _ in range(2))
            self.layers = nn.Transformer(128, 4, 2, 2, 512, 0.0, batch_first=True)
            # Ours is as published, without a norm after the last layer.
            self.layers.encoder.norm = self.layers.decoder.norm = None
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(32))

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            x, y = self.embeddings[0](source) * 128**0.5, self.embeddings[1](target) * 128**0.5
            out = self.layers(x, y, tgt_mask=self.mask, tgt_is_causal=True)
            return F.linear(out, self.embeddings[1].weight)

    keys = ("model=transformer", "model.dim=128", "model.heads=4", "pos_enc=none")
    mine = ours(*keys, **pair_sizes(1000, 32, 32))
    return Case("torch's Transformer", Theirs(), mine, *pairs(1000, 32, 32, 32))


def pair_sizes(vocab: int, source: int, target: int) -> dict[str, Any]:
    return {
        "source_vocab": vocab, "target_vocab": vocab, "joint": True,
        "source_length": source, "target_length": target,
    }  # fmt: skip


def pairs(vocab: int, count: int, source: int, target: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """No padding: all of one length."""
    return torch.randint(4, vocab, (count, target)), tuple(
        torch.randint(4, vocab, (count, length)) for length in (source, target)
    )


class NanoGPT(nn.Module):
    """The loss of nanoGPT's own GPT, whose file is read from where it was cloned."""

    def __init__(self, folder: Path, **sizes: Any) -> None:
        super().__init__()
        spec = importlib.util.spec_from_file_location("nanogpt", folder / "model.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["nanogpt"] = module  # where torch.compile looks for it
        self.model = module.GPT(module.GPTConfig(**sizes))

    def forward(self, tokens: Tensor) -> Tensor:
        # Any tokens are as good as others to predict.
        loss: Tensor = self.model(tokens, tokens)[1]
        return loss


def nanogpt(options: Options) -> Case:
    """GPT-2's smallest size without biases: 124 million parameters; 16 sequences of 1,024."""
    return of_nanogpt(options, 768, 12, 12, 1024, 50304, 16)


def nanogpt_small(options: Options) -> Case:
    """The setting of its README for a laptop: 4 layers, 4 heads, 128 wide, 12 sequences of 64."""
    return of_nanogpt(options, 128, 4, 4, 64, 65, 12)


def of_nanogpt(
    options: Options, dim: int, depth: int, heads: int, length: int, vocab: int, batch: int
) -> Case:
    sizes = {"n_embd": dim, "n_layer": depth, "n_head": heads, "block_size": length}
    theirs = NanoGPT(
        options.sources / "nanoGPT", **sizes, vocab_size=vocab, dropout=0.0, bias=False
    )
    keys = (f"model.dim={dim}", f"model.depth={depth}", f"model.heads={heads}", "model.bias=false")
    mine = ours(*keys, vocab_size=vocab, length=length)
    tokens = torch.randint(vocab, (batch, length))
    return Case("nanoGPT", theirs, mine, tokens, (tokens,))


class Geometric(nn.Module):
    """The network of Velickovic et al. 2018 out of their layers; edges as ours has them."""

    def __init__(self, features: int, classes: int, score: str) -> None:
        from torch_geometric import nn as layers

        super().__init__()
        own: dict[str, Any] = {"add_self_loops": False}
        layer = {"gat": layers.GATConv, "gatv2": layers.GATv2Conv}[score]
        if score == "gatv2":
            own |= {"share_weights": True}  # as the paper, and as ours
        self.first = layer(features, 8, heads=8, **own)
        self.second = layer(64, classes, heads=1, concat=False, **own)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        edges = edges.flip(0)  # theirs go from the node that is seen
        return self.second(F.elu(self.first(x, edges)), edges)


def network(
    features: Tensor, edges: Tensor, targets: Tensor, classes: int, score: str = "gat"
) -> Case:
    keys = {"features": features.shape[1], "classes": classes, "nodes": len(features)}
    mine = ours("model=gat", f"model.attention={score}", kind=GraphSizes, **keys)
    theirs = Geometric(features.shape[1], classes, score)
    return Case(f"PyTorch Geometric's {score}", theirs, mine, targets, (features, edges))


def gat(options: Options, score: str = "gat") -> Case:
    """Cora: 2,708 nodes, 1,433 features; 8 heads of 8, then 7 classes, no dropout."""
    root = f"data.root={options.root}"
    data = make(ablate.compose("model=gat", "data=planetoid", root).data, seed=0)
    data.setup()
    batch = data.example()
    return network(batch["features"], batch["edges"], batch["targets"].clamp(min=0), 7, score)


def edges(options: Options) -> Case:
    """100,000 nodes, 64 features, 10 edges from each to nodes drawn at random."""
    nodes, each = 100_000, 10
    query = torch.arange(nodes).repeat_interleave(each)
    at = torch.stack([query, torch.randint(nodes, (nodes * each,))])
    return network(torch.randn(nodes, 64), at, torch.randint(7, (nodes,)), 7)


class JoeyNMT(nn.Module):
    """JoeyNMT's model of one of its configs, from its own source, without dropout."""

    def __init__(self, folder: Path, config: str, symbols: int) -> None:
        super().__init__()
        sys.path.insert(0, str(folder))
        logging.disable(logging.INFO)
        import yaml
        from joeynmt.model import build_model
        from joeynmt.vocabulary import Vocabulary

        content = yaml.safe_load((folder / "configs" / f"{config}.yaml").read_text())
        special = SimpleNamespace(
            **content["data"]["special_symbols"], sep_token=None, lang_tags=[]
        )
        vocabulary = Vocabulary([str(n) for n in range(symbols)], special)
        sizes = content["model"]
        for side in ("encoder", "decoder"):
            sizes[side] |= {"dropout": 0.0, "hidden_dropout": 0.0}
        self.model = build_model(sizes, vocabulary, vocabulary)
        self.vocabulary = len(vocabulary)

    def read(self, source: Tensor) -> dict[str, Tensor]:
        mask = torch.ones(len(source), 1, source.shape[1], dtype=torch.bool)
        lengths = torch.full((len(source),), source.shape[1])
        return {"src": source, "src_mask": mask, "src_length": lengths}

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = torch.ones(len(target), 1, target.shape[1], dtype=torch.bool)
        logits: Tensor = self.model._encode_decode(
            trg_input=target, trg_mask=mask, **self.read(source)
        )[0]
        return logits

    @torch.no_grad()
    def write(self, source: Tensor, steps: int, size: int) -> Any:
        from joeynmt import search

        read = self.read(source)
        states, last = self.model._encode(**read)
        keys = {"encoder_output": states, "encoder_hidden": last, "src_mask": read["src_mask"]}
        if size == 1:
            return search.greedy(model=self.model, max_output_length=steps, **keys)[0]
        keys |= {"beam_size": size, "max_output_length": steps, "alpha": 0.0}
        return search.beam_search(model=self.model, **keys)[0]


LENGTH = 25  # tokens on both sides, as in JoeyNMT's reverse task


def joeynmt_rnn(options: Options, batch: int = 64, dim: int = 64) -> Case:
    """Its small RNN with input feeding and general scores; ours is `dim` wide in both halves.

    Theirs has a decoder of 64 and an encoder of 128. Multiplications for a token of each side, of
    theirs 106,560: 68,096 with 64, 106,436 with 82, 242,688 with 128.
    """
    theirs = JoeyNMT(options.sources / "joeynmt", "rnn_reverse", 50)
    keys = ("experiment=reverse_rnn", f"model.dim={dim}")
    mine = ours(*keys, **pair_sizes(theirs.vocabulary, LENGTH, LENGTH))
    return Case("JoeyNMT's RNN", theirs, mine, *pairs(theirs.vocabulary, batch, LENGTH, LENGTH))


def joeynmt_transformer(options: Options) -> Case:
    theirs = JoeyNMT(options.sources / "joeynmt", "transformer_reverse", 50)
    keys = ("model=transformer", "model.norm=pre", "model.dim=64", "model.heads=4", "data=reverse")
    mine = ours(*keys, **pair_sizes(theirs.vocabulary, LENGTH, LENGTH))
    return Case(
        "JoeyNMT's Transformer", theirs, mine, *pairs(theirs.vocabulary, 64, LENGTH, LENGTH)
    )


def decoding(case: Case, size: int) -> dict[str, Step]:
    """Tokens written one by one: greedy, or a beam of `size`. Neither side ever ends a sentence."""
    theirs, mine, source = case.theirs.eval(), case.ours.eval(), case.inputs[0]
    for table, end in (
        (theirs.model.decoder.output_layer.weight, theirs.model.eos_index),
        ((mine.head or mine.target_embedding).weight, EOS),
    ):
        with torch.no_grad():  # a mean is never the largest
            table[end] = table.mean(0)
    search = greedy if size == 1 else beam_search
    more = {} if size == 1 else {"size": size}
    return {
        case.whose: lambda: theirs.write(source, LENGTH, size),
        "ours": lambda: search(mine, source, max_length=LENGTH, **more),
    }


CASES: dict[str, Callable[[Options], Case]] = {
    "gpt": gpt,
    "nanogpt": nanogpt,
    "nanogpt_small": nanogpt_small,
    "x_transformers": x_transformers,
    "bert": bert,
    "vit": vit,
    "vit_hf": vit_hf,
    "resnet": resnet,
    "transformer": transformer,
    "gat": gat,
    "gatv2": lambda options: gat(options, "gatv2"),
    "edges": edges,
    "joeynmt": joeynmt_rnn,
    "joeynmt_10": lambda options: joeynmt_rnn(options, batch=10),
    "joeynmt_82": lambda options: joeynmt_rnn(options, dim=82),
    "joeynmt_128": lambda options: joeynmt_rnn(options, dim=128),
    "joeynmt_greedy": joeynmt_rnn,
    "joeynmt_beam": joeynmt_rnn,
    "joeynmt_transformer": joeynmt_transformer,
    "joeynmt_transformer_greedy": joeynmt_transformer,
}
NOT_IN_ALL = {"nanogpt", "edges"}  # minutes on a CPU


def step(
    model: nn.Module, mixed: bool, targets: Tensor, *inputs: Tensor, loss_of: Any = F.cross_entropy
) -> Step:
    """One pass forward and backward with the mean cross-entropy; mixed: under autocast."""

    def run() -> None:
        model.zero_grad()
        with torch.autocast(targets.device.type, torch.bfloat16, enabled=mixed):
            loss = model(*inputs)
            if loss.dim():  # logits of a model that does not compute its loss
                loss = loss_of(loss.flatten(0, -2), targets.flatten())
        loss.backward()

    return run


def ways(name: str, case: Case, args: argparse.Namespace) -> dict[str, Step]:
    """Theirs, ours, and with --compiled ours compiled, theirs too where its training does that."""
    if name.endswith("_greedy") or name.endswith("_beam"):
        return decoding(case, 5 if name.endswith("_beam") else 1)
    theirs, mine = case.theirs.to(args.device).train(), case.ours.to(args.device).train()
    numbers = [x.to(args.device) for x in (case.targets, *case.inputs)]
    models = {case.whose: theirs, "ours": mine}
    if args.compiled:
        models["ours, the model compiled"] = compiled(mine)
        if isinstance(theirs, NanoGPT):
            models[f"{case.whose}, compiled"] = compiled(theirs)
    mixed = args.dtype == "bfloat16"
    steps = {way: step(model, mixed, *numbers) for way, model in models.items()}
    if args.compiled:
        loss = compiled(CrossEntropy())  # as compile=true does
        both = models["ours, the model compiled"]
        steps["ours, compiled"] = step(both, mixed, *numbers, loss_of=loss)
    return steps


def compiled(model: nn.Module) -> nn.Module:
    model = deepcopy(model)
    model.compile(fullgraph=True)
    return model


def peak(device: str, dtype: torch.dtype) -> float:
    """Arithmetic a second of one large matrix product: the fastest of ten."""
    size = 8192 if device == "cuda" else 2048
    x, y = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = [seconds(lambda: x @ y, clock_of(device)) for _ in range(13)]
    return 2 * size**3 / min(times[3:])


def clock_of(device: str) -> Callable[[], float]:
    """On a CPU that of this process's threads, which other processes lengthen less."""
    return time.process_time if device == "cpu" else cuda_clock


def measure(name: str, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    case = CASES[name](Options(Path(args.sources), args.root))
    sizes = [sum(p.numel() for p in model.parameters()) for model in (case.theirs, case.ours)]
    made = ways(name, case, args)
    for run in made.values():  # compile, and touch the memory
        run()
        run()

    def passes(run: Step) -> float:
        every = seconds(lambda: [run() for _ in range(args.passes)], clock_of(args.device))
        return every / args.passes

    times = in_turns({way: partial(passes, run) for way, run in made.items()}, ROUNDS)
    theirs, *_ = times.values()
    parameters = f"{sizes[0]:,}" if sizes[0] == sizes[1] else f"{sizes[0]:,} and {sizes[1]:,}"
    for way, found in times.items():
        median = statistics.median(found)
        numbers = f"{1000 * median:.1f}", f"{ratio(found, theirs):.3f}"
        print(row(name, way, *numbers, parameters, speed(name, case, median, args)))


def speed(name: str, case: Case, seconds: float, args: argparse.Namespace) -> str:
    """Of a language model: tokens a second and share of the peak."""
    if name not in ("gpt", "nanogpt", "nanogpt_small"):
        return ""
    (tokens,) = case.inputs
    blocks = len(case.ours.stack.blocks)
    dim = case.ours.embedding.weight.shape[1]
    numbers = sum(p.numel() for name, p in case.ours.named_parameters() if "pos_enc" not in name)
    arithmetic = tokens.numel() * (6 * numbers + 12 * blocks * dim * tokens.shape[1])
    share = arithmetic / seconds / peak(args.device, getattr(torch, args.dtype))
    return f"{tokens.numel() / seconds:,.0f} tokens/s, {share:.3f} of the peak"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("which", nargs="+", choices=[*CASES, "all"], metavar="WHICH",
                        help=f"{', '.join(CASES)}, or all but {', '.join(NOT_IN_ALL)}")  # fmt: skip
    parser.add_argument("--root", default="shared/data/planetoid")
    parser.add_argument("--sources", default="sources", help="folder of clones")
    parser.add_argument("--passes", type=int, default=PASSES, help="in each turn")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compiled", action="store_true", help="ours compiled too")
    args = parser.parse_args()
    names = [name for name in CASES if name not in NOT_IN_ALL]
    gpu = args.device == "cuda"
    where = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} thread(s)"
    print(f"torch {torch.__version__}, {where}, {args.dtype}: medians of {ROUNDS} rounds\n")
    print(head("case", "", "ms", "ratio", "parameters", ""))
    for name in names if "all" in args.which else args.which:
        measure(name, args)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
