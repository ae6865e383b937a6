"""Parser of the templates of to_char, to_date and to_timestamp."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.caches import cached

# Longest first. Those in lower case or with one capital are other spellings of the same field.
_FIELDS = [
    "A.D.",
    "A.M.",
    "B.C.",
    "P.M.",
    "IDDD",
    "IYYY",
    "Y,YYY",
    "YYYY",
    "HH24",
    "HH12",
    "SSSSS",
    "SSSS",
    "MONTH",
    "Month",
    "DAY",
    "Day",
    "DDD",
    "MON",
    "Mon",
    "IYY",
    "YYY",
    "TZH",
    "TZM",
    "FF1",
    "FF2",
    "FF3",
    "FF4",
    "FF5",
    "FF6",
    "AD",
    "AM",
    "BC",
    "PM",
    "CC",
    "DD",
    "DY",
    "Dy",
    "FX",
    "HH",
    "ID",
    "IW",
    "IY",
    "MI",
    "MM",
    "MS",
    "OF",
    "RM",
    "SS",
    "TZ",
    "US",
    "WW",
    "YY",
    "D",
    "I",
    "J",
    "Q",
    "W",
    "Y",
]
KEYWORDS = sorted({*_FIELDS, *(f.lower() for f in _FIELDS)}, key=len, reverse=True)
# The widths that to_timestamp reads, and all fields of digits.
WIDTHS = {
    "HH24": 2,
    "HH12": 2,
    "HH": 2,
    "MI": 2,
    "SS": 2,
    "MS": 3,
    "US": 6,
    "SSSSS": 5,
    "SSSS": 4,
    "MM": 2,
    "DDD": 3,
    "IDDD": 4,
    "DD": 2,
    "D": 1,
    "ID": 2,
    "WW": 2,
    "IW": 2,
    "W": 1,
    "Q": 1,
    "CC": 2,
    "Y,YYY": 5,
    "YYYY": 4,
    "IYYY": 4,
    "YYY": 3,
    "IYY": 3,
    "YY": 2,
    "IY": 2,
    "Y": 1,
    "I": 1,
    "J": 1,
    "FF1": 3,
    "FF2": 3,
    "FF3": 3,
    "FF4": 3,
    "FF5": 3,
    "FF6": 3,
}


@dataclass(frozen=True, slots=True)
class TemplateField:
    """A field (`name` in capitals, `written` as in the template), or one character of text."""

    name: str = ""
    written: str = ""
    text: str = ""
    fill: bool = False  # FM: no padding
    local: bool = False  # TM
    ordinal: str = ""  # TH or th

    @property
    def separates(self) -> bool:
        return not self.name and not self.text.isspace() and self.text.isascii() and not self.text.isalnum()

    @property
    def is_digits(self) -> bool:
        return self.name in WIDTHS or self.name == "TZM"


@cached(256)
def read_picture(template: str) -> tuple[TemplateField, ...]:
    pieces: list[TemplateField] = []
    at = 0
    while at < len(template):
        fill = local = False
        while template[at : at + 2].upper() in ("FM", "TM") and template[at : at + 2] in (
            "FM",
            "fm",
            "TM",
            "tm",
        ):
            fill, local = (
                fill or template[at : at + 2].upper() == "FM",
                local or template[at : at + 2].upper() == "TM",
            )
            at += 2
        word = next((k for k in KEYWORDS if template.startswith(k, at)), None)
        if word is not None:
            at += len(word)
            ordinal = ""
            if template[at : at + 2] in ("TH", "th"):
                ordinal = template[at : at + 2]
                at += 2
            elif template[at : at + 2] == "SP":
                at += 2
            pieces.append(TemplateField(word.upper(), word, fill=fill, local=local, ordinal=ordinal))
        elif at < len(template):
            at = _text(template, at, pieces)
    return tuple(pieces)


def _text(template: str, at: int, pieces: list[TemplateField]) -> int:
    """Text outside fields; in double quotes every character is text."""
    if template[at] != '"':
        if template[at] == "\\" and template[at + 1 : at + 2] == '"':
            at += 1
        pieces.append(TemplateField(text=template[at]))
        return at + 1
    at += 1
    while at < len(template) and template[at] != '"':
        if template[at] == "\\" and at + 1 < len(template):
            at += 1
        pieces.append(TemplateField(text=template[at]))
        at += 1
    return at + 1
