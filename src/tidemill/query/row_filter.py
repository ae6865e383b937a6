"""A filter that drops single rows of the parts that Spark reads, by their position in the file.

`scan` uses it for the rows that `retraction_matches` took out. Spark gives each row's position and the size
of its file. The size identifies the file (parts of the same size are scanned separately). Compiled into the
scan, the filter costs a fifth of it; a hash of every row would cost as much as the scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal
from tidemill.query.probe import Places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.persist.part import Part

# Parts that one scan distinguishes by their sizes: the table of offsets grows with the square.
MAX_PARTS = 64
# One bit per row, sent to every task: up to 67M rows. Beyond, a join, which costs several times as much per
# row and nothing for rows that stay.
MAX_BITMAP_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Hidden:
    """Rows that a scan leaves out: by a part's path the places in it, in order."""

    places: Mapping[str, Places] = field(default_factory=dict[str, Places])
    # Up to here by bitmap.
    max_bitmap: int = MAX_BITMAP_BYTES


def alike(parts: Iterable[Part]) -> list[list[Part]]:
    """The parts in as few scans as `row_filter` can do."""
    scans: list[dict[int, Part]] = []
    for part in parts:
        scan = next((s for s in scans if part.bytes not in s and len(s) < MAX_PARTS), None)
        if scan is None:
            scans.append(scan := {})
        scan[part.bytes] = part
    return [list(scan.values()) for scan in scans]


def hide(rows: DataFrame, parts: Sequence[Part], hidden: Hidden) -> DataFrame:
    """The scan of `parts` (one of `alike`, all of them with hidden rows) without those rows."""
    if len({part.bytes for part in parts}) != len(parts):
        raise Internal("parts of one size cannot be told apart")
    if sum(part.rows for part in parts) // 8 <= hidden.max_bitmap:
        return _by_bitmap(rows, parts, hidden.places)
    return _by_join(rows, parts, hidden.places)


def _by_bitmap(rows: DataFrame, parts: Sequence[Part], places: Mapping[str, Places]) -> DataFrame:
    from pyspark.sql import functions as F

    # Each part starts at a whole byte, so that a row's bit follows from its own place.
    starts = np.cumsum([0, *((part.rows + 7) // 8 for part in parts)])
    bits = np.zeros(int(starts[-1]) * 8, np.bool_)
    for part, start in zip(parts, starts[:-1].tolist(), strict=True):
        bits[places[part.path] + start * 8] = True
    shift, width = _slots([part.bytes for part in parts])
    slots = np.zeros(1 << width, np.int64)
    for part, start in zip(parts, starts[:-1].tolist(), strict=True):
        slots[(part.bytes >> shift) & ((1 << width) - 1)] = start
    place, size = _metadata(rows, "row_index"), _metadata(rows, "file_size")
    slot = F.shiftright(size, shift).bitwiseAND(F.lit((1 << width) - 1)).cast("int")
    # As text: one call to the JVM, not one per number.
    start = F.get(F.expr(f"array({', '.join(f'{n}L' for n in slots.tolist())})"), slot)
    bitmap = _bytes_literal(rows, np.packbits(bits, bitorder="little"))
    byte = F.get(bitmap, (F.shiftright(place, 3) + start).cast("int"))
    bit = F.call_function("shiftleft", F.lit(1), place.bitwiseAND(F.lit(7)).cast("int"))
    return rows.where(byte.cast("int").bitwiseAND(bit) == F.lit(0))


def _by_join(rows: DataFrame, parts: Sequence[Part], places: Mapping[str, Places]) -> DataFrame:
    from pyspark.sql import functions as F

    sizes = np.repeat([part.bytes for part in parts], [len(places[part.path]) for part in parts])
    gone = pa.table({"mz_size": sizes, "mz_place": np.concatenate([places[part.path] for part in parts])})
    hidden = F.broadcast(rows.sparkSession.createDataFrame(gone))
    same = (_metadata(rows, "file_size") == hidden["mz_size"]) & (
        _metadata(rows, "row_index") == hidden["mz_place"]
    )
    return rows.join(hidden, same, "left_anti")


def _slots(sizes: Sequence[int]) -> tuple[int, int]:
    """(shift, width): the bits of a size, as few as possible, that distinguish all sizes."""
    for width in range(64):
        for shift in range(16):
            if len({(size >> shift) & ((1 << width) - 1) for size in sizes}) == len(sizes):
                return shift, width
    raise Internal("sizes are not different")


def _metadata(rows: DataFrame, name: str) -> Any:
    """Spark's metadata of a row's file, even where the relation has a column `_metadata`."""
    from pyspark.sql.classic.column import Column

    frame: Any = rows
    return Column(frame._jdf.metadataColumn("_metadata"))[name]


def _bytes_literal(rows: DataFrame, data: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    """An array of bytes as one constant: composed of single ones it would be slow to plan and to read."""
    from pyspark.sql.classic.column import Column

    session: Any = rows.sparkSession
    spark = session._jvm.org.apache.spark.sql
    values = spark.catalyst.expressions.UnsafeArrayData.fromPrimitiveArray(bytearray(data.tobytes()))
    kind = spark.types.ArrayType(getattr(getattr(spark.types, "ByteType$"), "MODULE$"), False)
    utils = getattr(getattr(spark.classic, "ExpressionUtils$"), "MODULE$")
    return Column(utils.column(spark.catalyst.expressions.Literal(values, kind)))
