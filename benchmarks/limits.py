"""What share of the machine's limit a training step reaches, and where the rest of its time goes.

    OMP_NUM_THREADS=1 python benchmarks/limits.py

GPT and ViT of others.py, and the RNN decoder with input feeding of JoeyNMT's size, forward and
backward, float32, on a CPU. The limit: the arithmetic of the step, counted by torch's
FlopCounterMode (a recurrent layer by its products), over the rate of one matrix product of 2,048,
measured in the same run. Bandwidth: copying 256 MB. Groups: the time of torch's own operations by
their names, from its profiler; what no operation took is Python, autograd and allocation.
"""

import statistics
from collections import defaultdict
from pathlib import Path

import torch
from others import LENGTH, Case, Options, gpt, ours, pair_sizes, pairs, peak, step, vit
from tables import head, row
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode
from turns import seconds

ROUNDS = 9
# The first group of which a name has a word.
GROUPS = {
    "recurrent layers": ("rnn_layer", "mkldnn_rnn"),
    "attention": ("scaled_dot", "flash", "_efficient", "_softmax", "softmax"),
    "products": ("mm", "matmul", "linear", "dot", "convolution"),
    "norms": ("norm",),
    "copies": (
        "copy",
        "cat",
        "clone",
        "contiguous",
        "to_copy",
        "fill",
        "zero",
        "index",
        "embedding",
    ),
}


def rnn(options: Options) -> Case:
    """The decoder of JoeyNMT's reverse task, 64 pairs of 25 tokens."""
    mine = ours("experiment=reverse_rnn", "model.dim=64", **pair_sizes(54, LENGTH, LENGTH))
    return Case("", mine, mine, *pairs(54, 64, LENGTH, LENGTH))


def bandwidth() -> float:
    """Bytes a second that are read and written by a copy: the fastest of five."""
    x, y = torch.zeros(2**26), torch.empty(2**26)
    return 2 * 4 * 2**26 / min(seconds(lambda: y.copy_(x)) for _ in range(5))


def main() -> None:
    torch.manual_seed(0)
    rate, moved = peak("cpu", torch.float32), bandwidth()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s)")
    print(f"a product of 2,048: {rate / 1e9:.0f} GFLOP/s; a copy: {moved / 1e9:.1f} GB/s\n")
    names = [*GROUPS, "other operations", "between operations"]
    print(head("model", "ms", "GFLOP", "share of the limit", *names))
    for name, make in (("GPT", gpt), ("ViT", vit), ("RNN decoder", rnn)):
        case = make(Options(Path(), ""))
        run = step(case.ours, False, case.targets, *case.inputs)
        for _ in range(3):
            run()
        # oneDNN's recurrent layers have no count; torch's own are products.
        with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counted:
            run()
        median = statistics.median(seconds(run) for _ in range(ROUNDS))
        shares = groups(run, median)
        flops = counted.get_total_flops()
        numbers = f"{1000 * median:.1f}", f"{flops / 1e9:.2f}", f"{flops / rate / median:.2f}"
        print(row(name, *numbers, *(f"{shares[group]:.0%}" for group in names)), flush=True)


def groups(run: object, seconds: float) -> dict[str, float]:
    """Shares of the step's time without the profiler."""
    with profile() as profiled:
        for _ in range(3):
            run()  # type: ignore[operator]
    found: dict[str, float] = defaultdict(float)
    for event in profiled.key_averages():
        if not event.key.startswith("aten::"):
            continue
        matches = (group for group, words in GROUPS.items() if any(w in event.key for w in words))
        found[next(matches, "other operations")] += event.self_cpu_time_total / 1e6 / 3 / seconds
    found["between operations"] = max(0.0, 1 - sum(found.values()))
    return found


if __name__ == "__main__":
    main()
