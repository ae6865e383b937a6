"""Commands on the query buffer: run it, repeat it, use its result, edit it."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import tempfile
import time
from datetime import datetime

from tidemill.cli.shell.commands.registry import CommandCall, command
from tidemill.cli.shell.display_settings import set_option
from tidemill.cli.shell.output import opened
from tidemill.cli.shell.shell import Next, Shell
from tidemill.errors import InvalidValue, UndefinedObject

WATCH_SECONDS = 2.0


def taken(shell: Shell) -> str:
    """Return and clear the buffer; if it is empty, return the last statement."""
    splitter = shell.frame.splitter
    text = splitter.buffer.strip()
    splitter.replace("")
    if not (text or shell.last_query):
        raise UndefinedObject("the query buffer is empty")
    return text or shell.last_query


@command("g", "gx")
def go(call: CommandCall) -> Next:
    r"""`\g [(option=value ...)] [FILE | |COMMAND]`."""
    shell = call.shell
    look = shell.with_look(expanded="on") if call.name == "gx" else shell.with_look()
    rest = call.rest
    if rest.startswith("("):
        options, closed, rest = rest[1:].partition(")")
        if not closed:
            raise InvalidValue(f"\\{call.name}: missing right parenthesis")
        for option in options.split():
            name, _, value = option.partition("=")
            set_option(look, name, value or None)
        rest = rest.strip()
    words = CommandCall(shell, call.name, rest).words if not rest.startswith("|") else [rest]
    sql = taken(shell)
    target = opened(words[0]) if words else None
    try:
        ok = shell.execute(sql, look=look, target=target).ok
    finally:
        if target is not None:
            target.close()
    return Next.GO_ON if ok else Next.FAILED


@command("gset")
def keep(call: CommandCall) -> None:
    """Store the one row of the result in variables."""
    shell = call.shell
    words = call.words
    prefix = words[0] if words else ""
    shell.last_query = sql = taken(shell)
    table = shell.query(sql)
    if len(table.rows) != 1:
        what = "no rows" if not table.rows else "more than one row"
        raise InvalidValue(f"{what} returned for \\gset")
    for column, value in zip(table.columns, table.rows[0], strict=True):
        if value is None:
            shell.variables.unset(prefix + column.name)
        else:
            shell.variables.set(prefix + column.name, value)


@command("gexec")
def run_answers(call: CommandCall) -> Next:
    """Run every value of the result as a statement."""
    shell = call.shell
    shell.last_query = sql = taken(shell)
    ok = True
    for row in shell.query(sql).rows:
        for value in row:
            if value is not None:
                ok = shell.execute(value).ok and ok
            if shell.interrupted or (not ok and shell.variables.is_on("ON_ERROR_STOP")):
                return Next.FAILED
    return Next.GO_ON if ok else Next.FAILED


@command("watch")
def watch(call: CommandCall) -> Next:
    r"""`\watch [SECONDS] [c=TIMES]`: repeat the query until Ctrl-C."""
    shell = call.shell
    seconds, times = _interval(call)
    sql = taken(shell)
    before = shell.look.title
    count = 0
    try:
        with shell.interrupts.caught():
            while True:
                shell.look.title = f"{datetime.now():%a %d %b %Y %H:%M:%S} (every {seconds:g}s)"
                outcome = shell.execute(sql)
                count += 1
                if not outcome.ok:
                    return Next.FAILED
                if outcome.interrupted or count == times or _pressed(shell, seconds):
                    return Next.GO_ON
    finally:
        shell.look.title = before
        shell.interrupts.take()


def _interval(call: CommandCall) -> tuple[float, int | None]:
    seconds, times = WATCH_SECONDS, None
    for word in call.words:
        name, _, value = word.rpartition("=")
        try:
            if name in ("c", "count"):
                times = int(value)
            elif name in ("", "i", "interval"):
                seconds = float(value)
            else:
                raise ValueError
        except ValueError:
            raise InvalidValue(f"\\watch: cannot read {word}", hint="\\watch [SECONDS] [c=TIMES]") from None
    if not 0 <= seconds < 1e8 or (times is not None and times < 1):
        raise InvalidValue("\\watch: the seconds and times must be positive")
    return seconds, times


def _pressed(shell: Shell, seconds: float) -> bool:
    """Wait; return whether Ctrl-C was pressed meanwhile."""
    until = time.monotonic() + seconds
    while not shell.interrupts.wanted:
        left = until - time.monotonic()
        if left <= 0:
            return False
        select.select([shell.interrupts.fd], [], [], left)
    return True


@command("p", "print")
def show(call: CommandCall) -> None:
    shell = call.shell
    text = shell.frame.splitter.buffer.strip() or shell.last_query
    shell.printer.target.write((text or "Query buffer is empty.") + "\n")


@command("r", "reset")
def reset(call: CommandCall) -> None:
    call.shell.frame.splitter.replace("")
    if not call.shell.quiet:
        call.shell.printer.target.write("Query buffer reset (cleared).\n")


@command("e", "edit")
def edit(call: CommandCall) -> None:
    """Edit the buffer or a file. The edited text appears at the next prompt."""
    shell = call.shell
    words = call.words
    splitter = shell.frame.splitter
    text = splitter.buffer.strip() or shell.last_query
    if words:
        edited = _edited(os.path.expanduser(words[0]))
    else:
        with tempfile.TemporaryDirectory(prefix="tidemill-") as folder:
            path = os.path.join(folder, "query.sql")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            edited = _edited(path)
    splitter.replace("")
    if shell.interactive:
        shell.draft = edited.strip()
    else:
        splitter.replace(edited)


def _edited(path: str) -> str:
    names = ("PSQL_EDITOR", "EDITOR", "VISUAL")
    editor = next((os.environ[name] for name in names if os.environ.get(name)), "vi")
    status = subprocess.run([*shlex.split(editor), path], check=False).returncode
    if status:
        raise InvalidValue(f"the editor {editor} ended with status {status}")
    with open(path, encoding="utf-8") as file:
        return file.read()
