"""Error texts for malformed bytes: no Python names, no system error numbers.

Called by the code that decodes messages or opens their files. `Malformed` is raised where the structure of a
message is checked. `words` explains an exception of a parser, a codec or the system.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, cast

from fastavro.schema import UnknownType

from tidemill.errors import TidemillError

# The number of characters of an invalid value that are shown.
MAX_SHOWN = 80


class Malformed(ValueError):
    """The text describes the error in words for people."""


def words(error: BaseException) -> str:
    """The error as text: no full stop, one line."""
    match error:
        case Malformed():
            return str(error)
        case TidemillError():
            detail = error.detail or ""
            return f"{error.primary}: {detail[:1].lower()}{detail[1:]}".rstrip(":. ")
        case json.JSONDecodeError():
            said = error.msg.removesuffix(" at")
            return f"{said[:1].lower()}{said[1:]} at character {error.pos + 1}"
        case UnicodeDecodeError():
            return f"a text is not UTF-8 at byte {error.start + 1}"
        case UnknownType():
            return f"the schema has an unknown type: {brief(error.name)}"
        case RecursionError():
            return "it is nested too deep"
        case EOFError():
            return "it ends too early"
        case KeyError():
            return f'"{error.args[0]}" is missing' if error.args else "something is missing"
        case IndexError():
            return "it names a branch of a union or a symbol that the schema does not have"
        case MemoryError():
            return "it says that it is larger than the memory"
        case zlib.error():
            return "a block cannot be decompressed"
        case OSError() if error.strerror:
            return error.strerror[:1].lower() + error.strerror[1:]
        case _:
            return _first_line(error)


def sentence(error: BaseException) -> str:
    """The same as a sentence for a detail."""
    text = words(error)
    return f"{text[:1].upper()}{text[1:]}."


def _first_line(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0].rstrip(".?!")
    if "int_max_str_digits" in text:
        return "a number with too many digits"
    return text or "it cannot be read"


def brief(value: Any) -> str:
    """The value as JSON, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = named(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def named(value: Any) -> str:
    """The description of a value that has the wrong type."""
    return "None" if value is None else f"a {type(value).__name__}"


# -- the shape of a message


def field(record: Any, name: str, what: str) -> Any:
    """The field of an object. Raises Malformed."""
    if not isinstance(record, dict):
        raise Malformed(f"{what} is an object, not {brief(record)}")
    found = cast("dict[str, Any]", record)
    if name not in found:
        raise Malformed(f'{what} has no "{name}"')
    return found[name]


def each(value: Any, what: str) -> Sequence[Any]:
    """The items of a list. Raises Malformed."""
    if not isinstance(value, list):
        raise Malformed(f"{what} is a list, not {brief(value)}")
    return cast("list[Any]", value)


def progress_record(found: Any) -> dict[str, Any]:
    """A message that is not a list: an object with bounds and counts, which are lists; each count is an
    object with a time and a count. Raises Malformed."""
    if not isinstance(found, dict):
        raise Malformed(f"a message is a list of updates or an object with progress, not {brief(found)}")
    record = cast("dict[str, Any]", found)
    for name in ("lower", "upper", "counts"):
        each(field(record, name, "progress"), f'"{name}" of progress')
    for count in record["counts"]:
        for name in ("time", "count"):
            field(count, name, 'an entry of "counts"')
        if record.get("seal") is not None:
            field(count, "content", 'an entry of "counts" in sealed progress')
    return record


def whole(value: Any) -> int:
    """An integer in the range of the encodings. Raises Malformed."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise Malformed(f"not a number of 64 bits: {brief(value)}")
    return value
