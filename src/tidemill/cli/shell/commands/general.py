"""General commands: quit, help, variables, text, the operating system."""

from __future__ import annotations

import os
import subprocess
import sys

from tidemill.cli.shell import help as helping
from tidemill.cli.shell.commands.registry import CommandCall, command
from tidemill.cli.shell.shell import Next
from tidemill.errors import UndefinedObject


@command("q", "quit")
def quit_(call: CommandCall) -> Next:
    del call
    return Next.QUIT


@command("?")
def commands(call: CommandCall) -> None:
    call.shell.printer.target.write(helping.COMMANDS)


@command("h", "help")
def syntax(call: CommandCall) -> None:
    wanted = call.rest.rstrip("; ").strip()
    call.shell.printer.target.write(helping.syntax(wanted))


@command("set")
def set_variable(call: CommandCall) -> None:
    words = call.words
    if not words:
        for name, value in call.shell.variables:
            call.shell.printer.target.write(f"{name} = '{value}'\n")
        return
    call.shell.variables.set(words[0], "".join(words[1:]))


@command("unset")
def unset_variable(call: CommandCall) -> None:
    call.shell.variables.unset(call.needs(1)[0])


@command("echo", "qecho", "warn")
def echo(call: CommandCall) -> None:
    """`\\echo` prints to the standard output, `\\qecho` to the output of results, `\\warn` to the standard
    error."""
    words = call.words
    end = "\n"
    if words[:1] == ["-n"]:
        words, end = words[1:], ""
    text = " ".join(words) + end
    if call.name == "qecho":
        call.shell.printer.target.write(text)
        return
    stream = sys.stderr if call.name == "warn" else sys.stdout
    stream.write(text)
    stream.flush()


@command("!")
def run_shell(call: CommandCall) -> Next:
    """Run a command of the operating system, or without one an interactive shell."""
    call.shell.printer.target.flush()
    line = [os.environ.get("SHELL", "/bin/sh")] if not call.rest else ["/bin/sh", "-c", call.rest]
    # Ctrl-C is meant for the child; the shell ignores it.
    with call.shell.interrupts.caught():
        status = subprocess.run(line, check=False).returncode
        call.shell.interrupts.take()
    return Next.GO_ON if status == 0 else Next.FAILED


@command("cd")
def change_folder(call: CommandCall) -> None:
    words = call.words
    os.chdir(os.path.expanduser(words[0] if words else "~"))


@command("errverbose")
def last_error(call: CommandCall) -> None:
    error = call.shell.last_error
    if error is None:
        raise UndefinedObject("there is no previous error")
    first, _, rest = error.message.partition("\n")
    severity, _, text = first.partition(":  ")
    call.shell.printer.say(f"{severity}:  {error.sqlstate}: {text}\n{rest}".rstrip("\n"))
    if error.location:
        call.shell.printer.say(f"LOCATION:  {error.location}")
