"""SCRAM-SHA-256: RFC 7677's example, PostgreSQL's form of a verifier, and every way to be refused."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.access.saslprep import saslprep
from tidemill.access.scram import (
    ITERATIONS,
    MalformedScram,
    ServerExchange,
    Verifier,
    WrongProof,
    make_verifier,
    mock_verifier,
    parse_verifier,
)
from tidemill.errors import TidemillError

# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = (
    f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _exchange(**more: object) -> ServerExchange:
    return ServerExchange(make_verifier("pencil", salt=SALT), nonce=SERVER_NONCE, **more)  # type: ignore[arg-type]


def _client_final(
    server_first: bytes, password: str, header: bytes = b"n,,", bare: str = "n=,r=abc"
) -> bytes:
    """What a client answers: written down anew here, so that the two sides do not share a mistake."""
    said = dict(part.split("=", 1) for part in server_first.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(said["s"]), int(said["i"]))
    client_key = hmac.new(salted, b"Client Key", "sha256").digest()
    bound = base64.b64encode(header).decode()
    without = f"c={bound},r={said['r']}"
    signed = f"{bare},{server_first.decode()},{without}".encode()
    signature = hmac.new(hashlib.sha256(client_key).digest(), signed, "sha256").digest()
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    return f"{without},p={proof}".encode()


def test_the_example_of_the_rfc() -> None:
    exchange = _exchange()
    assert exchange.first(CLIENT_FIRST) == SERVER_FIRST
    assert exchange.final(CLIENT_FINAL) == SERVER_FINAL


def test_a_verifier_has_postgresqls_form_and_hides_its_keys() -> None:
    verifier = make_verifier("pencil", salt=SALT)
    text = verifier.text()
    assert text.startswith(f"SCRAM-SHA-256${ITERATIONS}:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert parse_verifier(text) == verifier
    assert verifier.matches("pencil")
    assert not verifier.matches("Pencil")
    assert base64.b64encode(verifier.stored_key).decode() not in repr(verifier)
    assert make_verifier("pencil").salt != make_verifier("pencil").salt


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pencil",
        "md5d41d8cd98f00b204e9800998ecf8427e",
        "SCRAM-SHA-256$0:QQ==$QQ==:QQ==",
        "SCRAM-SHA-256$4096:QQ==$QQ==:QQ==",
        "SCRAM-SHA-256$4096:Q$Q:Q",
        "SCRAM-SHA-256$9999999:QQ==$QQ==:QQ==",
    ],
)
def test_what_is_no_verifier(text: str) -> None:
    assert parse_verifier(text) is None


def test_a_wrong_password_and_an_unknown_user_look_the_same() -> None:
    key = b"k" * 32
    mock = mock_verifier(key, "nobody")
    assert mock.salt == mock_verifier(key, "nobody").salt != mock_verifier(key, "other").salt
    for verifier in (make_verifier("pencil"), mock):
        exchange = ServerExchange(verifier)
        first = exchange.first(b"n,,n=,r=abc")
        assert first.endswith(b",i=4096")
        with pytest.raises(WrongProof):
            exchange.final(_client_final(first, "guess"))


def test_bound_to_the_connection() -> None:
    certificate = hashlib.sha256(b"certificate").digest()
    header = b"p=tls-server-end-point,,"
    exchange = _exchange(binding=certificate, plus=True)
    first = exchange.first(header + b"n=,r=abc")
    assert exchange.final(_client_final(first, "pencil", header + certificate)).startswith(b"v=")
    exchange = _exchange(binding=certificate, plus=True)
    first = exchange.first(header + b"n=,r=abc")
    with pytest.raises(TidemillError, match="channel binding check failed"):
        exchange.final(_client_final(first, "pencil", header + hashlib.sha256(b"another").digest()))


def test_a_client_that_was_told_we_cannot_bind_is_refused() -> None:
    with pytest.raises(TidemillError, match="negotiation error"):
        _exchange(binding=b"x" * 32).first(b"y,,n=,r=abc")
    assert _exchange().first(b"y,,n=,r=abc").startswith(b"r=abc")


@pytest.mark.parametrize(
    ("message", "state"),
    [
        (b"", "08P01"),
        (b"\xff", "08P01"),
        (b"n,,", "08P01"),
        (b"n,,n=u", "08P01"),
        (b"n,,n=u,r=", "08P01"),
        (b"n,,n=u,r=a b", "08P01"),
        (b"n,,n=u,r=" + b"x" * 600, "08P01"),
        (b"q,,n=u,r=abc", "08P01"),
        (b"n,a=admin,n=u,r=abc", "0A000"),
        (b"n,,m=x,n=u,r=abc", "0A000"),
        (b"p=tls-unique,,n=u,r=abc", "08P01"),
    ],
)
def test_first_messages_that_are_refused(message: bytes, state: str) -> None:
    with pytest.raises(TidemillError) as caught:
        _exchange().first(message)
    assert caught.value.sqlstate == state


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"c=biws",
        b"c=biws,r=other,p=AAAA",
        b"c=!!,r=x,p=AAAA",
        CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),
        CLIENT_FINAL.replace(b",p=", b",q="),
        CLIENT_FINAL.rpartition(b",p=")[0] + b",p=AAAA",
    ],
)
def test_last_messages_that_are_refused(message: bytes) -> None:
    exchange = _exchange()
    exchange.first(CLIENT_FIRST)
    with pytest.raises(MalformedScram):
        exchange.final(message)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("I\u00adX", "IX"),
        ("\u2168", "IX"),
        ("\u00aa", "a"),
        ("a\u00a0b", "a b"),
    ],
)
def test_spellings_of_one_password(one: str, other: str) -> None:
    """RFC 4013, section 3."""
    assert saslprep(one) == saslprep(other)


def test_what_the_profile_forbids_is_taken_as_it_is() -> None:
    assert saslprep("\u0007x") == b"\x07x"
    assert saslprep("\u06271") == "\u06271".encode()


def test_verifiers_do_not_depend_on_the_spelling() -> None:
    assert make_verifier("\u2168", salt=SALT) == make_verifier("IX", salt=SALT)
    assert isinstance(parse_verifier(make_verifier("x").text()), Verifier)


_PIECES = st.sampled_from(
    [b"n,,", b"y,,", b"p=x,,", b"n=u,", b"r=abc", b",", b"=", b"c=biws", b"p=", b"m=1", b"\xff"]
)


@given(st.lists(st.one_of(_PIECES, st.binary(max_size=8)), max_size=8), st.booleans(), st.booleans())
def test_whatever_a_client_says_is_an_error_that_can_be_told(
    pieces: list[bytes], plus: bool, begun: bool
) -> None:
    exchange = _exchange(binding=b"x" * 32, plus=plus) if plus else _exchange()
    if begun and not plus:
        exchange.first(CLIENT_FIRST)
    try:
        (exchange.final if begun else exchange.first)(b"".join(pieces))
    except (TidemillError, WrongProof):
        pass


@given(st.text(max_size=20))
def test_any_text_can_be_a_password(password: str) -> None:
    verifier = make_verifier(password, salt=SALT, iterations=1)
    assert verifier.matches(password)
    assert parse_verifier(verifier.text()) == verifier
