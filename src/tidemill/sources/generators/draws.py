"""Random numbers of the generators: SplitMix64, by position.

SplitMix64 mixes a counter, so its n-th number does not require the preceding ones. A generator uses one
`stream` per quantity and draws at the number of the event. The rows store these numbers in shards, so the
output of a stream never changes.
"""

from __future__ import annotations

import numpy as np

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def stream(seed: int, quantity: int) -> int:
    """The state at which the stream of one quantity begins. Mixed twice: the streams of neighbouring seeds
    and quantities must not be the same numbers, shifted."""
    return _mixed(_mixed(seed) + quantity)


def draws(state: int, numbers: np.ndarray) -> np.ndarray:
    """The numbers (uint64) that SplitMix64, begun at `state`, gives at the positions `numbers` (uint64, from
    0)."""
    x = numbers + np.uint64(1)
    x *= np.uint64(_GAMMA)
    x += np.uint64(state)
    return _mix(x)


def below(numbers: np.ndarray, bound: int) -> np.ndarray:
    """Draws reduced to [0, bound), as uint64. Division by one number is much faster in numpy than the
    remainder. The first values are more likely by a negligible bound / 2^64."""
    by = np.uint64(bound)
    return numbers - numbers // by * by


def _mix(x: np.ndarray) -> np.ndarray:
    """Modifies the array, which must have no other references."""
    x ^= x >> np.uint64(30)
    x *= _FIRST
    x ^= x >> np.uint64(27)
    x *= _SECOND
    x ^= x >> np.uint64(31)
    return x


def _mixed(number: int) -> int:
    return int(_mix(np.array([(number + _GAMMA) & _MASK], np.uint64))[0])
