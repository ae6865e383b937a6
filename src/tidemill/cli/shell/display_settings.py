"""The display settings of results: options of `\\pset` and of the flags, and the columns they apply to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from tidemill.cli.shell.variables import truth
from tidemill.errors import InvalidValue, UndefinedObject

FORMATS = ("aligned", "unaligned", "csv", "json", "markdown")
# Types by OID: the numeric ones, which are right-aligned, and those with a JSON literal.
_INTEGERS = frozenset({20, 21, 23, 26})
_NUMBERS = _INTEGERS | {700, 701, 1700}
_RIGHT = _NUMBERS | {28, 29, 790, 5069}
_BOOL, _JSON = 16, frozenset({114, 3802})

Row = tuple[str | None, ...]
Rows = Sequence[Row]


@dataclass(frozen=True, slots=True)
class ColumnLook:
    """A column of a result: its name and the OID of its type."""

    name: str
    oid: int

    @property
    def right(self) -> bool:
        return self.oid in _RIGHT

    @property
    def is_number(self) -> bool:
        return self.oid in _NUMBERS

    @property
    def is_bool(self) -> bool:
        return self.oid == _BOOL

    @property
    def is_json(self) -> bool:
        return self.oid in _JSON


@dataclass(slots=True)
class DisplaySettings:
    """Each field is an option of `\\pset`."""

    format: str = "aligned"
    # on, off, auto: show a row as a block of lines; auto does so if a table would not fit the screen.
    expanded: str = "off"
    border: int = 1
    # ascii or unicode: the characters for the lines of a table.
    linestyle: str = "ascii"
    # The text for NULL; None: the default of the format (NULL in tables, nothing in csv and unaligned).
    null: str | None = None
    fieldsep: str = "|"
    tuples_only: bool = False
    footer: bool = True
    # Whether output longer than the screen goes through $PAGER.
    pager: bool = True
    title: str = ""

    def null_text(self, otherwise: str) -> str:
        return otherwise if self.null is None else self.null


_CHOICES: dict[str, tuple[str, ...]] = {
    "format": FORMATS,
    "expanded": ("on", "off", "auto"),
    "linestyle": ("ascii", "unicode"),
}
_SWITCHES = ("tuples_only", "footer", "pager")
_SHORT = {"x": "expanded", "t": "tuples_only"}


def set_option(look: DisplaySettings, name: str, value: str | None) -> str:
    """`\\pset name [value]`. Without a value a switch is toggled and other options keep their value. Returns
    a description of the result."""
    name = _SHORT.get(name, name)
    if name not in [f.name for f in fields(look)]:
        raise UndefinedObject(f"\\pset: unknown option: {name}", hint="\\pset alone shows the options.")
    if name in _SWITCHES:
        setattr(look, name, not getattr(look, name) if value is None else truth(value, name))
    elif name == "expanded" and value is None:
        look.expanded = "off" if look.expanded != "off" else "on"
    elif value is not None:
        setattr(look, name, _checked(name, value))
    elif name == "title":
        look.title = ""
    return described(look, name)


def _checked(name: str, value: str) -> object:
    if name == "border":
        if value not in ("0", "1", "2"):
            raise InvalidValue(f"\\pset: allowed borders are 0, 1, 2, not {value}")
        return int(value)
    choices = _CHOICES.get(name)
    if choices is None:
        return value
    if name == "expanded" and value not in choices:
        return "on" if truth(value, name) else "off"
    found = [choice for choice in choices if choice.startswith(value.lower())]
    if len(found) != 1 and value not in choices:
        raise InvalidValue(f"\\pset: allowed for {name} are {', '.join(choices)}, not {value}")
    return value if value in choices else found[0]


def described(look: DisplaySettings, name: str) -> str:
    """A description of one option."""
    value = getattr(look, name)
    switch = {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else value
    texts = {
        "format": f"Output format is {value}.",
        "expanded": f"Expanded display is {'used automatically' if value == 'auto' else value}.",
        "border": f"Border style is {value}.",
        "linestyle": f"Line style is {value}.",
        "null": "Null display is that of the format." if value is None else f'Null display is "{value}".',
        "fieldsep": f'Field separator is "{value}".',
        "tuples_only": f"Tuples only is {switch}.",
        "footer": f"Default footer is {switch}.",
        "pager": f"Pager usage is {switch}.",
        "title": f'Title is "{value}".' if value else "Title is not set.",
    }
    return texts[name]


def all_options(look: DisplaySettings) -> list[str]:
    """Descriptions of all options, by name."""
    return [described(look, f.name) for f in sorted(fields(look), key=lambda f: f.name)]
