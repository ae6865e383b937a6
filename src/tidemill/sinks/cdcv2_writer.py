"""Writer of CDCv2: the whole history of a collection, for readers that recover it from repetitions.

`cdcv2.writer` decides what is written. A round is: the updates, their acknowledgement, the statement that
counts them, its acknowledgement. Updates that were sent twice are harmless: readers drop them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill import failpoints
from tidemill.cdcv2.writer import Writer
from tidemill.errors import Internal
from tidemill.sinks.definition import WHOLE, Codec
from tidemill.sinks.encoding import encoded, update_columns
from tidemill.sinks.target import SinkPace, TargetWriter, Written

FP_SETTLED = failpoints.register(
    "sink.settled", "a sink's updates are acknowledged, no statement counts them"
)


class Cdcv2Writer:
    """`writer.SinkWriter`. `names` are the physical names of the columns."""

    silent = False
    recalls = False

    def __init__(
        self,
        codec: Codec,
        share: tuple[int, int],
        names: Sequence[str],
        target: TargetWriter,
        written: Written,
    ) -> None:
        self._codec = codec
        self._share = None if share == WHOLE else share
        self._names = names
        self._target = target
        self._written = written
        # None before `begin`.
        self._writer: Writer | None = None

    @property
    def pace(self) -> SinkPace:
        return self._target.pace

    def resume(self) -> int | None:
        return self._target.resume()

    def begin(self, lower: int) -> None:
        self._writer = Writer(self._codec.schema, [lower], share=self._share)

    def recall(self, piece: pa.Table) -> None:
        raise Internal("CDCv2 needs no contents to continue")

    def send(self, table: pa.Table, *, initial: bool) -> None:
        writer = self._round()
        for updates in update_columns(table, self._names, self._codec.schema):
            mine = writer.add(updates)
            if mine is None:
                continue
            for message in encoded(self._codec, mine):
                self._target.send(message)
            self._written.updates += len(mine)
            writer.acknowledged()  # by the target, at the latest when it settles

    def state(self, upper: int) -> None:
        writer = self._round()
        self._target.settle()
        failpoints.hit(FP_SETTLED)
        self._target.state(self._codec.encode_progress(writer.state([upper])), upper)
        writer.stated()

    def close(self) -> None:
        self._writer = None
        self._target.close()

    def _round(self) -> Writer:
        assert self._writer is not None
        return self._writer
