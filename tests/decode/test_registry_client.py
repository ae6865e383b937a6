"""The registry's client: every way in which a registry can fail, from a small server that fails so."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest

from tidemill.decode import registry as module
from tidemill.decode.avro.decoder import AvroDecoder
from tidemill.decode.avro.schema import SchemaError
from tidemill.decode.registry import Registry, RegistryError
from tidemill.decode.resolve import LATEST, SchemaStrategy, avro_registered, protobuf_registered, subject_of
from tidemill.dev.certificates import Certificates, make_certificates
from tidemill.errors import InvalidValue, UndefinedObject, WrongObjectType

Answer = tuple[int, Any] | Callable[[BaseHTTPRequestHandler], None]
RECORD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})


class Server:
    """Answers by path; counts what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Authorization")))
                missing = (404, {"error_code": 40401, "message": "Subject not found."})
                answer = outer.answers.get(self.path, missing)
                if callable(answer):
                    answer(self)
                    return
                status, body = answer
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def failure(call: Callable[[], object]) -> RegistryError:
    with pytest.raises(RegistryError) as failed:
        call()
    assert failed.value.transient
    return failed.value


def test_a_number_is_asked_once(server: Server) -> None:
    server.answers["/schemas/ids/7"] = (200, {"schema": RECORD})
    registry = Registry({"url": server.url})
    assert registry.schema_text(7) == RECORD
    assert registry.schema_text(7) == RECORD
    assert server.asked == [("/schemas/ids/7", None)]
    assert Registry.of({"url": server.url}) is Registry.of({"url": server.url})


def test_password_and_path(server: Server) -> None:
    server.answers["/api/v7/subjects/a%2Fb%20c-value/versions/latest"] = (200, {"schema": RECORD, "id": 3})
    registry = Registry({"url": f"{server.url}/api/v7/", "username": "me", "password": "s:cret"})
    assert registry.by_subject(subject_of("a/b c", "value")).schema_id == 3
    assert server.asked[0][1] == "Basic " + base64.b64encode(b"me:s:cret").decode()


def test_references_are_inlined_once_each(server: Server) -> None:
    kind = {"type": "enum", "name": "Kind", "namespace": "x", "symbols": ["A"]}
    line = {"type": "record", "name": "Line", "namespace": "x", "fields": [{"name": "kind", "type": "Kind"}]}
    fields = [{"name": "one", "type": "x.Line"}, {"name": "two", "type": ["null", "x.Line"]}]
    order = {"type": "record", "name": "Order", "fields": [*fields, {"name": "kind", "type": "x.Kind"}]}
    to_kind = [{"name": "x.Kind", "subject": "kind", "version": 2}]
    to_both = [{"name": "x.Line", "subject": "line", "version": 1}, *to_kind]
    server.answers["/schemas/ids/1"] = (200, {"schema": json.dumps(order), "references": to_both})
    server.answers["/subjects/line/versions/1"] = (200, {"schema": json.dumps(line), "references": to_kind})
    server.answers["/subjects/kind/versions/2"] = (200, {"schema": json.dumps(kind)})
    text = Registry({"url": server.url}).schema_text(1)
    decoder = AvroDecoder(text, framed=False)
    assert [str(c.type) for c in decoder.columns] == ["record(kind text)", "record(kind text)", "text"]
    assert decoder.decode(pa.array([b"\0\0\0"], pa.binary())).columns[2].to_pylist() == ["A"]
    assert sorted(path for path, _ in server.asked) == [
        "/schemas/ids/1",
        "/subjects/kind/versions/2",
        "/subjects/line/versions/1",
    ]


