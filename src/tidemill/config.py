"""The settings of the server, all in one place, each with its meaning.

Each setting has one name. `--data-dir x`, `TIDEMILL_DATA_DIR=x`, and `data_dir = "x"` in the TOML file of
`--config` mean the same; the first of these that is given wins. `load` reads all three, rejects unknown names
(with the nearest name as a hint), checks that the settings fit together, and returns a `Config`. The command
line, docs/configuration.md and the tests take names, defaults and help texts from here.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, cast

from tidemill import config_values as values
from tidemill.config_values import LOCAL_CLUSTER, LOCAL_MASTER, Address
from tidemill.errors import TidemillError

ENV_PREFIX = "TIDEMILL_"
# Names with the prefix that are not settings: the path of the file, and variables that only tests set.
ENV_RESERVED = frozenset({"TIDEMILL_CONFIG", "TIDEMILL_FAILPOINTS", "TIDEMILL_REWRITE"})
ENV_TEST_PREFIX = "TIDEMILL_TEST_"


class ConfigError(TidemillError):
    """A setting that is unknown, malformed, or in conflict with others."""

    sqlstate = "F0000"


@dataclass(frozen=True, slots=True)
class Setting:
    """The properties of one setting besides its name and default. `metavar` is the form of a value as text. A
    secret has no flag, because other users of the machine can read command lines, and is never printed."""

    help: str
    parse: Callable[[str], Any]
    metavar: str
    group: str
    secret: bool = False
    show: Callable[[Any], str] = str
    # The flag may be repeated; its values are joined.
    repeatable: bool = False


def _about(
    metavar: str, parse: Callable[[str], Any], group: str, text: str, **more: Any
) -> dict[str, Setting]:
    return {"setting": Setting(text, parse, metavar, group, **more)}


def _flag(group: str, text: str) -> dict[str, Setting]:
    return _about("BOOL", values.boolean, group, text, show=values.show_boolean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings. Durations are milliseconds. An empty string means "not set"."""

    data_dir: str = field(
        default="data",
        metadata=_about(
            "DIR",
            values.data_dir,
            "Data",
            "The folder for all durable data (created if missing), or s3://bucket/prefix.",
        ),
    )
    take_over: bool = field(
        default=False,
        metadata=_flag(
            "Data",
            "Take the data directory over from the server that holds it. That server can commit nothing "
            "more, and stops.",
        ),
    )
    shared_data_dir: bool = field(
        default=False,
        metadata=_flag(
            "Data",
            "The data directory is a folder that all machines of Spark see at this path.",
        ),
    )
    scratch_dir: str = field(
        default="",
        metadata=_about(
            "DIR",
            values.folder,
            "Data",
            "A local folder for files that may be lost (Spark's spill, caches). Default: a folder below the "
            "system's temporary one.",
        ),
    )
    secrets_dir: str = field(
        default="",
        metadata=_about(
            "DIR",
            values.folder,
            "Data",
            "A durable local folder for the texts of secrets. Default: the folder secrets in the data "
            "directory. With s3:// there is no default, and CREATE SECRET needs this setting.",
        ),
    )
    audit_dir: str = field(
        default="",
        metadata=_about(
            "DIR",
            values.folder,
            "Data",
            "A local folder for the audit log. Default: the folder audit in the data directory. With "
            "s3:// there is no default, and events are in the server's log only.",
        ),
    )
    audit_max_size: str = field(
        default="64m",
        metadata=_about(
            "SIZE",
            values.size_or_none,
            "Data",
            "The most space that the files of the audit log take, half for changes of the catalog and "
            "half for logins. The oldest are deleted. 0: no files.",
        ),
    )
    files_root: str = field(
        default="",
        metadata=_about(
            "DIR",
            values.folder,
            "Data",
            "The folder below which CREATE SINK ... INTO FILES may write and CREATE SOURCE ... FROM FILES "
            "may read. Without it, both are refused.",
        ),
    )
    retain_history: int = field(
        default=3_600_000,
        metadata=_about(
            "DURATION",
            values.duration,
            "Data",
            "How far back AS OF can read in relations without RETAIN HISTORY FOR.",
            show=values.show_duration,
        ),
    )
    tick: int = field(
        default=1000,
        metadata=_about(
            "DURATION",
            values.duration,
            "Data",
            "The time between two ticks.",
            show=values.show_duration,
        ),
    )

    sql_addr: Address = field(
        default=Address("127.0.0.1", 6875),
        metadata=_about(
            "HOST:PORT", values.address, "Network", "Where the PostgreSQL wire protocol listens."
        ),
    )
    http_addr: Address = field(
        default=Address("127.0.0.1", 6876),
        metadata=_about(
            "HOST:PORT",
            values.address,
            "Network",
            "Where HTTP listens: the SQL API, health, readiness and metrics.",
        ),
    )
    http_hosts: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            "NAMES",
            values.names,
            "Network",
            "The host names, separated by commas, that requests to the HTTP port may use, in addition to "
            "localhost and IP addresses.",
            show=",".join,
        ),
    )
    authentication: str = field(
        default="trust",
        metadata=_about(
            "METHOD",
            values.choice("trust", "password", "certificate"),
            "Network",
            "How clients authenticate: trust (not at all), password (SCRAM-SHA-256; HTTP Basic), or "
            "certificate (issued by --tls-client-ca, with the role as its CN).",
        ),
    )
    system_password: str = field(
        default="",
        metadata=_about(
            "SECRET",
            values.text,
            "Network",
            "The password of the role mz_system, which is not stored. Without it, mz_system cannot log in "
            "with a password. Not a flag, because other users can read command lines.",
            secret=True,
        ),
    )
    tls_cert: str = field(
        default="",
        metadata=_about(
            "FILE",
            values.folder,
            "Network",
            "The server's certificate and its chain, in PEM. With it, the SQL port accepts TLS, and "
            "requires it from other machines; the HTTP port becomes HTTPS.",
        ),
    )
    tls_key: str = field(
        default="",
        metadata=_about(
            "FILE",
            values.folder,
            "Network",
            "The certificate's key in PEM, without a passphrase. Default: the key in the file of the "
            "certificate.",
        ),
    )
    tls_client_ca: str = field(
        default="",
        metadata=_about(
            "FILE",
            values.folder,
            "Network",
            "Certificates of authorities, in PEM. With it, TLS clients must present a certificate that "
            "one of them issued.",
        ),
    )
    allow_insecure: bool = field(
        default=False,
        metadata=_flag(
            "Network",
            "Listen on an address that other machines can reach without authentication or without TLS. "
            "Everyone who reaches the port can do everything, and everyone on the network path can read "
            "everything.",
        ),
    )

    spark_master: str = field(
        default="local[*]",
        metadata=_about(
            "MASTER",
            values.master,
            "Spark",
            "The Spark master. The default runs Spark on this server's machine; for others see "
            "more-than-one-machine.md.",
        ),
    )
    spark_driver_memory: str = field(
        default="2g",
        metadata=_about(
            "SIZE",
            values.memory,
            "Spark",
            "The Java heap of Spark's driver (with a local master: of Spark altogether).",
        ),
    )
    spark_warm_up: bool = field(
        default=True,
        metadata=_flag(
            "Spark",
            "Run some queries and tick jobs when Spark has started, because the first ones are slow. "
            "Without it, /readyz reports ready sooner; meant for servers that run for seconds.",
        ),
    )
    spark_conf: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=_about(
            "KEY=VALUE",
            values.spark_conf,
            "Spark",
            "Settings of Spark itself, such as spark.executor.memory=4g: several flags, or separated by "
            "commas; in the file also a table. They override Tidemill's own, except those that answers "
            "depend on, which are refused.",
            show=values.show_spark_conf,
            repeatable=True,
        ),
    )

    s3_endpoint: str = field(
        default="",
        metadata=_about("URL", values.text, "S3", "The S3 endpoint. Default: that of AWS for the region."),
    )
    s3_region: str = field(
        default="us-east-1", metadata=_about("REGION", values.text, "S3", "The bucket's region.")
    )
    s3_access_key_id: str = field(
        default="",
        metadata=_about(
            "KEY",
            values.text,
            "S3",
            "The access key's id. Default: from AWS's environment variables and files.",
        ),
    )
    s3_secret_access_key: str = field(
        default="",
        metadata=_about(
            "SECRET",
            values.text,
            "S3",
            "The secret of the access key. Not a flag, because other users can read command lines.",
            secret=True,
        ),
    )
    s3_allow_http: bool = field(
        default=False,
        metadata=_flag("S3", "Allow plain http for the S3 endpoint (for a store on this machine)."),
    )

    log_format: str = field(
        default="auto",
        metadata=_about(
            "FORMAT",
            values.choice("auto", "text", "json"),
            "Logs",
            "auto (coloured on a terminal, plain text elsewhere), text, or json (one object a line). Logs go "
            "to standard error.",
        ),
    )
    log_level: str = field(
        default="info",
        metadata=_about(
            "LEVEL",
            values.choice("debug", "info", "warning", "error"),
            "Logs",
            "The least severe messages to write.",
        ),
    )

    otlp_endpoint: str = field(
        default="",
        metadata=_about(
            "URL",
            values.http_url,
            "Logs",
            "An OpenTelemetry collector (OTLP over HTTP, such as http://localhost:4318) that is sent a "
            "trace of each tick. Needs the extra otel: pip install 'tidemill[otel]'.",
        ),
    )

    def __post_init__(self) -> None:
        _check(self)

    @property
    def on_s3(self) -> bool:
        return self.data_dir.startswith("s3://")

    @property
    def spark_is_remote(self) -> bool:
        """Whether Spark's tasks may run on other machines. (local-cluster starts its executors on
        this one.)"""
        master = self.spark_master
        return LOCAL_MASTER.fullmatch(master) is None and LOCAL_CLUSTER.fullmatch(master) is None

    def s3_options(self) -> dict[str, str]:
        """The options of the object store client, by obstore's names; empty for a folder."""
        if not self.on_s3:
            return {}
        named = {
            "endpoint": self.s3_endpoint,
            "region": self.s3_region,
            "access_key_id": self.s3_access_key_id,
            "secret_access_key": self.s3_secret_access_key,
            "allow_http": "true" if self.s3_allow_http else "",
        }
        return {name: value for name, value in named.items() if value}

    def describe(self) -> dict[str, str]:
        """Each setting as text, for logs. Secrets are masked."""
        out: dict[str, str] = {}
        for name, setting in SETTINGS.items():
            value = getattr(self, name)
            out[name] = "(set)" if setting.secret and value else setting.show(value)
        return out


