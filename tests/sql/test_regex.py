"""PostgreSQL's regular expressions: which match is found, and what is no pattern.

The answers are PostgreSQL 18's (`regexp_match`); the corpus asks it anew in every run."""

from __future__ import annotations

import pytest

from tidemill.errors import LimitExceeded, TidemillError
from tidemill.sql.regex import compile_regex
from tidemill.sql.scalar import regexes

# text, pattern, the groups (or the whole match where there are none) or the error.
CASES: list[tuple[str, str, list[str | None] | str | None]] = [
    ("abab", "a?(ab)?", ["ab"]),
    ("foobarbequebaz", "(bar)(beque)", ["bar", "beque"]),
    ("XY1234Z", "Y*([0-9]{1,3})", ["123"]),
    ("XY1234Z", "Y*?([0-9]{1,3})", ["1"]),
    ("abc01234xyz", "(?:(.*?)(\\d+)(.*)){1,1}", ["abc", "01234", "xyz"]),
    ("abc01234xyz", "(.*)(\\d+)(.*)", ["abc0123", "4", "xyz"]),
    ("abc01234xyz", "(.*?)(\\d+)(.*)", ["abc", "0", ""]),
    ("aab", "(a|ab)(b*)", ["a", ""]),
    ("aXa", "(\\w)X\\1", ["a"]),
    ("a b", "[[:space:]]", [" "]),
    ("ab", "\\mb", None),
    ("ab cd", "\\mc", ["c"]),
    ("a{", "a{", ["a{"]),
    ("a", "a{2", "invalid regular expression: braces {} not balanced"),
    ("a", "a**", "invalid regular expression: quantifier operand invalid"),
    ("a", "(?i)A", ["a"]),
    ("a", "***=a", ["a"]),
    ("A", "(?i)[a-c]", ["A"]),
    ("a.b", "a\\.b", ["a.b"]),
    ("x", "[[:foo:]]", "invalid regular expression: invalid character class"),
    ("x", "[z-a]", "invalid regular expression: invalid character range"),
    ("x", "\\q", "invalid regular expression: invalid escape \\ sequence"),
    ("x", "(a", "invalid regular expression: parentheses () not balanced"),
    ("x", "a)", "invalid regular expression: parentheses () not balanced"),
    ("", "()", [""]),
    ("ab", "(?=b)", [""]),
    ("ab", "(?<=a)b", ["b"]),
    ("abcabc", "(abc){2}", ["abc"]),
    ("ab12", "([a-z]+)(\\d+)", ["ab", "12"]),
    ("x", "(?z)x", "invalid regular expression: invalid embedded option"),
    ("aaa", "(a*)*", ["aaa"]),
    ("aaa", "(a*)+", [""]),
    ("abcd", "(a|ab)(c|bcd)(d*)", ["ab", "c", "d"]),
    ("ab\ncd", "^cd", None),
    ("ab\ncd", "(?n)^cd", ["cd"]),
    ("a", "^*", "invalid regular expression: quantifier operand invalid"),
    ("a", "a{1,0}", "invalid regular expression: invalid repetition count(s)"),
    ("a", "a{256}", "invalid regular expression: invalid repetition count(s)"),
    ("x", "x\\", "invalid regular expression: invalid escape \\ sequence"),
    ("é", "\\w", ["é"]),
    ("²", "\\w", None),
    ("a", "a|*", "invalid regular expression: quantifier operand invalid"),
    ("xay", "x(?:a|b)?y", ["xay"]),
    ("a-b", "[a\\-]-", ["a-"]),
    ("]", "[]]", ["]"]),
    ("a^", "[a^]+", ["a^"]),
    ("tab\t", "\\t", ["\t"]),
    ("aa", "(a)\\1", ["a"]),
    ("aa", "(a)\\2", "invalid regular expression: invalid backreference number"),
    ("abc", "(?:a)(b)?(z)?", ["b", None]),
    ("foobar", "o+?", ["o"]),
    ("foobar", "fo+?b", ["foob"]),
    ("xyyz", "x(y+?)(y*)z", ["y", "y"]),
    ("a1b2", "(\\d)|([a-z])", [None, "a"]),
]


@pytest.mark.parametrize(("text", "pattern", "wanted"), CASES)
def test_the_match_is_postgresqls(text: str, pattern: str, wanted: list[str | None] | str | None) -> None:
    if isinstance(wanted, str):
        with pytest.raises(TidemillError) as raised:
            compile_regex(pattern)
        assert (raised.value.primary, raised.value.sqlstate) == (wanted, "2201B")
    else:
        assert regexes.match(text, pattern) == wanted


def test_matches_follow_one_another() -> None:
    assert [m.group(0) for m in compile_regex("a*").all("baac")] == ["", "aa", "", ""]


def test_a_pattern_that_takes_too_long_is_refused_with_a_hint() -> None:
    with pytest.raises(LimitExceeded, match="too complex") as raised:
        regexes.match("ab" * 1500, "((a|b)*(a|b)*)*c")
    assert raised.value.hint is not None


def test_depth_is_limited() -> None:
    with pytest.raises(TidemillError, match="too complex"):
        compile_regex("(" * 500 + ")" * 500)
