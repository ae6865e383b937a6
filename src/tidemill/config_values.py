"""The value types of settings: parsers from text of a flag, a variable or the file, and the way back.

Called by `config` only. A parser raises ValueError with the form that it expected; `config` adds the name of
the setting.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

# Masters with tasks on this machine: in Spark's own process (threads), and in separate processes (workers,
# cores of each, megabytes of each).
LOCAL_MASTER = re.compile(r"local(?:\[ *(\*|[1-9][0-9]*) *(?:, *[0-9]+ *)?\])?")
LOCAL_CLUSTER = re.compile(r"local-cluster\[ *([1-9][0-9]*) *, *([1-9][0-9]*) *, *([1-9][0-9]*) *\]")
# Keys of Spark settings whose values are not shown.
HUSH = re.compile(r"secret|password|token|access\.?key|credential", re.IGNORECASE)


class Address(NamedTuple):
    """An address to listen on. With port 0 the system chooses the port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect. Names other than localhost are not loopback: what they
        resolve to may change."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def text(value: str) -> str:
    return value


def boolean(value: str) -> bool:
    lowered = value.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError("expected true or false")


def show_boolean(value: bool) -> str:
    return "true" if value else "false"


def address(value: str) -> Address:
    host, colon, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError("expected host:port, for example 127.0.0.1:6875 or [::1]:6875")
    return Address(host, int(port))


def http_url(value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+\S*", value):
        raise ValueError("expected a URL, for example http://localhost:4318")
    return value


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration(value: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([a-z]+)", value.strip())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError("expected a number and a unit (ms, s, m, h, d), for example 500ms or 1h")
    return round(float(match[1]) * _UNITS_MS[match[2]])


def show_duration(ms: int) -> str:
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def memory(value: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]*[kmgKMG]", value):
        raise ValueError("expected a size with a unit (k, m, g), for example 2g")
    return value.lower()


def size_or_none(value: str) -> str:
    try:
        return "0" if value == "0" else memory(value)
    except ValueError as e:
        raise ValueError(f"{e}; or 0") from None


def size_bytes(value: str) -> int:
    """The size in bytes of a value of `memory` or `size_or_none`."""
    shift = {"k": 10, "m": 20, "g": 30}.get(value[-1])
    return 0 if shift is None else int(value[:-1]) << shift


def choice(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return value.lower()

    return parse


def names(value: str) -> tuple[str, ...]:
    return tuple(name.strip().lower() for name in value.split(",") if name.strip())


def master(value: str) -> str:
    if LOCAL_MASTER.fullmatch(value) or LOCAL_CLUSTER.fullmatch(value):
        return value
    if re.fullmatch(r"(spark|k8s)://.+|yarn", value):
        return value
    raise ValueError(
        "expected local[n], local-cluster[workers,cores,MB], spark://host:port, k8s://... or yarn"
    )


def spark_conf(value: str) -> tuple[tuple[str, str], ...]:
    """KEY=VALUE, several separated by commas. A value may contain commas: it ends only at a comma that is
    followed by the next key. If a key is repeated, the last value wins."""
    found: dict[str, str] = {}
    for item in re.split(r",(?=\s*spark\.[^\s=,]+=)", value) if value.strip() else ():
        key, equals, text = item.strip().partition("=")
        if not equals or not re.fullmatch(r"spark\.[^\s=,]+", key):
            raise ValueError(
                "expected KEY=VALUE with a key that begins with spark., for example spark.executor.memory=4g"
            )
        found[key] = text.strip()
    return tuple(found.items())


def show_spark_conf(value: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f"{key}={'(set)' if HUSH.search(key) else text}" for key, text in value)


def flattened(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """A TOML table as KEY=VALUE items, for quoted keys and for dotted ones (nested tables)."""
    out: list[str] = []
    for key, value in table.items():
        if isinstance(value, dict):
            out += flattened(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            out.append(f"{prefix}{key}={show_boolean(value) if isinstance(value, bool) else value}")
    return out


def data_dir(value: str) -> str:
    if "://" in value:
        parts = urlsplit(value)
        if parts.scheme != "s3" or not parts.netloc:
            raise ValueError("expected a folder or s3://bucket/prefix")
        return value.rstrip("/")
    if not value:
        raise ValueError("expected a folder or s3://bucket/prefix")
    return str(Path(value).expanduser().absolute())


def folder(value: str) -> str:
    return str(Path(value).expanduser().absolute()) if value else ""
