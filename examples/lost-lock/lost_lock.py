"""Tells a holder when it has lost its lock: by the server's word as soon as there is one, by its own clock at the latest.

    with Holder(connect, "order:42", lease=10.0) as holder:
        for part in work:
            if holder.is_lost():
                break  # holder.why says how it is known
            do(part)

A thread renews the lock each third of the lease. Another watches it by client-side caching: it reads the lock with LOCK.INFO, and the server
tells it when what it read is no longer so. Neither is trusted to be heard from: `is_lost` reckons with a deadline of its own.
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
        self.token, _holds = reply
        # When in the wait the lease has begun is not known. That of a renewal has begun after this was asked for.
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
            pass  # lost, or not to be reached: then its lease ends it

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
        """Renews, until the lock is lost for sure or not needed any more."""
        while not self.over.wait(self.lease / 3) and not self.is_lost():
            try:
                self.renew()
            except redis.ResponseError as error:
                if str(error).startswith("NOTHELD"):
                    self.lose(str(error))
            except redis.RedisError:
                pass  # not to be reached: try again, until the deadline has come

    def watch(self):
        """Watches, and begins again when a connection is lost: what happened meanwhile, LOCK.INFO tells."""
        while not self.over.is_set() and not self.is_lost():
            try:
                self.watch_once()
            except redis.RedisError:
                self.over.wait(0.1)

    def watch_once(self):
        with self.connect() as reader, self.connect() as other:
            told = other.pubsub()
            # In RESP2 another connection is told. Its number must be asked for before it subscribes.
            told.execute_command("CLIENT", "ID")
            number = told.parse_response()
            told.subscribe("__redis__:invalidate")
            reading = reader.client()  # one connection, as CLIENT TRACKING is for one
            reading.execute_command("CLIENT", "TRACKING", "ON", "REDIRECT", number)
            # Only now: what happens from here on is told.
            self.look(reading)
            is_silent = False
            while not self.over.is_set() and not self.lost.is_set():
                message = told.get_message(timeout=WATCH_EVERY)
                if message is not None:
                    is_silent = False
                    if message["type"] == "message":
                        # Told once for each time it is read: it must be read again, also after our own renewals.
                        self.look(reading)
                elif is_silent:
                    raise redis.ConnectionError("no answer to PING")
                else:
                    # Nothing has happened, or the connection is dead.
                    told.ping()
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
