"""Time and peak memory of attention, forward and backward, for every score and kernel.

    python benchmarks/attention.py                         # all scores and kernels, 128 to 4096
    python benchmarks/attention.py --lengths 1024 --scores additive scaled_dot
    python benchmarks/attention.py --device cuda --dtype bfloat16 --pos-enc alibi

On a CPU every measurement is a process of its own, because peak memory is a process's; on a GPU
torch counts it, and one process measures everything. The ways to be compared take turns, so that a
noisy neighbour meets all of them. Times are the fastest of all passes, since noise only adds;
`ratio` is over the fastest of plain F.scaled_dot_product_attention. `error` is the largest
difference of the context from kernel=reference on the same numbers in float32, over its largest
value; it is computed where the reference fits. Projections are not included.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HEADS, WIDTH, BATCH = 4, 64, 1
SECOND = {"cpu": 1.0, "cuda": 0.1}
WHOLE = 2048  # longest additive attention as whole matrices: 4096 would need some 50 GB
EXACT = 2048  # longest context that is compared with the reference
PLAIN = ("plain SDPA", "torch")


def measure(
    score: str, kernel: str, pos_enc: str, length: int, causal: bool, repeats: int, device: str,
    dtype: str,
) -> dict[str, Any]:  # fmt: skip
    """Fastest of `repeats` passes in seconds, the growth of peak memory in MB, and the error."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    shape = (BATCH, HEADS, length, WIDTH)
    kind = {"device": device, "dtype": getattr(torch, dtype)}
    q, k, v = (torch.randn(shape, requires_grad=True, **kind) for _ in range(3))
    error = None
    if (score, kernel) == PLAIN:

        def attend() -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    else:
        attend = ours(score, kernel, pos_enc, length, causal, q, k, v)
        if device == "cuda" and length <= EXACT:
            with torch.no_grad():
                wide = ours(score, "reference", pos_enc, length, causal, q, k, v, torch.float32)()
                error = ((attend() - wide).abs().max() / wide.abs().max()).item()
            del wide
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = memory(device, peak=False)
    times: list[float] = []
    # The first pays for compiling and for touching memory; quick ones are repeated for a while.
    while len(times) <= repeats or sum(times[1:]) < SECOND[device]:
        q.grad = k.grad = v.grad = None
        start = time.perf_counter()
        attend().square().mean().backward()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    peak = memory(device, peak=True) - before
    return {"seconds": min(times[1:]), "megabytes": peak, "error": error}


