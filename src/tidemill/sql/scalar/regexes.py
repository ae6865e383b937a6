"""The regular expression functions: regexp_like, regexp_replace and others."""

from __future__ import annotations

from tidemill.caches import cached
from tidemill.errors import InvalidValue, Unsupported
from tidemill.sql.regex import CompiledRegex, Match, compile_regex
from tidemill.sql.regex.syntax import RegexOptions

_LETTERS = frozenset("cimnpqstwx")


def _bad(name: str, value: int) -> InvalidValue:
    return InvalidValue(f'invalid value for parameter "{name}": {value}', sqlstate="22023")


@cached(512)
def _read(pattern: str, flags: str, function: str, one: bool) -> tuple[CompiledRegex, bool]:
    """The pattern, and whether the flags contain `g`. `one`: the function does not accept g."""
    every = False
    letters = ""
    for flag in flags:
        if flag == "g":
            if one:
                raise InvalidValue(f'{function}() does not support the "global" option', sqlstate="22023")
            every = True
        elif flag in "be":
            raise Unsupported(f'regular expression option "{flag}" is not supported')
        elif flag not in _LETTERS:
            raise InvalidValue(f'invalid regular expression option: "{flag}"', sqlstate="22023")
        else:
            letters += flag
    return compile_regex(pattern, RegexOptions().with_letters(letters)), every


def like(text: str, pattern: str, flags: str = "") -> bool:
    return _read(pattern, flags, "regexp_like", True)[0].find(text) is not None


def matches(text: str, pattern: str) -> bool:
    """text ~ pattern."""
    return compile_regex(pattern).find(text) is not None


def matches_any_case(text: str, pattern: str) -> bool:
    """text ~* pattern."""
    return compile_regex(pattern, RegexOptions(insensitive=True)).find(text) is not None


def count(text: str, pattern: str, start: int = 1, flags: str = "") -> int:
    if start < 1:
        raise _bad("start", start)
    regex, _ = _read(pattern, flags, "regexp_count", True)
    return sum(1 for _ in regex.all(text, start - 1))


def _nth(regex: CompiledRegex, text: str, start: int, n: int) -> Match | None:
    for i, found in enumerate(regex.all(text, start - 1), 1):
        if i == n:
            return found
    return None


def instr(
    text: str,
    pattern: str,
    start: int = 1,
    n: int = 1,
    end_option: int = 0,
    flags: str = "",
    group: int = 0,
) -> int:
    for name, value in (("start", start), ("n", n)):
        if value < 1:
            raise _bad(name, value)
    if end_option not in (0, 1):
        raise _bad("endoption", end_option)
    if group < 0:
        raise _bad("subexpr", group)
    regex, _ = _read(pattern, flags, "regexp_instr", True)
    found = _nth(regex, text, start, n)
    group = _part(found, group)
    span = None if found is None or group >= len(found.spans) else found.spans[group]
    return 0 if span is None else span[end_option] + 1


def substr(
    text: str, pattern: str, start: int = 1, n: int = 1, flags: str = "", group: int = 0
) -> str | None:
    for name, value in (("start", start), ("n", n)):
        if value < 1:
            raise _bad(name, value)
    if group < 0:
        raise _bad("subexpr", group)
    regex, _ = _read(pattern, flags, "regexp_substr", True)
    found = _nth(regex, text, start, n)
    return None if found is None else found.group(_part(found, group))


def _part(found: Match | None, group: int) -> int:
    """Without groups, the first part is the whole match."""
    return 0 if group == 1 and found is not None and len(found.spans) == 1 else group


def match(text: str, pattern: str, flags: str = "") -> list[str | None] | None:
    regex, every = _read(pattern, flags, "regexp_match", False)
    if every:
        raise InvalidValue(
            'regexp_match() does not support the "global" option',
            hint="Use the regexp_matches function instead.",
            sqlstate="22023",
        )
    found = regex.find(text)
    return None if found is None else groups_of(found)


def groups_of(found: Match) -> list[str | None]:
    """The result of regexp_match: the groups, or the whole match if the pattern has none."""
    if len(found.spans) == 1:
        return [found.group(0)]
    return [found.group(n) for n in range(1, len(found.spans))]


def all_matches(text: str, pattern: str, flags: str = "") -> list[list[str | None]]:
    """The result of regexp_matches: one match, or all with the flag g."""
    regex, every = _read(pattern, flags, "regexp_matches", False)
    found = regex.all(text) if every else [m for m in (regex.find(text),) if m is not None]
    return [groups_of(m) for m in found]


