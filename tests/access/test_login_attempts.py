"""Guessing is slowed down: for whom, how much, for how long."""

from __future__ import annotations

import pytest

from tidemill.access.attempts import (
    FORGET_SECONDS,
    FREE_FAILURES,
    FREE_FAILURES_OF_ADDRESS,
    MAX_REMEMBERED,
    MAX_WAIT_SECONDS,
    Attempts,
    TooManyFailures,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def attempts(clock: Clock) -> Attempts:
    return Attempts(clock)


def _fail(attempts: Attempts, times: int, address: str = "a", role: str = "r") -> None:
    for _ in range(times):
        attempts.failed(address, role)


def test_the_first_failures_cost_nothing(attempts: Attempts) -> None:
    _fail(attempts, FREE_FAILURES - 1)
    attempts.check("a", "r")
    attempts.failed("a", "r")
    with pytest.raises(TooManyFailures, match=r'too many failed logins as "r"') as caught:
        attempts.check("a", "r")
    assert caught.value.hint == "Try again in 1 s."


def test_the_wait_doubles_and_has_an_end(attempts: Attempts, clock: Clock) -> None:
    _fail(attempts, FREE_FAILURES + 2)
    clock.now += 3.9
    with pytest.raises(TooManyFailures):
        attempts.check("a", "r")
    clock.now += 0.2
    attempts.check("a", "r")
    _fail(attempts, 30)
    clock.now += MAX_WAIT_SECONDS - 0.1
    with pytest.raises(TooManyFailures):
        attempts.check("a", "r")
    clock.now += 0.2
    attempts.check("a", "r")


def test_there_is_one_try_for_each_wait(attempts: Attempts, clock: Clock) -> None:
    """Whoever knocks on many connections at once gets no more guesses than on one."""
    _fail(attempts, FREE_FAILURES)
    clock.now += 1.1
    attempts.check("a", "r")
    for _ in range(100):
        with pytest.raises(TooManyFailures):
            attempts.check("a", "r")
    attempts.succeeded("a", "r")
    for _ in range(100):
        attempts.check("a", "r")


def test_after_a_quiet_while_all_may_try_again(attempts: Attempts, clock: Clock) -> None:
    _fail(attempts, FREE_FAILURES + 3)
    clock.now += FORGET_SECONDS + 1
    for _ in range(100):
        attempts.check("a", "r")


def test_a_login_makes_good(attempts: Attempts) -> None:
    _fail(attempts, FREE_FAILURES)
    attempts.succeeded("a", "r")
    attempts.check("a", "r")


def test_others_are_not_concerned(attempts: Attempts) -> None:
    _fail(attempts, FREE_FAILURES + 1)
    attempts.check("b", "r")
    attempts.check("a", "s")


def test_one_address_cannot_try_every_name(attempts: Attempts) -> None:
    for n in range(FREE_FAILURES_OF_ADDRESS):
        attempts.failed("a", f"r{n}")
    with pytest.raises(TooManyFailures):
        attempts.check("a", "somebody")
    attempts.check("b", "somebody")


def test_failures_are_forgotten(attempts: Attempts, clock: Clock) -> None:
    _fail(attempts, FREE_FAILURES - 1)
    clock.now += FORGET_SECONDS + 1
    attempts.failed("a", "r")
    attempts.check("a", "r")


def test_memory_is_bounded(attempts: Attempts) -> None:
    for n in range(MAX_REMEMBERED):
        attempts.failed(f"a{n}", "r")
    assert len(attempts._records) == MAX_REMEMBERED  # pyright: ignore[reportPrivateUsage]


def test_addresses_of_one_network_are_one(attempts: Attempts) -> None:
    for n in range(FREE_FAILURES):
        attempts.failed(f"2001:db8::{n}", "r")
    with pytest.raises(TooManyFailures):
        attempts.check("2001:db8::ffff:ffff", "r")
    attempts.check("2001:db8:0:1::1", "r")
    for _ in range(FREE_FAILURES):
        attempts.failed("::ffff:192.0.2.1", "r")
    with pytest.raises(TooManyFailures):
        attempts.check("192.0.2.1", "r")
    attempts.check("192.0.2.2", "r")
