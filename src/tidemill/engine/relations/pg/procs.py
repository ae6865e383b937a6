"""pg_proc, pg_operator and pg_cast: the allow-list, with OIDs that follow from the signatures."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tidemill.engine.relations.pg.owners import owner_oid
from tidemill.engine.relations.pg.spec import Record, spec
from tidemill.engine.relations.pg.types import column_oid
from tidemill.engine.relations.pg.world import world
from tidemill.engine.relations.sources import Spec
from tidemill.sql.functions.lattice import cast_context
from tidemill.sql.functions.signature import Declared, Fn, Poly, declared_name, every_function, every_operator
from tidemill.sql.names import words
from tidemill.types import model

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation

# A type that PostgreSQL does not have is shown as "any".
_POLY = {Poly.ELEMENT: 2283, Poly.ARRAY: 2277}
_ANY = 2276
# 28 bits of the signature's checksum, above all OIDs that are assigned in sequence.
_FIRST = 0x30000000
_BITS = 0x0FFFFFFF
INTERNAL, SQL = 12, 14
# What PostgreSQL 18 calls stable: the answer depends on settings, the clock, or the output function of the
# argument's type. (Ours depend on the arguments and the time zone alone, but for the clock.)
_STABLE = frozenset(
    {
        *("now()", "transaction_timestamp()", "statement_timestamp()"),
        *("array_to_string(anyarray, text)", "array_to_string(anyarray, text, text)"),
        *("convert_from(bytea, name)", "convert_to(text, name)", "length(bytea, name)"),
        *(
            "date_add(timestamp with time zone, interval)",
            "date_subtract(timestamp with time zone, interval)",
        ),
        *("date_part(text, timestamp with time zone)", "date_trunc(text, timestamp with time zone)"),
        *("to_date(text, text)", "to_number(text, text)", "to_timestamp(text, text)"),
    }
)
_STABLE_NAMES = words(
    """
    array_to_json json_agg json_agg_strict json_object_agg json_object_agg_strict jsonb_agg jsonb_agg_strict
    make_timestamptz pg_input_is_valid row_to_json to_char to_json
    """
)


@dataclass(frozen=True, slots=True)
class Proc:
    """A function, aggregate or operator; types by OID and as text."""

    oid: int
    name: str
    args: tuple[int, ...]
    result: int
    arguments: str
    result_text: str
    aggregate: bool
    variadic: bool
    volatility: str


def _type_oid(d: Declared) -> int:
    return _POLY.get(d, _ANY) if isinstance(d, Poly) else column_oid(d)


def _proc(fn: Fn) -> Proc:
    texts = [declared_name(a) for a in fn.args]
    if fn.variadic:
        texts[-1] = f"VARIADIC {texts[-1]}"
    arguments = ", ".join(texts)
    key = f"{fn.name}({arguments})"
    return Proc(
        _FIRST + (zlib.crc32(key.encode()) & _BITS),
        fn.name,
        tuple(_type_oid(a) for a in fn.args),
        _type_oid(fn.result),
        arguments,
        declared_name(fn.result),
        fn.aggregate,
        fn.variadic,
        _volatility(fn, key),
    )


def _volatility(fn: Fn, key: str) -> str:
    if fn.volatile or fn.name == "random":  # one of that name is refused
        return "v"
    return "s" if key in _STABLE or fn.name in _STABLE_NAMES else "i"


@cache
def procs() -> Mapping[int, Proc]:
    return {p.oid: p for p in map(_proc, every_function())}


@cache
def operators() -> Mapping[int, Proc]:
    return {p.oid: p for p in map(_proc, every_operator())}


def _namespace(s: Situation) -> int:
    return next(o for o, n in world(s.catalog, s.database).namespaces.items() if n == "pg_catalog")


def _proc_rows(s: Situation) -> Iterable[Record]:
    namespace, owner = _namespace(s), owner_oid(s.catalog, None)
    for p in procs().values():
        yield {
            "oid": p.oid,
            "proname": p.name,
            "pronamespace": namespace,
            "proowner": owner,
            "prolang": INTERNAL,
            "procost": 1.0,
            "provariadic": p.args[-1] if p.variadic else 0,
            "prokind": "a" if p.aggregate else "f",
            "proisstrict": not p.aggregate,
            "provolatile": p.volatility,
            "proparallel": "s",
            "pronargs": len(p.args),
            "prorettype": p.result,
            "proargtypes": list(p.args),
            "prosrc": p.name,
        }


def _operator_rows(s: Situation) -> Iterable[Record]:
    namespace, owner = _namespace(s), owner_oid(s.catalog, None)
    for p in operators().values():
        yield {
            "oid": p.oid,
            "oprname": p.name,
            "oprnamespace": namespace,
            "oprowner": owner,
            "oprkind": "b" if len(p.args) == 2 else "l",
            "oprleft": p.args[0] if len(p.args) == 2 else 0,
            "oprright": p.args[-1],
            "oprresult": p.result,
        }


_CAST_TYPES = [
    *(model.BOOL, model.INT2, model.INT4, model.INT8, model.FLOAT4, model.FLOAT8, model.NUMERIC, model.TEXT),
    *(model.VARCHAR, model.BYTEA, model.DATE, model.TIME, model.TIMESTAMP, model.TIMESTAMPTZ),
    *(model.INTERVAL, model.UUID, model.JSONB, model.OID, model.UINT2, model.UINT4, model.UINT8),
]


def _cast_rows(s: Situation) -> Iterable[Record]:
    del s
    contexts = {0: "i", 1: "a", 2: "e"}
    for source in _CAST_TYPES:
        for target in _CAST_TYPES:
            found = None if source == target else cast_context(source, target)
            if found is None:
                continue
            key = f"{source}->{target}"
            yield {
                "oid": _FIRST + (zlib.crc32(key.encode()) & _BITS),
                "castsource": column_oid(source),
                "casttarget": column_oid(target),
                "castcontext": contexts[sorted(type(found)).index(found)],
                "castmethod": "i",
            }


PROC_SPECS: list[Spec] = [
    spec(
        "pg_catalog",
        "pg_proc",
        """oid oid, proname name, pronamespace oid, proowner oid, prolang oid, procost float4, prorows float4,
        provariadic oid, prosupport regproc, prokind char, prosecdef bool, proleakproof bool,
        proisstrict bool, proretset bool, provolatile char, proparallel char, pronargs int2,
        pronargdefaults int2, prorettype oid, proargtypes oidvector, proallargtypes oid[],
        proargmodes char[], proargnames text[],
        proargdefaults text, protrftypes oid[], prosrc text, probin text, prosqlbody text, proconfig text[],
        proacl text[]""",
        _proc_rows,
    ),
    spec(
        "pg_catalog",
        "pg_aggregate",
        "aggfnoid regproc, aggkind char, aggnumdirectargs int2",
        lambda s: ({"aggfnoid": p.oid, "aggkind": "n"} for p in procs().values() if p.aggregate),
    ),
    spec(
        "pg_catalog",
        "pg_operator",
        """oid oid, oprname name, oprnamespace oid, oprowner oid, oprkind char, oprcanmerge bool,
        oprcanhash bool, oprleft oid, oprright oid, oprresult oid, oprcom oid, oprnegate oid, oprcode regproc,
        oprrest regproc, oprjoin regproc""",
        _operator_rows,
    ),
    spec(
        "pg_catalog",
        "pg_cast",
        "oid oid, castsource oid, casttarget oid, castfunc oid, castcontext char, castmethod char",
        _cast_rows,
    ),
    spec(
        "pg_catalog",
        "pg_language",
        """oid oid, lanname name, lanowner oid, lanispl bool, lanpltrusted bool, lanplcallfoid oid,
        laninline oid, lanvalidator oid, lanacl text[]""",
        lambda s: (
            {"oid": o, "lanname": n, "lanowner": owner_oid(s.catalog, None)}
            for o, n in ((INTERNAL, "internal"), (SQL, "sql"))
        ),
    ),
]
