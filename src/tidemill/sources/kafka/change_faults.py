"""Changes that ENVELOPE DEBEZIUM cannot go on after: they stop the source, and its status names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import legible, shortened
from tidemill.errors import TidemillError
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka.messages import TopicMessages
from tidemill.types.model import Column, record
from tidemill.types.wire import encode_text


class Faults:
    """The first record of a batch that has a fault; of a record with several the first noted."""

    def __init__(self) -> None:
        self._row: int | None = None
        self._describe: Callable[[int], TidemillError] | None = None

    def note(self, rows: np.ndarray, describe: Callable[[int], TidemillError]) -> None:
        """`rows` marks the records that have the fault; `describe` is called with the first one at most."""
        if not rows.any():
            return
        row = int(rows.argmax())
        if self._row is None or row < self._row:
            self._row, self._describe = row, describe

    def check(self, messages: TopicMessages, keys: Sequence[pa.Array], columns: Sequence[Column]) -> None:
        """Raises UpstreamError for the first fault, if there is one."""
        if self._row is None or self._describe is None:
            return
        fault = self._describe(self._row)
        key = _key_text([column.slice(self._row, 1) for column in keys], columns)
        topic = "" if messages.topic is None else f'topic "{legible(messages.topic)}", '
        offset = int(messages.offsets[self._row])
        place = f"{topic}partition {messages.partition}, offset {offset}, {key}"
        error = UpstreamError(
            fault.primary,
            detail=f"{place[0].upper()}{place[1:]}: {fault.detail}",
            hint=fault.hint,
            sqlstate=fault.sqlstate,
        )
        error.permanent = True
        raise error


def _key_text(key: Sequence[pa.Array], columns: Sequence[Column]) -> str:
    if all(column[0].as_py() is None for column in key):
        return "no key"
    if len(key) == 1:
        texts = encode_text(key[0], columns[0].type)
    else:
        of = record(*columns)
        names = [f"f{n}" for n in range(len(key))]
        texts = encode_text(pa.StructArray.from_arrays(list(key), names=names), of)
    return f"key {legible(shortened(texts.cast(pa.string())[0].as_py()))}"
