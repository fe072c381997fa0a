"""Makes holders lose their locks in every way, and checks that each holder notices the loss."""

import contextlib
import os
import socket
import threading
import time
import unittest

import redis
from lost_lock import Holder
from redis.backoff import NoBackoff
from redis.retry import Retry

SOCKET = os.environ["REDIS_SOCKET"]
KEY = "order:42"
LONG = 600.0
SOON = 30.0


def connect(path=SOCKET):
    return redis.Redis(
        unix_socket_path=path, protocol=2, decode_responses=True, socket_timeout=5, retry=Retry(NoBackoff(), 0)
    )


class Link:
    """A proxy in front of the server. The proxy silently drops all data on the connections in
    `cut`."""

    def __init__(self):
        self.path = f"{SOCKET}.{id(self)}"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.accepted = 0
        self.cut = set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            here, _ = self.listener.accept()
            there = socket.socket(socket.AF_UNIX)
            there.connect(SOCKET)
            self.accepted += 1
            for source, sink in [(here, there), (there, here)]:
                threading.Thread(target=self.pass_on, args=[source, sink, self.accepted], daemon=True).start()

    def pass_on(self, source, sink, number):
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if number not in self.cut:
                    sink.sendall(data)
        sink.close()


class LostLock(unittest.TestCase):
    def setUp(self):
        self.server = connect()
        self.addCleanup(self.server.close)
        self.server.flushall()

    def assert_told(self, lose, connect=connect):
        with Holder(connect, KEY, LONG) as holder:
            self.see_watched(holder)
            self.assertFalse(holder.is_lost())
            lose(holder)
            # The lease is so long that neither the deadline nor the holder's next renewal tells the holder in time.
            self.assertTrue(holder.lost.wait(SOON))
            return holder.why

    def see_watched(self, holder):
        deadline = time.monotonic() + SOON
        while not int(self.server.info("stats")["tracking_total_keys"]):
            self.assertLess(time.monotonic(), deadline, "the holder does not watch its lock")

    def test_a_deletion_is_told(self):
        self.assertEqual(self.assert_told(lambda _: self.server.delete(KEY)), "the lock is free")

    def test_a_flush_is_told(self):
        self.assertEqual(self.assert_told(lambda _: self.server.flushall()), "the lock is free")

    def test_a_hand_off_is_told(self):
        def lose(holder):
            other = connect()
            self.addCleanup(other.close)
            waits = ["LOCK.ACQUIRE", KEY, "other", "BLOCK", 5_000]
            waiter = threading.Thread(target=other.execute_command, args=waits)
            waiter.start()
            while dict(zip(*[iter(self.server.execute_command("LOCK.INFO", KEY))] * 2))["waiters"] == 0:
                self.assertTrue(waiter.is_alive())
            self.server.execute_command("LOCK.RELEASE", KEY, holder.owner)
            waiter.join()

        self.assertRegex(self.assert_told(lose), "another owner holds the lock, with token [0-9]+")

    def test_an_end_of_the_lease_is_told(self):
        self.assertEqual(self.assert_told(lambda _: self.server.pexpire(KEY, 50)), "the lock is free")

    def test_a_loss_after_renewals_of_the_holder_is_told(self):
        def lose(holder):
            for _ in range(3):
                holder.renew()
            self.server.delete(KEY)

        self.assertEqual(self.assert_told(lose), "the lock is free")

    def test_a_loss_after_a_lost_connection_is_told(self):
        def lose(holder):
            for client in self.server.client_list(_type="pubsub"):
                self.server.client_kill_filter(_id=client["id"])
            self.server.delete(KEY)

        self.assertEqual(self.assert_told(lose), "the lock is free")

    def test_a_loss_whose_message_was_lost_is_told(self):
        link = Link()

        def lose(_):
            link.cut.add(2)  # connection 1 renews, connection 2 receives the messages
            self.server.delete(KEY)

        self.assertEqual(self.assert_told(lose, lambda: connect(link.path)), "the lock is free")

    def test_a_holder_that_is_cut_off_knows_by_its_own_clock(self):
        link = Link()
        with Holder(lambda: connect(link.path), KEY, lease=2.0) as holder:
            begun = time.monotonic()
            link.cut.update(range(1, 1_000))
            while not holder.is_lost():
                self.assertLess(time.monotonic(), begun + SOON)
        self.assertEqual(holder.why, "the lease is over by this machine's clock")

    def test_a_holder_that_renews_in_time_is_told_no_loss(self):
        self.server.config_resetstat()
        with Holder(connect, KEY, lease=1.5) as holder:
            token = holder.token
            deadline = time.monotonic() + SOON
            while self.server.info("commandstats")["cmdstat_lock.renew"]["calls"] < 5:
                self.assertLess(time.monotonic(), deadline)
            self.assertFalse(holder.is_lost(), holder.why)
            self.assertEqual(holder.token, token)
        self.assertIsNone(self.server.execute_command("LOCK.INFO", KEY))


if __name__ == "__main__":
    unittest.main()
