"""Literal splitter: arrays, lists, maps and records to the texts of their parts, quotes removed.

Pure functions over one text; `None` is NULL. Errors are PostgreSQL's (`malformed array literal`, with its
details).
"""

from __future__ import annotations

import re

from tidemill.errors import InvalidValue, Unsupported
from tidemill.types.wire.columns import BLANKS

_BOUNDS = re.compile(r"\s*\[(?:(-?\d+):)?(-?\d+)\](\[)?[^=]*=")


def split_array(text: str) -> list[str | None]:
    """The elements of a one-dimensional array literal."""
    body = text
    bounds = _BOUNDS.match(text)
    if bounds is not None:
        if bounds[3] is not None:
            raise _several_dimensions()
        if int(bounds[1] or 1) != 1:
            raise Unsupported("arrays with a lower bound other than 1 are not supported")
        body = text[bounds.end() :]
    cursor = _Cursor(text, body, "array")
    cursor.blanks()
    if not cursor.take("{"):
        raise cursor.malformed('Array value must start with "{" or dimension information.')
    items: list[str | None] = []
    cursor.blanks()
    if cursor.peek() == "{":
        # `{{}}` is an empty array; other inner braces are a second dimension.
        depth = body.count("{")
        if "".join(body.split()) == "{" * depth + "}" * depth:
            return []
        raise _several_dimensions()
    if not cursor.take("}"):
        while True:
            items.append(cursor.element(nested=False, stops=",}"))
            if cursor.take("}"):
                break
            cursor.comma()
            cursor.blanks()
    cursor.end("Junk after closing right brace.")
    if bounds is not None and int(bounds[2]) != len(items):
        raise cursor.malformed("Specified array dimensions do not match array contents.")
    return items


def _several_dimensions() -> Unsupported:
    return Unsupported("arrays of several dimensions are not supported", hint="Use a list of lists.")


def split_list(text: str, nested: bool) -> list[str | None]:
    """The elements of a list literal. `nested`: they are lists or maps, written with braces and without
    quotes."""
    cursor = _Cursor(text, text, "list")
    cursor.blanks()
    if not cursor.take("{"):
        raise cursor.malformed('List value must start with "{".')
    items: list[str | None] = []
    cursor.blanks()
    if not cursor.take("}"):
        while True:
            items.append(cursor.element(nested=nested, stops=",}"))
            if cursor.take("}"):
                break
            cursor.comma()
            cursor.blanks()
    cursor.end("Junk after closing right brace.")
    return items


def split_map(text: str, nested: bool) -> list[tuple[str, str | None]]:
    """Keys and values of a map literal; of equal keys the last one counts."""
    cursor = _Cursor(text, text, "map")
    cursor.blanks()
    if not cursor.take("{"):
        raise cursor.malformed('Map value must start with "{".')
    pairs: dict[str, str | None] = {}
    cursor.blanks()
    if not cursor.take("}"):
        while True:
            key = cursor.element(nested=False, stops="=,}")
            if key is None:
                raise cursor.malformed("A map's key must not be NULL.")
            if not (cursor.take("=") and cursor.take(">")):
                raise cursor.malformed('Expected "=>" after a key.')
            cursor.blanks()
            pairs[key] = cursor.element(nested=nested, stops=",}")
            if cursor.take("}"):
                break
            cursor.comma()
            cursor.blanks()
    cursor.end("Junk after closing right brace.")
    return list(pairs.items())


def split_record(text: str, width: int) -> list[str | None]:
    """The fields of a record literal: nothing between two commas is NULL."""
    cursor = _Cursor(text, text, "record")
    cursor.blanks()
    if not cursor.take("("):
        raise cursor.malformed("Missing left parenthesis.")
    fields: list[str | None] = []
    while True:
        if len(fields) == width:
            if width or not cursor.take(")"):
                raise cursor.malformed("Too many columns.")
            break
        fields.append(cursor.field())
        if cursor.take(")"):
            break
        if not cursor.take(","):
            raise cursor.malformed("Unexpected end of input.")
    if len(fields) < width:
        raise cursor.malformed("Too few columns.")
    cursor.end("Junk after right parenthesis.")
    return fields


