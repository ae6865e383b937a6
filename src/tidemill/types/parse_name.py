"""Parser of SQL type names: `parse_type` reads every spelling in statements, casts and stored schemas.

Called by `sql` with the text of a type and by `delta` to read a stored relation; `parse_type(type_name(t)) ==
t`. Spellings are PostgreSQL's, plus `T list`, `map[text=>T]`, `record(name T, ...)` and the unsigned
integers. `json` is refused with a hint: jsonb is the only JSON type.
"""

from __future__ import annotations

import re
from typing import NoReturn

from tidemill.errors import InvalidValue, SyntaxError_, TidemillError, UndefinedObject, Unsupported
from tidemill.types import model
from tidemill.types.arrow import NUMERIC_PRECISION
from tidemill.types.model import Column, Kind, SqlType

# PostgreSQL's limit for varchar(n) and char(n) (MaxAttrSize).
MAX_LENGTH = 10_485_760
# Limits the nesting of types, so that hostile text cannot exhaust the stack.
MAX_NESTING = 32

_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[^\W\d][\w$]*)|(?P<quoted>"(?:[^"]|"")+")|(?P<number>\d+)|(?P<sign>=>|[-\[\](),.]))""",
)

_PLAIN: dict[str, SqlType] = {
    "bool": model.BOOL,
    "boolean": model.BOOL,
    "int2": model.INT2,
    "smallint": model.INT2,
    "int4": model.INT4,
    "int": model.INT4,
    "integer": model.INT4,
    "int8": model.INT8,
    "bigint": model.INT8,
    "uint2": model.UINT2,
    "uint4": model.UINT4,
    "uint8": model.UINT8,
    "float4": model.FLOAT4,
    "real": model.FLOAT4,
    "float8": model.FLOAT8,
    "text": model.TEXT,
    "string": model.TEXT,
    "bytea": model.BYTEA,
    "bytes": model.BYTEA,
    "date": model.DATE,
    "timestamptz": model.TIMESTAMPTZ,
    "uuid": model.UUID,
    "jsonb": model.JSONB,
    "mz_timestamp": model.MZ_TIMESTAMP,
    "oid": model.OID,
    "name": model.NAME,
    "unknown": model.UNKNOWN,
}
_NUMERIC = {"numeric", "decimal", "dec"}
_CHARACTER = {"character", "char", "nchar"}
_SCHEMAS = {"pg_catalog", "mz_catalog"}


# Types of PostgreSQL that do not exist here.
_ABSENT = frozenset(
    {
        *("bit", "box", "cidr", "circle", "daterange", "datemultirange", "inet", "int4range", "int8range"),
        *("line", "lseg", "macaddr", "macaddr8", "money", "numrange", "path", "pg_lsn", "point", "polygon"),
        *("tsquery", "tsrange", "tstzrange", "tsvector", "varbit", "xml"),
    }
)
_SERIAL = frozenset({"bigserial", "serial", "serial2", "serial4", "serial8", "smallserial"})
# The names of OIDs, which only catalog queries have (`sql.local`).
_OBJECTS = frozenset(
    {
        *("regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator"),
        *("regproc", "regprocedure", "regrole", "regtype"),
    }
)


def no_such_type(name: str) -> TidemillError:
    """The error for a name that is not a type here."""
    if name in _SERIAL:
        hint = "There are no sequences: use bigint and give values yourself, or uuid."
        return Unsupported(f"type {name} is not supported", hint=hint)
    if name == "json":
        return Unsupported("type json is not supported", hint="Use jsonb.")
    if name in _ABSENT:
        return Unsupported(
            f"type {name} is not supported", hint="text keeps such values as they are written."
        )
    if name in _OBJECTS:
        hint = "Only queries over system relations, or over none, have it; views and tables do not."
        return Unsupported(f"type {name} is not supported here", hint=hint)
    return UndefinedObject(f'type "{name}" does not exist', sqlstate="42704")


def parse_type(text: str) -> SqlType:
    """The type that `text` names. Raises 42704 if it does not exist, 42601 if the text is not a type name,
    and 22023 for bad modifiers."""
    parser = _Parser(text)
    result = parser.type(0)
    parser.end()
    return result


