"""Tells a holder that it has lost its lock. The holder learns of the loss from the server, or at the latest when the deadline passes by
the holder's clock.

    with Holder(connect, "order:42", lease=10.0) as holder:
        for part in work:
            if holder.is_lost():
                break  # holder.why says how the loss was noticed
            do(part)

One thread renews the lock each time a third of the lease has passed. Another thread watches the lock by client-side caching: it reads
the lock with LOCK.INFO, and the server sends a message when the lock changes. Replies and messages may be lost, so `is_lost` also checks
the deadline.
"""

import threading
import time
import uuid

import redis

WATCH_EVERY = 1.0  # after this number of seconds without a message, the watching thread tests its connections


class Holder:
    """Holds `key`. `connect` returns a new redis.Redis that does not retry commands. `lease` is in seconds."""

    def __init__(self, connect, key, lease, wait=60.0):
        self.connect, self.key, self.lease, self.wait = connect, key, lease, wait
        self.owner = f"{uuid.uuid4()}:{threading.get_ident()}"
        self.why = None
        self.lost = threading.Event()
        self.over = threading.Event()

    def __enter__(self):
        self.server = self.connect()
        reply = self.server.execute_command(
            "LOCK.ACQUIRE", self.key, self.owner, "PX", self.millis(), "BLOCK", round(self.wait * 1000), "HOLDS", 1
        )
        if reply is None:
            raise TimeoutError(f"{self.key} was not granted within {self.wait} seconds")
        self.token, _holds, _lease = reply
        # After a wait, the holder does not know when its lease began, so it renews. The new lease begins after the renewal was sent.
        self.renew()
        self.threads = [threading.Thread(target=work, daemon=True) for work in [self.keep, self.watch]]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()
        try:
            self.server.execute_command("LOCK.RELEASE", self.key, self.owner, "TOKEN", self.token)
        except redis.RedisError:
            pass  # the lock is lost, or the server is unreachable and the tenure ends with its lease

    def is_lost(self):
        if time.monotonic() >= self.deadline:
            self.lose("the lease is over by this machine's clock")
        return self.lost.is_set()

    def lose(self, why):
        if not self.lost.is_set():
            self.why = why
            self.lost.set()

    def millis(self):
        return round(self.lease * 1000)

    def renew(self):
        asked = time.monotonic()
        self.server.execute_command("LOCK.RENEW", self.key, self.owner, "TOKEN", self.token, "PX", self.millis())
        self.deadline = asked + self.lease

    def keep(self):
        """Renews until the lock is lost or released."""
        while not self.over.wait(self.lease / 3) and not self.is_lost():
            try:
                self.renew()
            except redis.ResponseError as error:
                if str(error).startswith("NOTHELD"):
                    self.lose(str(error))
            except redis.RedisError:
                pass  # the server is unreachable: try again until the deadline

    def watch(self):
        """Watches the lock. Starts again if a connection is lost: LOCK.INFO then shows whether the lock was lost meanwhile."""
        while not self.over.is_set() and not self.is_lost():
            try:
                self.watch_once()
            except redis.RedisError:
                self.over.wait(0.1)

    def watch_once(self):
        with self.connect() as reader, self.connect() as other:
            messages = other.pubsub()
            # With RESP2, a second connection receives the messages. The second connection asks for its id before it
            # subscribes, because a subscribed connection cannot ask.
            messages.execute_command("CLIENT", "ID")
            number = messages.parse_response()
            messages.subscribe("__redis__:invalidate")
            reading = reader.client()  # a single connection, because CLIENT TRACKING applies to one connection
            reading.execute_command("CLIENT", "TRACKING", "ON", "REDIRECT", number)
            # The server reports a change only to a connection that has read the lock.
            self.look(reading)
            is_silent = False
            while not self.over.is_set() and not self.lost.is_set():
                message = messages.get_message(timeout=WATCH_EVERY)
                if message is not None:
                    is_silent = False
                    if message["type"] == "message":
                        # The server sends at most one message after each read, so read again. The holder's own renewals also cause messages.
                        self.look(reading)
                elif is_silent:
                    raise redis.ConnectionError("no answer to PING")
                else:
                    # The lock has not changed, or a connection is dead.
                    messages.ping()
                    reading.ping()
                    is_silent = True

    def look(self, reading):
        info = reading.execute_command("LOCK.INFO", self.key)
        if info is None:
            self.lose("the lock is free")
            return
        fields = dict(zip(info[::2], info[1::2]))
        holders = [dict(zip(holder[::2], holder[1::2])) for holder in fields["holders"]]
        if self.token not in [holder["token"] for holder in holders]:
            self.lose(f"another owner holds the lock, with token {holders[0]['token']}")
