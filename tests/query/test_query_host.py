from __future__ import annotations

import pytest

from tidemill.query.spark import SparkHost


@pytest.mark.spark
def test_session_is_warm_and_set_up_as_the_sql_layer_needs(spark: SparkHost) -> None:
    assert spark.ready
    conf = spark.session.conf
    assert conf.get("spark.sql.ansi.enabled") == "true"
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.session.sql("select 1 as x").toArrow().to_pydict() == {"x": [1]}
