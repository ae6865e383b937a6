"""What a kind of connection has, and the errors that kinds share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.errors import InvalidValue, TidemillError

# The options of TLS in every kind that has them, and what the catalog calls them.
TLS = {
    "SSL CERTIFICATE AUTHORITY": "ssl_ca",
    "SSL CERTIFICATE": "ssl_certificate",
    "SSL KEY": "ssl_key",
}


@dataclass(frozen=True, slots=True)
class ConnectionKind:
    # The options in the order in which SHOW CREATE has them, and what the catalog calls them.
    fields: Mapping[str, str]
    # Options that must be a secret: the catalog is not the place for their text.
    secret_only: Collection[str]
    # Raises if options are missing, invalid or contradictory. Gets them in catalog form, completed.
    check: Callable[[Mapping[str, Any]], None]
    # Raises UpstreamError if the server cannot be reached or refuses the credentials, within a deadline. Gets
    # checked options with the texts of secrets; blocks.
    reach: Callable[[Mapping[str, Any]], None]


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise wrong_option(f'{option} cannot be "{value}"', f"It can be {', '.join(choices)}.")


def without_user(address: str) -> str:
    """The address without user and password, for error messages."""
    user, at, host = address.rpartition("@")
    return host if at and user else address


def wrong_option(primary: str, hint: str) -> TidemillError:
    return InvalidValue(primary, hint=hint, sqlstate="22023")
