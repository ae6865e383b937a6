"""docs/client.md follows the code: its examples run, and every option and error is on it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_world import url

import tidemill
from support.server import ServerProcess
from tidemill import client
from tidemill.client import Retry
from tidemill.client.errors import ClientError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_every_option_is_told() -> None:
    for method in (client.Client.subscribe, client.Client.live_table, client.connect):
        for option in inspect.signature(method).parameters:
            assert option == "self" or f"`{option}" in PAGE or f"{option}=" in PAGE, (method, option)
    retry = Retry()
    assert f"Retry(first={retry.first}, longest={retry.longest}, give_up_after={retry.give_up_after})" in PAGE


def test_every_error_is_told() -> None:
    for name in client.__all__:
        kind = getattr(client, name)
        if isinstance(kind, type) and issubclass(kind, ClientError) and kind is not ClientError:
            state = "the server's" if name == "ServerError" else kind.sqlstate
            assert f"| `{name}` | {state} |" in PAGE


def test_every_member_is_told() -> None:
    for kind in (client.LiveTable, client.Subscription, client.Changes, client.Frame, client.Client):
        for name in dir(kind):
            if not name.startswith("_") and name not in ("take", "advance", "fields", "stored"):
                assert re.search(rf"`[^`]*\b{name}\b", PAGE), f"{kind.__name__}.{name}"


def test_both_clients_have_the_same_face() -> None:
    def face(kind: type) -> dict[str, list[str]]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {n: list(inspect.signature(f).parameters) for n, f in members if not n.startswith("_")}

    assert face(client.Client) == face(client.AsyncClient)
    assert face(client.Subscription) == face(client.AsyncSubscription)
    threads = {"start", "wait", "join"}
    assert {n: p for n, p in face(client.LiveTable).items() if n not in threads} == face(
        client.AsyncLiveTable
    )


def test_the_package_itself_is_light() -> None:
    code = (
        "import sys, tidemill; before = set(sys.modules); tidemill.connect; tidemill.connect_async\n"
        "print(sorted({'pyarrow', 'psycopg', 'numpy'} & before), 'psycopg' in sys.modules)\n"
        "print({'pyspark', 'polars', 'deltalake', 'sqlglot', 'starlette', 'rich'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[] True", "set()"]
    with pytest.raises(AttributeError):
        tidemill.nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


@pytest.fixture
def paid(server: ServerProcess) -> Iterator[None]:
    with tidemill.connect(url(server)) as db:
        db.execute("CREATE TABLE paid (account text, amount int)")
        db.execute("INSERT INTO paid VALUES ('anna', 5), ('anna', 6)")
        yield
        db.execute("DROP TABLE paid")


@pytest.mark.parametrize(
    ("number", "told"),
    [(0, r"\d{13} 1 \{'account': 'anna', 'balance': 11\}"), (4, r"\d{13} shape: \(2, 3\)")],
)
def test_the_examples_run(server: ServerProcess, paid: None, number: int, told: str) -> None:
    """Until the first round has printed; they would go on for ever."""
    text = EXAMPLES[number].replace("postgresql://materialize@localhost:6875/materialize", url(server))
    assert text != EXAMPLES[number]
    process = subprocess.Popen([sys.executable, "-u", "-c", text], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert re.match(told, process.stdout.readline())
    finally:
        process.kill()
        process.communicate()