SETTINGS: dict[str, Setting] = {f.name: f.metadata["setting"] for f in fields(Config)}
DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Config) if f.default is not MISSING}


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def env_name(name: str) -> str:
    return ENV_PREFIX + name.upper()


def load(
    flags: Mapping[str, str | bool | list[str] | None] | None = None,
    environ: Mapping[str, str] | None = None,
    config_file: str | None = None,
) -> Config:
    """Read flags (by setting name; None = not given), the environment and the file, in this order of
    precedence."""
    environ = os.environ if environ is None else environ
    config_file = config_file or environ.get("TIDEMILL_CONFIG") or None
    found: dict[str, Any] = {"data_dir": values.data_dir(DEFAULTS["data_dir"])}
    if config_file:
        found |= _from_file(config_file)
    found |= _from_environment(environ)
    for name, value in (flags or {}).items():
        if value is not None and value != []:
            found[name] = _parse(name, value, flag_name(name))
    return Config(**found)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {env_name(name): name for name in SETTINGS}
    found: dict[str, Any] = {}
    for variable, value in environ.items():
        if (
            not variable.startswith(ENV_PREFIX)
            or variable in ENV_RESERVED
            or variable.startswith(ENV_TEST_PREFIX)
        ):
            continue
        name = known.get(variable)
        if name is not None:
            found[name] = _parse(name, value, variable)
            continue
        # Unknown variables are not an error in general: Kubernetes sets TIDEMILL_PORT and the like for a
        # service of this name. A near miss of a setting is a typing error that would otherwise be silent.
        if difflib.get_close_matches(variable, known, n=1, cutoff=0.85):
            raise _unknown(variable, list(known), "environment variable")
    return found


