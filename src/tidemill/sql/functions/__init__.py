"""The allow-list: every function, operator, aggregate and cast that a query may use, with its Spark form.

Called by `sql.bind` alone. One module per family adds its rows to the tables of `signature` on import; a new
function costs one row there. A query that names anything else gets an error, never a guess. Spark's Python
tasks import this package, so it must import everything that runs there.
"""

from __future__ import annotations

from tidemill.sql.functions import (
    aggregates,
    arithmetic,
    arrays,
    collected,
    comparison,
    datetime,
    extract,
    formatting,
    json,
    math,
    octets,
    regexp,
    series,
    spans,
    strings,
    text,
    trigonometry,
    uuids,
)
from tidemill.sql.functions.signature import inventory

# The settings on which these trees depend. The owner of the Spark session must set all of them
# (`query.settings` does). ANSI: overflow and bad casts raise. Zone UTC: NTZ <-> LTZ keeps the digits. Without
# allowPrecisionLoss a sum or product of decimals keeps its scale and raises when it does not fit, instead of
# dropping fractional digits.
SPARK_CONF: dict[str, str] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}

FAMILIES = (
    *(aggregates, arithmetic, arrays, collected, comparison, datetime, extract, formatting, json, math),
    *(octets, regexp, series, spans, strings, text, trigonometry, uuids),
)

__all__ = ["FAMILIES", "SPARK_CONF", "inventory"]
