"""Token shards for language models: those of `python -m ablate.prepare`, or of other programs."""

from functools import cached_property
from typing import ClassVar, Literal

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, Fraction, Vocabulary
from ablate.data import digest, source
from ablate.data.document_rows import Layout
from ablate.data.foreign import foreign, token_files
from ablate.data.shards import MANIFEST, Shards, Stored, TokenIds, stored
from ablate.data.text import TokenData
from ablate.data.tokenizer import (
    Numbers,
    Tokenizer,
    TokenizerName,
    ready_made,
    restored,
)
from ablate.errors import UserError, suggest


class Tokens(TokenData):
    """Shards of `python -m ablate.prepare`, or of other programs (ablate.data.foreign).

    tokenizer, vocab_size: of other programs; without a tokenizer the text is the tokens' numbers.
    documents: how they become rows (ablate.data.document_rows); all but ignore need the index of
    ablate.prepare. positions: for encodings that are added to tokens.
    An epoch has as many windows as fit into the training tokens side by side.
    """

    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            lambda c: c("data.documents") != "ignore" and not c.trait("model", "documents"),
            "data.documents={data.documents} needs layers that stay within documents, which"
            " model={model} does not have; use model=gpt, or data.documents=ignore",
        ),
        Conflict(
            lambda c: c("data.positions") == "document" and c("data.documents") == "ignore",
            "data.positions=document counts within documents, and data.documents=ignore has no"
            " limits between them; use data.documents=mask, align or pack",
            without_effect=True,
        ),
        Conflict(
            lambda c: (
                c("data.positions") == "document" and c.attribute("pos_enc", "acts_in") != "input"
            ),
            "data.positions=document has no effect on pos_enc={pos_enc}, which adds nothing to"
            " tokens; set data.positions=row",
            without_effect=True,
        ),
    )

    def __init__(
        self,
        *,
        root: str,
        tokenizer: TokenizerName | None,
        vocab_size: Vocabulary | None,
        seq_len: Count,
        batch_size: Count,
        val_fraction: Fraction | None,
        documents: Layout = "ignore",
        positions: Literal["row", "document"] = "row",
        seed: int,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        self.root, self.tokenizer_name, self.vocab_size = root, tokenizer, vocab_size
        self.seq_len, self.val_fraction = seq_len, val_fraction
        self.documents, self.positions = documents, positions

    @cached_property
    def stored(self) -> Stored[Shards]:
        """The shards, opened but not read."""
        folder = source.local(self.root)
        if (folder / MANIFEST).exists():
            return self._ours(stored(folder))
        if (folder / ".plan.json").exists():
            raise UserError(
                f"data.root={self.root}: python -m ablate.prepare has not finished there; the same"
                " command continues"
            )
        if not (files := token_files(self.root)):
            near = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
            why = "has no" if folder.is_dir() else "no such folder with"
            raise UserError(
                f"data.root={self.root}: {why} {MANIFEST} of python -m ablate.prepare, *.bin or"
                f" *.npy{suggest(folder.name, near) * (not folder.exists())}"
            )
        return foreign(folder, files, self._known.vocab_size)

    def _ours(self, made: Stored[Shards]) -> Stored[Shards]:
        for key, value in (("tokenizer", self.tokenizer_name), ("vocab_size", self.vocab_size)):
            if value not in (None, made.name):
                raise UserError(
                    f"data.{key}={value}: the shards of data.root={self.root} have their tokenizer,"
                    f" {made.name}; data.{key}=null uses it"
                )
        return made

    @cached_property
    def _known(self) -> Tokenizer:
        """The tokenizer of shards that do not name theirs."""
        if self.tokenizer_name is not None and self.vocab_size is None:
            if (made := ready_made(self.tokenizer_name)) is not None:
                return made
            raise UserError(
                f"data.tokenizer={self.tokenizer_name}: is trained on a text, and shards have none;"
                " allowed: hf:NAME_OR_PATH, tiktoken:NAME, byte or null"
            )
        if self.vocab_size is None or self.tokenizer_name is not None:
            raise UserError(
                f"data.root={self.root}: the shards do not name their tokenizer: set either"
                " data.tokenizer=hf:NAME_OR_PATH or tiktoken:NAME, or data.vocab_size=N"
            )
        return Numbers(self.vocab_size)

    def fingerprint(self) -> str:
        return digest(self.stored.checksum, "tokens", self.val_fraction)

    def load(self) -> None:
        made = self.stored
        known = restored(made.state) if made.state else self._known
        trained = self.known_tokenizer
        if trained is not None and trained.state() != known.state():
            raise UserError(
                f"data.root={self.root}: its tokens are of another tokenizer than the model's;"
                " prepare the text with that one"
            )
        self.counts = made.counts
        self.tokens = self._with_validation(made.splits)
        if self.documents != "ignore" and any(t.firsts() is None for t in made.splits.values()):
            raise UserError(
                f"data.documents={self.documents}: the shards of data.root={self.root} have no"
                " index of documents; python -m ablate.prepare writes one, or use"
                " data.documents=ignore"
            )
        self._make_splits(trained or self.cut.tokenizer(known))

    def _with_validation(self, splits: dict[str, Shards]) -> dict[str, TokenIds]:
        if self.whole and splits:
            if "val" not in splits:
                only = "train" if "train" in splits else "test"
                counts = self.counts.get(only)
                self.counts = {"val": counts} if counts else {}
                return {"val": splits[only]}
            return {split: tokens for split, tokens in splits.items() if split != "train"}
        if "train" not in splits:
            raise UserError(f"data.root={self.root}: no training split, only {', '.join(splits)}")
        if ("val" in splits) == (self.val_fraction is not None):
            why = "has a validation split" if "val" in splits else "has no validation split"
            right = "null" if "val" in splits else "0.01, the last hundredth of the tokens"
            raise UserError(
                f"data.val_fraction={self.val_fraction}: data.root={self.root} {why};"
                f" set data.val_fraction={right}"
            )
        if self.val_fraction is None:
            return {**splits}
        whole = splits["train"]
        cut = int(len(whole) * (1 - self.val_fraction))
        self.counts = {}  # they are not known of a part
        return {**splits, "train": whole.between(0, cut), "val": whole.between(cut, len(whole))}
