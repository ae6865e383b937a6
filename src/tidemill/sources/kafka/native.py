"""librdkafka binding without a Python object per message.

confluent-kafka ships librdkafka and creates three objects per message, which costs more than the rest of the
read. This module calls the public C interface of the same library through ctypes. Messages arrive as an array
of pointers, and numpy gathers their fields from memory, one column at a time. Used only by `consume`, inside
the tasks.

It relies on the published layout of `rd_kafka_message_t` (rdkafka.h), unchanged since version 0.9. Nothing
here is thread-safe.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import cimpl

from tidemill.errors import Internal
from tidemill.sources.kafka.client import Complaint, Complaints
from tidemill.sources.kafka.columns import Memory, headers_column

# Constants of rdkafka.h.
_CONSUMER = 1
_CONF_OK = 0
_DESTROY_NO_CLOSE = 0x8
PARTITION_EOF = -191
_NO_TOPIC = 3

# The fields of rd_kafka_message_t, as words of eight bytes: err, rkt, partition, payload, len, key, key_len,
# offset, _private. 32-bit fields are in the low half of their word.
_ERR, _PARTITION, _PAYLOAD, _LENGTH, _KEY, _KEY_LENGTH, _OFFSET = 0, 2, 3, 4, 5, 6, 7
_MESSAGE_BYTES = 72

# The largest number of messages that one call returns.
MAX_TAKEN = 65_536
_TEXT_BYTES = 512

_Pointer = ctypes.c_void_p
_ErrorCallback = ctypes.CFUNCTYPE(None, _Pointer, ctypes.c_int, ctypes.c_char_p, _Pointer)


class _TopicMetadata(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("partition_count", ctypes.c_int),
        ("partitions", _Pointer),
        ("error", ctypes.c_int),
    )


class _Metadata(ctypes.Structure):
    """The beginning of rd_kafka_metadata_t."""

    _fields_ = (
        ("broker_count", ctypes.c_int),
        ("brokers", _Pointer),
        ("topic_count", ctypes.c_int),
        ("topics", ctypes.POINTER(_TopicMetadata)),
    )


@cache
def _library() -> tuple[Any, Any]:
    """The library that confluent-kafka loaded, twice. Calls through the first release the interpreter lock;
    calls through the second are too short for that."""
    slow, fast = ctypes.CDLL(cimpl.__file__), ctypes.PyDLL(cimpl.__file__)
    text, size, number = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_conf_new": (_Pointer, []),
        "rd_kafka_conf_set": (number, [_Pointer, text, text, text, size]),
        "rd_kafka_conf_set_error_cb": (None, [_Pointer, _ErrorCallback]),
        "rd_kafka_conf_destroy": (None, [_Pointer]),
        "rd_kafka_new": (_Pointer, [number, _Pointer, text, size]),
        "rd_kafka_destroy_flags": (None, [_Pointer, number]),
        "rd_kafka_poll": (number, [_Pointer, number]),
        "rd_kafka_topic_new": (_Pointer, [_Pointer, text, _Pointer]),
        "rd_kafka_topic_destroy": (None, [_Pointer]),
        "rd_kafka_metadata": (number, [_Pointer, number, _Pointer, _Pointer, number]),
        "rd_kafka_metadata_destroy": (None, [_Pointer]),
        "rd_kafka_assign": (number, [_Pointer, _Pointer]),
        "rd_kafka_topic_partition_list_new": (_Pointer, [number]),
        "rd_kafka_topic_partition_list_destroy": (None, [_Pointer]),
        "rd_kafka_topic_partition_list_add": (_Pointer, [_Pointer, text, ctypes.c_int32]),
        "rd_kafka_topic_partition_list_set_offset": (
            number,
            [_Pointer, text, ctypes.c_int32, ctypes.c_int64],
        ),
        "rd_kafka_query_watermark_offsets": (
            number,
            [_Pointer, text, ctypes.c_int32, _Pointer, _Pointer, number],
        ),
        "rd_kafka_queue_get_consumer": (_Pointer, [_Pointer]),
        "rd_kafka_queue_destroy": (None, [_Pointer]),
        "rd_kafka_consume_batch_queue": (ctypes.c_ssize_t, [_Pointer, number, _Pointer, size]),
        "rd_kafka_err2str": (text, [number]),
    }
    short: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_message_destroy": (None, [_Pointer]),
        "rd_kafka_message_timestamp": (ctypes.c_int64, [_Pointer, _Pointer]),
        "rd_kafka_message_headers": (number, [_Pointer, _Pointer]),
        "rd_kafka_header_get_all": (number, [_Pointer, size, _Pointer, _Pointer, _Pointer]),
        "rd_kafka_header_get_last": (number, [_Pointer, text, _Pointer, _Pointer]),
    }
    for library, functions in ((slow, signatures), (fast, short)):
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return slow, fast


def error_text(code: int) -> str:
    return _library()[0].rd_kafka_err2str(code).decode(errors="replace")


class NativeError(Exception):
    """An error of librdkafka, with its code."""

    def __init__(self, code: int, text: str | None = None) -> None:
        super().__init__(text or error_text(code))
        self.code = code


class Taken:
    """Messages in librdkafka's memory, in order, until `release`. `codes` is 0 for a message, else an error
    (PARTITION_EOF among them), whose text is its value."""

    def __init__(self, pointers: np.ndarray) -> None:
        self._pointers = pointers
        memory = Memory.over(pointers, _MESSAGE_BYTES)
        self.codes = memory.words(pointers, _ERR).astype(np.int32)
        self.partitions = memory.words(pointers, _PARTITION).astype(np.int32)
        self.offsets = memory.words(pointers, _OFFSET).astype(np.int64)
        self._payload = memory.words(pointers, _PAYLOAD)
        self._length = memory.words(pointers, _LENGTH).astype(np.int64)
        self._key = memory.words(pointers, _KEY)
        self._key_length = memory.words(pointers, _KEY_LENGTH).astype(np.int64)

    def __len__(self) -> int:
        return len(self._pointers)

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of key and value."""
        return self._length + self._key_length

    def keys(self, rows: np.ndarray) -> pa.Array:
        return Memory.binary(self._key[rows], self._key_length[rows])

    def values(self, rows: np.ndarray) -> pa.Array:
        return Memory.binary(self._payload[rows], self._length[rows])

    def timestamps(self, rows: np.ndarray) -> np.ndarray:
        """Milliseconds; -1 for a message without a timestamp."""
        of = _library()[1].rd_kafka_message_timestamp
        return np.fromiter(map(of, self._pointers[rows].tolist(), repeat(None)), np.int64, len(rows))

    def headers(self, rows: np.ndarray) -> pa.Array:
        return headers_column([_headers(pointer) for pointer in self._pointers[rows].tolist()])

    def writers(self, rows: np.ndarray, name: bytes) -> pa.Array:
        """The value of a header, null without it. If the first and the last message have the same value, so
        do all."""
        first, last = (_header(int(self._pointers[rows[at]]), name) for at in (0, -1))
        if first == last:
            return pa.array([first], pa.binary()).take(pa.array(np.zeros(len(rows), np.int32)))
        return pa.array([_header(pointer, name) for pointer in self._pointers[rows].tolist()], pa.binary())

    def error(self, row: int) -> NativeError:
        text = self.values(np.array([row]))[0].as_py()
        return NativeError(int(self.codes[row]), None if not text else text.decode(errors="replace"))

    def release(self) -> None:
        destroy = _library()[1].rd_kafka_message_destroy
        # The only remaining call per message. This is the fastest form of the loop.
        deque(map(destroy, self._pointers.tolist()), maxlen=0)
        self._pointers = self._pointers[:0]