class _Parser:
    """Recursive descent over the tokens of one type name."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []  # (class, text); words folded to lower case
        self.at = 0
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                self.fail(text[position:].strip()[0])
            kind = str(match.lastgroup)
            found = match.group(kind)
            if kind == "word":
                found = found.lower()
            elif kind == "quoted":
                found = found[1:-1].replace('""', '"')
            self.tokens.append((kind, found))
            position = match.end()

    def fail(self, near: str | None = None) -> NoReturn:
        if near is None and self.at < len(self.tokens):
            near = self.tokens[self.at][1]
        where = f'at or near "{near}"' if near is not None else "at end of input"
        raise SyntaxError_(f"syntax error {where}", detail=f'The text "{self.text}" is no type name.')

    def peek(self) -> str:
        """The next word or symbol; empty for a quoted name, a number or the end."""
        if self.at < len(self.tokens) and self.tokens[self.at][0] in ("word", "sign"):
            return self.tokens[self.at][1]
        return ""

    def accept(self, *words: str) -> bool:
        """Consume the words if they are next, in this order."""
        ahead = [t[1] for t in self.tokens[self.at : self.at + len(words)] if t[0] in ("word", "sign")]
        if ahead != list(words):
            return False
        self.at += len(words)
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            self.fail()

    def name(self) -> tuple[str, bool]:
        """A name and whether it was quoted."""
        if self.at >= len(self.tokens) or self.tokens[self.at][0] not in ("word", "quoted"):
            self.fail()
        kind, text = self.tokens[self.at]
        self.at += 1
        return text, kind == "quoted"

    def end(self) -> None:
        if self.at < len(self.tokens):
            self.fail()

    def type(self, depth: int) -> SqlType:
        if depth > MAX_NESTING:
            raise InvalidValue(f"type names nest at most {MAX_NESTING} deep", sqlstate="54001")
        result = self.base(depth)
        while True:
            if self.accept("["):
                self.modifier_number()
                self.expect("]")
                result = _array_of(result)
            elif self.accept("array"):
                if self.accept("["):
                    self.modifier_number()
                    self.expect("]")
                result = _array_of(result)
            elif self.accept("list"):
                result = model.list_(result)
            else:
                return result

    def base(self, depth: int) -> SqlType:
        name, quoted = self.name()
        if name in _SCHEMAS and self.accept("."):
            name, quoted = self.name()
        elif self.accept("."):
            schema, (name, _) = name, self.name()
            raise UndefinedObject(f'type "{schema}.{name}" does not exist')
        if not quoted:
            special = self.special(name, depth)
            if special is not None:
                return special
        elif name == "char":
            raise Unsupported('type "char" is not supported', hint="Use char(1) or text.")
        plain = _PLAIN.get(name)
        if plain is not None:
            if self.peek() == "(":
                if name == "timestamptz":
                    self.fraction("timestamp")
                    return plain
                raise SyntaxError_(f'type modifier is not allowed for type "{name}"')
            return plain
        return self.with_modifiers(name)

    def special(self, name: str, depth: int) -> SqlType | None:
        """Names with several words, and constructors."""
        if name == "double":
            self.expect("precision")
            return model.FLOAT8
        if name == "float":
            return self.float_()
        if name == "map" and self.accept("["):
            key = self.type(depth + 1)
            if key.kind is not Kind.TEXT:
                raise Unsupported(f"map keys of type {key} are not supported", hint="Use map[text=>...].")
            self.expect("=>")
            value = self.type(depth + 1)
            self.expect("]")
            return model.map_(value)
        if name == "record" and self.accept("("):
            return self.record(depth)
        if name in ("national", *_CHARACTER):
            if name == "national" and not (self.accept("character") or self.accept("char")):
                self.fail()
            if self.accept("varying"):
                return self.with_modifiers("varchar")
            return self.with_modifiers("character")
        if name == "interval":
            if self.peek() == "(":
                self.fraction("interval")
            return model.INTERVAL
        if name in ("timestamp", "time"):
            if self.peek() == "(":
                self.fraction(name)
            zoned = self.accept("with", "time", "zone")
            if not zoned:
                self.accept("without", "time", "zone")
            if name == "time":
                if zoned:
                    raise Unsupported(
                        "type time with time zone is not supported", hint="Use timestamptz or time."
                    )
                return model.TIME
            return model.TIMESTAMPTZ if zoned else model.TIMESTAMP
        return None

    def with_modifiers(self, name: str) -> SqlType:
        numbers = self.numbers()
        if name in _NUMERIC:
            return _numeric(numbers)
        if name == "varchar":
            return SqlType(Kind.VARCHAR, length=_length(numbers, "varchar"))
        if name == "character":
            return SqlType(Kind.CHAR, length=_length(numbers, "char") or 1)
        if name == "bpchar":
            return SqlType(Kind.CHAR, length=_length(numbers, "char"))
        if name == "time":  # quoted spellings of pg_type names
            return model.TIME
        if name == "timestamp":
            return model.TIMESTAMP
        if name == "interval":
            return model.INTERVAL
        raise no_such_type(name)

    def modifier_number(self) -> int | None:
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "number":
            self.at += 1
            return int(self.tokens[self.at - 1][1])
        return None

    def numbers(self) -> list[int]:
        """A list of integers in parentheses; empty without one."""
        if not self.accept("("):
            return []
        result: list[int] = []
        while True:
            negative = self.accept("-")
            number = self.modifier_number()
            if number is None:
                self.fail()
            result.append(-number if negative else number)
            if self.accept(")"):
                return result
            self.expect(",")

    def fraction(self, name: str) -> None:
        """The fractional digits of a time type. Only microseconds are stored."""
        numbers = self.numbers()
        if numbers != [6]:
            raise Unsupported(
                f"{name} with a precision other than 6 is not supported",
                hint="Values keep microseconds; round with date_trunc where fewer digits are wanted.",
            )

    def float_(self) -> SqlType:
        numbers = self.numbers()
        if not numbers:
            return model.FLOAT8
        if len(numbers) != 1 or numbers[0] < 1:
            raise InvalidValue("precision for type float must be at least 1 bit", sqlstate="22023")
        if numbers[0] > 53:
            raise InvalidValue("precision for type float must be less than 54 bits", sqlstate="22023")
        return model.FLOAT4 if numbers[0] <= 24 else model.FLOAT8

    def record(self, depth: int) -> SqlType:
        fields: list[Column] = []
        if self.accept(")"):
            return model.record()
        while True:
            name, _ = self.name()
            fields.append(Column(name, self.type(depth + 1)))
            if self.accept(")"):
                return model.record(*fields)
            self.expect(",")


def _array_of(element: SqlType) -> SqlType:
    """PostgreSQL does not distinguish int[] from int[][]."""
    return element if element.kind is Kind.ARRAY else model.array(element)


def _numeric(numbers: list[int]) -> SqlType:
    if not numbers:
        return model.NUMERIC
    if len(numbers) > 2:
        raise InvalidValue("invalid NUMERIC type modifier", sqlstate="22023")
    precision, scale = numbers[0], numbers[1] if len(numbers) == 2 else 0
    if not 1 <= precision <= NUMERIC_PRECISION:
        raise InvalidValue(
            f"NUMERIC precision {precision} must be between 1 and {NUMERIC_PRECISION}",
            sqlstate="22023",
        )
    if not 0 <= scale <= precision:
        raise InvalidValue(
            f"NUMERIC scale {scale} must be between 0 and precision {precision}", sqlstate="22023"
        )
    return model.numeric(precision, scale)


def _length(numbers: list[int], name: str) -> int | None:
    if not numbers:
        return None
    if len(numbers) != 1:
        raise InvalidValue("invalid type modifier", sqlstate="22023")
    if numbers[0] < 1:
        raise InvalidValue(f"length for type {name} must be at least 1", sqlstate="22023")
    if numbers[0] > MAX_LENGTH:
        raise InvalidValue(f"length for type {name} cannot exceed {MAX_LENGTH}", sqlstate="22023")
    return numbers[0]
