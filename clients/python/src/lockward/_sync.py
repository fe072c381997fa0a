"""Locks for threads."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from dataclasses import replace
from time import monotonic, sleep
from types import SimpleNamespace, TracebackType
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError, ResponseError, TimeoutError
from redis.retry import Retry

from . import _connecting as connecting
from . import _course as course
from ._course import Ask, Course, Pause, Schedule, Step, Tenure
from ._lock import LockBase, Number, call
from .errors import LockError, told

T = TypeVar("T")
_IDLE = 16
#: How often to look, in seconds, what has come of a question that is asked in another thread.
_LOOK = 0.1


class Link:
    """What the locks of one client share: idle connections, and the thread that renews."""

    def __init__(self, client: Any) -> None:
        self._client = weakref.ref(client)
        self._schedule = Schedule()
        self._restart()
        weakref.finalize(client, self.close).atexit = False

    def _restart(self) -> None:
        self._changed = threading.Condition()
        self._idle: dict[Any, list[Any]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def forked(self) -> None:
        """The thread is the parent's, and so are the connections and the tenures."""
        self._restart()
        self._schedule.clear()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, {}
            self._changed.notify_all()
        for connection in (c for connections in idle.values() for c in connections):
            connection.disconnect()

    def run(self, actions: Course[T]) -> T:
        """Carry a course of action out."""
        result: Any = None
        failure: BaseException | None = None
        while True:
            try:
                step = actions.send(result) if failure is None else actions.throw(failure)
            except StopIteration as end:
                value: T = end.value
                return value
            result, failure = None, None
            try:
                result = self._carry_out(step)
            except BaseException as error:
                failure = error

    def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return sleep(step.seconds)
        return self.exchange(step) if isinstance(step, Ask) else step()

    def exchange(self, ask: Ask) -> list[Any]:
        client = self._client()
        if client is None:
            raise ConnectionError("the client is gone")
        ask = connecting.remapped(client, ask)
        if ask.redirect is not None and not ask.redirect.asking:
            self._refresh(client)
        try:
            place = connecting.place(client, ask.key, ask.redirect)
        except RedisError as error:
            self._refresh(client)
            raise ConnectionError(str(error)) from error
        connection = self.take(client, place, ask)
        try:
            onlooker = _Onlooker(self, client, place, ask, connection) if course.lasts(ask) else None
            replies = _exchange(connection, ask, onlooker)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, course.NETWORK):
                self._broken(client, place)
            raise
        self.give(place, connection)
        return replies

    def take(self, client: Any, place: Any, ask: Ask, again: Any = None) -> Any:
        """A connection; where it has to be made, by the same name ``again`` whatever Sentinels say by now."""
        while True:
            with self._changed:
                idle = self._idle.get(place)
                connection = idle.pop() if idle else None
            if connection is None:
                break
            try:
                if not connection.can_read(timeout=0):
                    return connection
            except course.NETWORK:
                self._hurry()
            connection.disconnect()
        cluster = connecting.is_cluster(client)
        node = client.get_redis_connection(connecting.node(client, ask.key)) if cluster else client
        try:
            return _connect(node.connection_pool, ask, cluster, again)
        except course.NETWORK:
            if cluster:
                self._refresh(client)
            raise

    def give(self, place: Any, connection: Any) -> None:
        with self._changed:
            idle = self._idle.setdefault(place, [])
            if not self._closed and len(idle) < _IDLE and connection.pid == os.getpid():
                idle.append(connection)
                return
        connection.disconnect()

    def _broken(self, client: Any, place: Any) -> None:
        with self._changed:
            idle = self._idle.pop(place, [])
        self._hurry()
        for connection in idle:
            connection.disconnect()
        if connecting.is_cluster(client):
            self._refresh(client)

    def _hurry(self) -> None:
        with self._changed:
            self._schedule.hurry()
            self._changed.notify_all()

    def _refresh(self, client: Any) -> None:
        """Learn anew which node of a cluster has which slots."""
        try:
            client.nodes_manager.initialize()
        except Exception:  # the nodes that are known may still do
            pass

    # The thread.

    def watch(self, tenure: Tenure) -> None:
        with self._changed:
            if tenure.over or tenure.lost.is_set():
                return
            self._schedule.add(tenure)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._keep_on, name="lockward", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def unwatch(self, tenure: Tenure) -> None:
        with self._changed:
            self._schedule.remove(tenure)

    def lose(self, tenure: Tenure) -> None:
        with self._changed:
            self._schedule.remove(tenure)
            if tenure.over or tenure.lost.is_set():
                return
            tenure.lost.set()
        lock = tenure.lock()
        if lock is not None:
            call(lock.on_lost, lock)

    def _keep_on(self) -> None:
        while not self._closed:
            self._turn()

    def _turn(self) -> None:
        with self._changed:
            now = monotonic()
            then = self._schedule.next()
            if self._closed:
                return
            if then is None or then > now:
                self._changed.wait(None if then is None else min(then - now, threading.TIMEOUT_MAX))
                return
            due, expired = self._schedule.due(now), self._schedule.expired(now)
            limit = self._schedule.limit(due, now) if due else 0.0
        for tenure in expired:
            self.lose(tenure)
        for group in self._by_place(due):
            self._renew_together(group, limit)

    def _by_place(self, tenures: list[Tenure]) -> list[list[Tenure]]:
        client = self._client()
        if client is None or not connecting.is_cluster(client):
            return [tenures] if tenures else []
        places: dict[Any, list[Tenure]] = {}
        for tenure in tenures:
            try:
                place = connecting.place(client, tenure.key, None)
            except RedisError:
                place = None
            places.setdefault(place, []).append(tenure)
        return list(places.values())

    def _renew_together(self, tenures: list[Tenure], limit: float) -> None:
        sent = monotonic()
        replies: list[Any]
        try:
            replies = self.exchange(Ask(tenures[0].key, tuple(t.renewal() for t in tenures), limit))
        except (RedisError, OSError) as error:
            replies = [error] * len(tenures)
        for tenure, answer in zip(tenures, replies):
            reply = answer
            to = course.redirect(reply)
            if to is not None:
                try:
                    [reply] = self.exchange(Ask(tenure.key, (tenure.renewal(),), limit, to))
                except (RedisError, OSError) as error:
                    reply = error
            if self._schedule.answered(tenure, sent, reply):
                self.lose(tenure)