def _from_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as e:
        raise ConfigError(f'cannot read the configuration file "{path}"', detail=e.strerror or str(e)) from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f'the configuration file "{path}" is not TOML', detail=str(e)) from e
    found: dict[str, Any] = {}
    for key, value in content.items():
        if key not in SETTINGS:
            raise _unknown(key, list(SETTINGS), f'setting in "{path}"')
        found[key] = _parse(key, value, f'{key} in "{path}"')
    return found


def _unknown(name: str, known: list[str], what: str) -> ConfigError:
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else "docs/configuration.md lists all settings."
    return ConfigError(f"unknown {what}: {name}", hint=hint)


def _parse(name: str, value: object, origin: str) -> Any:
    """One value from text, or from a boolean, number, list of strings or table of TOML with the
    same meaning."""
    setting = SETTINGS[name]
    if isinstance(value, bool):
        text = values.show_boolean(value)
    elif isinstance(value, list):
        text = ",".join(str(v) for v in cast("list[Any]", value))
    elif isinstance(value, dict) and setting.repeatable:
        text = ",".join(values.flattened(cast("dict[str, Any]", value)))
    else:
        text = str(value)
    try:
        return setting.parse(text)
    except ValueError as e:
        shown = "(hidden)" if setting.secret or values.HUSH.search(text) else f'"{text}"'
        raise ConfigError(f"invalid value for {origin}: {shown}", detail=f"{e}.") from e


