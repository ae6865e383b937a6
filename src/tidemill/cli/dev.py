"""`tidemill dev kafka`: a Kafka broker for trials, optionally with a schema registry or Debezium.

Runs until Ctrl-C or SIGTERM. It prints all addresses, and the statements that connect Tidemill to them. If
one of the programs exits, the command exits too and prints the end of its log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tidemill.dev.stack import Stack

dev = typer.Typer(
    help="Real upstreams on this machine, to try things with.", no_args_is_help=True, rich_markup_mode=None
)

CHECK_SECONDS = 0.5
# If the output is not a terminal: one line in this many seconds.
LOG_SECONDS = 5.0


@dev.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    """Real upstreams on this machine, to try things with."""


@dev.command()
def kafka(
    registry: Annotated[
        bool, typer.Option("--registry", help="Also a schema registry (Apicurio, Confluent's protocol).")
    ] = False,
    debezium: Annotated[
        bool,
        typer.Option(
            "--debezium",
            help="Also a PostgreSQL and Debezium, which carries its tables as Avro topics, with a registry.",
        ),
    ] = False,
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Keep everything there; else it is forgotten at the end."
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where Kafka listens.")] = 9092,
    registry_port: Annotated[
        int, typer.Option("--registry-port", min=1, max=65535, help="The registry.")
    ] = 8081,
    connect_port: Annotated[
        int, typer.Option("--connect-port", min=1, max=65535, help="Kafka Connect.")
    ] = 8083,
    postgres_port: Annotated[
        int, typer.Option("--postgres-port", min=1, max=65535, help="PostgreSQL.")
    ] = 5433,
) -> None:
    """Run a Kafka broker (one node, loopback only) until Ctrl-C.

    Needs Java 17 or later, as Tidemill itself; no Docker and no Maven. The first start downloads 44 MB (with
    --registry 109 MB more, with --debezium another 60 MB) into the user's cache.
    """
    from tidemill.dev.stack import Ports, Stack

    ports = Ports(port, registry_port, connect_port, postgres_port)
    signal.signal(signal.SIGTERM, _interrupt)
    with _folder(data_dir) as folder:
        stack = Stack(folder, ports, with_registry=registry, with_debezium=debezium)
        line = _Line()
        try:
            stack.start(line.tell)
            line.end()
            _introduce(stack, kept=data_dir)
            while True:
                stack.check()
                time.sleep(CHECK_SECONDS)
        except KeyboardInterrupt:
            line.end()
            print("stopping", flush=True)
        finally:
            line.end()
            stack.stop()


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _folder(data_dir: str | None) -> Generator[Path, None, None]:
    if data_dir is not None:
        yield Path(data_dir)
        return
    with tempfile.TemporaryDirectory(prefix="tidemill-kafka-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _introduce(stack: Stack, *, kept: str | None) -> None:
    width = max(map(len, stack.addresses())) + 2
    lines = ["", *(f"{name:{width}}{address}" for name, address in stack.addresses().items())]
    if stack.postgres:
        lines += [
            "",
            "Debezium writes the rows of each table in PostgreSQL's schema public to a topic",
            "dev.public.<table>, and the transactions to dev.transaction. The tables accounts and",
            "transfers are there. For your own, first: ALTER TABLE t REPLICA IDENTITY FULL;",
        ]
    statements = [*stack.statements(), *stack.example()]
    lines += ["", "In Tidemill:", ""]
    lines += [f"  {line}" for statement in statements for line in statement.splitlines()]
    if stack.postgres:
        lines += ["", "and then in PostgreSQL:", "", f"  {stack.change()}"]
    where = f"It is kept in {kept}." if kept is not None else "All of it is forgotten then (see --data-dir)."
    print("\n".join([*lines, "", f"Ctrl-C ends it. {where}"]), flush=True)


class _Line:
    """The current step: one line that is rewritten, or a few lines if the output is not a terminal."""

    def __init__(self) -> None:
        self._changes = sys.stderr.isatty()
        self._shown = ""
        self._last = 0.0

    def tell(self, text: str) -> None:
        if self._changes:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
            self._shown = text
            print(f"\r\x1b[K{text[: columns - 1]}", end="", file=sys.stderr, flush=True)
            return
        # Progress of the same step is printed now and then, another step at once.
        now = time.monotonic()
        topic = text.split(",")[0]
        if topic != self._shown or now - self._last > LOG_SECONDS:
            self._shown, self._last = topic, now
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._changes and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = ""
