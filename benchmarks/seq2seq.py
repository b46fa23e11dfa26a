"""Target tokens a second in training and decoding, beside the same model stepped naively.

    python benchmarks/seq2seq.py [--rounds 3] [OVERRIDE ...]

The models of experiment=multi30k_rnn and experiment=multi30k_transformer at Multi30k's sizes, with
random weights and random sentences of its lengths, so that no data is needed.

Naive training computes one target step after the other, and everything a step needs anew (scores of
an RNN project the keys of the whole source at every step). Naive decoding reads source and target
anew for every token. Both give the same numbers as ours, which is checked. Ways take turns, and
ratios are medians over the rounds of seconds / seconds of ours in the same round.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch
from omegaconf import DictConfig
from tables import head, row
from torch import Tensor
from torch.nn import functional as F
from turns import in_turns, ratio, seconds

import ablate
from ablate.data.interface import Sizes
from ablate.data.pairs import BOS, PAD
from ablate.decode.search import beam_search, greedy
from ablate.model.base import Seq2Seq
from ablate.model.decoder import RNNState
from ablate.training.build import make, make_model

VOCAB, BATCH, LONGEST = 4000, 128, 30
STEPS = 15  # tokens written for each sentence: random weights do not know where to stop
SHORTEST = 6  # bpe tokens of a caption: 6 to 30, 14 in the middle


def build(cfg: DictConfig) -> Seq2Seq:
    sizes = Sizes(
        source_vocab=VOCAB,
        target_vocab=VOCAB,
        joint=True,
        source_length=LONGEST,
        target_length=LONGEST,
    )
    model = make_model(cfg, SimpleNamespace(sizes=sizes), make(cfg.kernel))  # type: ignore[arg-type]
    model.initialize(0)
    return model


def sentences(seed: int) -> Tensor:
    """b j with PAD after each sentence."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(SHORTEST, LONGEST, (BATCH,), generator=rng)
    tokens = torch.randint(4, VOCAB, (BATCH, int(lengths.max())), generator=rng)
    return tokens.masked_fill(torch.arange(tokens.shape[1]) >= lengths[:, None], PAD)


def stepped(model: Seq2Seq, source: Tensor, target_in: Tensor) -> Tensor:
    """Teacher forcing one step at a time: what a first implementation does."""
    state = model.encode(source)
    if isinstance(state, RNNState):
        state.memory.keys = None  # every step projects the keys itself
    return torch.stack([model.step(token, state) for token in target_in.unbind(1)], dim=1)


def reread(model: Seq2Seq, source: Tensor, steps: int) -> Tensor:
    """Greedy decoding without any cache."""
    target = torch.full((len(source), 1), BOS)
    with torch.no_grad():
        for _ in range(steps):
            logits = model(source, target)[:, -1]
            logits[:, [PAD, BOS]] = -torch.inf
            target = torch.cat([target, logits.argmax(-1)[:, None]], dim=1)
    return target[:, 1:]


def compare(ways: dict[str, Callable[[], object]], tokens: int, rounds: int) -> None:
    """Print rate and ratio to the first way."""
    for run in ways.values():
        run()
    found = in_turns({name: partial(seconds, run) for name, run in ways.items()}, rounds)
    first, *_ = found.values()
    for name, times in found.items():
        rate = f"{tokens / statistics.median(times):,.0f}"
        print(row(name, rate, f"{ratio(times, first):.2f}"), flush=True)


def training(model: Seq2Seq, forward: Callable[[], Tensor], targets: Tensor) -> None:
    model.zero_grad()
    F.cross_entropy(forward().flatten(0, 1), targets.flatten(), ignore_index=PAD).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="for both experiments, such as model.dim=128")
    args = parser.parse_args()
    source, target = sentences(0), sentences(1)
    target_in = F.pad(target, (1, 0), value=BOS)[:, :-1]
    print(head("model", "target tokens/s", "seconds / seconds of the first"))
    for name in ("multi30k_rnn", "multi30k_transformer"):
        # Without dropout both ways must give the same numbers.
        cfg = ablate.compose(f"experiment={name}", "model.dropout=0.0", *args.overrides)
        model = build(cfg)
        with torch.no_grad():
            torch.testing.assert_close(
                stepped(model, source, target_in), model(source, target_in), atol=1e-3, rtol=1e-3
            )
        ways = {
            f"{name}, training": lambda m=model: training(m, lambda: m(source, target_in), target),
            f"{name}, training, naive": lambda m=model: training(
                m, lambda: stepped(m, source, target_in), target
            ),
        }
        compare(ways, int((target != PAD).sum()), args.rounds)
        model.eval()
        ways = {
            f"{name}, greedy": lambda m=model: greedy(m, source, max_length=STEPS),
            f"{name}, greedy, naive": lambda m=model: reread(m, source, STEPS),
            f"{name}, beam 5": lambda m=model: beam_search(m, source, size=5, max_length=STEPS),
        }
        compare(ways, BATCH * STEPS, args.rounds)


if __name__ == "__main__":
    main()
