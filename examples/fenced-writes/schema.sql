-- The tables of the example for PostgreSQL.
CREATE TABLE IF NOT EXISTS stock (
    item  text PRIMARY KEY,
    pairs integer NOT NULL,
    fence bigint NOT NULL DEFAULT 0   -- the largest token that has read or written this row
);
CREATE TABLE IF NOT EXISTS fence (    -- a row for each lock, for transactions that write many rows
    lock  text PRIMARY KEY,
    token bigint NOT NULL
);
