"""Position encodings: how a model knows the position of a token. One class per file; their base.

In cross-attention query and key belong to two sequences, which have no distance between them, so
`rotate`, `bias` and `values` are never called there. Absolute encodings, added to the embedded
tokens (`embed`), reach it through these: encoder and decoder have an instance each, of their
length. Relative encodings (rotary, alibi, relative, t5) act only in the self-attention of both
sides: cross-attention then finds its keys by their content.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from ablate.config.conflicts import Conflict
from ablate.config.rules import Width
from ablate.errors import UserError
from ablate.random.draws import Source, Stream, uniform_alone

NEEDS_GRID = Conflict(
    lambda c: c.attribute("model", "positions") is not None and not c.trait("model", "has_grid"),
    "pos_enc={pos_enc} needs images, and model={model} reads a sequence; take the same without _2d",
)


class PosEnc(nn.Module):
    """Hooks that do nothing; each encoding overrides the ones it acts through.

    One instance serves all layers of a stack: those of an encoder, or of a decoder. `length` is the
    number of positions in training, all of them, `grid` the (rows, columns) of an image's patches,
    `extra` the number of leading tokens outside the grid, and `causal` states that the model's
    attention is causal.
    Positions are absolute, counted from 0 and consecutive, in 1-d integer tensors `i` (queries) and
    `j` (keys).
    """

    # It acts on the "input" of the first layer, in the "attention" of every one, or not at all.
    acts_in: ClassVar[str | None] = "attention"
    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            lambda c: (
                c.attribute("model", "positions") is None and c.declares("pos_enc", "acts_in")
            ),
            "pos_enc={pos_enc} has no effect on model={model}, which has no positions; use"
            " pos_enc=none",
        ),
        Conflict(
            lambda c: (
                c.attribute("model", "positions") == "input"
                and c.attribute("pos_enc", "acts_in") == "attention"
            ),
            "pos_enc={pos_enc} is relative: query and key must be of one sequence, and"
            " model={model} attends from one to another; use pos_enc=none, or one that is added to"
            " the input, such as learned",
        ),
        Conflict(
            lambda c: (
                c.declares("pos_enc", "rotates")
                and not (
                    c.declares("model.attention", "query") and c.declares("model.attention", "key")
                )
            ),
            "pos_enc={pos_enc} applies to the comparison of queries and keys, and"
            " model.attention={model.attention} does not compare them",
        ),
    )
    # Features of the kernel: "distance_bias" if there is a bias that depends on the distance j - i
    # (and the query), and `by_distance` is implemented; "bias" for another; "weights" if `values`
    # adds a term to the output.
    needs: frozenset[str] = frozenset()
    # True: `rotate` turns queries and keys, of any even width, so it has no effect on a score that
    # ignores either.
    rotates: ClassVar[bool] = False
    # Keys without an effect on parameters, with which a finished run can be measured.
    measured_with: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        dim: int,
        heads: int,
        head_dim: int,
        length: int,
        depth: int,
        grid: tuple[int, int] | None = None,
        extra: int = 0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.heads = heads
        self.head_dim = head_dim
        self.length = length
        self.depth = depth
        self.grid = grid
        self.extra = extra
        self.causal = causal

    def reset_parameters(self) -> None:
        """Draw the parameters, if any, as the paper did, from torch's global generator."""

    def prepare(self, x: Float[Tensor, "b i {self.dim}"]) -> None:
        """Called with the input of the first layer, before every pass."""

    def embed(
        self, x: Float[Tensor, "b i {self.dim}"], start: int = 0
    ) -> Float[Tensor, "b i {self.dim}"]:
        """Act on the input of the first layer; token x[:, n] has position start + n. In decoding x
        contains only the new tokens, so an output must depend only on its token and position."""
        return x

    def rotate(
        self,
        q: Float[Tensor, "b h i k"],
        k: Float[Tensor, "b g j l"],
        i: Int[Tensor, " i"],
        j: Int[Tensor, " j"],
    ) -> tuple[Float[Tensor, "b h i k"], Float[Tensor, "b g j l"]]:
        """Act on queries and keys before they are compared."""
        return q, k

    def bias(
        self, q: Float[Tensor, "b h i k"], i: Int[Tensor, " i"], j: Int[Tensor, " j"], layer: int
    ) -> Float[Tensor, "#b #h #i j"] | None:
        """A term for the scores of a layer."""
        return None

    def by_distance(
        self, q: Float[Tensor, "b h i k"], ahead: Int[Tensor, " *n"], layer: int
    ) -> tuple[Float[Tensor, "#b #h #i r"], Int[Tensor, " *n"]] | None:
        """The bias as a table, and the row `r` of each of the distances j - i in `ahead`. None: no
        bias. Only if `needs` has "distance_bias".
        """
        raise NotImplementedError

    def values(
        self,
        weights: Float[Tensor, "b h i j"],
        i: Int[Tensor, " i"],
        j: Int[Tensor, " j"],
        layer: int,
    ) -> Float[Tensor, "b h i {self.head_dim}"]:
        """A term for the context of a layer; only if `needs` has "weights"."""
        raise NotImplementedError


