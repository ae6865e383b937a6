"""The commands and their flags. The module that a command imports does its work."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from tidemill import config
from tidemill.cli.cdcv2 import cdcv2
from tidemill.cli.dev import dev
from tidemill.cli.server_options import Host, Port, User
from tidemill.cli.sql import sql

app = typer.Typer(
    name="tidemill",
    help="Streams of changes in, consistent tables out, one tick at a time; SQL over the PostgreSQL wire.",
    no_args_is_help=True,
    # Plain help: rich alone would double the run time of --help.
    rich_markup_mode=None,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.add_typer(dev, name="dev")
app.add_typer(cdcv2, name="cdcv2")

ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="A TOML file of settings; flags and TIDEMILL_* win over it."
    ),
]


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print what `tidemill version` prints."
        ),
    ] = False,
) -> None:
    pass


def _flags() -> list[inspect.Parameter]:
    """The settings as parameters of a command. Typer reads the signature of a function; `config` has the
    names."""
    out = [_parameter("config_file", ConfigFile)]
    for name, setting in config.SETTINGS.items():
        if setting.secret:
            continue
        flag = config.flag_name(name)
        default = config.DEFAULTS[name]
        if isinstance(default, bool):
            option = typer.Option(f"{flag}/--no-{flag[2:]}", help=setting.help, show_default=False)
            out.append(_parameter(name, Annotated[bool | None, option]))
        else:
            text = setting.help if default in ("", ()) else f"{setting.help} [{setting.show(default)}]"
            option = typer.Option(flag, help=text, metavar=setting.metavar, show_default=False)
            kind = list[str] if setting.repeatable else str
            out.append(_parameter(name, Annotated[kind | None, option]))
    return out


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _with_settings(function: Any) -> Any:
    """Add every setting to a command as a flag."""
    function.__signature__ = inspect.Signature(_flags())
    function.__annotations__ = {}
    return function


@_with_settings
def serve(config_file: str | None = None, **flags: str | bool | list[str] | None) -> None:
    """Run the server until SIGTERM or Ctrl-C.

    Every flag can also be given as TIDEMILL_<NAME> in the environment or as <name> in the TOML file of
    --config.
    """
    from tidemill import logs

    settings = config.load(flags, config_file=config_file)
    logs.setup(settings.log_format, settings.log_level)
    from tidemill.serve import main

    raise typer.Exit(main(settings))


app.command("serve")(serve)


@app.command()
def doctor(
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="The data directory to look at.")
    ] = None,
    sql_addr: Annotated[
        str | None, typer.Option("--sql-addr", metavar="HOST:PORT", help="Where SQL would listen.")
    ] = None,
    http_addr: Annotated[
        str | None, typer.Option("--http-addr", metavar="HOST:PORT", help="Where HTTP would listen.")
    ] = None,
    config_file: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Check Java, memory, disk, ports, versions and the data directory: what is wrong and how to mend it.

    Other settings are taken from TIDEMILL_* and --config, as the server would take them.

    Ends with status 1 if something would keep the server from working, else 0.
    """
    from tidemill.cli import doctor as command

    flags = {"data_dir": data_dir, "sql_addr": sql_addr, "http_addr": http_addr}
    settings = config.load(flags, config_file=config_file)
    raise typer.Exit(command.run(settings, as_json=as_json))


@app.command()
def prepare() -> None:
    """Make Spark start in half the time: write an archive of the classes that its start loads.

    Takes about a minute and 180 MB in the cache folder, once for each installation of Tidemill and Java. The
    servers of this user take it from there. Without it they work alike, and start more slowly.
    """
    from tidemill.cli.prepare import run

    raise typer.Exit(run())


