"""Text to speech: predict the next token of the speech, given the text; measured by listening."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torchmetrics.aggregation import MeanMetric
from torchmetrics.text.wer import WordErrorRate

from ablate.config.conflicts import Conflict
from ablate.config.rules import RunDir
from ablate.data import Batch
from ablate.data.pairs import UNKNOWN
from ablate.errors import UserError
from ablate.figures.save import save
from ablate.systems.speech.data.speech import SpokenPairs
from ablate.systems.speech.figures import draw_speech
from ablate.systems.speech.mel import RATE, distortion
from ablate.systems.speech.vocoder import sound, write_wav
from ablate.task.presenter import filled
from ablate.task.seq2seq import SequenceToSequence
from ablate.task.translate import SEARCH, PairPresenter

EXAMPLES = 3  # validation texts that are spoken at the end of a run


class SpeechPresenter(PairPresenter):
    """Speech of texts."""

    family = "text-to-speech"
    search_keys = (*PairPresenter.search_keys, "recognizer")
    options = {
        "text": {"type": lambda text: filled(text.strip()), "help": "text to synthesize"},
        "audio": {"type": Path, "help": "WAV file to write"},
        **SEARCH,
    }
    example_options = '--text "three seven two" --audio out.wav'

    def notes(self) -> dict[str, Any]:
        if (of := self.task.recognizer) is None:
            return {}
        return {"recognizer": {"run": str(of.folder), **of.measures}}

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterable[str]:
        if not {"text", "audio"} <= arguments.keys():
            raise UserError('--text "..." and --audio FILE.wav are required')
        self.set_search(arguments)
        text, path = arguments["text"], arguments["audio"]
        return self._say(text, path, show="show" in arguments, folder=folder)

    def _say(self, text: str, path: Path, *, show: bool, folder: Path) -> Iterator[str]:
        check_output(path)
        unknown = self.unknown_words(text)
        if unknown:
            raise UserError(
                f"--text: the training texts have no {', '.join(unknown)}; they are such as"
                f" {self.data.texts['train'][0].source!r}"
            )
        (codes,) = self.task.translate([text])
        samples = sound(self.task.log_mels(codes))
        write_wav(str(path), samples, RATE)
        yield f"{path}: {len(samples) / RATE:.2f} s"
        if self.task.recognizer is not None:
            yield f"the recognizer hears: {self.task.recognizer.hear([codes])[0]}"
        if show:
            tokens = self.data.target_tokenizer.encode(codes)
            example = self.task.example(text, tokens)
            drawn = self.draw(example, folder / "figures" / "generated")
            if not drawn:
                raise UserError(f"--show: {folder} has no attention to the text to plot")
            yield from map(str, drawn)

    def unknown_words(self, text: str) -> list[str]:
        encode = self.data.source_tokenizer.encode
        return [word for word in text.split() if UNKNOWN in encode(word)]

    def artifacts(self, folder: Path) -> list[Path]:
        """sample.txt, the sound of the first validation texts, and their spectrograms."""
        count = min(EXAMPLES, self.data.length("val"))
        pairs = self.data.texts["val"][:count]
        spoken = self.task.translate([pair.source for pair in pairs])
        paths = super().artifacts(folder)
        (folder / "audio").mkdir(exist_ok=True)
        for number, (pair, codes) in enumerate(zip(pairs, spoken, strict=True)):
            voices = {
                "reference": self.data.utterance("val", number).log_mels,
                "codec": self.task.log_mels(pair.target),
                "model": self.task.log_mels(codes),
            }
            for name, log_mels in voices.items():
                paths.append(folder / "audio" / f"{number}_{name}.wav")
                write_wav(str(paths[-1]), sound(log_mels), RATE)
            words = self.data.word_times("val", number)
            figure = draw_speech(pair.source, voices, words)
            paths.append(save(figure, folder / "figures" / f"speech_{number}.png"))
        return paths

    def sample(self) -> str:
        """Validation texts, and the recognizer's transcripts or the duration of the speech."""
        pairs = self.data.texts["val"][:EXAMPLES]
        spoken = self.task.translate([pair.source for pair in pairs])
        recognizer = self.task.recognizer
        heard = ["" for _ in pairs] if recognizer is None else recognizer.hear(spoken)
        lines = []
        for pair, codes, words in zip(pairs, spoken, heard, strict=True):
            frames = len(codes.split()), len(pair.target.split())
            lines.append(
                f"text    {pair.source}\nspoken  {frames[0]} frames, reference {frames[1]}"
            )
            if recognizer is not None:
                lines[-1] += f"\nheard   {words}"
        return "\n\n".join(lines)


