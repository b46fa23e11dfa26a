"""Sound from a log-mel spectrogram: Griffin and Lim 1984.

https://doi.org/10.1109/TASSP.1984.1164317, with the momentum of Perraudin et al. 2013 (fast
Griffin-Lim, https://doi.org/10.1109/WASPAA.2013.6701851). The amplitudes of frequencies are the
non-negative ones whose mel bands come nearest to those given, found by multiplicative updates.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.run_files import replacing
from ablate.systems.speech.mel import HOP, WINDOW, filters

ROUNDS = 60
MOMENTUM = 0.99
LOUDEST = 0.9  # the largest sample of a written file


def sound(log_mels: NDArray[np.float32], *, rounds: int = ROUNDS, seed: int = 0) -> Tensor:
    """Frames x BANDS -> samples from -1 to 1, as many as (frames - 1) HOP."""
    return griffin_lim(amplitudes(torch.from_numpy(log_mels).double().exp()), rounds, seed)


def amplitudes(mels: Tensor, *, rounds: int = 100) -> Tensor:
    """Frames x BANDS amplitudes of mel bands -> frequencies x frames (Lee and Seung 2001)."""
    bank = torch.from_numpy(filters())
    tiny = torch.finfo(mels.dtype).tiny
    estimate = mels @ bank  # a smooth start; frequencies without a filter are 0 and stay so
    for _ in range(rounds):
        estimate = estimate * (mels @ bank) / (estimate @ bank.T @ bank).clamp(min=tiny)
    return estimate.T


def griffin_lim(magnitudes: Tensor, rounds: int, seed: int) -> Tensor:
    """Frequencies x frames -> samples whose short-time Fourier transform has these amplitudes."""
    frames = magnitudes.shape[1]
    if frames < 2:
        return magnitudes.new_zeros(0)
    window = torch.hann_window(WINDOW, dtype=magnitudes.dtype)
    rng = torch.Generator().manual_seed(seed)
    phases = torch.rand(magnitudes.shape, generator=rng, dtype=magnitudes.dtype)
    guess = torch.polar(magnitudes, 2 * torch.pi * phases)
    last = torch.zeros_like(guess)
    for _ in range(rounds):
        now = spectrum(torch.istft(guess, WINDOW, HOP, window=window), window)
        moved = now + MOMENTUM * (now - last)
        guess, last = torch.polar(magnitudes, moved.angle()), now
    return torch.istft(guess, WINDOW, HOP, window=window)


def spectrum(samples: Tensor, window: Tensor) -> Tensor:
    """Samples -> frequencies x frames, complex; the frames are those of `log_mel`."""
    return torch.stft(samples, WINDOW, HOP, window=window, pad_mode="constant", return_complex=True)


def write_wav(path: str, samples: Tensor, rate: int) -> None:
    """Write 16-bit samples, as loud as they can be."""
    from scipy.io import wavfile

    scaled = samples * (LOUDEST / samples.abs().max().clamp(min=1e-9) if len(samples) else 1.0)
    with replacing(Path(path)) as temporary:
        wavfile.write(temporary, rate, (scaled * (2**15 - 1)).round().to(torch.int16).numpy())
