"""The texts of `\\?` and `\\h`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_HEAD = re.compile(r"\A# (?P<title>[^\n]+)\n\n```\n(?P<syntax>.*?)\n```\n", re.DOTALL)
# Pages that do not describe a statement.
_NO_STATEMENT = {"README", "comment", "differences", "lexical"}

COMMANDS = r"""General
  \q                     leave (also Ctrl-D on an empty line)
  \? \h [STATEMENT]      these commands; the syntax of Tidemill's SQL statements
  \timing [on|off]       tell how long statements take
  \errverbose            the last error, with its SQLSTATE
  \! [COMMAND]           run a command of the operating system, or a shell
  \cd [FOLDER]           change the folder

Query buffer (what was typed and is not yet run; when it is empty, the last statement)
  \g [(OPTIONS)] [FILE]  run it (and send the rows to FILE or |COMMAND); like ;
  \gx                    the same, expanded
  \gset [PREFIX]         run it and keep the one row's values as variables
  \gexec                 run it, then run every value as a statement
  \watch [SEC] [c=N]     run it every SEC seconds (2), N times or until Ctrl-C
  \e [FILE]              edit it, or FILE, with $EDITOR
  \p  \r  \w FILE        show it; clear it; write it to FILE

What there is (PATTERN may have * and ?; + tells more, S shows the system's own)
  \d[S+] [PATTERN]       relations; with a PATTERN, their columns and keys
  \dt \dv \dm \di[S+]    tables, views, materialized views, indexes
  \ds[+] [PATTERN]       sources and how they are (of a PostgreSQL: sequences)
  \dn[S+] \df[S+]        schemas, functions
  \du \dg                roles
  \dp \z [PATTERN]       privileges on relations
  \dconfig [PATTERN]     settings
  \l[+] \list            databases
  \sv NAME               a view's definition

Input and output
  \i FILE  \ir FILE      run a file; \ir looks beside the file in which it stands
  \o [FILE]              results go to FILE or |COMMAND; without one, to the screen
  \copy ...              COPY from or to a file of this machine
  \echo [-n] TEXT        write a text (\qecho: where results go; \warn: where errors go)

How results look
  \x [on|off|auto]       expanded: a value a line
  \pset [NAME [VALUE]]   border, expanded, fieldsep, footer, format (aligned, unaligned, csv, json,
                         markdown), linestyle (ascii, unicode), null, pager, title, tuples_only
  \a \t \f [TEXT] \C [TEXT]  aligned or not; rows only; the separator; the title

Variables
  \set [NAME [VALUE]]    set, or show all; used as :NAME, :'NAME' (a literal), :"NAME" (a name)
  \unset NAME            forget it

Connection
  \c [DATABASE [USER [HOST [PORT]]]] | URL   connect to another; - keeps what is
  \conninfo              what we are connected to
  \encoding              the encoding: UTF8
  \password [USER]       change a password; it is not shown, logged or sent as it is
"""


@cache
def statements() -> dict[str, str]:
    """The syntax of each statement by name, from the head of its page in the manual."""
    # In the repository a link to docs/sql, in the wheel a copy.
    folder = Path(__file__).parent / "pages"
    out: dict[str, str] = {}
    for page in sorted(folder.glob("*.md")):
        found = _HEAD.match(page.read_text(encoding="utf-8"))
        if found is not None and page.stem not in _NO_STATEMENT:
            out[found["title"]] = found["syntax"] + "\n"
    return out


def syntax(wanted: str) -> str:
    """`\\h`: the names. With a name: the syntax of all statements that start with it or contain it."""
    known = statements()
    if not wanted:
        return "Syntax is told by \\h STATEMENT for:\n" + "".join(f"  {name}\n" for name in known)
    words = " ".join(wanted.upper().split())
    found = [name for name in known if words in name.split(", ")]
    found = found or [name for name in known if any(part.startswith(words) for part in name.split(", "))]
    found = found or [
        name for name in known if any(line.startswith(words) for line in known[name].splitlines())
    ]
    if not found:
        return f'No help available for "{wanted}".\nTry \\h without a name.\n'
    return "\n".join(f"{name}\n{known[name]}" for name in found)
