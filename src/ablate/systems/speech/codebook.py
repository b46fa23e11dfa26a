"""A codec of one codebook: the nearest of k log-mel frames (k-means) replaces each frame.

Lloyd's k-means started by k-means++ (Arthur and Vassilvitskii 2007), scikit-learn's. One thread
computes it: with another number of threads sums would be rounded differently, and the same speech
would have other tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ablate.errors import UserError

SEEN = 20_000  # training frames for k-means; more hardly change the error
Frames = NDArray[np.float32]


@dataclass(frozen=True)
class Codebook:
    """centers: codes x BANDS."""

    centers: Frames

    @classmethod
    def learn(cls, spectrograms: Sequence[Frames], codes: int, seed: int) -> "Codebook":
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits

        frames = np.concatenate(spectrograms)
        if len(frames) < codes:
            raise UserError(
                f"data.codes={codes}: the training split has only {len(frames)} frames of speech"
            )
        if len(frames) > SEEN:
            frames = np.random.default_rng(seed).choice(frames, SEEN, replace=False)
        with threadpool_limits(1):
            means = KMeans(codes, n_init=1, max_iter=50, random_state=seed % 2**32).fit(frames)
        return cls(means.cluster_centers_.astype(np.float32))

    def encode(self, spectrogram: Frames) -> NDArray[np.int64]:
        """Frames x BANDS -> the code of each frame."""
        frames, centers = spectrogram.astype(np.float64), self.centers.astype(np.float64)
        # |f - c|^2 without |f|^2, which is the same for every code.
        distances = np.square(centers).sum(1) - 2.0 * np.einsum("ib,cb->ic", frames, centers)
        return distances.argmin(1)

    def decode(self, codes: Sequence[int] | NDArray[np.int64]) -> Frames:
        """Codes -> frames x BANDS."""
        return self.centers[np.asarray(codes, dtype=np.int64)]
