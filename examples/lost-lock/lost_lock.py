"""Tells a holder that it has lost its lock: as soon as the server reports it, or at the latest by the holder's own clock.

    with Holder(connect, "order:42", lease=10.0) as holder:
        for part in work:
            if holder.is_lost():
                break  # holder.why says how the loss was noticed
            do(part)

One thread renews the lock at each third of the lease. Another watches it by client-side caching: it reads the lock with LOCK.INFO, and
the server tells it when the lock changes. Either message may be lost, so `is_lost` also checks a deadline of its own.
"""

import threading
import time
import uuid

import redis

WATCH_EVERY = 1.0  # seconds: how soon a connection that died is noticed


class Holder:
    """Holds `key`. `connect` makes a new redis.Redis that does not repeat commands by itself; `lease` is in seconds."""

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
            raise TimeoutError(f"{self.key} was held by others for {self.wait} seconds")
        self.token, _holds, _lease = reply
        # After a wait it is not known when the lease began. A renewed lease begins after the renewal is sent.
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
            pass  # lost or unreachable: the lease ends the lock

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
                pass  # unreachable: try again until the deadline

    def watch(self):
        """Watches, and starts again when a connection is lost. LOCK.INFO then shows what happened meanwhile."""
        while not self.over.is_set() and not self.is_lost():
            try:
                self.watch_once()
            except redis.RedisError:
                self.over.wait(0.1)

    def watch_once(self):
        with self.connect() as reader, self.connect() as other:
            messages = other.pubsub()
            # In RESP2 another connection gets the messages. Get its id before it subscribes.
            messages.execute_command("CLIENT", "ID")
            number = messages.parse_response()
            messages.subscribe("__redis__:invalidate")
            reading = reader.client()  # one connection, as CLIENT TRACKING belongs to a connection
            reading.execute_command("CLIENT", "TRACKING", "ON", "REDIRECT", number)
            # Look only now: from here on the server reports changes.
            self.look(reading)
            is_silent = False
            while not self.over.is_set() and not self.lost.is_set():
                message = messages.get_message(timeout=WATCH_EVERY)
                if message is not None:
                    is_silent = False
                    if message["type"] == "message":
                        # The server sends one message for each read, so read again, also after our own renewals.
                        self.look(reading)
                elif is_silent:
                    raise redis.ConnectionError("no answer to PING")
                else:
                    # Nothing has changed, or the connection is dead.
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
            self.lose(f"another holds it, with token {holders[0]['token']}")