def split(text: str, pattern: str, flags: str = "", function: str = "regexp_split_to_array") -> list[str]:
    """Empty matches at the ends of the text and directly after another match are ignored."""
    regex, _ = _read(pattern, flags, function, True)
    pieces: list[str] = []
    at = 0
    for found in regex.all(text):
        if found.start < len(text) and found.end > at:
            pieces.append(text[at : found.start])
            at = found.end
    return [*pieces, text[at:]]


def replace(text: str, pattern: str, replacement: str, flags: str = "") -> str:
    if flags[:1].isdigit():
        raise InvalidValue(
            f'invalid regular expression option: "{flags[:1]}"',
            hint="If you meant to use regexp_replace() with a start parameter, cast the fourth argument to "
            "integer explicitly.",
            sqlstate="22023",
        )
    regex, every = _read(pattern, flags, "regexp_replace", False)
    return _replaced(regex, text, replacement, 0, 0 if every else 1)


def replace_from(
    text: str, pattern: str, replacement: str, start: int, n: int | None = None, flags: str = ""
) -> str:
    """`n` = 0 replaces all matches."""
    if start < 1:
        raise _bad("start", start)
    if n is not None and n < 0:
        raise _bad("n", n)
    regex, every = _read(pattern, flags, "regexp_replace", False)
    return _replaced(regex, text, replacement, start - 1, (0 if every else 1) if n is None else n)


def _replaced(regex: CompiledRegex, text: str, replacement: str, at: int, n: int) -> str:
    out: list[str] = []
    copied = 0
    for i, found in enumerate(regex.all(text, at), 1):
        if n and i < n:
            continue
        out += [text[copied : found.start], _expanded(replacement, found)]
        copied = found.end
        if n:
            break
    return "".join([*out, text[copied:]])


def _expanded(replacement: str, found: Match) -> str:
    """\\1 to \\9 are the groups, \\& the whole match."""
    out: list[str] = []
    at = 0
    while at < len(replacement):
        ch, following = replacement[at], replacement[at + 1 : at + 2]
        if ch == "\\" and following and following in "123456789":
            out.append(found.group(int(following)) or "")
        elif ch == "\\" and following == "&":
            out.append(found.group(0) or "")
        elif ch == "\\" and following == "\\":
            out.append("\\")
        else:
            out.append(ch)
            at += 1
            continue
        at += 2
    return "".join(out)


def extract(text: str, pattern: str) -> str | None:
    """substring(text FROM pattern): the first group, or the whole match if the pattern has none."""
    found = compile_regex(pattern).find(text)
    if found is None:
        return None
    return found.group(1 if len(found.spans) > 1 else 0)


# --- SIMILAR TO


@cached(512)
def similar_pattern(pattern: str, escape: str = "\\") -> str:
    """The regular expression of an SQL pattern."""
    if len(escape) > 1:
        raise InvalidValue(
            "invalid escape string", hint="Escape string must be empty or one character.", sqlstate="22025"
        )
    out = ["^(?:"]
    inside, escaped, quotes = False, False, 0
    for ch in pattern:
        if escaped:
            if ch == '"' and not inside:
                quotes += 1
                if quotes > 2:
                    raise InvalidValue(
                        "SQL regular expression may not contain more than two escape-double-quote separators",
                        sqlstate="2200C",
                    )
                out.append("){1,1}?(" if quotes == 1 else "){1,1}(?:")
            else:
                out.append(f"\\{ch}")
            escaped = False
        elif ch == escape and escape:
            escaped = True
        elif inside:
            out.append("\\\\" if ch == "\\" else ch)
            inside = ch != "]"
        elif ch == "[":
            out.append(ch)
            inside = True
        else:
            out.append({"%": ".*", "_": ".", "(": "(?:"}.get(ch) or (f"\\{ch}" if ch in "\\.^$" else ch))
    return "".join([*out, ")$"])


def similar(text: str, pattern: str) -> bool:
    return matches(text, similar_pattern(pattern))


def similar_escape(text: str, pattern: str, escape: str) -> bool:
    return matches(text, similar_pattern(pattern, escape))


def similar_extract(text: str, pattern: str, escape: str) -> str | None:
    return extract(text, similar_pattern(pattern, escape))
