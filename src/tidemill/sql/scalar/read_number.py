"""to_number: a number by its template, position by position as in PostgreSQL."""

from __future__ import annotations

from decimal import Context, Decimal

from tidemill.errors import InvalidValue, Unsupported
from tidemill.sql.scalar.number_picture import NumberPicture, read_number_picture

_EXACT = Context(prec=100)
# Characters of a number, which a template's other characters never take.
_DATA = "0123456789.,+-"


def to_number(text: str, template: str) -> Decimal | None:
    if not template:
        return None
    picture = read_number_picture(template)
    if picture.science:
        raise Unsupported('"EEEE" not supported for input')
    if picture.roman:
        raise Unsupported('"RN" in to_number() is not supported')
    found = _Reader(picture, text).read()
    if abs(found) >= Decimal(10) ** (picture.before + picture.shift):
        raise InvalidValue("numeric field overflow", sqlstate="22003")
    if picture.times:
        found = found.scaleb(-picture.shift, _EXACT)
    return found


class _Reader:
    def __init__(self, picture: NumberPicture, text: str) -> None:
        self.p = picture
        # Its bytes: a digit's position takes one byte, also of a longer character.
        self.text = text.encode().decode("latin-1")
        self.at = 0
        self.sign = " "
        self.digits = ""
        self.point = False
        self.before = 0
        self.behind = 0

    def read(self) -> Decimal:
        for word, _ in self.p.pieces:
            if self.at >= len(self.text):
                break
            if not word:
                self.at += self._width()
            elif word in ("9", "0", ".", "D"):
                self._part(word)
                self.at += 1
            else:
                self._word(word)
        number = self.digits.removesuffix(".")
        try:
            return Decimal(self.sign.strip() + number)
        except ArithmeticError:
            raise InvalidValue(f'invalid input syntax for type numeric: "{self.sign}{number}"') from None

    def _skip(self, count: int) -> None:
        while count > 0 and self.at < len(self.text) and self.text[self.at] not in _DATA:
            self.at += self._width()
            count -= 1

    def _width(self) -> int:
        """The bytes of the character that begins here."""
        first = ord(self.text[self.at])
        return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4

    def _word(self, word: str) -> None:
        ch = self.text[self.at]
        if word in (",", "G"):
            if not self.p.fill and ch == ",":
                self.at += 1
        elif word == "L":
            self._skip(1)
        elif word in ("TH", "th"):
            if not self.p.decimal:
                self._skip(2)
        elif word in ("MI", "PL", "SG"):
            signs = {"MI": "-", "PL": "+", "SG": "+-"}[word]
            if ch in signs:
                self.sign = ch
                self.at += 1
            else:
                self._skip(1)

    def _part(self, word: str) -> None:
        text, p = self.text, self.p
        if text[self.at] == " ":
            self.at += 1
        if self.at >= len(text):
            return
        if self.sign == " " and word in "90" and self.before + self.behind == 0:
            self._sign_before()
        if self.at >= len(text):
            return
        read = False
        ch = text[self.at]
        if ch.isascii() and ch.isdigit():
            if self.point and self.behind == p.behind:
                return
            self.digits += ch
            if self.point:
                self.behind += 1
            else:
                self.before += 1
            read = True
        elif p.decimal and not self.point and ch == ".":
            self.digits += "."
            self.point = read = True
        if self.sign == " " and self.before + self.behind > 0:
            self._sign_behind(read)

    def _sign_before(self) -> None:
        ch = self.text[self.at]
        if self.p.sign:
            if self.p.sign == "pre" and ch in "+-":
                self.sign = ch
                self.at += 1
        elif ch == "-" or (self.p.bracket and ch == "<"):
            self.sign = "-"
            self.at += 1
        elif ch == "+":
            self.sign = "+"
            self.at += 1

    def _sign_behind(self, read: bool) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if self.p.sign and read and following and following not in "0123456789":
            if following in "+-":
                self.sign = following
                self.at += 1
        elif not read and not self.p.sign and (self.p.plus or self.p.minus):
            ch = self.text[self.at]
            if ch == "-" or (self.p.bracket and ch == "<"):
                self.sign = "-"
            elif ch == "+":
                self.sign = "+"
