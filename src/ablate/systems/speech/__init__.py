"""Sound as tokens and back: espeak-ng, log-mel spectrograms, k-means codes, Griffin-Lim."""