def test_unknown_number_stalls_and_comes_back(server: Server) -> None:
    """What the decoder cannot know yet is no error of a message."""
    server.answers["/schemas/ids/5"] = (404, {"error_code": 40403, "message": "Schema 5 not found"})
    decoder = AvroDecoder(RECORD, framed=True, writers=Registry({"url": server.url}))
    messages = pa.array([b"\0\0\0\0\5\4"], pa.binary())
    error = failure(lambda: decoder.decode(messages))
    assert error.primary == f'schema registry at "{server.url}" has no schema with number 5'
    assert error.status == 404
    assert error.detail == "Schema 5 not found"
    assert error.hint is not None
    server.answers["/schemas/ids/5"] = (200, {"schema": RECORD})
    assert decoder.decode(messages).columns[0].to_pylist() == [2]


def test_what_the_registry_answers(server: Server) -> None:
    registry = Registry({"url": server.url})
    server.answers["/schemas/ids/1"] = (401, {"error_code": 401, "message": "Unauthorized"})
    refused = failure(lambda: registry.by_id(1))
    assert refused.primary.endswith("refuses the connection's user")
    assert refused.hint == "Check USERNAME and PASSWORD of the connection."
    server.answers["/schemas/ids/1"] = (500, b"<html>")
    assert failure(lambda: registry.by_id(1)).primary.endswith("answers 500 to /schemas/ids/1")
    for odd in (b"<html>", [], {"id": 4}, {"schema": 5}):
        server.answers["/schemas/ids/1"] = (200, odd)
        assert failure(lambda: registry.by_id(1)).primary.endswith("gave an answer that makes no sense")

    def elsewhere(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", "http://192.0.2.1/steal")
        request.send_header("Content-Length", "0")
        request.end_headers()

    server.answers["/schemas/ids/1"] = elsewhere
    assert failure(lambda: registry.by_id(1)).status == 302


def test_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    error = failure(lambda: Registry({"url": url}).by_id(1))
    assert error.primary == f'schema registry at "{url}" cannot be reached'
    assert error.detail == "Connection refused."
    assert error.status is None


def test_a_server_that_drips_has_an_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.5)

    def drip(request: BaseHTTPRequestHandler) -> None:
        try:
            for _ in range(3000):
                request.wfile.write(b"H")
                request.wfile.flush()
                time.sleep(0.1)
        except OSError:
            pass

    server.answers["/schemas/ids/1"] = drip
    began = time.monotonic()
    assert failure(lambda: Registry({"url": server.url}).by_id(1)).primary.endswith("cannot be reached")
    assert time.monotonic() - began < 100


def test_an_endless_answer_has_an_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 100_000)
    server.answers["/schemas/ids/1"] = (200, {"schema": "x" * 200_000})
    assert "longer than 100000 bytes" in str(failure(lambda: Registry({"url": server.url}).by_id(1)).detail)


def test_references_have_an_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REFERENCES", 3)
    for i in range(10):
        to_next = [{"name": f"x.T{i + 1}", "subject": f"s{i + 1}", "version": 1}]
        server.answers[f"/subjects/s{i}/versions/1"] = (200, {"schema": RECORD, "references": to_next})
    server.answers["/schemas/ids/1"] = server.answers["/subjects/s0/versions/1"]
    assert "more than 3 others" in str(failure(lambda: Registry({"url": server.url}).by_id(1)).detail)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "host:8081",
        "http://",
        "file:///etc/passwd",
        "http://me:pw@host",
        "http://h:99999",
        "http://h/?a",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidValue):
        Registry({"url": url})


def test_certificate_that_is_none() -> None:
    with pytest.raises(InvalidValue):
        Registry(
            {
                "url": "https://127.0.0.1:1",
                "ssl_ca": "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----",
            }
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "made")


