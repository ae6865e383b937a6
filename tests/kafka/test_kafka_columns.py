"""Columns out of foreign memory: whatever lies there, wherever it lies."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidemill.sources.kafka import columns
from tidemill.sources.kafka.columns import Memory, headers_column

VALUES = st.lists(st.none() | st.binary(max_size=40) | st.binary(min_size=11, max_size=14), max_size=30)


def placed(values: list[bytes | None]) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """Each value in a buffer of its own, as C would have it; an empty one has an address."""
    buffers = [None if v is None else ctypes.create_string_buffer(v, len(v) or 1) for v in values]
    addresses = [0 if b is None else ctypes.addressof(b) for b in buffers]
    # What a null says of its length does not count.
    lengths = [77 if v is None else len(v) for v in values]
    return buffers, np.array(addresses, np.uint64), np.array(lengths, np.int64)


@given(VALUES)
def test_bytes_are_gathered(values: list[bytes | None]) -> None:
    buffers, addresses, lengths = placed(values)
    found = Memory.binary(addresses, lengths)
    del buffers
    found.validate(full=True)
    assert found.to_pylist() == values


@given(VALUES)
def test_windows_over_memory_are_told_apart(values: list[bytes | None]) -> None:
    """As if memory were so far apart that one window could not span it."""
    before = columns._WINDOW_BITS  # pyright: ignore[reportPrivateUsage]
    columns._WINDOW_BITS = 5  # pyright: ignore[reportPrivateUsage]
    try:
        buffers, addresses, lengths = placed(values)
        assert Memory.binary(addresses, lengths).to_pylist() == values
        del buffers
    finally:
        columns._WINDOW_BITS = before  # pyright: ignore[reportPrivateUsage]


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=9, max_size=9), min_size=1, max_size=20))
def test_words_of_structures(structures: list[list[int]]) -> None:
    kept = [np.array(words, np.uint64) for words in structures]
    pointers = np.array([words.ctypes.data for words in kept], np.uint64)
    memory = Memory.over(pointers, 72)
    for number in range(9):
        assert memory.words(pointers, number).tolist() == [words[number] for words in structures]


def test_headers() -> None:
    assert headers_column([[("a", b"1"), ("a", None)], []]).to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        [],
    ]
