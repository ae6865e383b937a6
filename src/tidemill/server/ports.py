"""A check that an address is available, before the server creates anything.

Called by `serve` for both ports. It binds the port and releases it again. Another process can take the
port in between; then listening fails with the same error.
"""

from __future__ import annotations

import socket

from tidemill.config import Address
from tidemill.errors import Unavailable


def check_address(address: Address, protocol: str, flag: str) -> None:
    """Raises the error of `cannot_listen` if `address` is not available."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, number, _, where in found:
            with socket.socket(family, kind, number) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    # As in asyncio: the address of each family has a separate socket.
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(where)
    except OSError as e:
        raise cannot_listen(address, protocol, flag, e) from e


def cannot_listen(address: Address, protocol: str, flag: str, error: OSError) -> Unavailable:
    """The error of a port that cannot be opened. Names the address and the flag that changes it."""
    return Unavailable(
        f"cannot listen for {protocol} on {address}: {error.strerror or error}",
        hint=f"Stop the program that uses the port, or choose another with {flag}.",
    )