def _check(config: Config) -> None:
    for name in ("sql_addr", "http_addr"):
        address: Address = getattr(config, name)
        if address.loopback or config.allow_insecure:
            continue
        if config.authentication == "trust":
            raise ConfigError(
                f"{flag_name(name)} {address} is open to other machines, and there is no authentication",
                detail="Whoever reaches the port could read and change everything.",
                hint="Set --authentication and --tls-cert, listen on 127.0.0.1 behind a tunnel or an "
                "authenticating proxy, or insist with --allow-insecure.",
            )
        if not config.tls_cert:
            raise ConfigError(
                f"{flag_name(name)} {address} is open to other machines, and there is no TLS",
                detail="Whoever is on the way could read and change everything.",
                hint="Set --tls-cert and --tls-key, or insist with --allow-insecure.",
            )
    _check_tls(config)
    if config.sql_addr == config.http_addr and config.sql_addr.port:
        raise ConfigError(
            f"--sql-addr and --http-addr are both {config.sql_addr}",
            hint="Give each protocol a port of its own.",
        )
    if config.spark_is_remote and not config.on_s3 and not config.shared_data_dir:
        raise ConfigError(
            f'executors of Spark at "{config.spark_master}" cannot see the local folder "{config.data_dir}"',
            hint="Use an s3:// data directory, or say with --shared-data-dir that every machine sees the "
            "folder at this path.",
        )
    if config.tick < 1:
        raise ConfigError("--tick must be at least 1ms")


def _check_tls(config: Config) -> None:
    for name in ("tls_key", "tls_client_ca"):
        if getattr(config, name) and not config.tls_cert:
            raise ConfigError(f"{flag_name(name)} needs --tls-cert")
    if config.authentication == "certificate" and not config.tls_client_ca:
        raise ConfigError(
            "--authentication certificate needs --tls-client-ca",
            hint="It names the authority that the certificates of clients are from.",
        )
