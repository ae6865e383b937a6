"""The audit log on disk: what was noted is there after a restart, whatever the disk does in between, in no
more than the room that it has."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from tidemill.engine.audit import files as audit_files
from tidemill.engine.audit import log as audit
from tidemill.engine.audit.files import FILES, MIN_FILE_BYTES, AuditFiles, Track
from tidemill.engine.audit.log import AuditLog
from tidemill.errors import Unavailable

ROOM = 64 << 20


def logged(folder: Path, *, size: int = ROOM, trusting: bool = False) -> AuditLog:
    return AuditLog(AuditFiles(folder, size), trusting=trusting)


def refused(log: AuditLog) -> list[tuple[int, str]]:
    return [(e.id, e.role) for e in log.events()]


def lines(folder: Path, kind: str = "logins") -> list[dict[str, object]]:
    return [json.loads(x) for p in sorted(folder.glob(f"{kind}-*")) for x in p.read_text().splitlines()]


def test_events_outlive_the_server(tmp_path: Path) -> None:
    first = logged(tmp_path / "audit")
    first.login_refused("mary", "10.0.0.1", "wrong password")
    first.login_refused("j\u00f6rg\ud800", "10.0.0.2", "wrong password")
    told = first.events()
    first.close()
    second = logged(tmp_path / "audit")
    assert second.events()[0] == told[0]
    second.login_refused("next", "10.0.0.1", "wrong password")
    assert refused(second) == [(1, "mary"), (2, "j\u00f6rg?"), (3, "next")]
    second.close()
    (path,) = (tmp_path / "audit").iterdir()
    assert (path.name, path.stat().st_mode & 0o777) == ("logins-00000000000000000001.jsonl", 0o600)
    assert lines(tmp_path / "audit")[0] == {
        "ts": told[0].occurred_at.isoformat(timespec="microseconds"),
        "level": "warn",
        "logger": "tidemill.audit",
        "message": "login refused",
        "id": 1,
        "role": "mary",
        "address": "10.0.0.1",
        "detail": "wrong password",
    }


@pytest.mark.parametrize("torn", [b'{"id": 2, "ro', b"\xff\xfe", b"null\n", b'{"id": 9}\n', b"[]", b"\n\n"])
def test_half_a_line_costs_that_line(tmp_path: Path, torn: bytes) -> None:
    before = logged(tmp_path)
    before.login_refused("mary", "a", "r")
    before.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + torn)
    after = logged(tmp_path)
    after.login_refused("next", "a", "r")
    after.close()
    again = logged(tmp_path)
    assert [role for _, role in refused(again)] == ["mary", "next"]
    again.close()


def test_the_room_is_kept(tmp_path: Path) -> None:
    """The oldest go, an eighth at a time, and guesses take none of the room of changes."""
    track = Track(tmp_path, "logins", 0)
    line = json.dumps({"id": 0, "pad": "x" * 1000}).encode() + b"\n"
    (tmp_path / "changes-00000000000000000001.jsonl").write_bytes(line)
    for number in range(2000):
        track.append(number, line)
    track.close()
    files = sorted(tmp_path.glob("logins-*"))
    assert len(files) == FILES
    assert sum(p.stat().st_size for p in files) < FILES * (MIN_FILE_BYTES + len(line))
    assert int(files[0].stem.removeprefix("logins-")) > 1000
    assert (tmp_path / "changes-00000000000000000001.jsonl").exists()
    assert len(track.tail(100)) == 100
    assert len(track.tail(10**9)) > FILES - 1


def test_rows_are_bounded_and_logins_push_out_no_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(audit, "MAX_EVENTS", 5)
    log = logged(tmp_path)
    log._note(  # pyright: ignore[reportPrivateUsage]
        "drop table", "mary", "a", object_type="table", object_id="u1", object_name="d.s.t"
    )
    for number in range(20):
        log.login_refused(f"guess{number}", "a", "wrong password")
    log.close()
    again = logged(tmp_path)
    for shown in (log.events(), again.events()):
        assert [e.type for e in shown] == ["drop table", *["login refused"] * 5]
        assert [e.id for e in shown] == [1, *range(17, 22)]
    again.close()


def test_a_disk_that_fails_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = logged(tmp_path)
    folder = tmp_path.rename(tmp_path.with_name("away"))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            log.login_refused("mary", "a", "r")
        log._files.flush()  # pyright: ignore
    assert caplog.text.count("the audit log cannot be written") == 1
    folder.rename(tmp_path)
    log.login_refused("late", "a", "r")
    log.close()
    assert [line["role"] for line in lines(tmp_path)][-1] == "late"
    assert REGISTRY.get_sample_value("tidemill_audit_unwritten_events_total")


def test_a_disk_that_hangs_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Logins are let in, and what waits is bounded; a change is answered after a while."""
    hanging, go_on = threading.Event(), threading.Event()
    append = Track.append

    def slow(self: Track, first_id: int, text: bytes) -> None:
        hanging.set()
        go_on.wait(60)
        append(self, first_id, text)

    monkeypatch.setattr(Track, "append", slow)
    monkeypatch.setattr(audit_files, "MAX_WAITING", 10)
    monkeypatch.setattr(audit_files, "FLUSH_SECONDS", 0.01)
    files = AuditFiles(tmp_path, ROOM)
    log = AuditLog(files)
    log.login_refused("first", "a", "r")
    assert hanging.wait(60)
    for number in range(50):
        log.login_refused(f"r{number}", "a", "r")
    files.flush()
    assert "does not answer" in caplog.text
    monkeypatch.setattr(audit_files, "FLUSH_SECONDS", 60.0)
    go_on.set()
    log.close()
    assert [line["role"] for line in lines(tmp_path)] == ["first", *(f"r{n}" for n in range(10))]
    assert len(log.events()) == 51


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot make the folder of the audit log"):
        AuditFiles(tmp_path / "file" / "audit", ROOM)
