"""Options of load generators: names, kinds, ranges and defaults.

The SQL layer asks for the kind of an option to interpret its text (an interval becomes microseconds), and
passes a mapping of names to values. `checked` converts it into the stored definition. All defaults are filled
in there, so a later version with other defaults does not affect existing sources.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from tidemill.errors import InvalidValue, SyntaxError_

OptionValue: TypeAlias = int | str | bool

# Event numbers, and everything that is computed from one by adding, stay within int64.
MAX_EVENTS = 2**62

PARTS_PER_PERCENT = 10_000  # a percentage is kept in parts per million
_PERCENT = re.compile(r"\s*(\d{1,3})(?:\.(\d{1,4}))?\s*%\s*", re.ASCII)


class OptionKind(Enum):
    """How an option is written; the value is how an error names it."""

    INTEGER = "an integer"
    INTERVAL = "an interval"  # given as microseconds
    BOOLEAN = "true or false"
    CHOICE = "a word"
    PERCENT = "a percentage with at most four digits behind the point, such as '1%'"  # given as text


@dataclass(frozen=True, slots=True)
class GeneratorOption:
    """One option. `least` and `most` bound integers and intervals. Without `default` it is absent unless it
    is given, or must be given when it is `required`."""

    name: str
    kind: OptionKind
    default: OptionValue | None = None
    required: bool = False
    least: int = 0
    most: int = MAX_EVENTS
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The name in the definition."""
        return self.name.lower().replace(" ", "_")

    def accept(self, value: object) -> OptionValue:
        """The value as the definition keeps it. None is an option that was named without a value."""
        if value is None:
            if self.kind is OptionKind.BOOLEAN:
                return True
            raise invalid(f"option {self.name} needs a value", detail=f"It must be {self.kind.value}.")
        if self.kind is OptionKind.BOOLEAN:
            if isinstance(value, bool):
                return value
        elif self.kind is OptionKind.CHOICE:
            if isinstance(value, str):
                return self._chosen(value)
        elif self.kind is OptionKind.PERCENT:
            if isinstance(value, str) and (match := _PERCENT.fullmatch(value)):
                return self._percent(match, value)
        elif isinstance(value, int) and not isinstance(value, bool):
            return self._within(value)
        raise invalid(f"option {self.name} must be {self.kind.value}", detail=f"It is {value!r}.")

    def kept(self, value: object) -> bool:
        """Whether a definition may hold this value."""
        if self.kind is OptionKind.PERCENT:
            return type(value) is int and 0 <= value <= 100 * PARTS_PER_PERCENT
        try:
            return self.accept(value) == value
        except InvalidValue:
            return False

    def _chosen(self, value: str) -> str:
        if value.upper() not in self.choices:
            raise invalid(
                f"option {self.name} must be {' or '.join(self.choices)}", detail=f'It is "{value}".'
            )
        return value.upper()

    def _percent(self, match: re.Match[str], value: str) -> int:
        parts = int(match[1]) * PARTS_PER_PERCENT + int((match[2] or "").ljust(4, "0"))
        if parts > 100 * PARTS_PER_PERCENT:
            raise invalid(f"option {self.name} must be between 0% and 100%", detail=f'It is "{value}".')
        return parts

    def _within(self, value: int) -> int:
        if not self.least <= value <= self.most:
            show = _microseconds if self.kind is OptionKind.INTERVAL else str
            raise invalid(
                f"option {self.name} must be between {show(self.least)} and {show(self.most)}",
                detail=f"It is {show(value)}.",
            )
        return value


# What every generator takes.
def tick_interval(default: int) -> GeneratorOption:
    """The longest is a year: anything above is a typing mistake."""
    return GeneratorOption("TICK INTERVAL", OptionKind.INTERVAL, default, least=1, most=366 * 86_400_000_000)


UP_TO = GeneratorOption("UP TO", OptionKind.INTEGER)
SEED = GeneratorOption("SEED", OptionKind.INTEGER, 0, most=2**63 - 1)


def envelope(*choices: str) -> GeneratorOption:
    """The clause ENVELOPE, which the SQL layer hands over as an option; the first choice is the default."""
    return GeneratorOption("ENVELOPE", OptionKind.CHOICE, choices[0], choices=choices)


def checked(
    generator: str, options: Sequence[GeneratorOption], given: Mapping[str, Any]
) -> dict[str, OptionValue]:
    """The given options and the defaults of the others, by field. Raises SyntaxError_ for an unknown option
    and InvalidValue for one that is missing or out of range."""
    by_name = {option.name: option for option in options}
    for name in given:
        if name not in by_name:
            raise _unknown(generator, name, list(by_name))
    values: dict[str, OptionValue] = {}
    for option in options:
        if option.name in given:
            values[option.field] = option.accept(given[option.name])
        elif option.required:
            raise invalid(
                f"the {generator} load generator needs the option {option.name}",
                hint=f"Write for example LOAD GENERATOR {generator} ({option.name} 1000).",
            )
        elif option.default is not None:
            values[option.field] = option.default
    return values


def invalid(primary: str, *, detail: str | None = None, hint: str | None = None) -> InvalidValue:
    return InvalidValue(primary, detail=detail, hint=hint, sqlstate="22023")


def _unknown(generator: str, name: str, known: list[str]) -> SyntaxError_:
    near = difflib.get_close_matches(name.upper().replace("_", " "), known, n=1, cutoff=0.6)
    options = ", ".join(known)
    hint = f"Perhaps you meant {near[0]}." if near else f"Its options are {options}."
    return SyntaxError_(f'the {generator} load generator has no option "{name}"', hint=hint)


def _microseconds(value: int) -> str:
    for unit, size in (("day", 86_400_000_000), ("second", 1_000_000), ("millisecond", 1_000)):
        if value % size == 0 and value:
            return _counted(value // size, unit)
    return _counted(value, "microsecond")


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"
