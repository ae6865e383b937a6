"""What a driver says of the connection while its course goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from tidemill.client.aio_driver import AsyncDriver
from tidemill.client.course import Dial, News, Pause, Steps
from tidemill.client.driver import Driver
from tidemill.client.errors import ClientError, ConnectionFailed, ConnectionLost

CUT = ConnectionLost("cut")


def course(driver: Driver | AsyncDriver, seen: list[ClientError | None]) -> Steps:
    """Cut, refused, connected; `seen` is the trouble at each of its turns, before any row has come."""
    seen.append(driver.trouble)
    yield Pause(0.001, CUT)
    seen.append(driver.trouble)
    try:
        yield Dial()
    except ConnectionFailed as e:
        seen.append(driver.trouble)
        yield Pause(0.001, e)
    seen.append(driver.trouble)
    yield Dial()
    seen.append(driver.trouble)
    yield News([], 5)


REFUSED = ConnectionFailed("refused")
EXPECTED = [None, CUT, CUT, REFUSED, None]


def test_trouble_is_over_when_the_connection_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, seen = Driver(""), list[ClientError | None]()
    answers: list[Any] = [REFUSED, object()]

    def dial() -> psycopg.Connection[Any]:
        answer = answers.pop(0)
        if answer is REFUSED:
            raise answer
        return answer

    monkeypatch.setattr(driver, "dial", dial)
    assert driver.next(course(driver, seen)) == News([], 5)
    assert seen == EXPECTED
    driver.release()


def test_trouble_is_over_when_the_connection_is_there_async(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[ClientError | None]()
    answers: list[Any] = [REFUSED, object()]

    async def dial() -> psycopg.AsyncConnection[Any]:
        answer = answers.pop(0)
        if answer is REFUSED:
            raise answer
        return answer

    async def drive() -> News | None:
        driver = AsyncDriver("")
        monkeypatch.setattr(driver, "dial", dial)
        return await driver.next(course(driver, seen))

    assert asyncio.run(drive()) == News([], 5)
    assert seen == EXPECTED
