"""Our models against other people's of the same size: forward and backward, the same numbers in.

    python benchmarks/others.py vit                  # timm's VisionTransformer
    python benchmarks/others.py gpt                  # Hugging Face's GPT-2
    python benchmarks/others.py gat --root DIR       # PyTorch Geometric's GATConv, DIR/cora.npz
    python benchmarks/others.py edges                # and on a random graph of a million edges
    python benchmarks/others.py gpt --dtype bfloat16 # both under autocast, as bf16-mixed has it
    python benchmarks/others.py nanogpt --root DIR --device cuda --dtype bfloat16   # DIR/model.py

`pip install 'ablate-attention[bench]'` brings the others.

All ways take turns, five rounds; a ratio is the median over the rounds of our seconds / theirs.
Each has as many parameters as the other. No optimizer step is included. Threads: OMP_NUM_THREADS.
Of a language model the tokens a second are given too, and their share of the machine's peak: the
arithmetic of Chowdhery et al. 2022 (PaLM, appendix B), 6 N + 12 layers x width x length a token,
over the rate of one large matrix product measured in the same run.
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ablate
from ablate.training.build import make

ROUNDS, PASSES = 5, 3
Step = Callable[[], None]
# Whose, their model, ours, and the targets and inputs of both.
Case = tuple[str, nn.Module, nn.Module, tuple[Tensor, ...]]


def ours(*overrides: str, **sizes: Any) -> nn.Module:
    """The model of that composition, of sizes that no data has to give."""
    cfg = ablate.compose(*overrides, "model.dropout=0.0")
    slots = {"kernel": make(cfg.kernel), "pos_enc": make(cfg.pos_enc)}
    model = make(cfg.model, **sizes, **slots, _convert_="all")
    model.initialise(0)
    return model.train()


def step(model: nn.Module, mixed: bool, targets: Tensor, *inputs: Tensor) -> Step:
    """One pass forward and backward with the mean cross-entropy; mixed: under autocast."""

    def run() -> None:
        model.zero_grad()
        with torch.autocast(targets.device.type, torch.bfloat16, enabled=mixed):
            logits = model(*inputs)
        logits = getattr(logits, "logits", logits).float()
        loss = logits  # of a model that computes it itself
        if logits.dim():
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()

    return run


def ways(case: Case, *, mixed: bool, device: str) -> dict[str, Step]:
    """Theirs, ours, ours compiled; theirs compiled too where its own training does that."""
    name, theirs, mine, numbers = case
    sizes = [sum(p.numel() for p in model.parameters()) for model in (theirs, mine)]
    assert sizes[0] == sizes[1], sizes
    theirs, mine = theirs.to(device), mine.to(device)
    numbers = tuple(x.to(device) for x in numbers)
    models = {name: theirs, "ours": mine, "ours, compiled": compiled(mine)}
    if isinstance(theirs, NanoGPT):
        models[f"{name}, compiled"] = compiled(theirs)
    return {name: step(model, mixed, *numbers) for name, model in models.items()}


def compiled(model: nn.Module) -> nn.Module:
    model = deepcopy(model)
    model.compile(fullgraph=True)
    return model


def vit() -> Case:
    """Images of 32 x 32 in patches of 4, 192 wide, 6 blocks, 3 heads; 32 at once."""
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 192, "depth": 6, "num_heads": 3}
    theirs = VisionTransformer(**sizes, num_classes=10).train()
    keys = ("model.patch=4", "model.dim=192", "model.depth=6", "model.heads=3")
    mine = ours("model=vit", *keys, image_size=(32, 32), channels=3, classes=10)
    numbers = torch.randint(10, (32,)), torch.randn(32, 3, 32, 32)
    return "timm", theirs, mine, numbers


def gpt() -> Case:
    """256 wide, 4 blocks, 8 heads, 1,024 tokens in the vocabulary; 8 sequences of 128."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": 128, "vocab_size": 1024}
    none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(**sizes, **none, use_cache=False, bos_token_id=0, eos_token_id=0)
    theirs = GPT2LMHeadModel(config).train()
    keys = ("model.dim=256", "model.depth=4", "model.heads=8", "model.ffn=gelu_tanh")
    mine = ours(*keys, vocab_size=1024, length=128)
    numbers = torch.randint(1024, (8, 128)), torch.randint(1024, (8, 128))
    return "Hugging Face", theirs, mine, numbers


