"""Our side of the Kafka benchmark: sources of topics, whose rows are read over the wire to be checked."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from bench.kafka.load import SCHEMA, Wrong, ends
from bench.ours import OurServer, started
from support.server import ServerProcess

JSON = "KEY FORMAT TEXT VALUE FORMAT JSON"
# Rows that are parsed at once when a result is read.
_BLOCK_BYTES = 64 << 20


class Ours(OurServer):
    """One server and one broker."""

    def __init__(self, server: ServerProcess, bootstrap: str, scratch: Path) -> None:
        super().__init__(server, scratch)
        self.bootstrap = bootstrap

    def create(
        self, name: str, topic: str, formats: str = JSON, tick: str = "1s", envelope: str = "UPSERT"
    ) -> None:
        """A source of the topic; the connection is made with the first one."""
        if not self._ids:
            self.execute(f"CREATE CONNECTION broker TO KAFKA (BROKER '{self.bootstrap}')")
        self.execute(
            f"CREATE SOURCE {name} FROM KAFKA CONNECTION broker (TOPIC '{topic}') {formats} "
            f"ENVELOPE {envelope}"
            f" WITH (TIMESTAMP INTERVAL '{tick}')"
        )
        self.created(name)

    def caught_up(self, name: str, topic: str) -> None:
        """Returns when all that is in the topic now can be read."""
        self.until(name, sum(ends(self.bootstrap, topic)))

    def rows(self, name: str, key: str = "key") -> Generator[pl.DataFrame]:
        """The whole relation, in pieces, as `Fold.check` takes it; `key` is an expression for its key."""
        waiting: list[bytes] = []
        size = 0
        statement = f"COPY (SELECT {key}, data::text FROM {name}) TO STDOUT".encode()
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for line in copy:
                waiting.append(bytes(line))
                size += len(line)
                if size > _BLOCK_BYTES and waiting[-1].endswith(b"\n"):
                    yield _parse(b"".join(waiting))
                    waiting, size = [], 0
        if waiting:
            yield _parse(b"".join(waiting))


def _parse(copied: bytes) -> pl.DataFrame:
    """Lines of COPY: a key, a tab, a JSON text. Neither has anything that COPY would escape."""
    if b"\\" in copied:
        raise Wrong("a key or value with a backslash, which was never produced")
    schema = {"key": pl.String, "json": pl.String}
    lines = pl.read_csv(copied, separator="\t", quote_char=None, has_header=False, schema=schema)
    fields = lines["json"].str.json_decode(pl.Struct(SCHEMA))
    return fields.struct.unnest().with_columns(key=lines["key"])


@contextmanager
def ours(bootstrap: str, *args: str) -> Generator[Ours]:
    with started(*args) as (server, scratch):
        one = Ours(server, bootstrap, scratch)
        try:
            yield one
        finally:
            one.close()