class _Cursor:
    """A position in a literal. `whole` is the text for errors, `body` the text to read."""

    def __init__(self, whole: str, body: str, noun: str) -> None:
        self.whole = whole
        self.body = body
        self.noun = noun
        self.at = 0

    def malformed(self, detail: str) -> InvalidValue:
        return InvalidValue(f'malformed {self.noun} literal: "{self.whole}"', detail=detail)

    def peek(self) -> str:
        return self.body[self.at : self.at + 1]

    def take(self, ch: str) -> bool:
        if self.peek() != ch:
            return False
        self.at += 1
        return True

    def blanks(self) -> None:
        while self.at < len(self.body) and self.body[self.at] in BLANKS:
            self.at += 1

    def comma(self) -> None:
        if not self.take(","):
            if self.at >= len(self.body):
                raise self.malformed("Unexpected end of input.")
            raise self.malformed(f'Unexpected "{self.peek()}" character.')

    def end(self, detail: str) -> None:
        self.blanks()
        if self.at < len(self.body):
            raise self.malformed(detail)

    def element(self, *, nested: bool, stops: str) -> str | None:
        """One element up to (not including) a stop character; unquoted NULL is None."""
        if self.peek() == '"':
            value = self.quoted()
            self.blanks()
            if self.peek() and self.peek() not in stops:
                raise self.malformed("Incorrectly quoted array element.")
            return value
        if nested and self.peek() == "{":
            value = self.braced()
            self.blanks()
            return value
        start, escaped = self.at, False
        out: list[str] = []
        while self.at < len(self.body):
            ch = self.body[self.at]
            if ch in stops:
                break
            if ch == '"':
                raise self.malformed("Incorrectly quoted array element.")
            if ch in "{}":
                raise self.malformed(f'Unexpected "{ch}" character.')
            if ch == "\\":
                self.at += 1
                escaped = True
                if self.at >= len(self.body):
                    break
                # A trailing escaped blank is kept: mark it so that rstrip does not remove it.
                out.append(
                    self.body[self.at] + "\x00" if self.body[self.at] in BLANKS else self.body[self.at]
                )
            else:
                out.append(ch)
            self.at += 1
        if self.at >= len(self.body):
            raise self.malformed("Unexpected end of input.")
        value = "".join(out).rstrip(BLANKS).replace("\x00", "")
        if not value and self.at == start:
            raise self.malformed(f'Unexpected "{self.peek()}" character.')
        if not escaped and value.lower() == "null":
            return None
        return value

    def quoted(self) -> str:
        """From a quote to its end. A backslash escapes the next character."""
        self.at += 1
        out: list[str] = []
        while self.at < len(self.body):
            ch = self.body[self.at]
            self.at += 1
            if ch == '"':
                return "".join(out)
            if ch == "\\":
                if self.at >= len(self.body):
                    break
                ch = self.body[self.at]
                self.at += 1
            out.append(ch)
        raise self.malformed("Unexpected end of input.")

    def braced(self) -> str:
        """From a brace to the matching one, with quotes, for the inner literal."""
        start, depth = self.at, 0
        while self.at < len(self.body):
            ch = self.body[self.at]
            if ch == '"':
                self.quoted()
                continue
            self.at += 2 if ch == "\\" else 1
            if ch == "{":
                depth += 1
            elif ch == "}":
                depth -= 1
                if depth == 0:
                    return self.body[start : self.at]
        raise self.malformed("Unexpected end of input.")

    def field(self) -> str | None:
        """One field of a record. Quotes may begin anywhere and are doubled or escaped inside; blanks
        count."""
        if self.peek() in (",", ")"):
            return None
        out: list[str] = []
        inside = False
        while self.at < len(self.body):
            ch = self.body[self.at]
            if not inside and ch in ",)":
                return "".join(out)
            self.at += 1
            if ch == "\\":
                out.append(self.body[self.at : self.at + 1])
                self.at += 1
            elif ch == '"' and inside and self.peek() == '"':
                out.append('"')
                self.at += 1
            elif ch == '"':
                inside = not inside
            else:
                out.append(ch)
        raise self.malformed("Unexpected end of input.")
