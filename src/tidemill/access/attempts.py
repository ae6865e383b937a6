"""Login throttling: slows down password guessing, per client address and role.

Called by `server.auth` before and after each login that needs a password. All listeners share one `Attempts`.
Promises: a client with the right password waits at most `MAX_WAIT_SECONDS`, unless others guess from the same
address. After the free failures there is one try per wait, on any number of connections. Memory is bounded.
Other addresses are not affected: a role that is attacked from one address can log in from the others.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.errors import TidemillError

# Failed logins that cost nothing: people mistype, and a program with an old password tries a few times.
FREE_FAILURES = 5
# Counted for all roles of an address together, so that a client cannot try one password for every name.
FREE_FAILURES_OF_ADDRESS = 50
# What the first failure beyond costs; it doubles with each further one.
FIRST_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 60.0
# A failure is forgotten when nothing more has failed for that long.
FORGET_SECONDS = 900.0
# Pairs that are remembered, some 200 bytes each; of more the one that failed longest ago is forgotten.
MAX_REMEMBERED = 20_000


class TooManyFailures(TidemillError):
    """The login is refused without checking the password."""

    sqlstate = "28000"
    transient = True


@dataclass(slots=True)
class _Record:
    failures: int
    last: float


class Attempts:
    """Failed logins. For one thread (the event loop's). `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By address and role, and by address alone (role None); the one that failed last is last.
        self._records: OrderedDict[tuple[str, str | None], _Record] = OrderedDict()

    def check(self, address: str, role: str) -> None:
        """Raises TooManyFailures while the two must wait."""
        address = _origin(address)
        wait = max(
            self._wait((address, role), FREE_FAILURES), self._wait((address, None), FREE_FAILURES_OF_ADDRESS)
        )
        if wait > 0:
            raise TooManyFailures(
                f'too many failed logins as "{role}" from this address',
                detail=f"{FREE_FAILURES} may fail in a row before one has to wait.",
                hint=f"Try again in {math.ceil(wait)} s.",
            )
        record = self._records.get((address, role))
        if record is not None and self._clock() - record.last > FORGET_SECONDS:
            del self._records[(address, role)]
        elif record is not None and record.failures >= FREE_FAILURES:
            # One try: who knocks on a thousand connections at once, when the wait is over, has no thousand.
            record.last = self._clock()

    def failed(self, address: str, role: str) -> None:
        now, address = self._clock(), _origin(address)
        for key in ((address, role), (address, None)):
            record = self._records.pop(key, None)
            if record is None or now - record.last > FORGET_SECONDS:
                record = _Record(0, now)
            record.failures += 1
            record.last = now
            self._records[key] = record
        while len(self._records) > MAX_REMEMBERED:
            self._records.popitem(last=False)

    def succeeded(self, address: str, role: str) -> None:
        self._records.pop((_origin(address), role), None)

    def _wait(self, key: tuple[str, str | None], free: int) -> float:
        """Seconds from now."""
        record = self._records.get(key)
        if record is None or record.failures < free:
            return 0.0
        # Beyond 2^6 the maximum is reached; the exponent must not grow with the failures.
        wait = min(FIRST_WAIT_SECONDS * 2.0 ** min(record.failures - free, 10), MAX_WAIT_SECONDS)
        return record.last + wait - self._clock()


def _origin(address: str) -> str:
    """For IPv6 the first half, because a client can choose the rest."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found) >> 64 << 64, 64)))
