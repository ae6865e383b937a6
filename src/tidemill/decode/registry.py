"""Schema registry client: gets schemas by id and by subject with their references, and registers new ones.

The API is Confluent's, which other registries also support. Called at CREATE by `resolve` and by sinks, and
in the tasks by decoders at the first use of an id. The meaning of an id never changes, so each process
requests it once. Every failure stalls a source and may be temporary: RegistryError is transient.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tidemill.cdcv2.wording import sentence
from tidemill.decode.avro.references import inlined
from tidemill.decode.avro.schema import SchemaError
from tidemill.decode.registry_tls import context
from tidemill.errors import InvalidValue, TidemillError

# The time for one request, from connecting to the last byte of the response.
REQUEST_SECONDS = 10.0
# The size of a response. Schemas have some kilobytes, generated ones a megabyte.
MAX_ANSWER_BYTES = 16 << 20
# The total number of schemas that one schema refers to.
MAX_REFERENCES = 500
# Schema ids remembered per registry. A topic has a few; beyond this the oldest are requested again.
MAX_REMEMBERED = 10_000

AVRO, PROTOBUF = "AVRO", "PROTOBUF"
# Codes in the body of a 404.
_NO_SCHEMA = 40403


class RegistryError(TidemillError):
    """The registry is unreachable, refuses access, or does not know the requested item. `status` is that of
    the HTTP answer, None without one."""

    sqlstate = "58000"
    transient = True

    def __init__(
        self, primary: str, *, status: int | None = None, detail: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(primary, detail=detail, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema as stored in the registry. `references` are the schemas that it refers to, directly or
    indirectly, by the names that it uses for them (types for Avro, files for Protobuf). `schema_id` is None
    if the registry did not return it."""

    schema_id: int | None
    kind: str
    text: str
    references: Mapping[str, str]

    def avro_text(self) -> str:
        """The Avro schema with its references inlined."""
        if self.kind != AVRO:
            raise SchemaError(f"the schema is of type {self.kind}, not {AVRO}")
        return inlined(self.text, self.references) if self.references else self.text


