"""Commands that read and write files."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from typing import IO

from tidemill.cli.shell.commands.registry import CommandCall, command
from tidemill.cli.shell.output import opened, standard_output
from tidemill.cli.shell.shell import ExitStatus, Next, Shell, resolved
from tidemill.cli.shell.sources import of_file
from tidemill.errors import SyntaxError_

# The size of the pieces in which a file is sent.
COPY_BYTES = 1 << 16
_COPY = re.compile(
    r"""(?P<what>.*?\S)\s+(?P<way>from|to)\s+
        (?: (?P<standard>p?stdin|p?stdout)
          | (?P<program>program\s+)?'(?P<quoted>(?:[^']|'')*)' | (?P<bare>[^\s';]+) )
        \s*(?P<options>.*)$""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


@command("i", "include", "ir", "include_relative")
def include(call: CommandCall) -> Next | None:
    shell = call.shell
    name = call.needs(1)[0]
    relative = call.name in ("ir", "include_relative")
    folder = getattr(shell.frame.source, "folder", None) if relative and shell.frames else None
    return run_file(shell, resolved(name, folder))


def run_file(shell: Shell, name: str) -> Next | None:
    with of_file(name) as source:
        status = shell.run(source)
    return None if status == ExitStatus.OK else Next.FAILED


@command("o", "out")
def output(call: CommandCall) -> None:
    """Send further results to a file or a command; without a name, to the standard output again."""
    shell = call.shell
    words = [call.rest] if call.rest.startswith("|") else call.words
    target = opened(words[0]) if words else standard_output()
    shell.printer.target.close()
    shell.printer.target = target


@command("w", "write")
def write(call: CommandCall) -> None:
    """Write the query buffer to a file."""
    name = call.needs(1)[0]
    target = opened(name)
    try:
        target.write((call.shell.frame.splitter.buffer or call.shell.last_query) + "\n")
    finally:
        target.close()


@command("copy")
def copy(call: CommandCall) -> Next:
    r"""`\copy what from|to 'file' options`: COPY through this program, with files of this machine."""
    shell = call.shell
    found = _COPY.fullmatch(call.rest.rstrip().rstrip(";"))
    if found is None:
        raise SyntaxError_("\\copy: arguments required", hint="\\copy table from 'file' (FORMAT csv)")
    into = found["way"].lower() == "from"
    sql = f"COPY {found['what']} {'FROM STDIN' if into else 'TO STDOUT'} {found['options']}".rstrip()
    if found["standard"]:
        own = found["standard"].lower()
        data = (lambda: _pieces(sys.stdin.buffer)) if own == "pstdin" else None
        return _done(shell.execute(sql, copy_data=data).ok)
    name = found["bare"] if found["quoted"] is None else found["quoted"].replace("''", "'")
    if into:
        with _reading(name, program=bool(found["program"])) as file:
            return _done(shell.execute(sql, copy_data=lambda: _pieces(file)).ok)
    target = opened(f"|{name}" if found["program"] else name)
    try:
        outcome = shell.execute(sql, target=target)
    finally:
        target.close()
    if outcome.ok and not shell.quiet:
        shell.printer.target.write(f"COPY {outcome.count}\n")
    return _done(outcome.ok)


def _done(ok: bool) -> Next:
    return Next.GO_ON if ok else Next.FAILED


@contextlib.contextmanager
def _reading(name: str, *, program: bool) -> Generator[IO[bytes]]:
    if not program:
        with open(os.path.expanduser(name), "rb") as file:
            yield file
        return
    with subprocess.Popen(["/bin/sh", "-c", name], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(COPY_BYTES):
        yield piece
