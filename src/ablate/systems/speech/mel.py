"""Log-mel spectrograms, mel-cepstra and the distortion between two of them.

A frame is centered on sample n HOP, as in librosa: x samples have 1 + x // HOP frames.

The mel scale is that of HTK, 2595 log10(1 + f / 700); filters are triangles of height 1 between
neighboring centers (Davis and Mermelstein 1980, https://doi.org/10.1109/TASSP.1980.1163420).
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct, rfft

Array = NDArray[np.float64]

RATE = 22050  # samples per second, as espeak-ng writes
HOP = 441  # samples between frames
FRAMES = RATE // HOP  # a second: 50
WINDOW = 1024  # samples of a frame
BANDS = 80
HIGHEST = 8000.0  # Hz, the upper end of the last filter
QUIET = 1e-2  # the floor of amplitudes before the logarithm; speech at full scale has some 100
CEPSTRA = 13  # coefficients of the mel-cepstral distortion, without the first


def log_mel(samples: NDArray[np.number]) -> NDArray[np.float32]:
    """Samples from -1 to 1 -> frames x BANDS, natural logarithms of amplitudes."""
    padded = np.pad(samples.astype(np.float64), WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    amplitudes = np.abs(rfft(frames * hann(), axis=1))
    return np.log(np.maximum(amplitudes @ filters().T, QUIET)).astype(np.float32)


@cache
def hann() -> Array:
    """The periodic Hann window, as torch.hann_window."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)


@cache
def filters() -> Array:
    """BANDS x frequencies of a frame."""
    edges = hertz(np.linspace(0.0, mel(HIGHEST), BANDS + 2))
    frequencies = np.linspace(0.0, RATE / 2, WINDOW // 2 + 1)
    low, center, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (center - low), (high - frequencies) / (high - center)
    return np.maximum(np.minimum(rising, falling), 0.0)


def mel(frequency: float) -> float:
    return float(2595.0 * np.log10(1.0 + frequency / 700.0))


def hertz(mels: Array) -> Array:
    return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)


def cepstra(log_mels: NDArray[np.float32]) -> Array:
    """Frames x CEPSTRA mel-cepstral coefficients c_d, d from 1: the log-mels of a frame are
    c_0 / 2 + sum_d c_d cos(pi d (band + 1/2) / BANDS)."""
    return dct(log_mels.astype(np.float64), axis=1)[:, 1 : CEPSTRA + 1] / BANDS


def frame_distortion(first: Array, second: Array) -> Array:
    """Mel-cepstral distortion in dB between frames, (10 / ln 10) sqrt(2 sum_d (c_d - c'_d)^2).

    Kubichek 1993, https://doi.org/10.1109/PACRIM.1993.407206. It is the root mean square over the
    bands of the difference in dB between the two spectra as these cepstra smooth them.
    """
    return 10.0 / np.log(10.0) * np.sqrt(2.0 * np.square(first - second).sum(-1))


def distortion(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Mean mel-cepstral distortion of two log-mel spectrograms along the path of dynamic time
    warping that has the smallest sum (steps to the next frame of one, of the other, or of both)."""
    reference, compared = cepstra(first), cepstra(second)
    return warped(frame_distortion(reference[:, None], compared[None]))


def warped(costs: Array) -> float:
    """The mean cost along the cheapest path through i j from the first corner to the last."""
    rows, columns = costs.shape
    # Of each anti-diagonal i + j = n, by i: the smallest sum, and the cells on its path.
    total = np.full((rows + columns, rows + 1), np.inf)
    count = np.zeros((rows + columns, rows + 1))
    for n in range(rows + columns - 1):
        i = np.arange(max(0, n - columns + 1), min(rows, n + 1))
        if n == 0:
            before, cells = np.zeros(1), np.zeros(1)
        else:
            ways = np.stack([total[n - 2, i], total[n - 1, i], total[n - 1, i + 1]])
            chosen = ways.argmin(0)
            before = ways.min(0)
            cells = np.choose(chosen, [count[n - 2, i], count[n - 1, i], count[n - 1, i + 1]])
        # Cell i is at i + 1, so that i = -1 is there and infinite.
        total[n, i + 1], count[n, i + 1] = before + costs[i, n - i], cells + 1
    return float(total[rows + columns - 2, rows] / count[rows + columns - 2, rows])
