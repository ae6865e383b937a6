"""The start of `tidemill sql`: from the flags to the exit status, for given statements or a prompt."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field
from importlib.metadata import version

from tidemill.cli.shell.commands.connection import described
from tidemill.cli.shell.commands.describe import is_tidemill
from tidemill.cli.shell.commands.files import run_file
from tidemill.cli.shell.connecting import ServerAddress
from tidemill.cli.shell.display_settings import DisplaySettings, set_option
from tidemill.cli.shell.output import file_trouble, opened
from tidemill.cli.shell.printing import Outcome
from tidemill.cli.shell.shell import ExitStatus, Next, Shell
from tidemill.cli.shell.sources import of_file, of_stdin
from tidemill.cli.shell.variables import ShellVariables
from tidemill.client.errors import ConnectionLost
from tidemill.errors import InvalidValue, TidemillError


@dataclass(frozen=True, slots=True)
class ShellOptions:
    """The options of the command line."""

    place: ServerAddress
    # Texts of -c and files of -f, in order: ("c", text), ("f", name).
    actions: tuple[tuple[str, str], ...] = ()
    look: DisplaySettings = field(default_factory=DisplaySettings)
    variables: tuple[str, ...] = ()
    output: str | None = None
    quiet: bool = False
    single_transaction: bool = False
    # -W and -w.
    ask: bool = False
    never_ask: bool = False
    # -X: skip the startup file of interactive shells.
    plain_start: bool = False


def run(options: ShellOptions) -> int:
    """Run the shell; return the exit status."""
    variables = ShellVariables()
    for text in options.variables:
        name, _, value = text.partition("=")
        variables.set(name, value)
    if options.single_transaction and not options.actions:
        raise InvalidValue("--single-transaction is for -c and -f")
    shell = Shell(options.place, options.look, variables, quiet=options.quiet, may_ask=not options.never_ask)
    try:
        if options.output is not None:
            shell.printer.target = opened(options.output)
        shell.connect(ask=options.ask)
        return _run(shell, options)
    except ConnectionLost as e:
        shell.printer.complain(str(e))
        return ExitStatus.NO_CONNECTION
    except BrokenPipeError:
        # The reader closed the pipe. Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.OK
    except OSError as e:
        print(f"tidemill: {file_trouble(e)}", file=sys.stderr)
        return ExitStatus.FAILED
    finally:
        with contextlib.suppress(BrokenPipeError):
            shell.close()


def _run(shell: Shell, options: ShellOptions) -> int:
    if options.actions:
        return _actions(shell, options)
    if sys.stdin.isatty() and sys.stdout.isatty():
        return _interactive(shell, options)
    return shell.run(of_stdin())


def _actions(shell: Shell, options: ShellOptions) -> int:
    status = ExitStatus.OK
    if options.single_transaction and not _silently(shell, "BEGIN").ok:
        return ExitStatus.FAILED
    for kind, text in options.actions:
        if kind == "c":
            outcome = shell.run_text(text, of_stdin())
            status = ExitStatus.FAILED if outcome is Next.FAILED else ExitStatus.OK
        else:
            outcome = Next.GO_ON
            with of_file(text) as source:
                status = shell.run(source)
        stop = status != ExitStatus.OK and shell.variables.is_on("ON_ERROR_STOP")
        if stop or shell.interrupted or outcome is Next.QUIT:
            break
    if options.single_transaction:
        ended = _silently(shell, "COMMIT" if status == ExitStatus.OK else "ROLLBACK")
        if ended.tags == ["ROLLBACK"]:
            shell.printer.say("tidemill: something failed, and the transaction was rolled back")
        if not ended.ok and status == ExitStatus.OK:
            status = ExitStatus.FAILED
    return status


def _silently(shell: Shell, sql: str) -> Outcome:
    """Run without printing, as psql does for --single-transaction: the output may be data, without a BEGIN in
    it."""
    printer = shell.printer
    before, printer.quiet = printer.quiet, True
    try:
        return shell.execute(sql)
    finally:
        printer.quiet = before


def _interactive(shell: Shell, options: ShellOptions) -> int:
    # Imported here: the libraries of the line editor are too slow to load for a script.
    from tidemill.cli.shell.history import SafeHistory, history_path
    from tidemill.cli.shell.names import CatalogNames
    from tidemill.cli.shell.prompt import Terminal

    if (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" and options.look.linestyle == "ascii":
        set_option(shell.look, "linestyle", "unicode")
    names = CatalogNames(lambda: shell.place.conninfo("tidemill sql: names"))
    shell.on_change = names.refresh
    history = SafeHistory(history_path())
    if not shell.quiet:
        kind = "Tidemill" if is_tidemill(shell) else "PostgreSQL"
        print(f"tidemill sql {version('tidemill')}, connected to {described(shell)} ({kind}).")
        print("Type \\? for help, \\q to leave.\n")
    if history.problem is not None:
        shell.printer.say(history.problem)
    _begin(shell, options)
    names.refresh()
    return shell.run(Terminal(shell, names, history))


def _begin(shell: Shell, options: ShellOptions) -> None:
    """Run the user's startup file, if it exists."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(folder, "tidemill", "sqlrc")
    if not options.plain_start and os.path.exists(path):
        before, shell.quiet, shell.printer.quiet = shell.quiet, True, True
        try:
            run_file(shell, path)
        except TidemillError as e:
            shell.printer.say(f"{path}: {e}")
        except OSError as e:
            shell.printer.say(file_trouble(e))
        finally:
            shell.quiet = shell.printer.quiet = before
