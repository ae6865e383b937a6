"""The history of typed lines: in the user's state folder, private to the user, without passwords."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import FileHistory

# About ten thousand statements. If the file has grown beyond this, its newer half is kept.
MOST_BYTES = 4 << 20
# A keyword for a secret followed by a literal: PASSWORD 'x', CREATE SECRET s AS 'x', SASL PASSWORD = 'x'; or
# a password in a URL or a connection string.
_SECRET = re.compile(
    r"""\b(?:password|passwd|secret|token|credential\w*|\w*_key|access\s+key\w*)\b.*['$]
      | \bpassword\s*= | ://[^\s/:@]+:[^\s@]+@""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


def history_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(os.environ.get("TIDEMILL_HISTORY") or os.path.join(state, "tidemill", "sql_history"))


def has_secret(text: str) -> bool:
    """Whether the line may contain a password; such lines are not kept."""
    return _SECRET.search(text) is not None


class SafeHistory(FileHistory):
    """A history file that only its owner can read: bounded and without secrets. If the file cannot be
    written, or is /dev/null, the history lasts for the session only."""

    def __init__(self, path: Path) -> None:
        self.problem: str | None = None
        try:
            if path.exists() and not path.is_file():
                # /dev/null means no history, and root could change the mode of the device for all others.
                raise OSError(f"{path} is no file")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Before the first line is written: a file that is created readable and restricted later can be
            # read meanwhile.
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600))
            os.chmod(path, 0o600)
            _shorten(path)
        except OSError as e:
            self.problem = f"the history is not kept: {e}"
        super().__init__(str(path))

    def load_history_strings(self) -> Iterable[str]:
        return super().load_history_strings() if os.path.isfile(self.filename) else ()

    def store_string(self, string: str) -> None:
        if self.problem is not None or has_secret(string):
            return
        try:
            super().store_string(string)
        except OSError as e:
            self.problem = f"the history is not kept: {e}"


def _shorten(path: Path) -> None:
    if path.stat().st_size <= MOST_BYTES:
        return
    data = path.read_bytes()[-MOST_BYTES // 2 :]
    # From the first complete entry on: each begins with a comment that contains its time.
    start = data.find(b"\n# ")
    beside = path.with_name(path.name + ".new")
    with os.fdopen(os.open(beside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data[start:] if start >= 0 else b"")
    os.replace(beside, path)