class _Onlooker:
    """Asks in a thread, so that a reply waits for nothing: one question at a time."""

    def __init__(self, link: Link, client: Any, place: Any, ask: Ask, waiting: Any) -> None:
        self._link, self._client, self._place, self._waiting = link, client, place, waiting
        self._ping = replace(ask, commands=(("PING",),), limit=course.GRACE)
        self._family, self.there = waiting._sock.family, waiting._sock.getpeername()
        self.sentinels = connecting.sentinels(client)
        self._thread: threading.Thread | None = None
        self._gone: course.Gone | None = None
        self._due = monotonic() + course.silence()

    def look(self) -> float:
        """Raise if the server is gone; or in how many seconds to look again."""
        if self._thread is not None and not self._thread.is_alive():
            if self._gone is not None:
                raise self._gone
            self._thread, self._due = None, monotonic() + course.silence()
        if self._thread is None:
            if monotonic() < self._due:
                return self._due - monotonic()
            thread = threading.Thread(target=self._check, name="lockward-ping", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there are too many, or the program ends
                self._due = monotonic() + course.silence()
                return course.GRACE
            self._thread = thread
        return _LOOK

    def _check(self) -> None:
        try:
            self._link.run(course.checking(self))
        except course.Gone as error:
            self._gone = error

    def ping(self) -> Any:
        name = connecting.name(self._waiting)
        connection = self._link.take(self._client, self._place, self._ping, name)
        try:
            if connection._sock.getpeername() != self.there:
                connection.disconnect()
                return connecting.name(connection)
            _exchange(connection, self._ping)
        except BaseException:
            connection.disconnect()
            raise
        self._link.give(self._place, connection)
        return None

    def knock(self) -> None:
        with socket.socket(self._family) as probe:
            probe.settimeout(course.GRACE)
            probe.connect(self.there)

    def named(self, sentinel: Any) -> Any:
        manager, pool = connecting.asking(self._client, sentinel, redis, Retry(NoBackoff(), 0), reads_end=True)
        try:
            found = manager.discover_master(self._client.connection_pool.service_name)
        finally:
            pool.disconnect()
        return connecting.another(found, self._waiting)

    def addresses(self, name: Any) -> list[Any]:
        host, port = name
        return [found[4] for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _connect(pool: Any, ask: Ask, cluster: bool, again: Any = None) -> Any:
    retry = Retry(NoBackoff(), 0)
    settings = connecting.settings(pool.connection_kwargs, ask, retry, cluster, reads_end=True)
    connection = pool.connection_class(**settings)
    try:
        if again is not None and hasattr(connection, "connect_to"):
            connection.connect_to(again)
        else:
            connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return connection


def _exchange(connection: Any, ask: Ask, onlooker: _Onlooker | None = None) -> list[Any]:
    """The onlooker looks where replies are long in coming."""
    until = None if ask.limit is None else monotonic() + ask.limit
    asking = ask.redirect is not None and ask.redirect.asking
    # It counts for the next command alone.
    commands = [each for command in ask.commands for each in (("ASKING",), command)] if asking else ask.commands
    connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies: list[Any] = []
    for _ in commands:
        _wait(connection, until, onlooker)
        try:
            replies.append(connection.read_response())
        except course.NETWORK:
            raise
        except ResponseError as error:
            replies.append(error)
    return replies[1::2] if asking else replies


def _wait(connection: Any, until: float | None, onlooker: _Onlooker | None) -> None:
    """For a reply."""
    while True:
        left = float("inf") if until is None else until - monotonic()
        span = left if onlooker is None or left <= course.GRACE else min(left, onlooker.look())
        if connection.can_read(timeout=max(0.001, span)):
            return
        if span >= left:
            raise TimeoutError("no reply in time")


_links: weakref.WeakKeyDictionary[Any, Link] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def _forked() -> None:
    global _making
    _making = threading.Lock()
    for link in list(_links.values()):
        link.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def link_of(client: Any) -> Link:
    with _making:
        link = _links.get(client)
        if link is None:
            link = _links[client] = Link(client)
        return link


class Lock(LockBase[threading.Event]):
    """A lock on a server with Lockward, with the interface of redis.lock.Lock. See ``Lock.__init__``."""

    _asynchronous = False

    def _prepare(self) -> None:
        self._slot: Any = threading.local() if self.thread_local else SimpleNamespace()

    def _own(self) -> Tenure | None:
        return getattr(self._slot, "tenure", None)

    _find = _own

    def _keep(self, tenure: Tenure) -> None:
        former = self._own()
        if former is not None:
            self._keeper().unwatch(former)
        self._slot.tenure = tenure

    def _drop(self, tenure: Tenure) -> None:
        if self._own() is tenure:
            self._slot.tenure = None

    def _event(self) -> threading.Event:
        return threading.Event()

    def _keeper(self) -> Link:
        return link_of(self.redis)

    def _run(self, actions: Course[T]) -> T:
        return self._keeper().run(actions)

    def acquire(
        self,
        sleep: Number | None = None,
        blocking: bool | None = None,
        blocking_timeout: Number | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock, waiting in the server's queue if need be: whether it is held now. ``sleep`` is not used."""
        return self._run(self._acquire(blocking, blocking_timeout, token))

    def release(self) -> None:
        """Give one hold back. LockLost (a LockNotOwnedError) when the lock had been lost."""
        self._run(self._release())

    def extend(self, additional_time: Number, replace_ttl: bool = False) -> bool:
        """Add seconds to the lease, or replace it with so many."""
        return self._run(self._extend(additional_time, replace_ttl))

    def reacquire(self) -> bool:
        """Start the lease of ``timeout`` anew."""
        return self._run(self._reacquire())

    def locked(self) -> bool:
        """Whether anybody holds the lock, as the server says."""
        return self._run(self._locked())

    def owned(self) -> bool:
        """Whether this lock object holds the lock, as the server says."""
        return self._run(self._owned())

    @classmethod
    def resume(cls, redis: Any, handle: str, **options: Any) -> Lock:
        """The lock that another process has acquired, from its ``handle()``. LockLost when it holds it no more."""
        unpacked = course.unpack(handle)
        lock = cls(redis, unpacked.key, unpacked.timeout, auto_renewal=unpacked.renewed, **options)
        lock._run(lock._resume(unpacked))
        return lock

    def __enter__(self) -> Lock:
        if self.acquire():
            return self
        raise told(LockError, "Unable to acquire lock within the time specified", self.name)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._exit())
