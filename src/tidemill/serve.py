"""The server process: opens the data directory, the SQL port and the HTTP port, and runs until a signal.

`main` returns the exit status: 0 after SIGTERM or Ctrl-C, 1 if it cannot start or another server took
over the data directory. Order of start: a check for Java, the data directory (so that a second server
is refused before it listens), the ports, then Spark. A new data directory is created only if both ports
are free. Order of stop: the ports (statements get a moment to end), queued commits, the release of the
data directory, Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from tidemill import tracing
from tidemill.config import Config
from tidemill.errors import TidemillError
from tidemill.query.java import find_java

if TYPE_CHECKING:
    from tidemill.server.tls import Tls

log = logging.getLogger(__name__)

# Of the C library's allocator, for all threads together.
MAX_HEAPS = 2
# Larger blocks (columns of a merge, of a query's result) get their own pages, which return to the system when
# they are freed. This is also the free memory that is kept at the end of a heap. By default the library
# raises both limits to the largest use so far: after a merge of parts the server kept a gigabyte.
OWN_PAGES_BYTES = 4 << 20
FREE_END_BYTES = 16 << 20
# By their numbers in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

# A second signal while stopping ends the process at once, as people expect of Ctrl-C.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(config: Config) -> int:
    began = time.monotonic()
    _few_heaps()
    try:
        find_java()  # before anything is made: without one no query would ever run
        return asyncio.run(_serve(config, began))
    except TidemillError as e:
        for line in str(e).splitlines():
            log.error("%s", line)
        return 1
    except KeyboardInterrupt:
        return 130


async def _serve(config: Config, began: float) -> int:
    from tidemill.catalog.items import SYSTEM_ROLE
    from tidemill.engine.engine import TidemillEngine
    from tidemill.server import tls as certificates
    from tidemill.server.auth import Gate, Method
    from tidemill.server.http.serve import serve_http
    from tidemill.server.loop_lag import LoopLag
    from tidemill.server.pgwire.auth import authentication
    from tidemill.server.pgwire.listener import Listener
    from tidemill.server.ports import cannot_listen, check_address

    tls = None
    if config.tls_cert:
        tls = certificates.load(config.tls_cert, config.tls_key, config.tls_client_ca)
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[TidemillError | None] = loop.create_future()

    def end(reason: TidemillError | None) -> None:
        if not stop.done():
            stop.set_result(reason)

    def on_fatal(error: TidemillError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are ending already
            loop.call_soon_threadsafe(end, error)

    if not (os.path.isdir(config.data_dir) and os.listdir(config.data_dir)):
        # A server that cannot start leaves nothing behind. If data exists, another server may hold it,
        # including the ports: then the error about the directory is more helpful.
        check_address(config.sql_addr, "SQL", "--sql-addr")
        check_address(config.http_addr, "HTTP", "--http-addr")
    traced = contextlib.ExitStack()
    if config.otlp_endpoint:
        traced.callback(tracing.start(config.otlp_endpoint, version("tidemill")))
    engine = await asyncio.to_thread(TidemillEngine.open, config, on_fatal=on_fatal)
    lag = LoopLag()
    listener: Listener | None = None
    http = None
    ready = False
    try:
        for number in _SIGNALS:
            loop.add_signal_handler(number, _signalled, loop, number, end)
        if tls is not None:
            loop.add_signal_handler(signal.SIGHUP, _reload, tls)
        gate = Gate(Method(config.authentication), engine)
        listener = Listener(
            engine,
            authentication=authentication(gate),
            tls=tls,
            max_connections=lambda: engine.max_connections,
            reserved_role=SYSTEM_ROLE,
        )
        try:
            sql_port = await listener.start(config.sql_addr.host, config.sql_addr.port)
        except OSError as e:
            raise cannot_listen(config.sql_addr, "SQL", "--sql-addr", e) from e
        sql = config.sql_addr._replace(port=sql_port)
        http = await serve_http(
            engine, config.http_addr, hosts=config.http_hosts, sql=sql, gate=gate, tls=tls
        )
        lag.start()
        await asyncio.to_thread(engine.environment.announce, {"SQL": str(sql), "HTTP": str(http.address)})
        ready = True
        log.info(
            "ready for SQL on %s and HTTP on %s after %.1f s; data in %s",
            sql,
            http.address,
            time.monotonic() - began,
            config.data_dir,
        )
        reason = await stop
        if reason is not None:
            log.error("stopping: %s", reason)
        else:
            log.info("stopping")
        return 0 if reason is None else 1
    finally:
        lag.stop()
        if http is not None:
            await http.close()
        if listener is not None:
            await listener.stop()
        await asyncio.to_thread(engine.close)
        await asyncio.to_thread(traced.close)
        if ready:
            log.info("stopped; the event loop was at most %.0f ms late", lag.worst * 1000)


def _reload(tls: Tls) -> None:
    """SIGHUP: the certificate was renewed."""
    try:
        tls.reload()
    except TidemillError as e:
        log.error("the certificate stays as it was: %s", e)
    else:
        log.info("the certificate was read again")


def _signalled(loop: asyncio.AbstractEventLoop, number: int, end: object) -> None:
    loop.remove_signal_handler(number)
    end(None)  # type: ignore[operator]


def _few_heaps() -> None:
    """Called before threads exist. It makes memory that one thread has freed available to the others and to
    the system. By default the C library gives each of the first few dozen threads a separate heap, and
    Arrow's allocator gives one to every thread. Both keep memory that was once used: with a thousand readers,
    half a megabyte for each of them. (Merging parts, for which Arrow uses the most memory, costs a twentieth
    more processor time in one thread, and less in several.)"""
    import pyarrow as pa

    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, MAX_HEAPS)
        library.mallopt(_M_MMAP_THRESHOLD, OWN_PAGES_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, FREE_END_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())
