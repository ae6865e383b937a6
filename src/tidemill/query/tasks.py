"""Python functions over Arrow batches inside Spark tasks, without pandas.

`DataFrame.mapInArrow` fails if pandas is not installed, although neither it nor the worker needs pandas for
this kind of function. The call below does what `mapInArrow` does after that check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def map_in_arrow(
    frame: Any, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], ddl: str
) -> DataFrame:
    """The function's batches, with the columns `ddl`, for each partition of the frame. The function is
    pickled: every name that it uses must be importable where the tasks run."""
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf: Any = UserDefinedFunction(function, returnType=ddl, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = udf(*(frame[name] for name in frame.columns))
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
