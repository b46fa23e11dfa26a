"""Tokenizers: text to token ids and back. Built-in ones are trained on the training split only.

The state of a tokenizer is plain values, which a run keeps in its folder and a cache next to
the tokens of a text; `restored` builds the tokenizer from them.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from lightning.pytorch.utilities import rank_zero_only as on_first_process
from numpy.typing import NDArray

from ablate.config.rules import HUGGING_FACE, Named
from ablate.data.pieces import Pieces, batches, characters, evenly, interruptible, recut
from ablate.errors import UserError, first_line, suggest
from ablate.machine.terminal.say import say
from ablate.machine.version import require

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
SIGNS = {"\n": "⏎", "\t": "⇥", " ": "␣"}
BLANKS = "".join(SIGNS.values())


def printable(text: str) -> str:
    """The text with visible signs for whitespace and unprintable characters."""
    return "".join(SIGNS.get(c, c if c.isprintable() else repr(c)[1:-1]) for c in text)


class Tokenizer(ABC):
    """unknown_id: the token of everything that the vocabulary lacks; None: the tokenizer has none.
    end_id: the token after a document; None: the tokenizer has none.
    """

    vocab_size: int
    unknown_id: int | None = None
    end_id: int | None = None

    @abstractmethod
    def array(self, text: str) -> NDArray[np.int32]:
        """Token ids of a text."""

    def arrays(self, pieces: Iterable[str]) -> Iterator[NDArray[np.int32]]:
        """Token ids of each piece of a text (`recut`)."""
        return map(self.array, pieces)

    def restores(self, text: str, tokens: NDArray[np.int32]) -> bool:
        """Whether `decode` returns the text of these tokens."""
        return True

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain values from which `restored` makes this tokenizer; "kind" names its class."""

    def encode(self, text: str) -> list[int]:
        return self.array(text).tolist()

    def knows(self, text: str) -> bool:
        """Whether the vocabulary has all of the text."""
        try:
            return self.unknown_id not in self.encode(text)
        except UserError:
            return False

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str: ...

    def bytes_of(self, token: int) -> int:
        """The number of bytes of a token, which may be a part of a character."""
        return len(self.decode([token]).encode())

    def save_as_hf(self, folder: Path) -> None:
        """Write the files of transformers' AutoTokenizer; needs that library."""
        from transformers import PreTrainedTokenizerFast

        made = PreTrainedTokenizerFast(
            tokenizer_object=self.as_library(), clean_up_tokenization_spaces=False
        )
        made.save_pretrained(folder)

    def as_library(self) -> Any:
        """The same tokenizer of the library `tokenizers`."""
        raise NotImplementedError

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
    rejected.
    """

    kind: ClassVar[str] = "char"

    def __init__(self, codes: NDArray[np.uint32], *, unknown: bool) -> None:
        self.codes = codes
        self.characters = [chr(code) for code in codes] + [UNKNOWN] * unknown
        self.unknown = unknown
        self.unknown_id = len(codes) if unknown else None
        self.vocab_size = len(self.characters)

    @classmethod
    def of(cls, training: Iterable[str], others: Iterable[str]) -> "Char":
        known = _distinct(training)
        if not len(known):
            raise UserError("data.tokenizer=char: the training text is empty")
        return cls(known, unknown=not np.isin(_distinct(others), known).all())

    def array(self, text: str) -> NDArray[np.int32]:
        codes = _codes(text)
        tokens = np.searchsorted(self.codes, codes).clip(max=len(self.codes) - 1)
        strange = self.codes[tokens] != codes
        if strange.any() and not self.unknown:
            character = chr(codes[strange][0])
            raise UserError(
                f"the character {character!r} does not occur in the training text, so it has no"
                " token; a model trained with data.tokenizer=byte reads any text"
            )
        return np.where(strange, len(self.codes), tokens).astype(np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(self.characters[token] for token in tokens)

    def as_library(self) -> Any:
        from tokenizers import Regex, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as Model

        names = list(self.characters)
        if self.unknown and UNKNOWN in names[:-1]:
            names[-1] = "<unk>"
        vocabulary = {name: token for token, name in enumerate(names)}
        # Without a token for them, other characters are rejected there as well.
        unknown = names[-1] if self.unknown else "<unk>"
        model: Any = Model(models.WordLevel(vocabulary, unk_token=unknown))
        model.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        model.decoder = decoders.Fuse()
        return model

    def state(self) -> dict[str, Any]:
        known = "".join(map(chr, self.codes))
        return {"kind": self.kind, "characters": known, "unknown": self.unknown}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Char":
        return cls(_codes(state["characters"]), unknown=state["unknown"])


class Byte(Tokenizer):
    """One token for each UTF-8 byte; broken sequences decode to U+FFFD."""

    kind: ClassVar[str] = "byte"
    vocab_size = 256

    def array(self, text: str) -> NDArray[np.int32]:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def bytes_of(self, token: int) -> int:
        return 1

    def as_library(self) -> Any:
        from tokenizers import Tokenizer as Model
        from tokenizers import decoders, models, pre_tokenizers

        # ByteLevel writes bytes as letters: those that print as they are.
        prints = {*range(33, 127), *range(161, 173), *range(174, 256)}
        others = iter(range(256, 512))
        letters = [chr(byte if byte in prints else next(others)) for byte in range(256)]
        model: Any = Model(models.BPE({letter: byte for byte, letter in enumerate(letters)}, []))
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        model.decoder = decoders.ByteLevel()
        return model

    def state(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Byte":
        return cls()


class InPieces(Tokenizer):
    """A tokenizer that encodes several pieces of a text at once."""

    def array(self, text: str) -> NDArray[np.int32]:
        return np.concatenate([*self.arrays(recut([text])), np.empty(0, np.int32)])

    @abstractmethod
    def arrays(self, pieces: Iterable[str]) -> Iterator[NDArray[np.int32]]: ...


class Bpe(InPieces):
    """Byte-level byte pair encoding (BPE) of the `tokenizers` library.

    Sennrich et al. 2016 (arXiv 1508.07909) section 3.2, on bytes as in GPT-2. It has no special
    tokens, so decoding restores any text unchanged.

    model: a `tokenizers.Tokenizer`. reserved: the number of first token ids left to others.
    """

    kind: ClassVar[str] = "bpe"

    def __init__(self, model: Any, *, reserved: int = 0) -> None:
        self.model, self.reserved = model, reserved
        self.vocab_size = int(model.get_vocab_size()) + reserved

    @classmethod
    def of(cls, training: Iterable[str], *, vocab_size: int | None, reserved: int = 0) -> "Bpe":
        """Learn the merges.

        training: texts, or pieces of one (`recut`), across which nothing is merged.
        vocab_size: with the reserved ids; None for 1024, or as many as the training text has.
        """
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
        learn = partial(model.train_from_iterator, training, trainer)
        interruptible(learn, f"learning {size:,} tokens by BPE")
        made = cls(model, reserved=reserved)
        if vocab_size not in (None, made.vocab_size):
            special = f" and {reserved} special tokens" if reserved else ""
            more = " or more" if made.vocab_size == size else ""
            raise UserError(
                f"data.vocab_size={vocab_size}: allowed: {least} (the 256 bytes{special}) to"
                f" {made.vocab_size}{more}, the most for this training text"
            )
        return made

    def arrays(self, pieces: Iterable[str]) -> Iterator[NDArray[np.int32]]:
        for batch in batches(pieces):
            for encoding in self.model.encode_batch_fast(batch):
                yield np.array(encoding.ids, np.int32) + np.int32(self.reserved)

    def decode(self, tokens: Iterable[int]) -> str:
        return str(self.model.decode([int(token) - self.reserved for token in tokens]))

    def bytes_of(self, token: int) -> int:
        return len(self.model.id_to_token(token - self.reserved))  # a letter for each byte

    def as_library(self) -> Any:
        return self.model

    def state(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": self.model.to_str(), "reserved": self.reserved}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Bpe":
        from tokenizers import Tokenizer as Model

        return cls(Model.from_str(state["model"]), reserved=state["reserved"])


class HuggingFace(InPieces):
    """The tokenizer of a Hugging Face model, without the special tokens around a text.

    One that puts a blank before every text, as SentencePiece's do, has it before each piece.
    """

    kind: ClassVar[str] = "hf"

    def __init__(self, name: str, *, shown: str | None = None) -> None:
        what = shown or f"data.tokenizer={HUGGING_FACE}{name}"
        transformers = require("transformers", what, "hf")
        transformers.logging.set_verbosity_error()
        try:
            self.model: Any = transformers.AutoTokenizer.from_pretrained(
                name, trust_remote_code=False
            )
        except (OSError, ValueError) as error:
            raise UserError(f"{what} could not be loaded: {first_line(error)}") from error
        self.vocab_size = len(self.model)
        self.unknown_id, self.end_id = self.model.unk_token_id, self.model.eos_token_id

    def arrays(self, pieces: Iterable[str]) -> Iterator[NDArray[np.int32]]:
        for batch in batches(pieces):
            for ids in self.model(batch, add_special_tokens=False, verbose=False)["input_ids"]:
                yield np.array(ids, np.int32)

    def restores(self, text: str, tokens: NDArray[np.int32]) -> bool:
        return self.decode(tokens) == text

    def decode(self, tokens: Iterable[int]) -> str:
        ids = [int(token) for token in tokens]
        return str(self.model.decode(ids, clean_up_tokenization_spaces=False))

    def bytes_of(self, token: int) -> int:
        if UNKNOWN not in self.decode([token]):
            return super().bytes_of(token)
        shown = str(self.model.convert_ids_to_tokens(token))
        return 1 if shown.startswith("<0x") else len(shown)  # SentencePiece, or byte-level BPE

    def save_as_hf(self, folder: Path) -> None:
        self.model.save_pretrained(folder)

    def state(self) -> dict[str, Any]:
        with TemporaryDirectory() as folder:
            self.model.save_pretrained(folder)
            files = {p.name: p.read_bytes().decode("latin-1") for p in Path(folder).iterdir()}
        return {"kind": self.kind, "files": files}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "HuggingFace":
        with TemporaryDirectory() as folder:
            for name, content in state["files"].items():
                Path(folder, Path(name).name).write_bytes(content.encode("latin-1"))
            return cls(folder, shown="the tokenizer of the run")


class Tiktoken(Tokenizer):
    """An encoding of OpenAI's library tiktoken, such as gpt2 or cl100k_base."""

    kind: ClassVar[str] = "tiktoken"

    def __init__(self, encoding: Any) -> None:
        self.encoding, self.vocab_size = encoding, encoding.n_vocab
        self.end_id = encoding._special_tokens.get("<|endoftext|>")

    @classmethod
    def named(cls, name: str) -> "Tiktoken":
        library = require("tiktoken", f"tokenizer {TIKTOKEN}{name}", "data")
        try:
            return cls(library.get_encoding(name))
        except ValueError:
            names = library.list_encoding_names()
            raise UserError(
                f"tokenizer {TIKTOKEN}{name}: unknown encoding; allowed: {', '.join(names)}"
                f"{suggest(name, names)}"
            ) from None
        except OSError as error:  # requests' errors are OSErrors
            raise UserError(
                f"tokenizer {TIKTOKEN}{name}: cannot be downloaded ({type(error).__name__}); the"
                " environment variable TIKTOKEN_CACHE_DIR names a folder with a copy"
            ) from None

    def array(self, text: str) -> NDArray[np.int32]:
        return self.encoding.encode_to_numpy(text, disallowed_special=()).astype(np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        return b"".join(self._bytes(int(token)) for token in tokens).decode(errors="replace")

    def bytes_of(self, token: int) -> int:
        return len(self._bytes(token))

    def _bytes(self, token: int) -> bytes:
        try:
            return bytes(self.encoding.decode_single_token_bytes(token))
        except KeyError:  # an id that the encoding leaves out, as cl100k_base does some
            return UNKNOWN.encode()

    def save_as_hf(self, folder: Path) -> None:
        raise UserError(
            "transformers cannot read a tokenizer of tiktoken; train with the same tokenizer as"
            f" data.tokenizer={HUGGING_FACE}NAME to export it"
        )

    def state(self) -> dict[str, Any]:
        encoding = self.encoding
        return {
            "kind": self.kind,
            "name": encoding.name,
            "pattern": encoding._pat_str,
            "ranks": {word.decode("latin-1"): n for word, n in encoding._mergeable_ranks.items()},
            "special": dict(encoding._special_tokens),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Tiktoken":
        return cls(
            require("tiktoken", "the tokenizer of the run", "data").Encoding(
                state["name"],
                pat_str=state["pattern"],
                mergeable_ranks={word.encode("latin-1"): n for word, n in state["ranks"].items()},
                special_tokens=dict(state["special"]),
            )
        )


class Numbers(Tokenizer):
    """Token ids whose tokenizer is unknown: a text is their numbers, such as "17 4 256"."""

    kind: ClassVar[str] = "numbers"

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def array(self, text: str) -> NDArray[np.int32]:
        words = text.split()
        if wrong := [w for w in words if not w.isdecimal() or int(w) >= self.vocab_size]:
            raise UserError(
                f"unknown token {wrong[0]!r}: the tokenizer of the data is unknown; type"
                f" numbers below {self.vocab_size}, such as '5 17'"
            )
        return np.array(words, np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(f"{int(token)} " for token in tokens)

    def save_as_hf(self, folder: Path) -> None:
        """Nothing to write: the tokenizer is unknown."""

    def state(self) -> dict[str, Any]:
        return {"kind": self.kind, "vocab_size": self.vocab_size}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Numbers":
        return cls(state["vocab_size"])


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _distinct(pieces: Iterable[str]) -> NDArray[np.uint32]:
    """The code points of a text, in order."""
    characters: set[str] = set()
    for piece in pieces:
        characters.update(piece)
    return _codes("".join(sorted(characters)))


# Enough merges for common words, and small compared with models that train on a CPU.
DEFAULT_BPE = 1024
# Characters from which the merges are learned: the library has a table of all distinct words, three
# bytes of memory for each byte of a text of 300 MB.
LEARNED = 10**8
TIKTOKEN = "tiktoken:"
TokenizerName = (
    Literal["char", "byte", "bpe"]
    | Annotated[str, Named(HUGGING_FACE)]
    | Annotated[str, Named(TIKTOKEN, "NAME")]
)
KINDS = {each.kind: each for each in (Char, Byte, Bpe, HuggingFace, Tiktoken, Numbers)}


def restored(state: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a `state`."""
    return KINDS[state["kind"]].from_state(state)


def require_trained(name: TokenizerName, vocab_size: int | None) -> None:
    """Raise UserError for the size of a vocabulary that is fixed."""
    if vocab_size is not None and name != "bpe":
        raise UserError(
            f"data.vocab_size={vocab_size}: data.tokenizer={name} has a fixed vocabulary; use"
            " data.tokenizer=bpe, or data.vocab_size=null"
        )


def ready_made(name: TokenizerName) -> Tokenizer | None:
    """The tokenizer of this name that needs no text; None for one that is trained on it."""
    if name in ("char", "bpe"):
        return None
    if name.startswith(TIKTOKEN):
        return Tiktoken.named(name.removeprefix(TIKTOKEN))
    return Byte() if name == "byte" else HuggingFace(name.removeprefix(HUGGING_FACE))


def make_tokenizer(
    name: TokenizerName, vocab_size: int | None, training: Pieces, others: Pieces
) -> Tokenizer:
    """The tokenizer of this name, trained on the training text.

    others: validation text, for which char needs a token of unknown characters or none.
    """
    if (made := ready_made(name)) is not None:
        return made
    if name == "char":
        return Char.of(characters(training(), "reading"), others())
    pieces, every = evenly(training, LEARNED)
    if every > 1:
        note(
            f"data.tokenizer=bpe: learned from 1 in {every} pieces of the training text, spread"
            " evenly over it"
        )
    return Bpe.of(pieces, vocab_size=vocab_size)


@on_first_process
def note(line: str) -> None:
    say(line, file=sys.stderr)  # standard output may be read by a program
