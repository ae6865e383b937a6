"""MATCHING 'glob': which objects belong to a source.

`*` is any text without `/`, `**` any text, `?` one character but `/`, `[abc]` and `[!abc]` one of some,
`{a,b}` one of several patterns; a backslash takes the next character as it is. The whole name must match.
"""

from __future__ import annotations

import re

from tidemill.errors import InvalidValue

_MAX_PATTERN = 1024


def _wrong(glob: str, why: str) -> InvalidValue:
    return InvalidValue(
        f"MATCHING '{glob}' is no pattern",
        detail=why,
        hint="Write * for any text without /, ** for any text, ? for one character, [abc], or {a,b}.",
        sqlstate="22023",
    )


def pattern(glob: str) -> re.Pattern[str]:
    """Raises InvalidValue."""
    if not glob or len(glob) > _MAX_PATTERN:
        raise _wrong(glob[:40], f"It has {len(glob)} characters; 1 to {_MAX_PATTERN} are possible.")
    out: list[str] = []
    at, depth = 0, 0
    while at < len(glob):
        c = glob[at]
        at += 1
        if glob.startswith("**", at - 1):
            at += 1
            # a/**/b is also a/b
            if glob.startswith("/", at) and (not out or out[-1] == "/"):
                at += 1
                out.append("(?:.*/)?")
            else:
                out.append(".*")
        elif c == "*":
            out.append("[^/]*")
        elif c == "?":
            out.append("[^/]")
        elif c == "[":
            end = glob.find("]", at + 1)
            if end < 0:
                raise _wrong(glob, "A [ has no ].")
            chosen = glob[at:end].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
            out.append(f"(?!/)[{'^' + chosen[1:] if chosen.startswith('!') else chosen}]")
            at = end + 1
        elif c == "{":
            depth += 1
            out.append("(?:")
        elif c == "}" and depth:
            depth -= 1
            out.append(")")
        elif c == "," and depth:
            out.append("|")
        elif c == "\\" and at < len(glob):
            out.append(re.escape(glob[at]))
            at += 1
        else:
            out.append("/" if c == "/" else re.escape(c))
    if depth:
        raise _wrong(glob, "A { has no }.")
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as e:
        raise _wrong(glob, f"{e}.") from None


def folder_of(glob: str) -> str:
    """The folder that all matching names are in, with a / behind it, as far as the pattern tells."""
    literal = re.split(r"[*?\[{\\]", glob, maxsplit=1)[0]
    return literal[: literal.rfind("/") + 1]


def is_shown(key: str) -> bool:
    """Names that begin with . or _ are those of unfinished and technical files, by custom."""
    return not key.endswith("/") and not any(part[:1] in (".", "_") for part in key.split("/"))
