"""Random sequences of statements for one session, as lines of `dialogues.txt`, from a seed.

The statements are few and their names fewer, so that the same texts come again and again while what they mean
changes: the catalog, prepared statements, cursors, variables, roles, transactions. None of them needs Spark.
"""

from __future__ import annotations

import random

# Outside of blocks alone where PostgreSQL is asked too: here they take effect at once.
DEFINITIONS = """
Q CREATE TABLE t (a int)
Q CREATE TABLE t (a int, b timestamptz DEFAULT now())
Q CREATE TABLE t (b text, c int)
Q DROP TABLE t
Q ALTER TABLE t ADD COLUMN d int
Q ALTER TABLE t RENAME TO u
Q ALTER TABLE u RENAME TO t
Q CREATE SCHEMA s1
Q CREATE TABLE s1.t (z text)
Q DROP TABLE s1.t
Q CREATE VIEW v AS SELECT 1 AS a
Q CREATE OR REPLACE VIEW v AS SELECT 1 AS a, 'x'::text AS b
Q DROP VIEW v
Q GRANT INSERT ON t TO seq_a
Q GRANT SELECT, INSERT ON t TO seq_b
Q REVOKE ALL ON t FROM seq_a
Q GRANT USAGE ON SCHEMA s1 TO seq_a
Q GRANT seq_b TO seq_a
Q REVOKE seq_b FROM seq_a
"""
STATEMENTS = """
Q PREPARE a AS SELECT 1
Q PREPARE a AS SELECT 'two', 2
Q PREPARE a AS SELECT current_setting('search_path')
Q PREPARE b (int) AS SELECT $1
Q PREPARE b (text) AS SELECT $1, current_user
Q EXECUTE a
Q EXECUTE a
Q EXECUTE a
Q EXECUTE b(7)
Q EXECUTE b('7')
Q DEALLOCATE a
Q DEALLOCATE b
Q DEALLOCATE ALL
Q DECLARE c CURSOR FOR SELECT 1 AS a
Q DECLARE c CURSOR FOR SELECT 'x' AS a, 2 AS b
Q DECLARE c CURSOR FOR SELECT current_setting('my.x', true)
Q DECLARE d CURSOR WITH HOLD FOR SELECT n FROM generate_series(1, 3) AS n
Q FETCH c
Q FETCH ALL c
Q FETCH d
Q MOVE d
Q CLOSE c
Q CLOSE d
Q SET search_path = s1, public
Q SET search_path = public
Q SET LOCAL search_path = s1
Q RESET search_path
Q SET TimeZone = 'Asia/Kolkata'
Q SET LOCAL TimeZone = 'America/New_York'
Q RESET TimeZone
Q SET my.x = '1'
Q SET LOCAL my.x = '2'
Q SELECT set_config('my.x', '3', false)
Q SELECT set_config('my.x', '4', true)
Q SELECT current_setting('my.x', true)
Q SHOW search_path
Q RESET ALL
Q SELECT current_schema
Q SELECT current_user, session_user
Q SELECT '2020-01-01 00:00+00'::timestamptz
Q SELECT timestamptz '2020-01-01 00:00'
Q SELECT now()
Q SELECT now() FROM pg_namespace LIMIT 1
Q SELECT current_setting('transaction_read_only')
Q SELECT current_setting('is_superuser')
Q SELECT relname, relnatts FROM pg_class WHERE relname IN ('t', 'u', 'v') ORDER BY 1, 2
Q SELECT to_regclass('t') IS NULL
Q SELECT has_table_privilege('seq_a', 't', 'INSERT')
Q SELECT setting FROM pg_settings WHERE name = 'search_path'
Q SELECT name FROM pg_prepared_statements ORDER BY 1
Q SELECT name FROM pg_cursors WHERE name <> '' ORDER BY 1
Q SELECT * FROM v
Q RESET ROLE
Q BEGIN
Q BEGIN
Q BEGIN READ ONLY
Q COMMIT
Q COMMIT
Q ROLLBACK
Q ROLLBACK
Q SAVEPOINT p
Q ROLLBACK TO p
Q RELEASE p
Q INSERT INTO t VALUES (1)
Q INSERT INTO t VALUES (1) RETURNING *
Q SET search_path = s1; INSERT INTO t VALUES ('q') RETURNING *; SET search_path = public
Q SELECT current_setting('my.x', true); SET my.x = '5'; SELECT current_setting('my.x', true)
Q DEALLOCATE ALL; PREPARE a AS SELECT 1; EXECUTE a; DEALLOCATE a; PREPARE a AS SELECT 2, 3; EXECUTE a
! SELECT current_setting('my.x', true)
! SELECT current_user
P p3 SELECT current_schema
B - p3 ;; D P - ;; E -
C S p1
C S p2
"""
# What PostgreSQL has otherwise, or cannot do:
# - privileges are checked here when a statement is prepared, there when it runs; a schema of the search path
#   that the role may not use is passed over there, and an error here; a GRANT without the grant option is a
#   warning there, and an error here: so nobody acts as another role;
# - a describe of a prepared FETCH whose transaction is over ends PostgreSQL's server;
# - EXECUTE and FETCH of what is not there fail here when they are parsed;
# - listings and the texts of views are ours.
OURS = """
Q PREPARE a AS INSERT INTO t VALUES (1) RETURNING *
? SELECT * FROM t
? SELECT * FROM v
P p1 SELECT * FROM t
B - p1 ;; D P -
P p2 INSERT INTO t VALUES (1) RETURNING *
B - p2 ;; D P - ;; E -
! INSERT INTO t VALUES ($1) RETURNING * | 5
Q SET ROLE seq_a
Q SET LOCAL ROLE seq_b
Q DISCARD ALL
Q SHOW TABLES
Q SHOW ALL
Q SHOW my.x
Q SHOW COLUMNS FROM t
Q SHOW CREATE TABLE t
Q SHOW CREATE VIEW v
Q SELECT pg_get_viewdef('v'::regclass)
Q SELECT 't'::regclass
Q EXPLAIN SELECT * FROM t
Q DROP TABLE t; CREATE TABLE t (a int); INSERT INTO t VALUES (1) RETURNING *
! EXECUTE a
! EXECUTE b(1)
! FETCH ALL c
P p4 EXECUTE a
D S p4
B - p4 ;; D P - ;; E -
B - p4 ;; E -
P p5 FETCH ALL c
D S p5
B - p5 ;; D P - ;; E -
B - p5 ;; E -
D S p1
D S p2
"""


def _lines(text: str) -> list[str]:
    return text.strip().splitlines()


def sequence(seed: int, length: int, *, beside_postgres: bool) -> list[str]:
    rng = random.Random(seed)
    definitions, others = _lines(DEFINITIONS), _lines(STATEMENTS)
    if not beside_postgres:
        others += _lines(OURS)
    # Some are preferred for a while, so that they meet each other and themselves.
    found = ["Q CREATE TABLE t (a int)"]
    block = False
    while len(found) < length:
        favourites = rng.sample(others, 6)
        for _ in range(rng.randrange(8, 20)):
            kind = rng.random()
            pool = favourites if kind < 0.6 else others if kind < 0.85 else definitions
            if pool is definitions and block and beside_postgres:
                pool = ["Q COMMIT", "Q ROLLBACK"]
            line = rng.choice(pool)
            if line.startswith("Q BEGIN"):
                block = True
            elif line in ("Q COMMIT", "Q ROLLBACK"):
                block = False
            found.append(line)
    return found[:length]
