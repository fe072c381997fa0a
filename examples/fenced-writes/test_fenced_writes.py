"""Compares the code of the stores with docs/fencing.md, and tests every store with every order of writes."""

import re
import threading
import unittest

import psycopg
import stores
from stores import Refused, connect_postgres, connect_redis

PAGE = (stores.HERE / "../../docs/fencing.md").read_text()
LOCK = "lock:shoes"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


class TheExample(unittest.TestCase):
    def test_the_code_on_the_page_is_that_of_the_example(self):
        def lines(text):
            return "\n".join(line.strip() for line in text.strip().splitlines())

        for language in ["lua", "sql"]:
            shown = blocks(language)
            self.assertTrue(shown, language)
            files = [*stores.HERE.glob("*.py"), *stores.HERE.glob(f"*.{language}")]
            code = "\n".join(lines(file.read_text()) for file in files)
            for block in shown:
                self.assertIn(lines(block), code)


class WithStores(unittest.TestCase):
    def postgres(self):
        db = connect_postgres()
        self.addCleanup(db.close)
        return db

    def redis(self):
        server = connect_redis()
        self.addCleanup(server.close)
        return server


def checked_stores(server, db):
    """Yields the name of each store, the store objects of Alice and Bob, and an older and a newer token. The owner with the newer token
    holds the lock."""
    for kind in [stores.RedisHash, stores.RedisTwoKeys]:
        yield kind.__name__, kind(server), kind(server), 1795255079187823, 1795255079187824
    for kind in [stores.PostgresRow, stores.PostgresUpsert, stores.PostgresTransaction]:
        yield kind.__name__, kind(db), kind(db), 1795255079187823, 1795255079187824
    server.delete(LOCK)
    older, *_ = server.execute_command("LOCK.ACQUIRE", LOCK, "alice")
    server.delete(LOCK)
    newer, *_ = server.execute_command("LOCK.ACQUIRE", LOCK, "bob")
    beside = stores.RedisBesideLock(server, LOCK)
    yield "RedisBesideLock", beside, beside, older, newer


class EveryStore(WithStores):
    def each(self, check):
        for name, alices, bobs, older, newer in checked_stores(self.redis(), self.postgres()):
            with self.subTest(name):
                bobs.reset(10)
                check(alices, bobs, older, newer)

    def test_accepts_several_writes_with_one_token(self):
        def check(_, store, __, token):
            self.assertEqual(store.read(token), 10)
            store.write(token, 9)
            store.write(token, 8)
            self.assertEqual(store.read(token), 8)

        self.each(check)

    def test_refuses_a_late_write_after_a_newer_tenure_has_written(self):
        def check(alices, bobs, older, newer):
            bobs.write(newer, 7)
            with self.assertRaises(Refused):
                alices.write(older, 9)
            self.assertEqual(bobs.read(newer), 7)

        self.each(check)

    def test_refuses_a_late_write_after_a_newer_tenure_has_only_read(self):
        def check(alices, bobs, older, newer):
            self.assertEqual(bobs.read(newer), 10)
            with self.assertRaises(Refused):
                alices.write(older, 9)
            bobs.write(newer, 7)
            self.assertEqual(bobs.read(newer), 7)

        self.each(check)

    def test_refuses_a_late_read(self):
        def check(alices, bobs, older, newer):
            bobs.read(newer)
            with self.assertRaises(Refused):
                alices.read(older)

        self.each(check)

    def test_keeps_large_tokens_exactly(self):
        def check(_, store, __, ___):
            if isinstance(store, stores.RedisBesideLock):
                return  # this store accepts only tokens of its lock
            store.write(2**53 - 1, 7)
            with self.assertRaises(Refused):
                store.write(2**53 - 2, 9)

        self.each(check)


class Unchecked(WithStores):
    """Shows what goes wrong without the check."""

    def test_a_late_write_destroys_a_newer_one(self):
        for store in [stores.RedisUnchecked(self.redis()), stores.PostgresUnchecked(self.postgres())]:
            store.reset(10)
            store.write(2, 7)
            store.write(1, 9)
            self.assertEqual(store.read(2), 9)


class CheckAndWrite(WithStores):
    def test_in_two_statements_they_accept_a_late_write(self):
        alice, bob = self.postgres(), stores.PostgresRow(self.postgres())
        bob.reset(10)
        alice.autocommit = False
        alice.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        fence = alice.execute("SELECT fence FROM stock").fetchone()[0]
        self.assertLessEqual(fence, 1, "the check is passed")
        bob.write(2, 7)
        alice.execute("UPDATE stock SET pairs = 9, fence = 1")
        alice.commit()
        self.assertEqual(alice.execute("SELECT pairs FROM stock").fetchone()[0], 9)

    def late_write_meets_a_transaction(self, isolation, end):
        """Alice's late write waits for Bob's transaction, and `end` then ends this transaction. Returns the outcome of her write, and
        the row."""
        bob, alice, store = self.postgres(), self.postgres(), stores.PostgresRow(self.postgres())
        store.reset(10)
        bob.autocommit = False
        bob.execute("UPDATE stock SET pairs = 7, fence = 2 WHERE fence <= 2")
        alice.isolation_level = isolation
        outcome = []

        def write():
            try:
                with alice.transaction():
                    stores.PostgresRow.write(holder, 1, 9)
                outcome.append("written")
            except (Refused, psycopg.errors.SerializationFailure) as error:
                outcome.append(type(error).__name__)

        holder = object.__new__(stores.PostgresRow)
        holder.db = alice
        late = threading.Thread(target=write)
        late.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s"
        while not store.db.execute(waits, [alice.info.backend_pid]).fetchone()[0]:
            self.assertTrue(late.is_alive())
        end(bob)
        late.join()
        return outcome[0], store.db.execute("SELECT pairs, fence FROM stock").fetchone()

    def test_in_one_statement_they_wait_for_a_running_write_and_check_again(self):
        isolation = psycopg.IsolationLevel.READ_COMMITTED
        outcome = self.late_write_meets_a_transaction(isolation, lambda bob: bob.commit())
        self.assertEqual(outcome, ("Refused", (7, 2)))

    def test_in_one_statement_they_ignore_a_write_that_was_rolled_back(self):
        isolation = psycopg.IsolationLevel.READ_COMMITTED
        outcome = self.late_write_meets_a_transaction(isolation, lambda bob: bob.rollback())
        self.assertEqual(outcome, ("written", (9, 1)))

    def test_in_stricter_isolation_the_late_write_fails(self):
        for isolation in [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]:
            outcome = self.late_write_meets_a_transaction(isolation, lambda bob: bob.commit())
            self.assertEqual(outcome, ("SerializationFailure", (7, 2)))


if __name__ == "__main__":
    unittest.main()
