"""Stores for the number of pairs of shoes. Each store checks the fencing token in another way.

All stores have the same interface. `read(token)` returns the number of pairs. After this call the store refuses every smaller
token. `write(token, pairs)` writes unless the store has seen a larger token. A refusal raises `Refused`.

In each store, the check and the write are one atomic step. If they were two steps, a write with a
larger token could come between them.
"""

import os
from pathlib import Path

import psycopg
import redis

HERE = Path(__file__).parent
ITEM = "shoes"


class Refused(Exception):
    """The store has seen a larger token: the lock was lost, and another owner got it."""


def script(server, name):
    return server.register_script((HERE / name).read_text())


class RedisUnchecked:
    """Accepts every write."""

    def __init__(self, server):
        self.server = server

    def reset(self, pairs):
        self.server.set("stock:shoes", pairs)

    def read(self, token):
        return int(self.server.get("stock:shoes"))

    def write(self, token, pairs):
        self.server.set("stock:shoes", pairs)


class RedisHash:
    """The usual form: each record is a hash, and the fence is one of its fields."""

    def __init__(self, server):
        self.server = server
        self.step = script(server, "record.lua")

    def reset(self, pairs):
        self.server.delete("stock:shoes")
        self.server.hset("stock:shoes", "pairs", pairs)

    def read(self, token):
        return int(self.run(token))

    def write(self, token, pairs):
        self.run(token, pairs)

    def run(self, *arguments):
        try:
            return self.step(keys=["stock:shoes"], args=arguments)
        except redis.ResponseError as error:
            if str(error).startswith("FENCED"):
                raise Refused(str(error).removeprefix("FENCED ")) from None
            raise


class RedisTwoKeys(RedisHash):
    """The record is a plain string, and the fence is in a second key."""

    KEYS = ["{stock:shoes}", "{stock:shoes}:fence"]

    def __init__(self, server):
        self.server = server
        two_keys = script(server, "two_keys.lua")
        self.step = lambda keys, args: two_keys(keys=self.KEYS, args=args)

    def reset(self, pairs):
        self.server.delete(*self.KEYS)
        self.server.set(self.KEYS[0], pairs)


class RedisBesideLock:
    """For a record on the same server as its lock: LOCK.GUARD checks the token and runs the command in one step."""

    def __init__(self, server, lock):
        self.server, self.lock = server, lock

    def reset(self, pairs):
        self.server.set("stock:shoes", pairs)

    def read(self, token):
        return int(self.guarded(token, "GET", "stock:shoes"))

    def write(self, token, pairs):
        self.guarded(token, "SET", "stock:shoes", pairs)

    def guarded(self, token, *command):
        try:
            return self.server.execute_command("LOCK.GUARD", self.lock, token, *command)
        except redis.ResponseError as error:
            if str(error).startswith("FENCED"):
                raise Refused(str(error).removeprefix("FENCED ")) from None
            raise


class PostgresUnchecked:
    """Accepts every write."""

    def __init__(self, db):
        self.db = db
        db.execute((HERE / "schema.sql").read_text())

    def reset(self, pairs):
        self.db.execute("TRUNCATE stock, fence")
        self.db.execute("INSERT INTO stock (item, pairs) VALUES (%s, %s)", [ITEM, pairs])

    def read(self, token):
        return self.one("SELECT pairs FROM stock WHERE item = %s", [ITEM])

    def write(self, token, pairs):
        self.db.execute("UPDATE stock SET pairs = %s WHERE item = %s", [pairs, ITEM])

    def one(self, statement, values):
        """Returns the number in the only row that the statement returns. If there is no row, the token was refused."""
        row = self.db.execute(statement, values).fetchone()
        if row is None:
            raise Refused(self.seen())
        return row[0]

    def seen(self):
        return f"the row has seen token {self.db.execute('SELECT max(fence) FROM stock').fetchone()[0]}"


class PostgresRow(PostgresUnchecked):
    """The usual form: the fence is a column of the row."""

    READ = """
        UPDATE stock SET fence = %(token)s
         WHERE item = %(item)s AND fence <= %(token)s
        RETURNING pairs
    """
    WRITE = """
        UPDATE stock SET pairs = %(pairs)s, fence = %(token)s
         WHERE item = %(item)s AND fence <= %(token)s
        RETURNING pairs
    """

    def read(self, token):
        return self.one(self.READ, {"item": ITEM, "token": token})

    def write(self, token, pairs):
        self.one(self.WRITE, {"item": ITEM, "token": token, "pairs": pairs})


class PostgresUpsert(PostgresRow):
    """For a row that may not exist yet."""

    READ = """
        INSERT INTO stock (item, pairs, fence) VALUES (%(item)s, 0, %(token)s)
            ON CONFLICT (item) DO UPDATE SET fence = excluded.fence
         WHERE stock.fence <= excluded.fence
        RETURNING pairs
    """
    WRITE = """
        INSERT INTO stock (item, pairs, fence) VALUES (%(item)s, %(pairs)s, %(token)s)
            ON CONFLICT (item) DO UPDATE SET pairs = excluded.pairs, fence = excluded.fence
         WHERE stock.fence <= excluded.fence
        RETURNING pairs
    """


class PostgresTransaction(PostgresUnchecked):
    """For a lock that protects many rows. Each transaction first checks and writes the fence in a row for the lock. PostgreSQL
    locks this row until the transaction ends, so no transaction with another token runs between the check and the writes."""

    FENCE = """
        INSERT INTO fence (lock, token) VALUES (%(lock)s, %(token)s)
            ON CONFLICT (lock) DO UPDATE SET token = excluded.token
         WHERE fence.token <= excluded.token
        RETURNING token
    """

    def read(self, token):
        with self.db.transaction():
            self.one(self.FENCE, {"lock": "lock:shoes", "token": token})
            return super().read(token)

    def write(self, token, pairs):
        with self.db.transaction():
            self.one(self.FENCE, {"lock": "lock:shoes", "token": token})
            super().write(token, pairs)  # and the other rows

    def seen(self):
        return f"the lock's row has seen token {self.db.execute('SELECT max(token) FROM fence').fetchone()[0]}"


def connect_redis():
    """Connects to REDIS_URL."""
    url = os.environ.get("REDIS_URL", "redis://localhost:6379")
    return redis.Redis.from_url(url, decode_responses=True)


def connect_postgres():
    """Connects with the settings in PGHOST, PGUSER and the other environment variables of PostgreSQL."""
    return psycopg.connect(autocommit=True)