class NanoGPT(nn.Module):
    """The loss of nanoGPT's own GPT, whose file is read from where it was cloned."""

    def __init__(self, folder: str, **sizes: Any) -> None:
        super().__init__()
        spec = importlib.util.spec_from_file_location("nanogpt", Path(folder) / "model.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.model = module.GPT(module.GPTConfig(**sizes))

    def forward(self, tokens: Tensor) -> Tensor:
        # Any tokens are as good as others to predict.
        loss: Tensor = self.model(tokens, tokens)[1]
        return loss


def nanogpt(folder: str) -> Case:
    """GPT-2's smallest size without biases: 124 million parameters; 16 sequences of 1,024."""
    sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12, "block_size": 1024, "vocab_size": 50304}
    theirs = NanoGPT(folder, **sizes, dropout=0.0, bias=False).train()
    keys = ("model.dim=768", "model.depth=12", "model.heads=12", "model.bias=false")
    mine = ours(*keys, vocab_size=50304, length=1024)
    tokens = torch.randint(50304, (16, 1024))
    return "nanoGPT", theirs, mine, (tokens, tokens)


class Geometric(nn.Module):
    """The network of Velickovic et al. 2018 out of their layers; edges as ours has them."""

    def __init__(self, features: int, classes: int) -> None:
        from torch_geometric.nn import GATConv

        super().__init__()
        self.first = GATConv(features, 8, heads=8, add_self_loops=False)
        self.second = GATConv(64, classes, heads=1, concat=False, add_self_loops=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        edges = edges.flip(0)  # theirs go from the node that is seen
        return self.second(F.elu(self.first(x, edges)), edges)


def network(features: Tensor, edges: Tensor, targets: Tensor, classes: int) -> Case:
    keys = {"features": features.shape[1], "classes": classes}
    mine = ours("model=gat", **keys, nodes=len(features))
    return "PyTorch Geometric", Geometric(**keys), mine, (targets, features, edges)


def gat(root: str) -> Case:
    """Cora: 2,708 nodes, 1,433 features; 8 heads of 8, then 7 classes, no dropout."""
    data = make(ablate.compose("model=gat", "data=planetoid", f"data.root={root}").data, seed=0)
    data.setup()
    batch = data.example()
    return network(batch["features"], batch["edges"], batch["targets"].clamp(min=0), 7)


def edges() -> Case:
    """100,000 nodes, 64 features, 10 edges from each to nodes drawn at random."""
    nodes, each = 100_000, 10
    query = torch.arange(nodes).repeat_interleave(each)
    pairs = torch.stack([query, torch.randint(nodes, (nodes * each,))])
    return network(torch.randn(nodes, 64), pairs, torch.randint(7, (nodes,)), 7)


def peak(device: str, dtype: torch.dtype) -> float:
    """Arithmetic a second of one large matrix product: the fastest of ten."""
    size = 8192 if device == "cuda" else 2048
    x, y = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(13):
        start = now(device)
        x @ y
        times.append(now(device) - start)
    return 2 * size**3 / min(times[3:])


def now(device: str) -> float:
    """Seconds, when a GPU has done what it was told to."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("which", choices=["vit", "gpt", "nanogpt", "gat", "edges"])
    parser.add_argument("--root", default="shared/data/planetoid")
    parser.add_argument("--passes", type=int, default=PASSES, help="in each turn")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    cases = {"vit": vit, "gpt": gpt, "nanogpt": lambda: nanogpt(args.root),
             "gat": lambda: gat(args.root), "edges": edges}  # fmt: skip
    case = cases[args.which]()
    made = ways(case, mixed=args.dtype == "bfloat16", device=args.device)
    for run in made.values():  # compile, and touch the memory
        run()
        run()
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(ROUNDS):
        for name, run in made.items():
            start = now(args.device)
            for _ in range(args.passes):
                run()
            seconds[name].append((now(args.device) - start) / args.passes)
    theirs, *_ = seconds.values()
    gpu = args.device == "cuda"
    where = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} thread(s)"
    print(f"torch {torch.__version__}, {where}, {args.dtype}, {args.which}: median of {ROUNDS}")
    for name, found in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(found, theirs, strict=True))
        print(f"{name}: {1000 * statistics.median(found):.1f} ms, ratio {ratio:.3f}", end="")
        print(speed(case, statistics.median(found), args))


def speed(case: Case, seconds: float, args: argparse.Namespace) -> str:
    """Of a language model: tokens a second and share of the peak."""
    if args.which not in ("gpt", "nanogpt"):
        return ""
    _, _, mine, (_, tokens) = case
    numbers = sum(p.numel() for name, p in mine.named_parameters() if "pos_enc" not in name)
    depth, dim = (12, 768) if args.which == "nanogpt" else (4, 256)
    arithmetic = tokens.numel() * (6 * numbers + 12 * depth * dim * tokens.shape[1])
    share = arithmetic / seconds / peak(args.device, getattr(torch, args.dtype))
    return f", {tokens.numel() / seconds:,.0f} tokens/s, {share:.3f} of the peak"


if __name__ == "__main__":
    main()