def over_tls(server: Server, certificates: Certificates, *, mutual: bool) -> dict[str, Any]:
    """Have it speak TLS; the options of who trusts it."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.server)
    if mutual:
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(certificates.ca)
    server.http.socket = tls.wrap_socket(server.http.socket, server_side=True, do_handshake_on_connect=False)
    server.answers["/schemas/ids/1"] = (200, {"schema": RECORD})
    return {
        "url": server.url.replace("http://", "https://"),
        "ssl_ca": certificates.ca.read_text(),
        "ssl_certificate": None,
        "ssl_key": None,
    }


def test_tls(server: Server, certificates: Certificates) -> None:
    options = over_tls(server, certificates, mutual=False)
    assert Registry(options).by_id(1).text == RECORD
    error = failure(lambda: Registry({**options, "ssl_ca": None}).by_id(1))
    assert error.primary.endswith("cannot be trusted") and "AUTHORITY" in (error.hint or "")


def test_a_registry_that_asks_who_we_are(server: Server, certificates: Certificates) -> None:
    options = over_tls(server, certificates, mutual=True)
    known = {
        "ssl_certificate": certificates.client.read_text(),
        "ssl_key": certificates.client_key.read_text(),
    }
    assert Registry({**options, **known}).by_id(1).text == RECORD
    error = failure(lambda: Registry(options).by_id(1))
    assert error.primary.startswith("no TLS connection to the schema registry")
    assert "SSL CERTIFICATE and SSL KEY" in (error.hint or "")
    other = certificates.client.with_name("ca.key").read_text()
    for wrong in ({"ssl_key": other}, {"ssl_key": "no key"}, {"ssl_certificate": "none"}):
        with pytest.raises(InvalidValue, match=r"certificate and key .* cannot be used"):
            Registry({**options, **known, **wrong})


def test_resolving_at_create(server: Server) -> None:
    registry, stored = Registry({"url": server.url}), {"connection": "u7"}
    server.answers["/subjects/t-value/versions/latest"] = (200, {"schema": RECORD, "id": 1})
    found = avro_registered(registry, stored, "t-value", LATEST)
    assert found.format == {"format": "avro", "schema": RECORD, "framed": True, "registry": stored}
    assert [(c.name, str(c.type), c.nullable) for c in found.columns] == [("a", "integer", False)]
    server.answers["/schemas/ids/9"] = (200, {"schema": '"string"'})
    assert avro_registered(registry, stored, "t-value", SchemaStrategy(schema_id=9)).columns[0].name == "data"
    assert (
        avro_registered(registry, stored, "t-value", SchemaStrategy(text='"int"')).format["schema"] == '"int"'
    )
    with pytest.raises(UndefinedObject) as missing:
        avro_registered(registry, stored, "t-key", LATEST)
    assert missing.value.primary == 'schema registry has no schema for the subject "t-key"'
    assert "Debezium writes them for tables with a primary key" in (missing.value.hint or "")
    assert missing.value.hint is not None
    assert "AVRO USING SCHEMA" in missing.value.hint
    server.answers["/subjects/p-value/versions/latest"] = (200, {"schema": "x", "schemaType": "PROTOBUF"})
    with pytest.raises(WrongObjectType) as other:
        avro_registered(registry, stored, "p-value", LATEST)
    assert other.value.hint == "Use FORMAT PROTOBUF."
    with pytest.raises(SchemaError) as broken:
        protobuf_registered(registry, stored, "p-value")
    assert broken.value.primary == "Protobuf schema cannot be compiled"
    assert "schema.proto:1:1" in str(broken.value.detail)


def test_a_writer_of_another_kind_is_an_error_of_its_messages(server: Server) -> None:
    server.answers["/schemas/ids/1"] = (200, {"schema": "message A {}", "schemaType": "PROTOBUF"})
    server.answers["/schemas/ids/2"] = (200, {"schema": RECORD})
    server.answers["/schemas/ids/3"] = (200, {"schema": "{"})
    decoder = AvroDecoder(RECORD, framed=True, writers=Registry({"url": server.url}))
    decoded = decoder.decode(pa.array([b"\0\0\0\0\1\2", b"\0\0\0\0\2\2", b"\0\0\0\0\3\2"], pa.binary()))
    assert decoded.columns[0].to_pylist() == [None, 1, None]
    assert decoded.errors is not None
    assert decoded.errors.to_pylist() == [
        "avro deserialization error: schema 1: the schema is of type PROTOBUF, not AVRO",
        None,
        "avro deserialization error: schema 3: Avro schema is not JSON",
    ]