class Registry:
    """One registry. `options`: url, and username, password, ssl_ca, ssl_certificate, ssl_key (PEM) where they
    are needed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._url = _checked_url(str(options["url"]))
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if options.get("username"):
            pair = f"{options['username']}:{options.get('password') or ''}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        self._tls: ssl.SSLContext | None = None
        if self._url.scheme == "https":
            self._tls = context(*(options.get(name) for name in ("ssl_ca", "ssl_certificate", "ssl_key")))
        self._known: dict[int, Registered] = {}

    @staticmethod
    def of(options: Mapping[str, Any]) -> Registry:
        """The registry of these options that this process has already talked to, or a new one."""
        key = json.dumps(dict(options), sort_keys=True)
        found = _registries.get(key)
        return _registries.setdefault(key, Registry(options)) if found is None else found

    def by_id(self, schema_id: int) -> Registered:
        """Raises RegistryError, also for a number that it does not know."""
        if schema_id not in self._known:
            found = self._registered(f"/schemas/ids/{schema_id}", schema_id)
            if len(self._known) >= MAX_REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[schema_id] = found
        return self._known[schema_id]

    def by_subject(self, subject: str, version: int | None = None) -> Registered:
        """The latest of a subject, or one of its versions; never remembered. Raises RegistryError, with
        status 404 where there is none."""
        return self._registered(_version_path(subject, version), None)

    def schema_text(self, schema_id: int) -> str:
        """The Avro schema of a number, references inlined; raises RegistryError, or SchemaError if it is
        none."""
        return self.by_id(schema_id).avro_text()

    def register(self, subject: str, schema: str) -> int:
        """The number of an Avro schema, which becomes the subject's latest where it is new. Raises
        RegistryError, with status 409 where it does not fit those before it."""
        quoted = urllib.parse.quote(subject, safe="")
        body = self._ask(f"/subjects/{quoted}/versions", {"schema": schema})
        found = body.get("id")
        if not isinstance(found, int):
            raise self._odd("It has no number of a schema in it.")
        return found

    def _registered(self, path: str, schema_id: int | None) -> Registered:
        body = self._ask(path)
        references: dict[str, str] = {}
        self._collect(body, references)
        found: Any = body.get("id", schema_id)
        kind = str(body.get("schemaType") or AVRO)
        return Registered(found if isinstance(found, int) else None, kind, self._text(body), references)

    def _collect(self, body: Mapping[str, Any], references: dict[str, str]) -> None:
        for reference in cast("list[dict[str, Any]]", body.get("references") or []):
            name = str(reference["name"])
            if name in references:
                continue
            if len(references) >= MAX_REFERENCES:
                raise self._odd(f"A schema refers to more than {MAX_REFERENCES} others.")
            inner = self._ask(_version_path(str(reference["subject"]), int(reference["version"])))
            references[name] = self._text(inner)
            self._collect(inner, references)

    def _text(self, body: Mapping[str, Any]) -> str:
        text = body.get("schema")
        if not isinstance(text, str):
            raise self._odd("It has no schema in it.")
        return text

    def _odd(self, detail: str) -> RegistryError:
        return RegistryError(
            f"schema registry at {self._place} gave an answer that makes no sense",
            detail=detail,
            hint="Check that the URL of the connection is that of the Confluent API.",
        )

    @property
    def _place(self) -> str:
        return f'"{self._url.geturl()}"'

    def _ask(self, path: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """With something `given` it is posted."""
        try:
            status, raw = self._request(path, None if given is None else json.dumps(given).encode())
        except ssl.SSLCertVerificationError as error:
            raise RegistryError(
                f"schema registry at {self._place} cannot be trusted",
                detail=f"{error.verify_message or error.reason or error}.",
                hint="Give the certificate of its authority as SSL CERTIFICATE AUTHORITY.",
            ) from None
        except ssl.SSLError as error:
            raise RegistryError(
                f"no TLS connection to the schema registry at {self._place}",
                detail=f"{error.reason or error}.",
                hint="See whether it speaks TLS there, and whether it asks for a client's certificate: SSL "
                "CERTIFICATE and SSL KEY of the connection.",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise RegistryError(
                f"schema registry at {self._place} cannot be reached",
                detail=sentence(error),
                hint="Reading goes on by itself when it answers. If it never has: check the URL.",
            ) from None
        if status != 200:
            raise self._refusal(path, status, raw)
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise self._odd("It is no JSON object.")
        return cast("dict[str, Any]", body)

    def _request(self, path: str, posted: bytes | None) -> tuple[int, bytes]:
        """Status and body. Redirects are not followed: they would carry the password elsewhere."""
        host, port = self._url.hostname or "", self._url.port
        if self._tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=REQUEST_SECONDS)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=REQUEST_SECONDS, context=self._tls)
        connection.connect()
        # Socket time-outs restart with each byte: a server that sends slowly needs a deadline.
        alarm = threading.Timer(REQUEST_SECONDS, _hang_up, [connection.sock])
        alarm.daemon = True
        alarm.start()
        try:
            where = self._url.path.rstrip("/") + path
            if posted is None:
                connection.request("GET", where, headers=self._headers)
            else:
                kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
                connection.request("POST", where, posted, headers=self._headers | kind)
            response = connection.getresponse()
            raw = response.read(MAX_ANSWER_BYTES + 1)
            if len(raw) > MAX_ANSWER_BYTES:
                raise http.client.HTTPException(f"an answer is longer than {MAX_ANSWER_BYTES} bytes")
            return response.status, raw
        finally:
            alarm.cancel()
            connection.close()

    def _refusal(self, path: str, status: int, raw: bytes) -> RegistryError:
        said, code = _message(raw)
        if status in (401, 403):
            return RegistryError(
                f"schema registry at {self._place} refuses the connection's user",
                status=status,
                detail=said,
                hint="Check USERNAME and PASSWORD of the connection.",
            )
        if status == 404 and path.startswith("/schemas/ids/") and code in (_NO_SCHEMA, None):
            return RegistryError(
                f"schema registry at {self._place} has no schema with number {path.rpartition('/')[2]}",
                status=status,
                detail=said,
                hint="Messages that carry it were written with another registry, or its schemas were lost. "
                "Reading goes on by itself when it is there.",
            )
        if status == 409:
            return RegistryError(
                f"schema registry at {self._place} does not take the schema",
                status=status,
                detail=said,
                hint="It does not fit the schemas that the subject has: choose another topic, or another "
                "compatibility of the subject.",
            )
        hint = None
        if status == 404 and said is None:
            hint = (
                "Check the URL: a registry's interface may be below a path, as /apis/ccompat/v7 of Apicurio."
            )
        return RegistryError(
            f"schema registry at {self._place} answers {status} to {path}",
            status=status,
            detail=said,
            hint=hint,
        )


_registries: dict[str, Registry] = {}


def _version_path(subject: str, version: int | None) -> str:
    quoted = urllib.parse.quote(subject, safe="")
    return f"/subjects/{quoted}/versions/{'latest' if version is None else version}"


def _checked_url(url: str) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        sound, parts = False, urllib.parse.urlsplit("")
    if not sound or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidValue(
            "invalid URL of a schema registry",
            hint="It is http://host:port or https://host:port, with a path if the registry has one; "
            "USERNAME and PASSWORD are options of their own.",
            sqlstate="22023",
        )
    return parts


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already


def _message(raw: bytes) -> tuple[str | None, int | None]:
    """The registry's message, and its code."""
    try:
        body = json.loads(raw)
    except ValueError:
        return None, None
    if not isinstance(body, dict):
        return None, None
    fields = cast("dict[str, Any]", body)
    said, code = fields.get("message"), fields.get("error_code")
    return str(said)[:500] if said else None, code if isinstance(code, int) else None
