"""The options of connections: parsed from statements, checked, and printed for SHOW CREATE.

The catalog stores them under the names that `sources.kafka` and `decode.registry` use
(`catalog.connections`); secrets are stored by id. Only the options of `connection_kinds` exist: a statement
cannot pass a property to a client library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from tidemill.catalog.connections import completed
from tidemill.catalog.items import ItemId
from tidemill.engine.ddl.connection_kinds import CONNECTION_KINDS
from tidemill.engine.ddl.connection_kinds.kind import TLS, wrong_option
from tidemill.errors import InvalidValue, SyntaxError_, TidemillError
from tidemill.sql import ast

Options = dict[str, Any]


def given_options(
    kind: str, options: tuple[ast.ConnectionOption, ...], secret: Callable[[ast.Name], ItemId]
) -> Options:
    """The options of a statement in catalog form. `secret` maps the name of a secret to its id."""
    fields = CONNECTION_KINDS[kind].fields
    found: Options = {}
    for option in options:
        if option.name not in fields:
            raise _no_option(kind, option.name, option.offset + 1)
        match option.value:
            case ast.SecretName(name):
                found[fields[option.name]] = {"secret": secret(name)}
            case str() if option.name in CONNECTION_KINDS[kind].secret_only:
                raise InvalidValue(
                    f"{option.name} must be a secret",
                    hint=f"Write CREATE SECRET s AS '...' first, and then {option.name} = SECRET s.",
                    sqlstate="22023",
                    position=option.offset + 1,
                )
            case str() | int() as value:
                found[fields[option.name]] = value
            case tuple() as addresses:
                found[fields[option.name]] = split_addresses(addresses)
    return found


def split_addresses(given: tuple[str, ...]) -> list[str]:
    """Splits the older form, which has several addresses in one text."""
    return [address.strip() for text in given for address in text.split(",")]


def statement_options(
    kind: str, options: Mapping[str, Any], name: Callable[[ItemId], ast.Name]
) -> tuple[ast.ConnectionOption, ...]:
    """The inverse of `given_options`, for SHOW CREATE."""
    found: list[ast.ConnectionOption] = []
    for word, field in CONNECTION_KINDS[kind].fields.items():
        value = options.get(field)
        if isinstance(value, dict):
            secret = cast("Options", value)["secret"]
            found.append(ast.ConnectionOption(word, ast.SecretName(name(secret))))
        elif isinstance(value, list):
            found.append(ast.ConnectionOption(word, tuple(cast("list[str]", value))))
        elif value is not None:
            found.append(ast.ConnectionOption(word, value))
    return tuple(found)


def secrets_in(options: Mapping[str, Any]) -> tuple[ItemId, ...]:
    found = [cast("Options", v)["secret"] for v in options.values() if isinstance(v, dict)]
    return tuple(dict.fromkeys(found))


def reset_fields(kind: str, names: tuple[str, ...]) -> list[str]:
    fields = CONNECTION_KINDS[kind].fields
    for name in names:
        if name not in fields:
            raise _no_option(kind, name)
    return [fields[name] for name in names]


def _no_option(kind: str, name: str, position: int | None = None) -> TidemillError:
    return SyntaxError_(
        f"a {kind} connection has no option {name}",
        hint=f"The options are {', '.join(CONNECTION_KINDS[kind].fields)}.",
        position=position,
    )


# -- valid combinations


def check(kind: str, options: Mapping[str, Any]) -> None:
    """Raises if the options are invalid or contradictory. Does not contact the server."""
    CONNECTION_KINDS[kind].check(completed(kind, options))
    for word, field in TLS.items():
        value = options.get(field)
        if isinstance(value, str) and "-----BEGIN " not in value:
            raise wrong_option(
                f"{word} is no certificate in PEM form",
                "Give its text, which begins with -----BEGIN; the name of a file is not possible.",
            )
    if ("ssl_key" in options) != ("ssl_certificate" in options):
        there, missing = ("SSL KEY", "SSL CERTIFICATE")[:: 1 if "ssl_key" in options else -1]
        raise wrong_option(f"{there} needs {missing}", "A client's certificate and its key go together.")
