"""The flags of `tidemill sql`. The work is in `shell`, imported when the command runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidemill.cli.server_options import Host, Port, User
from tidemill.errors import InvalidValue


def sql(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[URL|DATABASE]", help="postgresql://user@host:port/database, or a database."),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Option("--command", "-c", metavar="TEXT", help="Run this and end; may be repeated."),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Run a file (- is the standard input); repeatable."
        ),
    ] = None,
    host: Host = None,
    port: Port = None,
    user: User = None,
    dbname: Annotated[
        str | None,
        typer.Option("--dbname", "-d", metavar="NAME", help="[PGDATABASE, materialize]; or a URL."),
    ] = None,
    password: Annotated[
        bool, typer.Option("--password", "-W", help="Ask for a password before connecting.")
    ] = False,
    no_password: Annotated[bool, typer.Option("--no-password", "-w", help="Never ask for one.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Results as CSV.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Results as JSON, one object a line.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Results as Markdown tables.")] = False,
    no_align: Annotated[bool, typer.Option("--no-align", "-A", help="Results unaligned.")] = False,
    separator: Annotated[
        str | None, typer.Option("--field-separator", "-F", metavar="TEXT", help="Of unaligned results [|].")
    ] = None,
    tuples_only: Annotated[
        bool, typer.Option("--tuples-only", "-t", help="Rows only: no head, no count.")
    ] = False,
    expanded: Annotated[bool, typer.Option("--expanded", "-x", help="A value a line.")] = False,
    pset: Annotated[
        list[str] | None, typer.Option("--pset", "-P", metavar="NAME=VALUE", help="As \\pset; repeatable.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Results go to FILE, or |COMMAND.")
    ] = None,
    variable: Annotated[
        list[str] | None,
        typer.Option("--set", "--variable", "-v", metavar="NAME=VALUE", help="As \\set; repeatable."),
    ] = None,
    on_error_stop: Annotated[
        bool, typer.Option("--on-error-stop", help="End at the first error; with status 3 in a file.")
    ] = False,
    single_transaction: Annotated[
        bool, typer.Option("--single-transaction", "-1", help="All of -c and -f in one transaction.")
    ] = False,
    echo: Annotated[
        bool, typer.Option("--echo", "-e", help="Write each statement before it is sent.")
    ] = False,
    databases: Annotated[bool, typer.Option("--list", "-l", help="List the databases and end.")] = False,
    plain_start: Annotated[
        bool, typer.Option("--no-sqlrc", "-X", help="Do not read the file sqlrc.")
    ] = False,
) -> None:
    """A shell for SQL, in psql's manner: for Tidemill and any PostgreSQL.

    With -c or -f it runs these and ends; else it reads the standard input, with a prompt if it is a terminal.

    Ends with status 0; 1 if something of its own failed, or the last -c did; 2 if the connection did; 3 if a
    file was ended by an error (--on-error-stop).
    """
    from tidemill.cli.shell.connecting import ServerAddress, is_conninfo
    from tidemill.cli.shell.display_settings import DisplaySettings, set_option
    from tidemill.cli.shell.start import ShellOptions, run

    look = DisplaySettings(tuples_only=tuples_only, expanded="on" if expanded else "off")
    chosen = [
        name
        for name, on in (("csv", csv), ("json", json), ("markdown", markdown), ("unaligned", no_align))
        if on
    ]
    if len(chosen) > 1:
        raise InvalidValue("--csv, --json, --markdown and --no-align exclude each other")
    for name in chosen:
        look.format = name
    if separator is not None:
        look.fieldsep = separator
    for text in pset or ():
        name, equals, value = text.partition("=")
        set_option(look, name, value if equals else None)
    variables = [
        *(variable or ()),
        *(("ON_ERROR_STOP=on",) if on_error_stop else ()),
        *(("ECHO=queries",) if echo else ()),
    ]
    if target is not None and dbname is not None:
        raise InvalidValue("the database is given twice", hint="Give it as an argument or with -d.")
    given = target if target is not None else dbname
    url = given if given is not None and is_conninfo(given) else ""
    place = ServerAddress(url, host, port, user, None if url else given)
    actions = in_order(sys.argv, command or [], file or [])
    if databases:
        actions = (("c", "\\l"),)
    options = ShellOptions(
        place,
        actions,
        look,
        tuple(variables),
        output,
        quiet,
        single_transaction,
        password,
        no_password,
        plain_start,
    )
    raise typer.Exit(run(options))


def in_order(argv: list[str], commands: list[str], files: list[str]) -> tuple[tuple[str, str], ...]:
    """-c and -f in the order of the command line. The parsed lists do not have this order, so the next such
    flag in the command line decides."""
    queues = {"c": list(commands), "f": list(files)}
    out: list[tuple[str, str]] = []
    for word in argv:
        kind = _kind(word)
        if kind is not None and queues[kind]:
            out.append((kind, queues[kind].pop(0)))
    # Whatever their spelling (-qc), none is omitted.
    out += [("c", text) for text in queues["c"]] + [("f", name) for name in queues["f"]]
    return tuple(out)


def _kind(word: str) -> str | None:
    for kind, name in (("c", "--command"), ("f", "--file")):
        if (
            word == name
            or word.startswith(name + "=")
            or (word.startswith(f"-{kind}") and not word.startswith("--"))
        ):
            return kind
    return None
