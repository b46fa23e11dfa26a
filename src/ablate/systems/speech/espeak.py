"""Speech by espeak-ng, with the sample at which each word starts.

`speak` starts a process, `python -m ablate.systems.speech.espeak`, that synthesizes all texts in
their order: an utterance depends on the one before it, and so on nothing else here.

The library and its data come in the wheel espeakng-loader. espeak-ng is licensed under the GPL
version 3 or later; nothing of it is part of this project.
"""

import ctypes
import pickle
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ablate.errors import UserError
from ablate.machine.version import install
from ablate.systems.speech.mel import RATE

LOADER = "espeakng_loader"
# Numbers of espeak-ng's speak_lib.h.
SYNCHRONOUS, CHARS_UTF8, WORD, LAST, POSITION_CHARACTER = 2, 1, 1, 0, 1
SPEED, PITCH = 1, 3
NO_VOICE = 3  # exit code of the process


class Utterance(NamedTuple):
    """samples: 16 bits. words: for each word that it reports, its first character in the text and
    its first sample."""

    samples: NDArray[np.int16]
    words: list[tuple[int, int]]


def require_espeak() -> None:
    if find_spec(LOADER) is None:
        raise UserError(f"data=speech needs espeak-ng from {LOADER}: {install('speech')}")


def speak(texts: Sequence[str], *, voice: str, speed: int, pitch: int) -> list[Utterance]:
    """Synthesize texts one after another. speed: words per minute; pitch: 0 to 99."""
    require_espeak()
    request = list(texts), {"voice": voice, "speed": speed, "pitch": pitch}
    done = subprocess.run(
        [sys.executable, "-m", "ablate.systems.speech.espeak"],
        input=pickle.dumps(request),
        capture_output=True,
    )
    if done.returncode == NO_VOICE:
        raise UserError(f"data.voice={voice}: unknown voice of espeak-ng (examples: en-us, de)")
    if done.returncode:
        raise RuntimeError(f"espeak-ng ended with {done.returncode}: {done.stderr.decode()}")
    return [Utterance(*spoken) for spoken in pickle.loads(done.stdout)]


class _Identity(ctypes.Union):
    _fields_ = [
        ("number", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("string", ctypes.c_char * 8),
    ]


class _Event(ctypes.Structure):
    """espeak_EVENT of speak_lib.h."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Identity),
    ]


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class _Synthesizer:
    """The library, whose state is that of the process."""

    def __init__(self, *, voice: str, speed: int, pitch: int) -> None:
        import espeakng_loader

        self.library: Any = ctypes.CDLL(espeakng_loader.get_library_path())
        data = str(espeakng_loader.get_data_path()).encode()
        rate = self.library.espeak_Initialize(SYNCHRONOUS, 0, ctypes.c_char_p(data), 0)
        assert rate == RATE, rate
        self.callback = _Callback(self._collect)  # kept, for the library keeps only its address
        self.library.espeak_SetSynthCallback(self.callback)
        if self.library.espeak_SetVoiceByName(ctypes.c_char_p(voice.encode())):
            sys.exit(NO_VOICE)
        for parameter, value in ((SPEED, speed), (PITCH, pitch)):
            self.library.espeak_SetParameter(parameter, value, 0)

    def say(self, text: str) -> Utterance:
        self.samples: list[NDArray[np.int16]] = []
        self.words: list[tuple[int, int]] = []
        raw = text.encode()
        self.library.espeak_Synth(
            ctypes.c_char_p(raw), ctypes.c_size_t(len(raw) + 1), 0, POSITION_CHARACTER, 0,
            CHARS_UTF8, None, None,
        )  # fmt: skip
        self.library.espeak_Synchronize()
        return Utterance(np.concatenate([np.zeros(0, np.int16), *self.samples]), self.words)

    def _collect(self, samples: Any, count: int, events: Any) -> int:
        if count:
            self.samples.append(np.ctypeslib.as_array(samples, (count,)).copy())
        number = 0
        while (event := events[number]).type != LAST:
            if event.type == WORD:
                self.words.append((event.text_position - 1, event.sample))
            number += 1
        return 0


def main() -> None:
    texts, options = pickle.load(sys.stdin.buffer)
    synthesizer = _Synthesizer(**options)
    # As tuples: the class of this process is another one to the reader.
    spoken = [tuple(synthesizer.say(text)) for text in texts]
    # Buffered: with PYTHONUNBUFFERED one write may be cut short by a signal.
    with open(sys.stdout.fileno(), "wb", closefd=False) as whole:
        pickle.dump(spoken, whole)


if __name__ == "__main__":
    main()
