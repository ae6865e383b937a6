"""The restriction of statements to files below one folder (the setting `files_root`).

Called with every path of a statement, when the statement is planned and again when the path is opened,
because links may have changed meanwhile. A path that resolves to a place outside the folder is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidemill.errors import InvalidValue, Unsupported


def below_root(root: str, path: str) -> Path:
    """The path (absolute, or relative to `root`) with all links resolved. Raises if it is not below the root,
    or if no root is set."""
    if not root:
        raise Unsupported(
            "FILES is not possible: no folder is configured for it",
            hint="Start the server with --files-root DIR, the folder below which files are read and written.",
        )
    if not path or "\0" in path:
        raise InvalidValue("a path is needed", hint="It is below the folder files_root.", sqlstate="22023")
    home = Path(os.path.realpath(root))
    found = Path(os.path.realpath(home / path))
    if found == home or not found.is_relative_to(home):
        raise InvalidValue(
            f'"{path}" is not below the folder files_root',
            hint=f"Give a path from that folder on; it is {root}.",
            sqlstate="42501",
        )
    return found
