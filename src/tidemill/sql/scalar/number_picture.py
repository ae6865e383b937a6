"""Parser of the number templates of to_char and to_number."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.caches import cached
from tidemill.errors import SyntaxError_

# B and C have no meaning, and are not text.
_WORDS = (
    *("EEEE", "FM", "MI", "PL", "SG", "PR", "RN", "TH"),
    *("B", "C", "S", "L", "G", "D", "V", "9", "0", ".", ","),
)
KEYWORDS = sorted({*_WORDS, *(w.lower() for w in _WORDS)}, key=len, reverse=True)


@dataclass(slots=True)
class NumberPicture:
    """`pieces` are (keyword, "") or ("", character). `before` and `behind`: digits on both sides of the
    point; `zero_start` and `zero_end`: from which to which place zeros are written."""

    pieces: list[tuple[str, str]] = field(default_factory=list)
    before: int = 0
    behind: int = 0
    zeros: bool = False
    zero_start: int = 0
    zero_end: int = 0
    decimal: bool = False
    fill: bool = False
    plus: bool = False
    minus: bool = False
    bracket: bool = False
    roman: bool = False
    science: bool = False
    times: bool = False  # V
    shift: int = 0  # the digits behind V
    sign: str = ""  # of S: "pre" or "post"
    sign_place: int = 0


@cached(256)
def read_number_picture(template: str) -> NumberPicture:
    out = NumberPicture()
    at = 0
    while at < len(template):
        word = next((k for k in KEYWORDS if template.startswith(k, at)), None)
        if word is not None:
            at += len(word)
            _note(out, word.upper())
            out.pieces.append((word if word in ("th", "rn") else word.upper(), ""))
            continue
        if template[at] == '"':
            at += 1
            while at < len(template) and template[at] != '"':
                at += template[at] == "\\" and at + 1 < len(template)
                out.pieces.append(("", template[at]))
                at += 1
            at += 1
            continue
        at += template[at] == "\\" and template[at + 1 : at + 2] == '"'
        out.pieces.append(("", template[at]))
        at += 1
    return out


def _error(text: str) -> SyntaxError_:
    return SyntaxError_(text)


def _note(out: NumberPicture, word: str) -> None:
    if out.science and word != "FM":
        raise _error('"EEEE" must be the last pattern used')
    if word in "90":
        _digit(out, word)
    elif word in ".D":
        if out.decimal:
            raise _error("multiple decimal points")
        if out.times:
            raise _error('cannot use "V" and decimal point together')
        out.decimal = True
    elif word == "FM":
        out.fill = True
    elif word == "S":
        _locale_sign(out)
    elif word in ("MI", "PL", "SG"):
        if out.sign:
            raise _error(f'cannot use "S" and "{word}" together')
        out.minus = out.minus or word != "PL"
        out.plus = out.plus or word != "MI"
    elif word == "PR":
        if out.sign or out.plus or out.minus:
            raise _error('cannot use "PR" and "S"/"PL"/"MI"/"SG" together')
        out.bracket = True
    elif word == "V":
        if out.decimal:
            raise _error('cannot use "V" and decimal point together')
        out.times = True
    elif word == "EEEE":
        if out.science:
            raise _error('cannot use "EEEE" twice')
        if out.sign or out.bracket or out.minus or out.plus or out.roman or out.times:
            raise _error('"EEEE" is incompatible with other formats')
        out.science = True
    elif word == "RN":
        out.roman = True


def _digit(out: NumberPicture, word: str) -> None:
    if out.bracket:
        raise _error(f'"{word}" must be ahead of "PR"')
    if word == "9" and out.times:
        out.shift += 1
        return
    if word == "0" and not out.zeros and not out.decimal:
        out.zeros = True
        out.zero_start = out.before
    if out.decimal:
        out.behind += 1
    else:
        out.before += 1
    if word == "0":
        out.zero_end = out.before + out.behind


def _locale_sign(out: NumberPicture) -> None:
    if out.sign:
        raise _error('cannot use "S" twice')
    if out.plus or out.minus or out.bracket:
        raise _error('cannot use "S" and "PL"/"MI"/"SG"/"PR" together')
    out.sign = "post" if out.decimal else "pre"
    out.sign_place = out.before