class Randomized(PosEnc):
    """Base of encodings that may take random positions.

    randomize: M. Each training step samples as many of M positions as there are tokens, without
    replacement and in their order, so that larger ones than those of training are known (Ruoss et
    al. 2023, section 3, https://arxiv.org/abs/2305.16843). Outside of training (the paper also
    samples there) token n of L has the expected position, (n + 1)(M + 1) / (L + 1) - 1 rounded
    down. L is the number of tokens of training, or of a longer text that is read (at most M), so
    that every position is one of training. None: token n has position n.
    """

    measured_with: ClassVar[tuple[str, ...]] = ("randomize",)

    def __init__(self, *, randomize: Width | None = None, **sizes: Any) -> None:
        super().__init__(**sizes)
        if randomize is not None and randomize < self.length:
            raise UserError(
                f"pos_enc.randomize={randomize}: must be at least {self.length}, the number of"
                " tokens that get one of these positions each"
            )
        self.randomize = randomize
        # Tokens of the longest text of the data. Positions must not depend on the padding of a
        # batch, nor change while a text is generated.
        self.longest = self.read = self.length
        self.draws = None if randomize is None else Stream()
        self.drawn: Tensor | None = None

    def prepare(self, x: Float[Tensor, "b i {self.dim}"]) -> None:
        if self.draws is not None and self.training:
            every = x.new_empty(1, 1, 1, self.randomize or 0)
            numbers = uniform_alone(Source(self.draws.key_of_step(x)), every).flatten()
            self.drawn = numbers.topk(self.length).indices.sort().values
        self.read = max(self.longest, x.shape[1])
        if self.randomize is not None and self.read > self.randomize:
            raise UserError(
                f"pos_enc.randomize={self.randomize}: the model knows so many positions, and"
                f" cannot read {self.read} tokens"
            )

    def places(self, i: Int[Tensor, " i"]) -> Int[Tensor, " i"]:
        """The position that the encoding has for each token."""
        if self.randomize is None:
            return i
        if self.training and self.drawn is not None:
            return self.drawn[i]
        return (i + 1) * (self.randomize + 1) // (self.read + 1) - 1


def spread_positions(model: nn.Module, longer: nn.Module) -> None:
    """Spread the random positions of a model over the longest texts that `longer`, the same model
    for other data, may read."""
    both = ([m for m in each.modules() if isinstance(m, Randomized)] for each in (model, longer))
    for ours, measured in zip(*both, strict=True):
        ours.longest = max(ours.length, measured.length)


class GridPosEnc(PosEnc):
    """Base of two-dimensional encodings: half of the width encodes the row, half the column.

    Leading tokens outside the image, such as a class token, get zeros.
    """

    acts_in = "input"
    conflicts = (NEEDS_GRID,)
    option: ClassVar[str]  # its name in messages

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        assert self.grid is not None
        self.rows, self.columns = self.grid

    def axes(
        self, x: Float[Tensor, "b i d"]
    ) -> tuple[Float[Tensor, "{self.rows} d//2"], Float[Tensor, "{self.columns} d//2"]]:
        """The encodings of rows and of columns, in the dtype of `x`."""
        raise NotImplementedError

    def embed(
        self, x: Float[Tensor, "b i {self.dim}"], start: int = 0
    ) -> Float[Tensor, "b i {self.dim}"]:
        patches = self.rows * self.columns
        if start or x.shape[1] != self.extra + patches:
            raise UserError(
                f"pos_enc={self.option} was built for {self.rows} x {self.columns} patches and "
                f"cannot take {x.shape[1] - self.extra}; use images and patches of the same size"
            )
        row, column = self.axes(x)
        of_rows = row[:, None].expand(-1, self.columns, -1)
        of_columns = column[None].expand(self.rows, -1, -1)
        grid = torch.cat([of_rows, of_columns], dim=-1)
        return x + pad(grid.flatten(0, 1), (0, 0, self.extra, 0))
