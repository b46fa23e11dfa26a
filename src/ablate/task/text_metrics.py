"""Metrics of generated targets. Every state is a sum, so that it can be summed over processes."""

from collections.abc import Container, Iterable, Sequence

import torch
from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor, nn
from torchmetrics.aggregation import MeanMetric
from torchmetrics.metric import Metric
from torchmetrics.text.wer import WordErrorRate

LENGTHS = range(5, 51, 5)  # groups of source lengths for the accuracy: up to 5, to 10, ...


class Corpus(Metric):
    """A score of sacrebleu over a whole corpus (Post 2018, https://arxiv.org/abs/1804.08771).

    It is a function of counts that add up over sentences: sacrebleu's, which it also sums.
    """

    full_state_update = False
    counts: Tensor

    def __init__(self, score: SacreMetric):
        super().__init__()
        self.score = score
        size = len(self._count([""], [""])[0])
        self.add_state("counts", torch.zeros(size, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, outputs: Sequence[str], references: Sequence[str]) -> None:
        counts = torch.tensor(self._count(outputs, references), device=self.counts.device)
        self.counts += counts.sum(0)

    def compute(self) -> Tensor:
        return torch.tensor(self.score._compute_score_from_stats(self.counts.tolist()).score)

    def signature(self) -> str:
        """Everything another person needs to compute the same."""
        return str(self.score.get_signature())

    def _count(self, outputs: Sequence[str], references: Sequence[str]) -> list[list[int]]:
        counts: list[list[int]] = self.score._extract_corpus_statistics(outputs, [references])
        return counts


class ByLength(Metric):
    """The share of correct targets by length of the source."""

    names = [
        *(f"length_{most - LENGTHS.step + 1}-{most}" for most in LENGTHS),
        f"length_{LENGTHS[-1] + 1}+",
    ]
    full_state_update = False
    right: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("right", "count"):
            zeros = torch.zeros(len(LENGTHS) + 1, dtype=torch.long)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, right: Tensor, lengths: Tensor) -> None:
        """b twice: whether each target is correct, and how many tokens its source has."""
        bucket = torch.bucketize(lengths, torch.tensor([*LENGTHS], device=lengths.device))
        self.count += bucket.bincount(minlength=len(LENGTHS) + 1)
        self.right += bucket[right].bincount(minlength=len(LENGTHS) + 1)

    def compute(self) -> dict[str, Tensor]:
        """Those of `names` whose lengths occur; all before the first."""
        none = not self.count.any()
        groups = zip(self.names, self.right, self.count, strict=True)
        return {name: right / count for name, right, count in groups if count or none}


class Written(nn.Module):
    """All measures of targets as texts.

    item: the unit between spaces if it is not a word, such as "phoneme"; the whole target is then
    one word. lower: references are lower-cased, like the model's outputs.
    """

    def __init__(self, *, item: str | None, lower: bool):
        super().__init__()
        self.item, self.lower = item, lower
        self.exact_match = MeanMetric()
        self.error_rate = WordErrorRate()
        self.by_length = ByLength()
        # force: no warning about text that looks tokenized.
        scores = {"bleu": BLEU(lowercase=lower, force=True), "chrf": CHRF(lowercase=lower)}
        self.corpus = nn.ModuleDict({name: Corpus(score) for name, score in scores.items()})

    def update(self, outputs: list[str], references: list[str], lengths: Tensor) -> None:
        """lengths: b, tokens of the sources."""
        if self.lower:
            references = [reference.lower() for reference in references]
        pairs = zip(outputs, references, strict=True)
        right = torch.tensor(
            [output == reference for output, reference in pairs], device=lengths.device
        )
        self.exact_match.update(right.float())
        self.by_length.update(right, lengths)
        self.error_rate.update(outputs, references)
        for score in self.corpus.values():
            score.update(outputs, references)  # type: ignore[operator]  # Corpus

    def compute(self) -> dict[str, Tensor]:
        exact = self.exact_match.compute()
        errors = {"wer": self.error_rate.compute()}
        if self.item is not None:
            errors = {f"{self.item[0]}er": errors["wer"], "wer": 1 - exact}
        corpus = {name: score.compute() for name, score in self.corpus.items()}  # type: ignore[operator]
        lengths = {f"accuracy/{name}": value for name, value in self.by_length.compute().items()}
        return {"exact_match": exact, **corpus, **errors, **lengths}

    def signatures(self) -> dict[str, str]:
        return {name: score.signature() for name, score in self.corpus.items()}  # type: ignore[operator]


def right_links(
    weights: Tensor, links: Sequence[tuple[Iterable[int], Container[int]]]
) -> tuple[int, int]:
    """The number of target tokens whose largest weight is on their part of the source, and the
    number of linked target tokens.

    weights: i j, of one example. links: target tokens, and the source positions of that part.
    """
    most = weights.argmax(-1).tolist()
    right = [most[position] in source for target, source in links for position in target]
    return sum(right), len(right)