class TextToSpeech(SequenceToSequence):
    """Cross-entropy in nats per token of speech (a frame of 20 ms); perplexity is per frame.

    After training, the model speaks the validation and test texts, and the speech is measured by

        wer             word error rate of the recognizer's transcript of it
        wer_reference    the same for the reference speech: the recognizer's own errors
        mcd             mel-cepstral distortion in dB from the reference speech, after time warping
        mcd_codec       the same of a model that writes the reference's tokens

    and `aer` of SequenceToSequence by the time of each word in the synthesizer's speech.

    recognizer: a finished run on the same data with data.direction=recognition; null: no wer.
    """

    output = "target tokens"
    conflicts = (
        Conflict(
            lambda c: c.get("data.direction", None) is None,
            "task=speech needs a text and its speech, and data={data} has none; use data=speech or"
            " recordings",
        ),
        Conflict(
            lambda c: c("data.direction") == "recognition",
            "task=speech writes speech, and data.direction=recognition text; use task=seq2seq, or"
            " data.direction=synthesis",
        ),
    )
    presenter = SpeechPresenter
    data: SpokenPairs

    def __init__(self, *args: Any, recognizer: RunDir | None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.recognizer = None if recognizer is None else Recognizer(recognizer, self.data)
        self.heard = Heard(recognizer is not None)

    def compare(self, outputs: list[str], batch: Batch) -> None:
        numbers = batch["index"].tolist()
        pairs = [self.data.texts[self._split][index] for index in numbers]
        if self.recognizer is not None:
            self.heard.listen(
                [pair.source for pair in pairs],
                self.recognizer.hear(outputs),
                self.recognizer.hear([pair.target for pair in pairs]),
            )
        for output, pair, index in zip(outputs, pairs, numbers, strict=True):
            spoken = self.data.utterance(self._split, index).log_mels
            self.heard.compare(spoken, self.log_mels(output), self.log_mels(pair.target))

    def log_mels(self, codes: str) -> NDArray[np.float32]:
        """The spectrogram of codes as the data writes them; silence of one frame for none."""
        return self.data.codebook.decode([int(code) for code in codes.split()] or [self.silence])

    @cached_property
    def silence(self) -> int:
        return int(self.data.codebook.centers.sum(1).argmin())

    def compared(self) -> dict[str, Tensor]:
        return self.heard.compute()


class Recognizer:
    """A finished run that reads tokens of speech. It is not a part of the model that it
    evaluates."""

    def __init__(self, folder: str, data: SpokenPairs) -> None:
        from ablate.training.load import load

        key = f"task.recognizer={folder}"
        run = load(folder)
        if not isinstance(run.data, SpokenPairs) or run.data.direction != "recognition":
            raise UserError(
                f"{key}: is not a recognizer (data={run.config.choices.data}); train one"
                " with task=seq2seq data.direction=recognition and the same other data.* keys"
            )
        if run.data.codec != data.codec:
            raise UserError(
                f"{key}: has another codebook; train it with the same data.* keys but for"
                " data.direction"
            )
        assert isinstance(run.task, SequenceToSequence)
        self.folder, self.task = run.path, run.task
        self.measures = {
            name: run.result["metrics"][name]
            for name in ("val/wer", "test/wer")
            if name in run.result.get("metrics", {})
        }

    def hear(self, spoken: Sequence[str]) -> list[str]:
        """The words in codes of speech; none of empty speech."""
        not_empty = [codes for codes in spoken if codes]
        heard = iter(self.task.translate(not_empty) if not_empty else [])
        return [next(heard) if codes else "" for codes in spoken]


class Heard(nn.Module):
    """The measures of speech. Every state is a sum, so that it can be summed over processes."""

    def __init__(self, recognized: bool) -> None:
        super().__init__()
        rates = ("wer", "wer_reference") if recognized else ()
        self.rates = nn.ModuleDict({name: WordErrorRate() for name in rates})
        self.distortions = nn.ModuleDict({name: MeanMetric() for name in ("mcd", "mcd_codec")})

    def listen(self, texts: list[str], spoken: list[str], recorded: list[str]) -> None:
        """The texts, and the recognizer's transcripts of the model's speech and of the
        reference."""
        self.rates["wer"].update(spoken, texts)  # type: ignore[operator]
        self.rates["wer_reference"].update(recorded, texts)  # type: ignore[operator]

    def compare(
        self,
        recorded: NDArray[np.float32],
        spoken: NDArray[np.float32],
        coded: NDArray[np.float32],
    ) -> None:
        """Log-mels of an utterance: the reference, the model's, and the reference's tokens."""
        for name, other in (("mcd", spoken), ("mcd_codec", coded)):
            self.distortions[name].update(distortion(recorded, other))  # type: ignore[operator]

    def compute(self) -> dict[str, Tensor]:
        both = {**self.rates, **self.distortions}
        return {name: metric.compute() for name, metric in both.items()}  # type: ignore[operator]


def check_output(path: Path) -> None:
    """UserError for a file that cannot be written as sound."""
    if path.suffix.lower() != ".wav":
        raise UserError(f"--audio {path}: the name must end with .wav")
    if not path.parent.is_dir():
        raise UserError(f"--audio {path}: {path.parent} does not exist")
    if path.exists() and not path.is_file():
        raise UserError(f"--audio {path} is not a regular file")
