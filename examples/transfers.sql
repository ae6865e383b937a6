-- Money moves between two tables; every read sees both at one moment, now or then.
CREATE TABLE paid (account text NOT NULL, amount bigint NOT NULL);
CREATE TABLE received (account text NOT NULL, amount bigint NOT NULL);
CREATE VIEW balances AS
  SELECT account, sum(amount) AS balance
  FROM (SELECT account, amount FROM received UNION ALL SELECT account, -amount FROM paid) AS moves
  GROUP BY account;

BEGIN;
INSERT INTO paid VALUES ('anna', 100), ('bruno', 20);
INSERT INTO received VALUES ('bruno', 100), ('carla', 20);
COMMIT;
SELECT * FROM balances ORDER BY account;
SELECT mz_now() AS before \gset

BEGIN;
INSERT INTO paid VALUES ('carla', 5);
INSERT INTO received VALUES ('anna', 5);
COMMIT;
SELECT * FROM balances ORDER BY account;
SELECT * FROM balances ORDER BY account AS OF :before;

DROP VIEW balances;
DROP TABLE paid;
DROP TABLE received;
