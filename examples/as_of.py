"""Write, remember a time, write on, and compare then with now. Takes the server's DSN from PGDSN, or the
default one."""

from __future__ import annotations

import os

import psycopg

DSN = os.environ.get("PGDSN", "host=localhost port=6875 user=materialize dbname=materialize")


def main() -> None:
    with psycopg.connect(DSN, autocommit=True) as connection:
        connection.execute("CREATE TABLE example_stock (item text NOT NULL, pieces int NOT NULL)")
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO example_stock VALUES (%s, %s)", [("apple", 10), ("pear", 5), ("plum", 7)]
            )
        row = connection.execute("SELECT mz_now()").fetchone()
        assert row is not None
        then = int(row[0])
        connection.execute("UPDATE example_stock SET pieces = pieces - 3 WHERE item = 'apple'")
        connection.execute("DELETE FROM example_stock WHERE item = 'plum'")
        query = "SELECT item, pieces FROM example_stock ORDER BY item"
        print("now: ", connection.execute(query).fetchall())
        print("then:", connection.execute(f"{query} AS OF {then}".encode()).fetchall())
        connection.execute("DROP TABLE example_stock")


if __name__ == "__main__":
    main()