@app.command("inspect")
def inspect_(
    data_dir: Annotated[str, typer.Argument(metavar="DATA_DIR", help="A folder or s3://bucket/prefix.")],
    config_file: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Show the shards of a data directory: since, upper, files, bytes and the health of each log.

    Only reads, and needs no lock: the directory may be in use by a server. Ends with status 1 if a shard is
    damaged.
    """
    from tidemill.cli import inspect as command

    settings = config.load({"data_dir": data_dir}, config_file=config_file)
    raise typer.Exit(command.run(settings, as_json=as_json))


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
SecretsDir = Annotated[
    str | None, typer.Option("--secrets-dir", metavar="DIR", help="The server's folder of secrets, if set.")
]


@app.command()
def backup(
    data_dir: Annotated[str, typer.Argument(metavar="DATA_DIR", help="A folder or s3://bucket/prefix.")],
    backups: Annotated[
        str, typer.Argument(metavar="BACKUPS", help="A folder or s3://bucket/prefix for backups of it.")
    ],
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", min=1, help="Delete all but the last N backups afterwards."),
    ] = None,
    secrets_dir: SecretsDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Back a data directory up, while its server runs or not, as of one moment.

    Files that an earlier backup in BACKUPS has are not copied again. Secrets are in the backup, the audit log
    is not.
    """
    from tidemill.cli.backup import run_backup

    data = config.load({"data_dir": data_dir, "secrets_dir": secrets_dir}, config_file=config_file)
    place = config.load({"data_dir": backups}, config_file=config_file)
    run_backup(data, place, keep=keep, as_json=as_json, quiet=quiet)


@app.command()
def restore(
    backups: Annotated[str, typer.Argument(metavar="BACKUPS", help="Where the backups are.")],
    data_dir: Annotated[
        str | None, typer.Argument(metavar="DATA_DIR", help="A new folder, or s3://bucket/prefix.")
    ] = None,
    name: Annotated[str | None, typer.Option("--backup", metavar="NAME", help="[the newest]")] = None,
    show: Annotated[bool, typer.Option("--list", help="List the backups.")] = False,
    verify: Annotated[bool, typer.Option("--check", help="Only check that all of it is there.")] = False,
    continued: Annotated[
        bool,
        typer.Option(
            "--continue",
            help="The server has not run since the backup: sinks and subscriptions go on.",
        ),
    ] = False,
    secrets_dir: SecretsDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Restore a backup into a new data directory. What is damaged or incomplete is refused."""
    from tidemill.cli import backup as command

    place = config.load({"data_dir": backups}, config_file=config_file)
    if show:
        command.run_list(place, as_json=as_json)
    elif verify:
        command.run_check(place, name, as_json=as_json, quiet=quiet)
    elif data_dir is None:
        raise typer.BadParameter("name the data directory to make", param_hint="DATA_DIR")
    else:
        data = config.load({"data_dir": data_dir, "secrets_dir": secrets_dir}, config_file=config_file)
        command.run_restore(place, data, name, continued=continued, as_json=as_json, quiet=quiet)


@app.command()
def watch(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A query, or the name of a relation.")],
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="COLUMN", help="A column of the key; repeat it, or separate by commas."
        ),
    ] = None,
    order_by: Annotated[
        list[str] | None,
        typer.Option("--order-by", metavar="COLUMN [DESC]", help="The order on the screen [the key]."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", help="Rows to show [what fits]; without a terminal, lines."),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Between two drawings of the screen.")
    ] = 0.25,
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="postgresql://user@host:port/database.")
    ] = "",
    host: Host = None,
    port: Port = None,
    user: User = None,
    dbname: Annotated[
        str | None, typer.Option("--dbname", "-d", metavar="NAME", help="[PGDATABASE, materialize]")
    ] = None,
) -> None:
    """Show a query's rows as they change, until Ctrl-C.

    In a terminal a table, with rows that changed marked for a moment; else a line for each change.
    """
    from tidemill.cli import watch as command

    wish = command.WatchOptions(query, _listed(key), _listed(order_by), limit, interval)
    raise typer.Exit(command.run(wish, url, {"host": host, "port": port, "user": user, "dbname": dbname}))


def _listed(values: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for value in values or () for part in value.split(",") if part.strip())


app.command("sql")(sql)


@app.command()
def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="N",
            min=0,
            envvar="DEMO_SECONDS",
            help="End N seconds after SQL answers, but not before the past was read again [at Ctrl-C].",
        ),
    ] = None,
) -> None:
    """Run a server in a temporary folder, and a live auction house in the terminal, until Ctrl-C.

    At every read it proves that the tables belong together, and that the past has not changed. Ends with
    status 1 if that fails.
    """
    from tidemill.cli.demo.run import run

    raise typer.Exit(run(seconds))


@app.command()
def version() -> None:
    """Print the versions of Tidemill and of what it stands on."""
    from tidemill.cli import versions

    for name, number in versions.all_versions().items():
        print(f"{name} {number}")
