"""The prompt of the terminal: multi-line input with colours, history and completion."""

from __future__ import annotations

from collections import deque

from prompt_toolkit import PromptSession
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import DynamicLexer, Lexer, PygmentsLexer, SimpleLexer
from pygments.lexers.sql import PostgresLexer

from tidemill.cli.shell.commands.connection import database_of
from tidemill.cli.shell.completer import ShellCompleter
from tidemill.cli.shell.names import CatalogNames
from tidemill.cli.shell.shell import Shell
from tidemill.cli.shell.splitter import Command, Splitter, SplitterState

# Prompts are no longer computed for pasted lines beyond this: typing must stay fast.
MOST_MARKED = 50_000
_MENU_LINES = 6


class Terminal:
    """Lines typed at the terminal. Enter sends a complete statement, otherwise it starts a new line."""

    name = ""
    interactive = True

    def __init__(self, shell: Shell, names: CatalogNames, history: History) -> None:
        self._shell = shell
        # Lines that were accepted together and not yet read.
        self._lines: deque[str] = deque()
        self._marks: tuple[str, list[SplitterState]] = ("", [])
        self.number = 0
        self._session: PromptSession[str] = PromptSession(
            history=history,
            completer=ShellCompleter(names),
            complete_while_typing=False,
            complete_in_thread=True,
            enable_history_search=True,
            multiline=True,
            lexer=DynamicLexer(self._lexer),
            key_bindings=self._keys(),
            prompt_continuation=self._continuation,
            reserve_space_for_menu=_MENU_LINES,
        )
        self._data: PromptSession[str] = PromptSession()

    def line(self, state: SplitterState) -> str | None:
        while not self._lines:
            draft, self._shell.draft = self._shell.draft, ""
            try:
                text = self._session.prompt(self.prompt(state), default=draft)
            except KeyboardInterrupt:
                self._shell.frame.splitter.replace("")
                state = SplitterState.START
                continue
            except EOFError:
                return None
            self._lines.extend(line + "\n" for line in text.split("\n"))
        self.number += 1
        return self._lines.popleft()

    def data_line(self) -> str | None:
        if self._lines:
            return self._lines.popleft()
        try:
            return self._data.prompt(">> ") + "\n"
        except EOFError:
            return None

    def forget(self) -> None:
        """Discard lines that were pasted after the statement."""
        self._lines.clear()

    def prompt(self, state: SplitterState) -> str:
        """`materialize=> `: the database, the input state, the transaction, and > or # by privilege."""
        session = self._shell.session
        sign = state.value
        if session is None or session.conn.status != 0:
            sign = "!" if state is SplitterState.START else sign
            return f"{database_of(self._shell)}{sign}> "
        power = "#" if session.parameter("is_superuser") == "on" else ">"
        return f"{database_of(self._shell)}{sign}{session.transaction}{power} "

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _enter(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
            buffer = event.current_buffer
            if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
                buffer.complete_state = None
            elif is_complete(self._splitter(), buffer.text):
                buffer.validate_and_handle()
            else:
                buffer.newline(copy_margin=False)

        @keys.add("escape", "enter")
        def _newline(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
            event.current_buffer.newline(copy_margin=False)

        return keys

    def _splitter(self) -> Splitter:
        return self._shell.frame.splitter.copy()

    def _lexer(self) -> Lexer:
        text = self._session.default_buffer.text
        return _PLAIN if text.lstrip().startswith("\\") else _SQL

    def _continuation(self, _width: int, line_number: int, wrap_count: int) -> str:
        """The prompt of a continuation line, as if it were read alone."""
        text = self._session.default_buffer.text
        if wrap_count or len(text) > MOST_MARKED:
            return self.prompt(SplitterState.MORE)
        if self._marks[0] != text:
            splitter = self._splitter()
            marks: list[SplitterState] = []
            for line in text.split("\n"):
                for _ in splitter.feed(line + "\n"):
                    pass
                marks.append(splitter.state)
            self._marks = (text, marks)
        return self.prompt(self._marks[1][line_number - 1])


_SQL: Lexer = PygmentsLexer(PostgresLexer)
_PLAIN: Lexer = SimpleLexer()


def is_complete(splitter: Splitter, text: str) -> bool:
    """Whether Enter sends the text: nothing is open at its end, or it contains a command."""
    events = list(splitter.feed(text + "\n"))
    if not text.strip():
        return True
    return splitter.state is SplitterState.START or any(isinstance(event, Command) for event in events)
