"""Segments: files of received transactions, in commit order.

Written by `spool` in the server, read by tasks. A segment is a file of blocks and an index of them. A block
holds whole transactions one behind the other, or a part of one that is too large for a block. The messages
are as they were received, with the header of the replication protocol (`HEADER` bytes).

A folder has a state: `floor` and `frontier`. Its segments have exactly the transactions whose end LSN is
above the floor and at most the frontier; what is beyond is being written. A transaction is read by the range
(lower, upper] that has its end LSN. Every message has a number; a large range is divided by numbers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.sources.contract import Forgotten, UpstreamError
from tidemill.sources.postgres.lsn import lsn_text
from tidemill.sources.postgres.tuples import PADDING, Payload

# What the replication protocol puts before each message: a letter, two positions and a time.
HEADER = 25

# messages, commits, bytes of the messages
BLOCK_HEADER = struct.Struct("<IIQ")

# `low` is the end LSN of the last transaction before the block, `high` of the last one in it; a part of a
# transaction has that of the transaction. `number` is that of its first message.
INDEX = np.dtype(
    [
        ("low", "<u8"),
        ("high", "<u8"),
        ("offset", "<u8"),
        ("size", "<u8"),
        ("number", "<u8"),
        ("messages", "<u8"),
    ]
)

STATE_FILE = "state"
STATE = struct.Struct("<QQ")
RELATIONS_FILE = "relations"
# Number of the message, length of the message.
RELATION = struct.Struct("<QI")

# Blocks that are read together: decoding costs some operations per column, so few rows are expensive.
CHUNK_MESSAGES = 32_768
CHUNK_BYTES = 4 << 20


class SpoolUnreachable(UpstreamError):
    """The task runs on another machine than the server."""

    sqlstate = "58030"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages in order. `at` is where each begins (behind the header) and `ends` where it ends; `numbers`
    are their numbers."""

    payload: Payload
    at: np.ndarray
    ends: np.ndarray
    numbers: np.ndarray

    def message(self, index: int) -> bytes:
        return self.payload.bytes[int(self.at[index]) : int(self.ends[index])].tobytes()


def segment_path(folder: Path, sequence: int) -> Path:
    return folder / f"{sequence:012d}.segment"


def index_path(folder: Path, sequence: int) -> Path:
    return folder / f"{sequence:012d}.index"


def read_state(folder: Path) -> tuple[int, int] | None:
    """Floor and frontier; None while nothing was received."""
    try:
        with open(folder / STATE_FILE, "rb") as file:
            data = file.read(STATE.size)
    except FileNotFoundError:
        if folder.is_dir():
            return None
        raise SpoolUnreachable(
            "the transactions received from PostgreSQL are not on this machine",
            detail=f"Folder {folder} is not there. The server has it, and its tasks read it.",
            hint="Tasks of PostgreSQL sources run on the machine of the server: use a Spark master local[n].",
        ) from None
    if len(data) < STATE.size:
        return None
    floor, frontier = STATE.unpack(data)
    return floor, frontier


def read_index(folder: Path, lower: int, upper: int) -> list[tuple[int, np.ndarray]]:
    """The blocks that have transactions of the range, by segment, in order."""
    found: list[tuple[int, np.ndarray]] = []
    for name in sorted(os.listdir(folder)):
        stem, dot, suffix = name.partition(".")
        if not dot or suffix != "index":
            continue
        try:
            blocks = np.fromfile(folder / name, INDEX)
        except FileNotFoundError:
            continue  # discarded; the floor shows whether it was needed
        chosen = blocks[(blocks["high"] > lower) & (blocks["low"] < upper)]
        if len(chosen):
            found.append((int(stem), chosen))
    return found


def read_relations(folder: Path) -> list[tuple[int, bytes]]:
    """The messages that describe tables, with their numbers, in order. The last one may be half written;
    nothing that can be read needs it."""
    try:
        data = (folder / RELATIONS_FILE).read_bytes()
    except FileNotFoundError:
        return []
    found: list[tuple[int, bytes]] = []
    at = 0
    while at + RELATION.size <= len(data):
        number, length = RELATION.unpack_from(data, at)
        at += RELATION.size
        if at + length > len(data):
            break
        found.append((number, data[at : at + length]))
        at += length
    return found


