"""Time and peak memory of attention, forward and backward, for every score and kernel.

    python benchmarks/attention.py                         # all scores and kernels, 128 to 4096
    python benchmarks/attention.py --lengths 1024 --scores additive scaled_dot
    python benchmarks/attention.py --device cuda --dtype bfloat16 --batch 4 --heads 8
    python benchmarks/attention.py --device cuda --dtype bfloat16 --heads 8 --largest
    python benchmarks/attention.py --device cuda --batch 64 --heads 1 --queries 1  # an RNN's step

On a CPU every measurement is a process of its own, because peak memory is a process's; on a GPU
torch counts it, and one process measures everything. The ways to be compared take turns, so that a
noisy neighbor meets all of them. Times are the fastest of all passes, since noise only adds;
`ratio` is over the fastest of plain F.scaled_dot_product_attention. On a GPU, `errors` are the
largest difference of the context, and of the gradients of queries, keys and values, from
kernel=reference on the same numbers in float32, over its largest value, where the reference fits.
`--largest` doubles the length until a pass no longer fits or takes more than `--seconds`.
Projections are not included.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import Any, NamedTuple

from tables import head, row
from turns import cuda_clock, in_turns, memory, seconds

WIDTH = 64
SECOND = {"cpu": 1.0, "cuda": 0.1}
WHOLE = 2048  # longest additive attention as whole matrices: 4096 would need some 50 GB
EXACT = 2048  # longest context that is compared with the reference
PLAIN = ("plain SDPA", "torch")


class Setting(NamedTuple):
    """What is measured: all but the length."""

    score: str
    kernel: str
    pos_enc: str
    causal: bool
    batch: int
    heads: int
    repeats: int
    device: str
    dtype: str
    queries: int | None  # the last ones; None: as many as keys


def measure(setting: Setting, length: int) -> dict[str, Any]:
    """Fastest pass in seconds, growth of peak memory in MB, the errors, and what ran."""
    import torch

    torch.manual_seed(0)
    device, dtype = setting.device, getattr(torch, setting.dtype)
    shape = (setting.batch, setting.heads, length, WIDTH)
    leaves = [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]
    leaves[0] = leaves[0][:, :, -(setting.queries or length) :].clone()
    for leaf in leaves:
        leaf.requires_grad_()
    attend, ran = way(setting, leaves)
    errors = None
    if device == "cuda" and length <= EXACT and setting[:2] != PLAIN:
        try:
            wide, _ = way(setting._replace(kernel="reference"), leaves, torch.float32)
            errors = difference(outcome(attend, leaves), outcome(wide, leaves))
            del wide
        except torch.OutOfMemoryError:
            pass  # of the reference; else the next pass fails too
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = used(device, peak=False)
    clock = cuda_clock if device == "cuda" else time.perf_counter
    times: list[float] = []
    # The first pays for compiling and for touching memory; quick ones are repeated for a while.
    while len(times) <= setting.repeats or sum(times[1:]) < SECOND[device]:
        for leaf in leaves:
            leaf.grad = None
        times.append(seconds(lambda: attend().square().mean().backward(), clock))
    peak = used(device, peak=True) - before
    return {"seconds": min(times[1:]), "megabytes": peak, "errors": errors, "ran": ran()}


def outcome(attend: Any, leaves: list[Any]) -> list[Any]:
    """The context, and the gradients of queries, keys and values."""
    for leaf in leaves:
        leaf.grad = None
    context = attend()
    context.float().square().mean().backward()
    found = [context.detach(), *(leaf.grad for leaf in leaves)]
    return [x.float() for x in found if x is not None]


def difference(found: list[Any], expected: list[Any]) -> list[float]:
    """Of the context, and the largest of the gradients."""
    pairs = zip(found, expected, strict=True)
    context, *gradients = (
        ((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item() for a, b in pairs
    )
    return [context, max(gradients)]


def way(setting: Setting, leaves: list[Any], dtype: Any = None) -> Any:
    """The attention to be measured, and what says which kernel ran: functions without arguments."""
    import torch.nn.functional as F

    if setting[:2] == PLAIN:
        plain = partial(F.scaled_dot_product_attention, *leaves, is_causal=setting.causal)
        return plain, lambda: setting.kernel
    return ours(setting, leaves, dtype)


def ours(setting: Setting, leaves: list[Any], dtype: Any) -> Any:
    """The same attention through our parts; parameters are drawn from seed 0."""
    import torch
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    from ablate.config.tree import config_dir
    from ablate.kernel import AttentionInputs
    from ablate.model.mask.causal import Causal
    from ablate.model.mask.none import NoMask
    from ablate.model.normalizer.softmax import Softmax

    def part(group: str, name: str) -> Any:
        return instantiate(OmegaConf.load(config_dir() / group / f"{name}.yaml"))

    heads, length = setting.heads, leaves[1].shape[2]
    made = part("model.attention", setting.score)(
        heads=heads, query_dim=WIDTH, key_dim=WIDTH, length=length
    )
    pos = part("pos_enc", setting.pos_enc)(
        dim=heads * WIDTH, heads=heads, head_dim=WIDTH, length=length, depth=1
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in (*made.parameters(), *pos.parameters()):
        parameter.data.normal_(std=WIDTH**-0.5, generator=generator)
    made, pos = made.to(leaves[0].to(dtype)), pos.to(leaves[0].to(dtype))
    how = part("kernel", setting.kernel).resolve(made.needs | pos.needs)
    mask = Causal(causal=True) if setting.causal else NoMask(causal=False)
    parts: dict[str, Any] = {"score": made, "normalizer": Softmax(), "mask": mask, "pos": pos}

    def attend() -> Any:
        q, k, v = (x.to(dtype) for x in leaves)
        # Scores that do not look get a tensor of width 0, as in the model.
        q = q if made.query else q[..., :0]
        k = k if made.key else k[..., :0]
        return how(AttentionInputs(q=q, k=k, v=v, layer=0, start=length - q.shape[2], **parts))

    return attend, how.describe


def used(device: str, *, peak: bool) -> float:
    """MB now or at the highest: what torch holds on a GPU, else this process in memory."""
    if device == "cuda":
        import torch

        return (torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated)() / 2**20
    return memory("VmHWM" if peak else "VmRSS")


def ways(scores: list[str], kernels: list[str], device: str) -> list[tuple[str, str]]:
    from hydra.utils import get_class
    from omegaconf import OmegaConf

    from ablate.config.tree import config_dir

    files = sorted((config_dir() / "model.attention").glob("*.yaml"))
    classes = {file.stem: get_class(OmegaConf.load(file)["_target_"]) for file in files}
    known = [name for name, score in classes.items() if score.needs]
    chosen = [PLAIN]
    for score in scores or known:
        names = ["reference", "chunked"]
        names += ["sdpa"] * ("dot_product" in classes[score].needs)
        names += ["flex"] * ("dot_product" in classes[score].needs and device == "cuda")
        names += ["triton"] * ("sum" in classes[score].needs and device == "cuda")
        names += ["auto"] * ("auto" in kernels)
        chosen += [(score, name) for name in names if name in (kernels or names)]
    return chosen


def on_gpu(setting: Setting, length: int) -> dict[str, Any] | None:
    """None where it ran out of memory."""
    import torch

    try:
        return measure(setting, length)
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.cuda.empty_cache()


def in_process(setting: Setting, length: int) -> dict[str, Any] | None:
    """None where it ran out of memory or time."""
    line = [sys.executable, __file__, "--one", json.dumps([setting, length])]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    if done.returncode < 0 or "memory" in done.stderr:
        return None
    raise RuntimeError(done.stderr)


def largest(setting: Setting, slow: float) -> tuple[int, float]:
    """The longest context of which a pass fits, and its seconds; 0: not even the shortest."""
    length, taken = 0, 0.0
    while taken < slow:
        tried = 2 * length or 4096
        if (found := on_gpu(setting, tried)) is None:
            break
        length, taken = tried, found["seconds"]
    return length, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--lengths", nargs="*", type=int, default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--scores", nargs="*", default=[])
    parser.add_argument("--kernels", nargs="*", default=[])
    parser.add_argument("--pos-enc", default="none")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--queries", type=int, help="the last ones alone")
    parser.add_argument("--largest", action="store_true", help="on a GPU: the longest context")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a pass, for --largest")
    args = parser.parse_args()
    if args.one:
        setting, length = json.loads(args.one)
        print(json.dumps(measure(Setting(*setting), length)))
        return
    if args.queries and args.causal:
        parser.error(
            "--queries takes no --causal: F.scaled_dot_product_attention aligns them apart"
        )
    import torch

    gpu = args.device == "cuda"
    where = torch.cuda.get_device_name() if gpu else (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")  # fmt: skip
    print(f"torch {torch.__version__}, {where}, b={args.batch} h={args.heads} k={WIDTH} "
          f"{args.dtype}, {'causal' if args.causal else 'no mask'}, pos_enc={args.pos_enc}"
    )  # fmt: skip
    sizes = (
        args.causal,
        args.batch,
        args.heads,
        args.repeats,
        args.device,
        args.dtype,
        args.queries,
    )
    settings = [
        Setting(*each, args.pos_enc, *sizes)
        for each in ways(args.scores, args.kernels, args.device)
    ]
    if args.largest:
        print(head("score", "kernel", "longest context", "seconds"))
        for setting in settings:
            length, taken = largest(setting._replace(repeats=1), args.seconds)
            print(row(setting.score, setting.kernel, length, f"{taken:.2f}"), flush=True)
        return
    print(head("length", "score", "kernel", "ms", "ratio to plain SDPA", "peak MB", "errors"))
    one_run = on_gpu if gpu else in_process
    for length in args.lengths:
        # The tensor of queries x keys x width and its gradients would not fit beside others.
        whole = {s for s in settings if s[:2] == ("additive", "reference")}
        dead = whole if length > WHOLE else set()

        def once(setting: Setting, length: int, dead: set[Setting]) -> Any:
            one = None if setting in dead else one_run(setting, length)
            if one is None:
                dead.add(setting)
            return one

        turns = {setting: partial(once, setting, length, dead) for setting in settings}
        found = in_turns(turns, args.rounds)
        for setting in settings:
            way = setting[:2]
            if setting in dead:
                print(row(length, *way, "not run, or no memory, or 300 s", "", "", ""))
                continue
            ms, plain = (1000 * min(one["seconds"] for one in found[w])
                         for w in (setting, settings[0]))  # fmt: skip
            peak = statistics.median(a["megabytes"] for a in found[setting])
            errors = " ".join(f"{error:.0e}" for error in found[setting][0]["errors"] or ())
            name = f"auto: {found[setting][0]['ran']}" if way[1] == "auto" else way[1]
            numbers = f"{ms:.2f}", f"{ms / plain:.2f}", f"{peak:.0f}"
            print(row(length, way[0], name, *numbers, errors), flush=True)


if __name__ == "__main__":
    main()