def ours(
    score: str, kernel: str, pos_enc: str, length: int, causal: bool, q: Any, k: Any, v: Any,
    dtype: Any = None,
) -> Any:  # fmt: skip
    """The same attention through our parts; parameters are drawn from seed 0."""
    import torch
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    from ablate.config.tree import config_dir
    from ablate.kernel import Attend, Parts
    from ablate.model.mask.causal import Causal
    from ablate.model.mask.none import NoMask
    from ablate.model.normalizer.softmax import Softmax

    def part(group: str, name: str) -> Any:
        return instantiate(OmegaConf.load(config_dir() / group / f"{name}.yaml"))

    q, k, v = (x.to(dtype) for x in (q, k, v))
    made = part("model.attention", score)(
        heads=HEADS, query_dim=WIDTH, key_dim=WIDTH, length=length
    )
    pos = part("pos_enc", pos_enc)(
        dim=HEADS * WIDTH, heads=HEADS, head_dim=WIDTH, length=length, depth=1
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in (*made.parameters(), *pos.parameters()):
        parameter.data.normal_(generator=generator)
    made, pos = made.to(q), pos.to(q)
    how = part("kernel", kernel).resolve(Parts(made, pos))
    mask = Causal(causal=True) if causal else NoMask(causal=False)
    # Scores that do not look get a tensor of width 0, as in the model.
    q = q if made.query else q[..., :0]
    k = k if made.key else k[..., :0]
    return lambda: how(
        Attend(q=q, k=k, v=v, score=made, normalizer=Softmax(), mask=mask, pos=pos, layer=0)
    )


def memory(device: str, *, peak: bool) -> float:
    """MB now or at the highest: what torch holds on a GPU, else this process in memory."""
    if device == "cuda":
        import torch

        return (torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated)() / 2**20
    key = "VmHWM" if peak else "VmRSS"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise RuntimeError("on a CPU this reads /proc/self/status, which only Linux has")


def ways(scores: list[str], kernels: list[str], device: str) -> list[tuple[str, str]]:
    from hydra.utils import get_class
    from omegaconf import OmegaConf

    from ablate.config.tree import config_dir

    files = sorted((config_dir() / "model.attention").glob("*.yaml"))
    classes = {file.stem: get_class(OmegaConf.load(file)["_target_"]) for file in files}
    known = [name for name, score in classes.items() if score.weighs]
    chosen = [PLAIN]
    for score in scores or known:
        names = ["reference", "chunked"]
        names += ["sdpa"] * classes[score].lowers
        names += ["flex"] * (classes[score].lowers and device == "cuda")
        names += ["triton"] * (classes[score].sums and device == "cuda")
        chosen += [(score, name) for name in names if name in (kernels or names)]
    return chosen


def on_gpu(*arguments: Any) -> dict[str, Any] | None:
    """None where it ran out of memory."""
    import torch

    try:
        return measure(*arguments)
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.cuda.empty_cache()


def in_process(*arguments: Any) -> dict[str, Any] | None:
    """None where it ran out of memory or time."""
    line = [sys.executable, __file__, "--one", *map(str, arguments)]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--one", nargs=8, help=argparse.SUPPRESS)
    parser.add_argument("--lengths", nargs="*", type=int, default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--scores", nargs="*", default=[])
    parser.add_argument("--kernels", nargs="*", default=[])
    parser.add_argument("--pos-enc", default="none")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    args = parser.parse_args()
    if args.one:
        *ways_, length, causal, repeats, device, dtype = args.one
        found = measure(*ways_, int(length), causal == "True", int(repeats), device, dtype)
        print(json.dumps(found))
        return
    import torch

    where = torch.cuda.get_device_name() if args.device == "cuda" else (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")  # fmt: skip
    print(f"torch {torch.__version__}, {where}, b={BATCH} h={HEADS} k={WIDTH} {args.dtype}, "
          f"{'causal' if args.causal else 'no mask'}, pos_enc={args.pos_enc}")  # fmt: skip
    print("| length | score | kernel | ms | ratio to plain SDPA | peak MB | error |")
    print("|---|---|---|---|---|---|---|")
    one_run = on_gpu if args.device == "cuda" else in_process
    for length in args.lengths:
        chosen = ways(args.scores, args.kernels, args.device)
        found: dict[tuple[str, str], list[dict[str, Any]]] = {way: [] for way in chosen}
        # The tensor of queries x keys x width and its gradients would not fit beside others.
        dead = {("additive", "reference")} if length > WHOLE else set()
        for _ in range(args.rounds):
            for way in chosen:
                how = (length, args.causal, args.repeats, args.device, args.dtype)
                one = None if way in dead else one_run(*way, args.pos_enc, *how)
                if one is None:
                    dead.add(way)
                else:
                    found[way].append(one)
        for way in chosen:
            if way in dead:
                print(
                    f"| {length} | {way[0]} | {way[1]} | not run, or no memory, or 300 s | | | |",
                    flush=True,
                )
                continue
            ms, plain = (1000 * min(one["seconds"] for one in found[w]) for w in (way, PLAIN))
            peak = statistics.median(a["megabytes"] for a in found[way])
            error = found[way][0]["error"]
            cells = (length, *way, f"{ms:.2f}", f"{ms / plain:.2f}", f"{peak:.0f}")
            print(
                f"| {' | '.join(map(str, cells))} | {'' if error is None else f'{error:.0e}'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