def _header(message: int, name: bytes) -> bytes | None:
    fast = _library()[1]
    headers, value, size = _Pointer(), _Pointer(), ctypes.c_size_t()
    if fast.rd_kafka_message_headers(message, ctypes.byref(headers)) != 0:
        return None
    if fast.rd_kafka_header_get_last(headers, name, ctypes.byref(value), ctypes.byref(size)) != 0:
        return None
    return None if value.value is None else ctypes.string_at(value.value, size.value)


def _headers(message: int) -> list[tuple[str, bytes | None]]:
    fast = _library()[1]
    headers = _Pointer()
    if fast.rd_kafka_message_headers(message, ctypes.byref(headers)) != 0:
        return []  # there are none
    found: list[tuple[str, bytes | None]] = []
    name, value, size = ctypes.c_char_p(), _Pointer(), ctypes.c_size_t()
    out = (ctypes.byref(name), ctypes.byref(value), ctypes.byref(size))
    while fast.rd_kafka_header_get_all(headers, len(found), *out) == 0:
        content = None if value.value is None else ctypes.string_at(value.value, size.value)
        found.append(((name.value or b"").decode(errors="replace"), content))
    return found


class Consumer:
    """One librdkafka client, assigned to at most one partition at a time."""

    def __init__(self, configuration: Mapping[str, str | int]) -> None:
        """Raises NativeError for a configuration that librdkafka refuses."""
        self._slow, _ = _library()
        # Errors reported by librdkafka; it retries on its own.
        self.complaints = Complaints()
        # A reference is kept, because the library holds only a pointer.
        self._on_error = _ErrorCallback(self._note)
        self._out = np.zeros(MAX_TAKEN, np.uint64)
        # Partitions whose leaders were requested.
        self._known: set[tuple[str, int]] = set()
        self._handle = self._open(configuration)
        self._queue = self._slow.rd_kafka_queue_get_consumer(self._handle)

    def _open(self, configuration: Mapping[str, str | int]) -> int:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = self._slow.rd_kafka_conf_new()
        for name, value in configuration.items():
            code = self._slow.rd_kafka_conf_set(conf, name.encode(), str(value).encode(), text, _TEXT_BYTES)
            if code != _CONF_OK:
                self._slow.rd_kafka_conf_destroy(conf)
                raise NativeError(code, text.value.decode(errors="replace"))
        self._slow.rd_kafka_conf_set_error_cb(conf, self._on_error)
        handle = self._slow.rd_kafka_new(_CONSUMER, conf, text, _TEXT_BYTES)
        if not handle:
            self._slow.rd_kafka_conf_destroy(conf)
            raise NativeError(-1, text.value.decode(errors="replace"))
        return handle

    def _note(self, _handle: int, code: int, reason: bytes | None, _opaque: int) -> None:
        self.complaints.add(Complaint(code, (reason or b"").decode(errors="replace")))

    def knows(self, topic: str, partition: int) -> bool:
        """Whether the leader of the partition was looked up."""
        return (topic, partition) in self._known

    def look_up(self, topic: str, partition: int, milliseconds: int) -> None:
        """Request the leader of a partition. Without this, librdkafka requests it only a second after the
        first `start` at this partition. Raises NativeError, also if the topic does not exist."""
        found = ctypes.POINTER(_Metadata)()
        handle = self._slow.rd_kafka_topic_new(self._handle, topic.encode(), None)
        if not handle:
            raise NativeError(-1, f"librdkafka does not take the topic {topic!r}")
        try:
            code = self._slow.rd_kafka_metadata(self._handle, 0, handle, ctypes.byref(found), milliseconds)
            if code != 0:
                raise NativeError(code)
            answer = found.contents
            code = answer.topics[0].error if answer.topic_count else _NO_TOPIC
            self._slow.rd_kafka_metadata_destroy(found)
            if code != 0:
                raise NativeError(code)
            self._known.add((topic, partition))
        finally:
            self._slow.rd_kafka_topic_destroy(handle)

    def start(self, topic: str, partition: int, offset: int) -> None:
        """Start reading at an offset. Raises NativeError."""
        name = topic.encode()
        target = self._slow.rd_kafka_topic_partition_list_new(1)
        self._slow.rd_kafka_topic_partition_list_add(target, name, partition)
        self._slow.rd_kafka_topic_partition_list_set_offset(target, name, partition, offset)
        code = self._slow.rd_kafka_assign(self._handle, target)
        self._slow.rd_kafka_topic_partition_list_destroy(target)
        if code != 0:
            raise NativeError(code)

    def stop(self) -> None:
        """Stop reading; prefetched messages are released."""
        self._slow.rd_kafka_assign(self._handle, None)

    def take(self, most: int, milliseconds: int) -> Taken | None:
        """The available messages, at most `most`. Waits for the first one, and for none after it."""
        out = self._out.ctypes.data
        count = self._slow.rd_kafka_consume_batch_queue(self._queue, milliseconds, out, 1)
        if count < 0:
            raise Internal("librdkafka gave no messages for no reason")
        if count == 0:
            self.serve()
            return None
        if most > 1:
            # A call with a timeout would wait until it has `room` messages.
            room = min(most, MAX_TAKEN) - 1
            count += max(0, self._slow.rd_kafka_consume_batch_queue(self._queue, 0, out + 8, room))
        return Taken(self._out[:count].copy())

    def serve(self) -> None:
        """Let librdkafka deliver its reports."""
        self._slow.rd_kafka_poll(self._handle, 0)

    def watermarks(self, topic: str, partition: int, milliseconds: int) -> tuple[int, int]:
        """The first offset and the end of the partition. Raises NativeError."""
        low, high = ctypes.c_int64(), ctypes.c_int64()
        code = self._slow.rd_kafka_query_watermark_offsets(
            self._handle, topic.encode(), partition, ctypes.byref(low), ctypes.byref(high), milliseconds
        )
        if code != 0:
            raise NativeError(code)
        return low.value, high.value

    def close(self) -> None:
        """Close the client. Nothing is called afterwards. All `Taken` must be released before."""
        if self._handle:
            self.stop()
            self._slow.rd_kafka_queue_destroy(self._queue)
            self._slow.rd_kafka_destroy_flags(self._handle, _DESTROY_NO_CLOSE)
            self._handle = 0
