"""Speech as tokens: the parts against other implementations, the data, and the task that speaks."""

import json
import os
import wave
from functools import cache
from pathlib import Path

import jiwer
import numpy as np
import pytest
import torch
from make_data import make, ready
from refusals import refused
from systems.speech.rows import speech, write_recordings
from threadpoolctl import threadpool_limits
from tiny import trained

import ablate
from ablate.data.pair_tokenizer import SPECIALS
from ablate.errors import UserError
from ablate.systems.speech import espeak, mel, vocoder
from ablate.systems.speech.codebook import Codebook
from ablate.systems.speech.task.speech import Heard
from ablate.systems.speech.vocoder import write_wav

pytest.importorskip(espeak.LOADER)
COUNTS = {"train_examples": 40, "val_examples": 10, "test_examples": 10, "codes": 16}
VOICE = {"voice": "en-us", "speed": 175, "pitch": 50}
RNG = np.random.default_rng(0)


@cache
def spoken(**changes):
    return ready("speech", **COUNTS | changes)


def chirp():
    time = np.arange(mel.RATE // 2) / mel.RATE
    return 0.5 * np.sin(2 * np.pi * (300 + 900 * time) * time) + 0.001 * np.sin(1e4 * time**3)


def test_log_mels_are_those_of_transformers():
    audio = pytest.importorskip("transformers.audio_utils")
    bank = audio.mel_filter_bank(
        mel.WINDOW // 2 + 1, mel.BANDS, 0.0, mel.HIGHEST, mel.RATE, norm=None, mel_scale="htk"
    )
    assert np.allclose(mel.filters(), bank.T, atol=1e-12)
    x = chirp()
    theirs = audio.spectrogram(
        x, audio.window_function(mel.WINDOW, "hann"), mel.WINDOW, mel.HOP, power=1.0,
        pad_mode="constant", mel_filters=bank, mel_floor=mel.QUIET, log_mel="log",
    )  # fmt: skip
    assert np.allclose(mel.log_mel(x), theirs.T, atol=1e-5)
    spectrum = vocoder.spectrum(torch.from_numpy(x), torch.from_numpy(mel.hann())).abs().numpy()
    ours = np.log(np.maximum(mel.filters() @ spectrum, mel.QUIET)).T
    assert np.allclose(ours, mel.log_mel(x), atol=1e-6)


def test_distortion_is_the_difference_in_decibels():
    """Of spectra that differ by a cosine over the bands, which one cepstrum is."""
    bands = np.arange(mel.BANDS) + 0.5
    first = RNG.normal(size=(6, mel.BANDS)).astype(np.float32)
    second = first + 0.3 * np.cos(np.pi * 4 * bands / mel.BANDS).astype(np.float32) + 2.0
    decibels = 20 / np.log(10) * np.sqrt(np.mean((second - first - 2.0) ** 2))  # loudness is c0
    found = mel.frame_distortion(mel.cepstra(first), mel.cepstra(second))
    assert found == pytest.approx(decibels, rel=1e-5)
    assert mel.distortion(first, np.repeat(first, 3, axis=0)) == 0.0  # said three times as slowly
    heard = Heard(recognized=False)
    heard.compare(first, *[RNG.normal(size=first.shape)] * 2)  # as the reference's tokens
    assert heard.compute()["mcd"] == heard.compute()["mcd_codec"]


def test_warping_finds_the_cheapest_path():
    costs = RNG.random((5, 7))
    best = {(-1, -1): (0.0, 0)}
    for i, j in np.ndindex(costs.shape):
        before = [best[at] for at in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if at in best]
        total, count = min(before)
        best[i, j] = (total + costs[i, j], count + 1)
    total, count = best[4, 6]
    assert mel.warped(costs) == pytest.approx(total / count)
    assert mel.warped(costs[:1]) == pytest.approx(costs[0].mean())


def test_sound_has_the_spectrum_that_it_was_made_from():
    x = mel.log_mel(chirp())
    again = mel.log_mel(vocoder.sound(x).numpy())
    assert len(again) == len(x)
    noise = mel.log_mel(RNG.normal(size=len(chirp())))
    near, far = (mel.frame_distortion(*map(mel.cepstra, (x, y))).mean() for y in (again, noise))
    assert near < 2.0
    assert far > 5.0


def test_codes_are_the_nearest_centres_whatever_the_threads():
    frames = RNG.normal(size=(200, mel.BANDS)).astype(np.float32)
    book = Codebook.learn([frames[:90], frames[90:]], 8, seed=3)
    distances = np.linalg.norm(frames[:, None] - book.centers[None], axis=-1)
    assert (book.encode(frames) == distances.argmin(1)).all()
    assert (book.encode(book.centers) == np.arange(8)).all()
    assert (book.decode(np.arange(8)) == book.centers).all()
    with threadpool_limits(2):
        again = Codebook.learn([frames[:90], frames[90:]], 8, seed=3)
    assert (again.centers == book.centers).all()


@pytest.mark.ci
def test_the_same_list_is_said_alike_and_words_have_their_times():
    texts = ["three seven two", "one"]
    first, second = (espeak.speak(texts, **VOICE) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert (one.samples == other.samples).all()
        assert one.words == other.words
    places, starts = zip(*first[0].words, strict=True)
    assert places == (0, 6, 12)
    assert 0 == starts[0] < starts[1] < starts[2] < len(first[0].samples)
    with pytest.raises(UserError, match=r"data\.voice=xx"):
        espeak.speak(texts, **VOICE | {"voice": "xx"})


@pytest.mark.ci
@pytest.mark.parametrize(
    ("texts", "direction"), [("numbers", "synthesis"), ("sentences", "recognition")]
)
def test_texts_and_their_speech(texts, direction):
    data = spoken(texts=texts, direction=direction)
    assert len({frozenset(pair) for split in data.texts.values() for pair in split}) == 60
    turn = 1 if direction == "synthesis" else -1
    said, codes = ("source", "target")[::turn]
    for split in data.texts:
        for number, pair in enumerate(data.texts[split]):
            text, log_mels, _ = data.utterance(split, number)
            assert text == getattr(pair, said)
            assert len(log_mels) == len(getattr(pair, codes).split())
            assert [word for word, _ in data.word_times(split, number)] == text.split()
            links = [link[::turn] for link in data.alignment(split, number)]
            # Every frame and every word belongs to one link, in order.
            assert [n for frames, _ in links for n in frames] == [*range(len(log_mels))]
            assert [n for _, tokens in links for n in tokens] == [*range(len(text.split()))]
    if texts == "numbers":
        lengths = [len(pair.source.split()) for pair in data.texts["val"]]
        assert [lengths.count(n) for n in (2, 3, 4)] == pytest.approx([3, 3, 3], abs=1)


@pytest.mark.ci
def test_letters_are_linked_to_the_frames_of_their_word():
    data = spoken(tokenizer="char")
    links, text = data.alignment("val", 5), data.texts["val"][5].source
    assert [text[tokens.start : tokens.stop] for _, tokens in links] == text.split()


@pytest.mark.ci
def test_more_training_texts_leave_the_test_alone_and_codes_are_stated():
    few, many = spoken(), spoken(train_examples=44)
    for one, other in zip(few._spoken["test"], many._spoken["test"], strict=True):
        assert one.text == other.text
        assert (one.log_mels == other.log_mels).all()
    assert few.sizes.target_vocab == len(SPECIALS) + 16
    assert few.fingerprint() != many.fingerprint()
    assert few.codec == spoken(direction="recognition").codec != many.codec
    slow = make("speech", **COUNTS | {"speed": 120})
    slow.measure_as(few)  # with the codes of a finished model
    slow.setup()
    assert slow.codec == few.codec
    assert len(slow.texts["val"][0].target) > len(few.texts["val"][0].target)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("speech", {"codes": 10**4}, "data.codes=10000: the training split has only"),
        ("speech", {"val_examples": 10**4}, "data.val_examples=10000: data.texts=numbers has only"),
        ("recordings", {"root": "nowhere"}, "data.root=nowhere: no such folder"),
        ("recordings", {"root": "."}, "no recording NAME.wav"),
    ],
)
def test_a_mistake_is_one_line(name, changes, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        ready(name, **(COUNTS if name == "speech" else {"codes": 4}) | changes)


@pytest.mark.parametrize(("table", "ending"), [(True, "wav"), (False, "flac")])
def test_recordings_of_ones_own(tmp_path, table, ending):
    write_recordings(tmp_path / "own", table=table, ending=ending)
    given = {"root": str(tmp_path / "own"), "codes": 8}
    data = ready("recordings", **given, tokenizer="word")
    everything = [pair for split in data.texts.values() for pair in split]
    assert {pair.source for pair in everything} >= {"tone 0 low", "tone 23 high"}
    assert len(everything) == 24
    assert data.alignment("val", 0) is None
    for pair in everything:
        samples = (25 + int(pair.source.split()[1])) * mel.RATE // 100
        assert len(pair.target.split()) == 1 + samples // mel.HOP
    written = tmp_path / "own" / ("metadata.csv" if table else "07.txt")
    written.write_text("\ufeff" + written.read_text().replace("Tone ", "Tone\u2028"))
    assert ready("recordings", **given, tokenizer="word").texts == data.texts
    (tmp_path / "own" / ("wavs" if table else "") / f"03.{ending}").write_bytes(b"no sound at all")
    with pytest.raises(UserError, match=f"03.{ending} cannot be read as sound"):
        ready("recordings", **given)
    if not table:
        (tmp_path / "own" / "05.txt").unlink()
        with pytest.raises(UserError, match=r"05.flac has no transcript 05.txt"):
            ready("recordings", **given)


TONE = 0.3 * np.sin(np.arange(4000) * 0.1)


def half(path):
    path.write_bytes(path.read_bytes()[:2000])


@pytest.mark.parametrize(
    ("samples", "rate", "damage", "line"),
    [
        (np.where(np.arange(4000) == 7, np.nan, TONE), 8000, None, "has NaN or infinity in 1 of"),
        (np.where(np.arange(4000) < 9, -np.inf, TONE), 8000, None, "has NaN or infinity in 9 of"),
        (TONE[:0], 8000, None, "has no samples"),
        (0 * TONE, 8000, None, "is silent"),
        (1e-6 * TONE, 8000, None, "is silent"),
        (0 * TONE + 0.5, 8000, None, "is silent"),  # never moves
        (np.stack([TONE, -TONE], 1), 8000, None, "is silent"),  # once it is mono
        (2**15 * TONE, 8000, None, "has samples up to 9,83"),
        (TONE, 3, None, "has 3 samples per second, by its header"),
        (TONE, 8000, half, "is cut off"),
    ],
)
def test_a_recording_without_sound_is_refused_by_name(tmp_path, samples, rate, damage, line):
    soundfile = pytest.importorskip("soundfile")
    write_recordings(own := tmp_path / "own")
    soundfile.write(own / "03.wav", samples, rate, subtype="FLOAT")
    if damage:
        damage(own / "03.wav")
    with refused("03.wav", line):
        make("recordings", root=str(own), codes=8).fingerprint()


def test_hidden_recordings_are_skipped_and_a_transcript_has_words(tmp_path):
    write_recordings(own := tmp_path / "own")
    (own / "._03.wav").write_bytes(b"of macOS")
    assert len(make("recordings", root=str(own), codes=8).fingerprint()) == 16
    (own / "03.txt").write_text(" \n")
    with refused("the transcript of 03.wav is empty"):
        make("recordings", root=str(own), codes=8).fingerprint()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A recognizer and a speaker that it judges, each trained for four steps."""
    folder = tmp_path_factory.mktemp("speech")
    few = ("data.val_examples=6", "data.test_examples=4")
    hears = trained(*speech(folder, "task=seq2seq", "data.direction=recognition", *few))
    return hears, trained(*speech(folder, f"task.recognizer={hears}", *few))


@pytest.mark.ci
def test_speech_is_measured_by_the_recognizer(runs):
    own, metrics = (json.loads((run / "result.json").read_text())["metrics"] for run in runs)
    for split in ("val", "test"):
        assert metrics[f"{split}/wer_reference"] == own[f"{split}/wer"]
        assert 0 < metrics[f"{split}/mcd_codec"] < metrics[f"{split}/mcd"]
        assert 0 <= metrics[f"{split}/aer"] <= 1
        assert metrics[f"{split}/perplexity"] == pytest.approx(np.exp(metrics[f"{split}/loss"]))
    task = ablate.load(runs[1]).task
    said = [pair.source for pair in task.data.texts["val"]]
    rate = jiwer.wer(said, task.recognizer.hear(task.translate(said)))
    assert metrics["val/wer"] == pytest.approx(rate, abs=1e-6)
    assert not any("recognizer" in name for name in task.state_dict())


@pytest.mark.ci
def test_what_is_no_recognizer_is_refused(runs, tmp_path):
    hears, says = runs
    for more, message in (
        ([f"task.recognizer={says}"], "is not a recognizer"),
        ([f"task.recognizer={hears}", "data.codes=9"], "has another codebook"),
    ):
        with pytest.raises(UserError, match=message):
            ablate.run(ablate.compose(*speech(tmp_path, *more)), tmp_path / "refused")


@pytest.mark.ci
def test_a_text_becomes_a_file_of_sound(runs, tmp_path):
    task = ablate.load(runs[1]).task
    path = tmp_path / "said.wav"
    lines = list(task.presenter(task).generate({"text": "three seven", "audio": path}, tmp_path))
    (codes,) = task.translate(["three seven"])
    with wave.open(str(path)) as file:
        assert file.getframerate() == mel.RATE
        assert file.getnframes() == mel.HOP * (len(codes.split()) - 1)
    assert lines[0].startswith(f"{path}: ")
    assert lines[1].startswith("the recognizer hears: ")
    for given, message in (
        ({"text": "thirty", "audio": path}, "have no thirty"),
        ({"text": "three", "audio": tmp_path / "a.mp3"}, "must end with .wav"),
    ):
        with pytest.raises(UserError, match=message):
            list(task.presenter(task).generate(given, tmp_path))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_leaves_no_half_of_a_sound(tmp_path):
    path = tmp_path / "a.wav"
    path.with_name(f".a.wav.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_wav(str(path), torch.ones(99_999), 16_000)
    assert not list(tmp_path.iterdir())
