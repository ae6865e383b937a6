CREATE TABLE v (id int, i2 smallint, i int, l bigint, r real, f double precision, n numeric, m numeric(10,2), s text, vc varchar(10), c char(5), y bytea, b boolean, d date, t time, ts timestamp, tz timestamptz, iv interval, u uuid, j jsonb, a int[], sa text[]);
INSERT INTO v VALUES
 (1, 1, 7, 9000000000, 1.5, 2.5, 12.345, 12.34, 'hello', 'abc', 'ab', '\x00ff10', true, '2020-02-29', '10:20:30.5', '2020-02-29 10:20:30.123456', '2020-02-29 10:20:30.5+00', '1 mon 2 days 03:04:05', '00112233-4455-6677-8899-aabbccddeeff', '{"a": 1, "b": {"c": [1, 2, "x"]}, "s": "t"}', '{1,2,3}', '{a,b,NULL}'),
 (2, -2, -7, -3, -0.25, -2.5, -12.345, -0.01, 'Hello World', '', '', '\x', false, '1999-12-31', '00:00:00', '1999-12-31 23:59:59', '1999-12-31 23:59:59.999999+00', '-1 days', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '[1, 2.50, null, true]', '{}', '{}'),
 (3, 32767, 2147483647, 9223372036854775807, 3e10, 1e100, 99999999999.999999999999, 99999999.99, 'ÄÖ ü€𝄞', 'x y  ', 'xy', '\x6162', true, '2000-01-01', '23:59:59.999999', '2000-01-01 00:00:00', '2038-01-19 03:14:08+00', '2 years -3 months', '00000000-0000-0000-0000-000000000000', '"str"', '{NULL,5}', '{x}'),
 (4, -32768, -2147483648, -9223372036854775808, 'NaN', '-Infinity', 0.000000000000000001, 0.00, '', 'a,b,,c', 'x,y', '\xdeadbeef', NULL, '1970-01-01', '12:00:00', '1969-12-31 23:59:59.5', '1970-01-01 00:00:00+00', '24:00:00', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{}', '{7}', '{"a b","c,d"}'),
 (5, 0, 3, 2, 0, 0.1, 0.5, 0.50, ' a%b_c\d ', 'A', 'A', '\x41', true, '2023-10-29', '02:30:00', '2023-10-29 02:30:00', '2023-10-29 01:30:00+00', '00:00:00.000001', '12345678-1234-1234-1234-123456789012', '3', '{3,3,1}', '{abc,hello}'),
 (6, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE TABLE p (id int, name text, boss int, dept text, pay numeric(10,2), since date);
INSERT INTO p VALUES (1, 'ann', NULL, 'x', 1000.50, '2010-01-01'), (2, 'bob', 1, 'x', 900.25, '2012-05-06'), (3, 'cyd', 1, 'y', 900.25, '2012-05-06'), (4, 'dan', 2, 'y', NULL, NULL), (5, 'eve', 2, NULL, 100, '2020-12-31'), (6, 'fay', 3, 'z', 55.55, '2021-01-01');
CREATE TABLE q (id int, dept text, what text, size bigint);
INSERT INTO q VALUES (1, 'x', 'red', 10), (2, 'y', 'green', 20), (3, 'y', 'blue', NULL), (4, 'w', 'black', 40), (5, NULL, 'white', 50);
