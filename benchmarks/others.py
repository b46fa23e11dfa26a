"""Our models against other people's of the same size: forward and backward, the same numbers in.

    python benchmarks/others.py vit                  # timm's VisionTransformer
    python benchmarks/others.py gpt                  # Hugging Face's GPT-2
    python benchmarks/others.py gat --root DIR       # PyTorch Geometric's GATConv, DIR/cora.npz
    python benchmarks/others.py edges                # and on a random graph of a million edges
    python benchmarks/others.py gpt --dtype bfloat16 # both under autocast, as bf16-mixed has it

`pip install 'ablate[bench]'` brings the others.

All ways take turns, five rounds; a ratio is the median over the rounds of our seconds / theirs.
Each has as many parameters as the other. No optimizer step is included. Threads: OMP_NUM_THREADS.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
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
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            logits = model(*inputs)
        logits = getattr(logits, "logits", logits).float()
        F.cross_entropy(logits.flatten(0, -2), targets.flatten()).backward()

    return run


def ways(case: Case, *, mixed: bool) -> dict[str, Step]:
    """Theirs, ours, ours compiled."""
    name, theirs, mine, numbers = case
    sizes = [sum(p.numel() for p in model.parameters()) for model in (theirs, mine)]
    assert sizes[0] == sizes[1], sizes
    compiled = deepcopy(mine)
    compiled.compile(fullgraph=True)
    models = {name: theirs, "ours": mine, "ours, compiled": compiled}
    return {name: step(model, mixed, *numbers) for name, model in models.items()}


def vit() -> Case:
    """Pictures of 32 x 32 in patches of 4, 192 wide, 6 blocks, 3 heads; 32 at once."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("which", choices=["vit", "gpt", "gat", "edges"])
    parser.add_argument("--root", default="shared/data/planetoid")
    parser.add_argument("--passes", type=int, default=PASSES, help="in each turn")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()
    torch.manual_seed(0)
    case = {"vit": vit, "gpt": gpt, "gat": lambda: gat(args.root), "edges": edges}[args.which]()
    made = ways(case, mixed=args.dtype == "bfloat16")
    for run in made.values():  # compile, and touch the memory
        run()
        run()
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(ROUNDS):
        for name, run in made.items():
            start = time.perf_counter()
            for _ in range(args.passes):
                run()
            seconds[name].append((time.perf_counter() - start) / args.passes)
    theirs, *_ = seconds.values()
    how = f"{torch.get_num_threads()} thread(s), {args.dtype}"
    print(f"torch {torch.__version__}, {how}, {args.which}: median of {ROUNDS}")
    for name, found in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(found, theirs, strict=True))
        print(f"{name}: {1000 * statistics.median(found):.1f} ms, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
