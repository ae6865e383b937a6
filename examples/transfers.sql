-- Money moves between two tables; every read sees both at one moment, now or then.
CREATE TABLE example_paid (account text NOT NULL, amount bigint NOT NULL);
CREATE TABLE example_received (account text NOT NULL, amount bigint NOT NULL);
CREATE VIEW example_balances AS
  SELECT account, sum(amount) AS balance
  FROM (SELECT account, amount FROM example_received UNION ALL SELECT account, -amount FROM example_paid) AS moves
  GROUP BY account;

BEGIN;
INSERT INTO example_paid VALUES ('anna', 100), ('bruno', 20);
INSERT INTO example_received VALUES ('bruno', 100), ('carla', 20);
COMMIT;
SELECT * FROM example_balances ORDER BY account;
SELECT mz_now() AS before \gset

BEGIN;
INSERT INTO example_paid VALUES ('carla', 5);
INSERT INTO example_received VALUES ('anna', 5);
COMMIT;
SELECT * FROM example_balances ORDER BY account;
SELECT * FROM example_balances ORDER BY account AS OF :before;

DROP VIEW example_balances;
DROP TABLE example_paid;
DROP TABLE example_received;
