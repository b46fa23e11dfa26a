"""Tokenizers: text to token ids and back. Ours are made from the training split alone."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ablate.config.rules import HUGGING_FACE, Named
from ablate.errors import UserError
from ablate.version import install

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
SIGNS = {"\n": "⏎", "\t": "⇥", " ": "␣"}
BLANKS = "".join(SIGNS.values())


def printable(text: str) -> str:
    """The text with visible signs for whitespace and unprintable characters."""
    return "".join(SIGNS.get(c, c if c.isprintable() else repr(c)[1:-1]) for c in text)


class Tokenizer(ABC):
    vocab_size: int

    @abstractmethod
    def array(self, text: str) -> NDArray[np.int32]:
        """Token ids of a text of any length."""

    def encode(self, text: str) -> list[int]:
        return self.array(text).tolist()

    def knows(self, text: str) -> bool:
        """Whether `encode` takes the text."""
        try:
            self.encode(text)
        except UserError:
            return False
        return True

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str: ...

    def label(self, token: int) -> str:
        """One token in printable characters, for figures."""
        return printable(self.decode([token]))

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """A sequence in printable characters, token by token."""
        return [self.label(token) for token in tokens]


class Char(Tokenizer):
    """One token for each distinct character of the training split, in code point order.

    unknown: adds a last token for every other character, which decodes to U+FFFD. Added only if the
    validation split needs it, because it is never trained; without it, an unknown character is
    refused.
    """

    def __init__(self, training: str, *, unknown: bool) -> None:
        self.codes = np.unique(_codes(training))
        self.characters = [chr(code) for code in self.codes] + [UNKNOWN] * unknown
        self.unknown = unknown
        self.vocab_size = len(self.characters)

    def array(self, text: str) -> NDArray[np.int32]:
        codes = _codes(text)
        tokens = np.searchsorted(self.codes, codes).clip(max=len(self.codes) - 1)
        strange = self.codes[tokens] != codes
        if strange.any() and not self.unknown:
            character = chr(codes[strange][0])
            raise UserError(
                f"the character {character!r} is not in the training text and has no token; "
                "data.tokenizer=byte can write any text"
            )
        return np.where(strange, len(self.codes), tokens).astype(np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(self.characters[token] for token in tokens)


class Byte(Tokenizer):
    """One token for each UTF-8 byte; broken sequences decode to U+FFFD."""

    vocab_size = 256

    def array(self, text: str) -> NDArray[np.int32]:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class Bpe(Tokenizer):
    """Byte-level byte pair encoding (BPE) of the `tokenizers` library.

    Sennrich et al. 2016 (arXiv 1508.07909) section 3.2, on bytes as in GPT-2. There are no special
    tokens, so decoding restores any text unchanged.

    training: one text or more, across which nothing is merged.
    reserved: the number of first token ids left to others; vocab_size counts them.
    vocab_size: None for 1024, or as many as the training text gives.
    """

    def __init__(
        self, training: Iterable[str], *, vocab_size: int | None, reserved: int = 0
    ) -> None:
        from tokenizers import Tokenizer as Model
        from tokenizers import decoders, models, pre_tokenizers, trainers

        least = 256 + reserved
        size = DEFAULT_BPE if vocab_size is None or vocab_size < least else vocab_size
        model: Any = Model(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=size - reserved, initial_alphabet=alphabet, show_progress=False
        )
        model.train_from_iterator(training, trainer)
        self.model, self.reserved = model, reserved
        self.vocab_size = int(model.get_vocab_size()) + reserved
        if vocab_size not in (None, self.vocab_size):
            special = f" and {reserved} special tokens" if reserved else ""
            more = " or more" if self.vocab_size == size else ""
            raise UserError(
                f"data.vocab_size={vocab_size}: allowed: {least} (the 256 bytes{special}) to"
                f" {self.vocab_size}{more}, which the training text gives"
            )

    def array(self, text: str) -> NDArray[np.int32]:
        return np.array(self.model.encode(text).ids, np.int32) + np.int32(self.reserved)

    def decode(self, tokens: Iterable[int]) -> str:
        return str(self.model.decode([int(token) - self.reserved for token in tokens]))


class HuggingFace(Tokenizer):
    """The tokenizer of a Hugging Face model, without the special tokens around a text."""

    def __init__(self, name: str) -> None:
        try:
            from transformers import AutoTokenizer, logging
        except ImportError:
            raise UserError(
                f"data.tokenizer={HUGGING_FACE}{name} needs the library transformers:"
                f" {install('hf')}"
            ) from None
        logging.set_verbosity_error()
        try:
            self.model: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            line = str(error).strip().splitlines()[0]
            raise UserError(
                f"data.tokenizer={HUGGING_FACE}{name} could not be loaded: {line}"
            ) from error
        self.vocab_size = len(self.model)

    def array(self, text: str) -> NDArray[np.int32]:
        ids = self.model(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.array(ids, np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        ids = [int(token) for token in tokens]
        return str(self.model.decode(ids, clean_up_tokenization_spaces=False))


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _char(training: str, validation: str, vocab_size: int | None) -> Tokenizer:
    known = np.isin(np.unique(_codes(validation)), np.unique(_codes(training)))
    return Char(training, unknown=not known.all())


# Enough merges for common words, and small compared with models that train on a CPU.
DEFAULT_BPE = 1024
TOKENIZERS: dict[str, Callable[[str, str, int | None], Tokenizer]] = {
    "char": _char,
    "byte": lambda training, validation, vocab_size: Byte(),
    "bpe": lambda training, validation, vocab_size: Bpe([training], vocab_size=vocab_size),
}
TokenizerName = Literal["char", "byte", "bpe"] | Annotated[str, Named(HUGGING_FACE)]


def tokenizer_maker(kind: TokenizerName) -> Callable[[str, str, int | None], Tokenizer]:
    """The constructor for data.tokenizer, of training text, other text and data.vocab_size."""
    if kind in TOKENIZERS:
        return TOKENIZERS[kind]
    return lambda training, validation, vocab_size: HuggingFace(kind.removeprefix(HUGGING_FACE))
