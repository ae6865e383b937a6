"""Commands on the connection: the server, the database and the user."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict

from tidemill.cli.shell.commands.registry import CommandCall, command
from tidemill.cli.shell.connecting import asked
from tidemill.cli.shell.shell import Shell
from tidemill.cli.shell.variables import literal
from tidemill.errors import InvalidValue, TidemillError, Unsupported


@command("c", "connect")
def connect(call: CommandCall) -> None:
    shell = call.shell
    words = call.words
    if words:
        words[-1] = words[-1].rstrip(";")
    try:
        shell.connect(shell.place.moved([word for word in words if word]))
    except TidemillError as e:
        if shell.session is not None and shell.session.alive:
            e.hint = "The connection that was is kept."
        raise
    if not shell.quiet:
        shell.printer.target.write(f"You are now connected to {described(shell)}.\n")


@command("conninfo")
def conninfo(call: CommandCall) -> None:
    shell = call.shell
    session = shell.ready()
    shell.printer.target.write(f"You are connected to {described(shell)}.\n")
    if session.conn.ssl_in_use:
        shell.printer.target.write("The connection is encrypted.\n")


@command("encoding")
def encoding(call: CommandCall) -> None:
    """Only one encoding exists. Scripts written for psql ask for it."""
    words = call.words
    if not words:
        call.shell.printer.target.write("UTF8\n")
    elif words[0].rstrip(";").lower().replace("-", "") not in ("utf8", "unicode"):
        raise Unsupported(f"{words[0]}: not supported", hint="The shell speaks UTF8.")


def described(shell: Shell) -> str:
    conn = shell.ready().conn
    database, user, host, port = (
        value.decode(errors="replace") for value in (conn.db, conn.user, conn.host, conn.port)
    )
    where = f'via socket in "{host}"' if host.startswith("/") else f'on host "{host}"'
    return f'database "{database}" as user "{user}" {where} at port "{port}"'


@command("password")
def password(call: CommandCall) -> None:
    """Send a verifier to the server: no statement, log or history contains the password."""
    shell = call.shell
    words = call.words
    conn = shell.ready().conn
    user = words[0] if words else conn.user.decode()
    new = asked(f'Enter new password for user "{user}": ')
    if new != asked("Enter it again: "):
        raise InvalidValue("the passwords did not match")
    verifier = conn.encrypt_password(new.encode(), user.encode(), b"scram-sha-256").decode()
    name = '"' + user.replace('"', '""') + '"'
    shell.query(f"ALTER ROLE {name} PASSWORD {literal(verifier)}")


def database_of(shell: Shell) -> str:
    """The database for the prompt, also known without a connection."""
    if shell.session is not None and shell.session.conn.status == 0:
        return shell.session.conn.db.decode(errors="replace")
    return str(conninfo_to_dict(shell.place.conninfo()).get("dbname") or "")
