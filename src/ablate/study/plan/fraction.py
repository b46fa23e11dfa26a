"""Two-level fractional factorial designs: 2**(k - p) of the 2**k cells, of a stated resolution.

Box and Hunter 1961, "The 2**(k-p) fractional factorial designs", Technometrics 3. Of the k factors
some are free; every other one changes when an odd number of a chosen set of free ones does (its
generator). A generator with its own factor is a word, and so is every combination of words: all of
them make the defining relation, whose shortest word is the resolution. With resolution 3 no main
effect is aliased with another, with 4 none with an interaction of two, with 5 no such
interaction with another.

A set of factors is an integer here: bit n stands for factor n.
"""

from itertools import product

# What a resolution promises.
PROMISES = {
    3: "no main effect is aliased with another",
    4: "no main effect is aliased with another, or with an interaction of two factors",
    5: "no main effect, and no interaction of two factors, is aliased with another",
}
TRIES = 50_000  # sets of generators that are tried before more factors are left free


def promise(resolution: int) -> str:
    return f"resolution {resolution}: {PROMISES[min(resolution, max(PROMISES))]}"


def fraction(factors: int, resolution: int) -> list[tuple[int, ...]]:
    """Return the cells of the smallest fraction found, 0 or 1 per factor; the first is all 0."""
    generators: list[int] | None = None
    free = 0
    while generators is None:
        free += 1
        generators = _generators(free, factors - free, resolution)
    return [
        (*cell, *(sum(cell[n] for n in range(free) if word >> n & 1) % 2 for word in generators))
        for cell in product((0, 1), repeat=free)
    ]


def _generators(free: int, needed: int, resolution: int) -> list[int] | None:
    """Search for generators depth-first, short ones first; None if none were found."""
    long_enough = [word for word in range(1 << free) if word.bit_count() >= resolution - 1]
    candidates = sorted(long_enough, key=lambda word: (word.bit_count(), word))
    tries = 0

    def search(chosen: list[int], words: list[int], first: int) -> list[int] | None:
        nonlocal tries
        if len(chosen) == needed:
            return chosen
        for position in range(first, len(candidates)):
            tries += 1
            if tries > TRIES:
                return None
            generator = candidates[position] | 1 << (free + len(chosen))
            new = [word ^ generator for word in words]
            if all(word.bit_count() >= resolution for word in new):
                generators = search([*chosen, candidates[position]], [*words, *new], position + 1)
                if generators is not None:
                    return generators
        return None

    return search([], [0], 0)