def read_chunks(
    folder: Path, lower: int, upper: int, numbers: tuple[int, int] | None = None
) -> Iterator[Chunk]:
    """The messages of the transactions that end in (lower, upper], in order; with `numbers` only those of
    this range of numbers. The frontier must have reached `upper`. Raises Forgotten if some are gone."""
    _must_have(folder, lower)
    gathered: list[tuple[bytes, np.ndarray, np.ndarray]] = []
    messages = size = 0
    for sequence, blocks in read_index(folder, lower, upper):
        try:
            file = open(segment_path(folder, sequence), "rb")  # noqa: SIM115 - closed below, by `with`
        except FileNotFoundError:
            _must_have(folder, lower)
            raise
        with file:
            for block in blocks:
                if numbers is not None and not _overlaps(block, numbers):
                    continue
                if gathered and (
                    messages + int(block["messages"]) > CHUNK_MESSAGES
                    or size + int(block["size"]) > CHUNK_BYTES
                ):
                    yield _chunk(gathered)
                    gathered, messages, size = [], 0, 0
                gathered.append(_read_block(file.fileno(), block, lower, upper, numbers))
                messages += int(block["messages"])
                size += int(block["size"])
    if gathered:
        yield _chunk(gathered)
    # What was discarded meanwhile may be missing.
    _must_have(folder, lower)


def _must_have(folder: Path, lower: int) -> None:
    state = read_state(folder)
    floor = 0 if state is None else state[0]
    if floor > lower:
        raise Forgotten(
            "PostgreSQL no longer has transactions that were bound",
            detail=f"Those after {lsn_text(lower)} are needed; the replication slot begins at "
            f"{lsn_text(floor)}.",
            hint="Drop the source and create it again. Only Tidemill may use its replication slot.",
        )


def _overlaps(block: np.void, numbers: tuple[int, int]) -> bool:
    first = int(block["number"])
    return first < numbers[1] and numbers[0] < first + int(block["messages"])


def _read_block(
    descriptor: int, block: np.void, lower: int, upper: int, numbers: tuple[int, int] | None
) -> tuple[bytes, np.ndarray, np.ndarray]:
    """The bytes of the chosen messages, their lengths and their numbers."""
    data = os.pread(descriptor, int(block["size"]), int(block["offset"]))
    messages, commits, _ = BLOCK_HEADER.unpack_from(data)
    at = BLOCK_HEADER.size
    lengths = np.frombuffer(data, "<u4", messages, at).astype(np.int64)
    at += 4 * messages
    places = np.frombuffer(data, "<u4", commits, at)
    at += 4 * commits
    ends = np.frombuffer(data, "<u8", commits, at)
    at += 8 * commits
    first, last = 0, messages
    if commits:
        # `places` are the numbers of messages up to the end of each transaction.
        before, through = np.searchsorted(ends, np.array([lower, upper], np.uint64), "right")
        first = int(places[before - 1]) if before else 0
        last = int(places[through - 1]) if through else 0
    elif int(block["high"]) > upper:
        last = 0
    begin = int(block["number"])
    if numbers is not None:
        first, last = max(first, numbers[0] - begin), min(last, numbers[1] - begin)
    last = max(first, last)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    chosen = data[at + int(offsets[first]) : at + int(offsets[last])]
    return chosen, lengths[first:last], np.arange(begin + first, begin + last)


def _chunk(gathered: list[tuple[bytes, np.ndarray, np.ndarray]]) -> Chunk:
    payload = Payload.of(b"".join([*(data for data, _, _ in gathered), bytes(PADDING)]))
    lengths = np.concatenate([lengths for _, lengths, _ in gathered])
    ends = np.cumsum(lengths)
    numbers = np.concatenate([numbers for _, _, numbers in gathered])
    return Chunk(payload, ends - lengths + HEADER, ends, numbers)
