"""Load generator definition: its options with all defaults filled in, and its start time.

`normalise` creates it from the options of a statement and refuses invalid ones. `open_generator` opens it on
any server of any later version, which may have more options.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from tidemill.errors import UndefinedObject
from tidemill.sources.contract import Definition, UpstreamSource, unreadable_definition
from tidemill.sources.generators.auction import AUCTION
from tidemill.sources.generators.counter import COUNTER
from tidemill.sources.generators.key_value import KEY_VALUE
from tidemill.sources.generators.load import GeneratorKind
from tidemill.sources.generators.options import OptionKind, checked
from tidemill.time.bounds import MAX_TIME, check_time

LOAD_GENERATOR = "load generator"

_GENERATORS = {kind.name: kind for kind in (COUNTER, KEY_VALUE, AUCTION)}


def option_kinds(generator: str) -> dict[str, OptionKind]:
    """The options of a generator by name, and how each is written. Raises UndefinedObject."""
    return {option.name: option.kind for option in _generator(generator).options}


def normalise(generator: str, options: Mapping[str, Any], started: int) -> Definition:
    """The definition of a load generator that begins at the time `started`. `options` are by their names in
    upper case: integers, intervals as microseconds, booleans, text; None where an option was named without a
    value. Raises UndefinedObject, SyntaxError_ or InvalidValue."""
    kind = _generator(generator)
    definition: Definition = {
        "kind": LOAD_GENERATOR,
        "generator": kind.name.lower(),
        **checked(kind.name, kind.options, options),
        "started": check_time(started),
    }
    # Options that do not go together are found when it is opened.
    kind.open(definition)
    return definition


def open_generator(definition: Mapping[str, Any], files_root: str) -> UpstreamSource:
    generator = _GENERATORS.get(str(definition.get("generator")).upper())
    if generator is None:
        raise unreadable_definition(f"There is no load generator {definition.get('generator')!r}.")
    return generator.open(_complete(generator, definition))


def _complete(generator: GeneratorKind, definition: Mapping[str, Any]) -> Definition:
    """The checked definition, with the defaults of options that are newer than it."""
    options = {option.field: option for option in generator.options}
    unknown = definition.keys() - options.keys() - {"kind", "generator", "started"}
    if unknown:
        raise unreadable_definition(f"It has the field {min(unknown)!r}.")
    started = definition.get("started")
    if type(started) is not int or not 0 <= started <= MAX_TIME:
        raise unreadable_definition(f"It was started at {started!r}.")
    complete = dict(definition)
    for field, option in options.items():
        value = definition.get(field)
        if value is not None:
            if not option.kept(value):
                raise unreadable_definition(f"Its field {field!r} is {value!r}.")
        elif option.required:
            raise unreadable_definition(f"It has no field {field!r}.")
        elif option.default is not None:
            complete[field] = option.default
    return complete


def _generator(name: str) -> GeneratorKind:
    kind = _GENERATORS.get(name.upper())
    if kind is None:
        near = difflib.get_close_matches(name.upper().replace("_", " "), _GENERATORS, n=1, cutoff=0.6)
        known = ", ".join(_GENERATORS)
        hint = f"Perhaps you meant {near[0]}." if near else f"There are {known}."
        raise UndefinedObject(f'load generator "{name}" does not exist', hint=hint)
    return kind
