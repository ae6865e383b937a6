"""jsonb: its storage is canonical text, so equality is text equality; members are taken out in Python
(`python`), for Spark's own JSON functions print numbers anew and lose digits."""

from __future__ import annotations

from tidemill.sql.functions.signature import function, not_yet, operator
from tidemill.sql.functions.tree import Tree, call, case, eq, integer, string
from tidemill.types.model import INT4, JSONB, TEXT

_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


def _typeof(document: Tree) -> Tree:
    first = call("left", document, integer(1))
    branches = [(eq(first, string(ch)), string(kind)) for ch, kind in _KINDS.items()]
    return case((call("isnull", document), document), *branches, otherwise=string("number"))


def _install() -> None:
    for key in (TEXT, INT4):
        operator("->", (JSONB, key), JSONB, lambda a: call("tm_jsonb_get", *a))
        operator("->>", (JSONB, key), TEXT, lambda a: call("tm_jsonb_get_text", *a))
    function("jsonb_typeof", (JSONB,), TEXT, lambda a: _typeof(a[0]))
    not_yet(
        """
        jsonb_build_object jsonb_build_array jsonb_array_length jsonb_extract_path jsonb_extract_path_text
        jsonb_set jsonb_insert jsonb_pretty jsonb_strip_nulls jsonb_each jsonb_each_text jsonb_object_keys
        jsonb_array_elements jsonb_array_elements_text to_jsonb to_json row_to_json jsonb_path_query
        jsonb_path_exists jsonb_path_match """
    )


_install()
