"""The protocol core without sockets: what each message becomes, what is refused, and that no bytes can break
it."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import pgframes as f
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import TidemillError
from tidemill.server import limits
from tidemill.server.pgwire import messages as m
from tidemill.server.pgwire.protocol import Conversation, Event, Protocol, ProtocolFailure


def all_events(data: bytes, cuts: list[int] | None = None, protocol: Protocol | None = None) -> list[Event]:
    """Feed `data`, cut at the given places."""
    protocol = protocol or Protocol()
    edges = [0, *sorted(c for c in cuts or [] if 0 < c < len(data)), len(data)]
    events: list[Event] = []
    for a, b in itertools.pairwise(edges):
        events += protocol.receive(data[a:b])
    return events


def opened() -> Protocol:
    protocol = Protocol()
    protocol.receive(f.startup())
    protocol.logged_in()
    return protocol


def failure(events: list[Event]) -> TidemillError:
    last = events[-1]
    assert isinstance(last, ProtocolFailure)
    return last.error


EXAMPLES: list[tuple[bytes, m.Message]] = [
    (f.query("SELECT 1"), m.QueryMessage("SELECT 1")),
    (f.query("SELECT 'é'"), m.QueryMessage("SELECT 'é'")),
    (f.parse("SELECT $1", "s", [23, 0]), m.Parse("s", "SELECT $1", (23, 0))),
    (
        f.bind([b"1", None, b""], "p", "s", [0, 1, 0], [1]),
        m.Bind("p", "s", (0, 1, 0), (b"1", None, b""), (1,)),
    ),
    (f.describe(b"S", "s"), m.Describe("S", "s")),
    (f.describe(b"P"), m.Describe("P", "")),
    (f.execute("p", 7), m.ExecuteMessage("p", 7)),
    (f.execute("p", -1), m.ExecuteMessage("p", 0)),
    (f.close(b"P", "p"), m.CloseMessage("P", "p")),
    (f.SYNC, m.SYNC),
    (f.FLUSH, m.FLUSH),
    (f.copy_data(b"a\tb\n"), m.CopyData(b"a\tb\n")),
    (f.COPY_DONE, m.COPY_DONE),
    (f.copy_fail("no"), m.CopyFail("no")),
    (f.password(b"secret\0"), m.AuthenticationReply(b"secret\0")),
    (f.frame(b"F", b"anything"), m.FUNCTION_CALL),
    (f.TERMINATE, m.TERMINATE),
]


@pytest.mark.parametrize(("data", "message"), EXAMPLES, ids=lambda x: type(x).__name__)
def test_each_message_is_read(data: bytes, message: m.Message) -> None:
    assert opened().receive(data) == [message]


def test_the_first_packets() -> None:
    events = all_events(f.SSL + f.GSS + f.startup(2, application_name="x", **{"_pq_.what": "1"}))
    assert events == [
        m.SslRequest(),
        m.GssRequest(),
        m.Startup(
            2, {"user": "materialize", "database": "materialize", "application_name": "x"}, ("_pq_.what",)
        ),
    ]
    assert all_events(f.cancel(7, b"\1\2\3\4") + f.query("ignored")) == [m.CancelRequest(7, b"\1\2\3\4")]
    assert all_events(f.cancel(7, bytes(256))) == [m.CancelRequest(7, bytes(256))]


@pytest.mark.parametrize(
    ("data", "sqlstate", "text"),
    [
        (struct.pack("!i", 7), "08P01", "invalid length of startup packet"),
        (struct.pack("!i", -5), "08P01", "invalid length of startup packet"),
        (struct.pack("!i", limits.MAX_STARTUP_BYTES + 1), "08P01", "invalid length of startup packet"),
        (b"GET / HTTP/1.1\r\n\r\n", "08P01", "invalid length of startup packet"),
        (struct.pack("!iHH", 8, 2, 0), "0A000", "unsupported frontend protocol 2.0"),
        (f.SSL + f.SSL, "08P01", "already asked for"),
        (f.cancel(1, b"abc"), "08P01", "cancel request"),
        (f.cancel(1, bytes(257)), "08P01", "cancel request"),
        (struct.pack("!iHH", 12, 3, 0) + b"user", "08P01", "invalid string"),
        (struct.pack("!iHH", 11, 3, 0) + b"\0xx", "08P01", "terminator"),
        (struct.pack("!iHH", 12, 3, 0) + b"\xff\0a\0", "22021", "invalid byte sequence"),
    ],
)
def test_bad_first_packets(data: bytes, sqlstate: str, text: str) -> None:
    error = failure(all_events(data))
    assert (error.sqlstate, text in error.primary) == (sqlstate, True)


@pytest.mark.parametrize(
    ("data", "sqlstate", "text"),
    [
        (b"?\0\0\0\4", "08P01", "invalid frontend message type 63"),
        (b"Q" + struct.pack("!i", 3), "08P01", "invalid message length"),
        (b"Q" + struct.pack("!i", -1), "08P01", "invalid message length"),
        (b"d" + struct.pack("!i", limits.MAX_MESSAGE_BYTES + 1), "54000", "exceeds the limit"),
        (b"p" + struct.pack("!i", limits.MAX_AUTHENTICATION_BYTES + 1), "54000", "exceeds the limit"),
        (f.frame(b"Q", b"no end"), "08P01", "invalid string"),
        (f.frame(b"Q", b"a\0b"), "08P01", "invalid message format"),
        (f.frame(b"S", b"x"), "08P01", "invalid message format"),
        (f.frame(b"D", b"X\0"), "08P01", "invalid DESCRIBE message subtype 88"),
        (f.frame(b"D", b""), "08P01", "insufficient data"),
        (f.frame(b"E", b"\0\0\0"), "08P01", "insufficient data"),
        # Counts and lengths that lie.
        (f.frame(b"P", b"\0\0" + struct.pack("!H", 65535)), "08P01", "insufficient data"),
        (f.frame(b"B", b"\0\0" + struct.pack("!HHi", 0, 1, 1 << 30)), "08P01", "insufficient data"),
        (f.frame(b"B", b"\0\0" + struct.pack("!HHi", 0, 1, -2)), "08P01", "insufficient data"),
        (f.frame(b"B", b"\0\0" + struct.pack("!HH", 0, 65535)), "08P01", "insufficient data"),
    ],
)
def test_bad_messages_end_the_stream(data: bytes, sqlstate: str, text: str) -> None:
    protocol = opened()
    error = failure(protocol.receive(data))
    assert (error.sqlstate, text in error.primary) == (sqlstate, True)
    assert protocol.receive(f.query("SELECT 1")) == []
    assert protocol.buffered == 0


def test_before_the_login_messages_are_short() -> None:
    protocol = Protocol()
    protocol.receive(f.startup())
    error = failure(protocol.receive(b"d" + struct.pack("!i", limits.MAX_AUTHENTICATION_BYTES + 1)))
    assert error.sqlstate == "54000"


@pytest.mark.parametrize(
    ("data", "tag", "sqlstate"),
    [
        (f.frame(b"Q", b"\xff\0"), "Q", "22021"),
        (f.parse("SELECT 1", "n" * 256), "P", "42622"),
        (f.describe(b"S", "é" * 128), "D", "42622"),
    ],
)
def test_refused_messages_leave_the_stream_in_step(data: bytes, tag: str, sqlstate: str) -> None:
    refused, sync = opened().receive(data + f.SYNC)
    assert isinstance(refused, m.MessageRefused)
    assert (refused.tag, refused.error.sqlstate, sync) == (tag, sqlstate, m.SYNC)


@pytest.mark.parametrize("chunk", [1 << 16, 1 << 30])
def test_a_query_that_is_too_long_is_not_kept(chunk: int) -> None:
    protocol = opened()
    data = f.query("x" * (limits.MAX_QUERY_BYTES + limits.MB)) + f.query("SELECT 1")
    events: list[Event] = []
    for at in range(0, len(data), chunk):
        events += protocol.receive(data[at : at + chunk])
        assert protocol.buffered < 100
    refused, after = events
    assert isinstance(refused, m.MessageRefused)
    assert (refused.tag, refused.error.sqlstate, after) == ("Q", "54000", m.QueryMessage("SELECT 1"))


def test_long_messages_cost_their_length_once() -> None:
    """A message of 32 MB in pieces of 1 kB: quadratic copying would move 500 GB."""
    protocol = opened()
    body = bytes(32 * limits.MB)
    data = f.copy_data(body)
    tracemalloc.start()
    events: list[Event] = []
    for at in range(0, len(data), 1024):
        events += protocol.receive(data[at : at + 1024])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert events == [m.CopyData(body)]
    assert protocol.buffered == 0
    # The growing buffer and the finished message.
    assert peak < 3 * len(body)


MESSAGES = st.sampled_from([data for data, _ in EXAMPLES if data != f.TERMINATE])
TALK = st.lists(MESSAGES, max_size=12).map(b"".join)


@given(TALK, st.lists(st.integers(0, 600), max_size=20))
@settings(deadline=None)
def test_cutting_does_not_matter(talk: bytes, cuts: list[int]) -> None:
    data = f.SSL + f.startup() + talk + f.TERMINATE + b"garbage after the end"
    assert all_events(data, cuts) == all_events(data)


@dataclass
class _Damage:
    place: int
    kind: str
    byte: int

    def apply(self, data: bytes) -> bytes:
        at = self.place % (len(data) + 1)
        match self.kind:
            case "flip":
                return data[:at] + bytes([self.byte]) + data[at + 1 :]
            case "insert":
                return data[:at] + bytes([self.byte]) + data[at:]
            case "drop":
                return data[:at] + data[at + 1 :]
            case _:
                return data[:at]


DAMAGE = st.builds(
    _Damage, st.integers(0, 2000), st.sampled_from(["flip", "insert", "drop", "cut"]), st.integers(0, 255)
)


def check_stream(data: bytes, cuts: list[int], start: Callable[[], Protocol]) -> None:
    """Whatever the bytes are: no exception, a Failure only as the last event, the same events however they
    are cut, and no more memory than the bytes."""
    protocol = start()
    events = all_events(data, cuts, protocol)
    assert [_shape(e) for e in events] == [_shape(e) for e in all_events(data, protocol=start())]
    assert all(not isinstance(e, ProtocolFailure) for e in events[:-1])
    assert protocol.buffered <= len(data)


def _shape(event: Event) -> object:
    """Errors compare by what they say."""
    if isinstance(event, ProtocolFailure):
        return ("failure", event.error.sqlstate, str(event.error))
    if isinstance(event, m.MessageRefused):
        return ("refused", event.tag, event.error.sqlstate, str(event.error))
    return event


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=8))
@settings(max_examples=300, deadline=None)
def test_garbage(data: bytes, cuts: list[int]) -> None:
    check_stream(data, cuts, Protocol)
    check_stream(data, cuts, opened)


@given(TALK, st.lists(DAMAGE, min_size=1, max_size=4), st.lists(st.integers(0, 600), max_size=8))
@settings(max_examples=400, deadline=None)
def test_damaged_conversations(talk: bytes, damage: list[_Damage], cuts: list[int]) -> None:
    data = talk + f.TERMINATE
    for d in damage:
        data = d.apply(data)
    check_stream(data, cuts, opened)
    check_stream(damage[0].apply(f.SSL + f.startup()) + data, cuts, Protocol)


# -- which messages may be acted on


def ready() -> Conversation:
    conversation = Conversation()
    conversation.logged_in()
    return conversation


def test_nothing_but_a_password_before_the_login() -> None:
    conversation = Conversation()
    assert conversation.admit(m.AuthenticationReply(b""))
    with pytest.raises(m.MalformedMessage):
        conversation.admit(m.QueryMessage("SELECT 1"))
    with pytest.raises(m.MalformedMessage):
        ready().admit(m.AuthenticationReply(b""))


def test_copy_data_is_void_outside_of_copy_and_expected_in_it() -> None:
    conversation = ready()
    assert not conversation.admit(m.CopyData(b""))
    conversation.copy_started()
    assert conversation.admit(m.CopyData(b""))
    assert not conversation.admit(m.SYNC)
    with pytest.raises(m.MalformedMessage, match="during COPY"):
        conversation.admit(m.QueryMessage("SELECT 1"))
    conversation.copy_ended()
    assert not conversation.admit(m.COPY_DONE)


@dataclass
class _Model:
    """What the protocol's documentation says of errors: an extended message that fails voids all up to
    Sync."""

    void: bool = False

    def see(self, message: m.Message, fails: bool) -> bool:
        if isinstance(message, m.Sync):
            self.void = False
        elif self.void or isinstance(message, m.CopyData | m.CopyDone | m.CopyFail):
            return False
        if fails and not isinstance(message, m.QueryMessage | m.Sync | m.FunctionCallMessage):
            self.void = True
        return True


STEPS = st.lists(
    st.tuples(
        st.sampled_from([e for _, e in EXAMPLES if not isinstance(e, m.Terminate | m.AuthenticationReply)]),
        st.booleans(),
    ),
    max_size=40,
)


@given(STEPS)
@settings(deadline=None)
def test_errors_void_what_follows_until_sync(steps: list[tuple[m.Message, bool]]) -> None:
    conversation, model = ready(), _Model()
    for message, fails in steps:
        acted = conversation.admit(message)
        assert acted == model.see(message, fails)
        if acted and fails:
            conversation.failed(message)
