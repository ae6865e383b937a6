"""What the catalog keeps of a source, and the way from there to the source itself.

A definition is a plain dictionary that JSON keeps: `kind`, what the kind needs, and `started`, the time at
which the source was made. `normalise` makes it from what a statement says, with every default written out,
and refuses what cannot be; `open_source` turns it into a source, on any server of any later version. Called
by the engine.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeAlias

from tidemill.errors import InvalidValue, TidemillError, UndefinedObject
from tidemill.sources.contract import Source, SourceError
from tidemill.sources.generators.auction import AUCTION
from tidemill.sources.generators.counter import COUNTER
from tidemill.sources.generators.key_value import KEY_VALUE
from tidemill.sources.generators.load import GeneratorKind
from tidemill.sources.generators.options import OptionKind, checked
from tidemill.time.bounds import MAX_TIME, check_time

Definition: TypeAlias = dict[str, Any]

LOAD_GENERATOR = "load generator"
KAFKA = "kafka"
FILES = "files"

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


def open_source(definition: Mapping[str, Any], files_root: str = "") -> Source:
    """The source. `files_root` is the folder below which files may be read. Raises SourceError for a
    definition that this version cannot read: it stalls that source and no other."""
    kind = definition.get("kind")
    if kind == KAFKA:
        return _open_kafka(definition)
    if kind == FILES:
        return _open_files(definition, files_root)
    if kind != LOAD_GENERATOR:
        raise _unreadable(f"There is no kind of source {kind!r}.")
    generator = _GENERATORS.get(str(definition.get("generator")).upper())
    if generator is None:
        raise _unreadable(f"There is no load generator {definition.get('generator')!r}.")
    try:
        return generator.open(_complete(generator, definition))
    except InvalidValue as error:
        raise _unreadable(f"It says what cannot be: {error.primary}.") from error


def _open_kafka(definition: Mapping[str, Any]) -> Source:
    # Here: who has no such source need not load Kafka's client and all the decoders.
    from tidemill.sources.kafka.source import KafkaSource

    try:
        return KafkaSource(definition)
    except SourceError:
        raise
    except TidemillError as error:
        raise _unreadable(f"It says what cannot be: {error.primary}.") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(f"{type(error).__name__}: {error}.") from error


def _open_files(definition: Mapping[str, Any], files_root: str) -> Source:
    from tidemill.sources.files.source import FilesSource

    try:
        return FilesSource(definition, files_root)
    except TidemillError as error:
        # The setting may be another one than it was.
        raise SourceError(error.primary, detail=error.detail, hint=error.hint) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(f"{type(error).__name__}: {error}.") from error


def _complete(generator: GeneratorKind, definition: Mapping[str, Any]) -> Definition:
    """The definition, checked, with the defaults of options that came after it was written."""
    options = {option.field: option for option in generator.options}
    unknown = definition.keys() - options.keys() - {"kind", "generator", "started"}
    if unknown:
        raise _unreadable(f"It has the field {min(unknown)!r}.")
    started = definition.get("started")
    if type(started) is not int or not 0 <= started <= MAX_TIME:
        raise _unreadable(f"It was started at {started!r}.")
    complete = dict(definition)
    for field, option in options.items():
        value = definition.get(field)
        if value is not None:
            if not option.kept(value):
                raise _unreadable(f"Its field {field!r} is {value!r}.")
        elif option.required:
            raise _unreadable(f"It has no field {field!r}.")
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


def _unreadable(detail: str) -> SourceError:
    return SourceError(
        "the source's definition cannot be read",
        detail=detail,
        hint="It was made by another version of Tidemill, or the catalog is damaged.",
    )
