"""The options of connections: parsed from statements, checked, and printed for SHOW CREATE.

The catalog stores them under the names that `sources.kafka` and `decode.registry` use
(`catalog.connections`); secrets are stored by id. Only the options in the tables here exist: a statement
cannot pass a property to a client library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

from tidemill.catalog.connections import KAFKA, SCHEMA_REGISTRY, completed
from tidemill.catalog.items import ItemId
from tidemill.errors import InvalidValue, SyntaxError_, TidemillError
from tidemill.sql import ast

Options = dict[str, Any]

# What mz_connections shows for each kind.
TYPES = {ast.ConnectionKind.KAFKA: KAFKA, ast.ConnectionKind.SCHEMA_REGISTRY: SCHEMA_REGISTRY}
KINDS = {name: kind for kind, name in TYPES.items()}

_TLS = {
    "SSL CERTIFICATE AUTHORITY": "ssl_ca",
    "SSL CERTIFICATE": "ssl_certificate",
    "SSL KEY": "ssl_key",
}
# The options of each kind, in the order in which SHOW CREATE has them, and what the catalog calls them.
FIELDS = {
    KAFKA: {
        "BROKERS": "brokers",
        "SECURITY PROTOCOL": "security_protocol",
        "SASL MECHANISMS": "sasl_mechanism",
        "SASL USERNAME": "sasl_username",
        "SASL PASSWORD": "sasl_password",
        **_TLS,
    },
    SCHEMA_REGISTRY: {"URL": "url", "USERNAME": "username", "PASSWORD": "password", **_TLS},
}
# What must be a secret: the catalog is not the place for it.
_SECRET_ONLY = ("SASL PASSWORD", "SSL KEY", "PASSWORD")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
# A cluster's other brokers are told by the first that answers.
_MAX_BROKERS = 100


def given_options(
    kind: str, options: tuple[ast.ConnectionOption, ...], secret: Callable[[ast.Name], ItemId]
) -> Options:
    """The options of a statement in catalog form. `secret` maps the name of a secret to its id."""
    fields = FIELDS[kind]
    found: Options = {}
    for option in options:
        if option.name not in fields:
            raise SyntaxError_(
                f"a {kind} connection has no option {option.name}",
                hint=f"The options are {', '.join(fields)}.",
                position=option.offset + 1,
            )
        match option.value:
            case ast.SecretName(name):
                found[fields[option.name]] = {"secret": secret(name)}
            case str() if option.name in _SECRET_ONLY:
                raise InvalidValue(
                    f"{option.name} must be a secret",
                    hint=f"Write CREATE SECRET s AS '...' first, and then {option.name} = SECRET s.",
                    sqlstate="22023",
                    position=option.offset + 1,
                )
            case str() as text:
                found[fields[option.name]] = text
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
    for word, field in FIELDS[kind].items():
        value = options.get(field)
        if isinstance(value, dict):
            secret = cast("Options", value)["secret"]
            found.append(ast.ConnectionOption(word, ast.SecretName(name(secret))))
        elif isinstance(value, list):
            found.append(ast.ConnectionOption(word, tuple(cast("list[str]", value))))
        elif value is not None:
            found.append(ast.ConnectionOption(word, str(value)))
    return tuple(found)


def secrets_in(options: Mapping[str, Any]) -> tuple[ItemId, ...]:
    found = [cast("Options", v)["secret"] for v in options.values() if isinstance(v, dict)]
    return tuple(dict.fromkeys(found))


def reset_fields(kind: str, names: tuple[str, ...]) -> list[str]:
    for name in names:
        if name not in FIELDS[kind]:
            raise SyntaxError_(
                f"a {kind} connection has no option {name}",
                hint=f"The options are {', '.join(FIELDS[kind])}.",
            )
    return [FIELDS[kind][name] for name in names]


# -- what goes together


def check(kind: str, options: Mapping[str, Any]) -> None:
    """Raises if the options are invalid or contradictory. Does not contact the server."""
    (_check_kafka if kind == KAFKA else _check_registry)(completed(kind, options))
    for word, field in _TLS.items():
        value = options.get(field)
        if isinstance(value, str) and "-----BEGIN " not in value:
            raise _wrong(
                f"{word} is no certificate in PEM form",
                "Give its text, which begins with -----BEGIN; the name of a file is not possible.",
            )
    if ("ssl_key" in options) != ("ssl_certificate" in options):
        there, missing = ("SSL KEY", "SSL CERTIFICATE")[:: 1 if "ssl_key" in options else -1]
        raise _wrong(f"{there} needs {missing}", "A client's certificate and its key go together.")


def _check_kafka(options: Mapping[str, Any]) -> None:
    brokers = options.get("brokers")
    if not brokers:
        raise _wrong("a kafka connection needs BROKER", "Write BROKER 'host:port'.")
    if len(brokers) > _MAX_BROKERS:
        raise _wrong(
            f"a kafka connection can have at most {_MAX_BROKERS} brokers",
            "A few are enough to find the others.",
        )
    check_addresses(brokers)
    protocol = options["security_protocol"]
    _one_of("SECURITY PROTOCOL", protocol, _PROTOCOLS)
    said = {word: field in options for word, field in FIELDS[KAFKA].items()}
    for family in ("SASL", "SSL"):
        used = [word for word, given in said.items() if given and word.startswith(family)]
        if used and family not in protocol.split("_"):
            fitting = [p for p in _PROTOCOLS if family in p.split("_")]
            raise _wrong(
                f"{used[0]} does not go with SECURITY PROTOCOL {protocol}",
                f"It goes with {' and '.join(fitting)}.",
            )
    if protocol.startswith("SASL"):
        for word in ("SASL MECHANISMS", "SASL USERNAME", "SASL PASSWORD"):
            if not said[word]:
                raise _wrong(f"SECURITY PROTOCOL {protocol} needs {word}", f"Add {word} to the options.")
        _one_of("SASL MECHANISMS", options["sasl_mechanism"], _MECHANISMS)


def check_addresses(brokers: list[str]) -> None:
    for address in brokers:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[2]) < 65536:
            raise _wrong(
                f'"{_without_user(address)}" is no address of a broker',
                "Write host:port, such as 'localhost:9092'.",
            )


def _check_registry(options: Mapping[str, Any]) -> None:
    url = options.get("url")
    if url is None:
        raise _wrong("a schema registry connection needs URL", "Write URL 'http://host:8081'.")
    if isinstance(url, dict):
        raise _wrong("URL cannot be a secret", "Only USERNAME, PASSWORD and the SSL options can.")
    tls = check_url(url)
    if "password" in options and "username" not in options:
        raise _wrong("PASSWORD needs USERNAME", "Add USERNAME to the options.")
    for word, field in _TLS.items():
        if field in options and not tls:
            raise _wrong(f"{word} needs a URL that begins with https://", "Plain http has no certificates.")


def check_url(url: str) -> bool:
    """Checks the URL of a registry; returns whether it uses TLS."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good, parts = False, urlsplit("")
    if not good or parts.query or parts.fragment:
        raise _wrong("URL is no address of a schema registry", _url_hint(url, parts))
    if "@" in parts.netloc:
        raise _wrong(
            "URL cannot hold a name or a password", "Use the options USERNAME and PASSWORD = SECRET."
        )
    return parts.scheme == "https"


def _url_hint(url: str, parts: SplitResult) -> str:
    """The hint for an invalid URL."""
    write = "Write http://host:port or https://host:port, with the path of its interface if it has one."
    if "://" not in url:
        url = _without_user(url)
        return f"It does not say how the registry is spoken to: http://{url} or https://{url}?"
    if parts.query or parts.fragment:
        return f"It has something behind a ? or a #. {write}"
    return write


def _without_user(address: str) -> str:
    """The URL without user and password, for error messages."""
    user, at, host = address.rpartition("@")
    return host if at and user else address


def _one_of(word: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _wrong(f'{word} cannot be "{value}"', f"It can be {', '.join(choices)}.")


def _wrong(primary: str, hint: str) -> TidemillError:
    return InvalidValue(primary, hint=hint, sqlstate="22023")
