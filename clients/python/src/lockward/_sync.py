"""Locks for threads."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import weakref
from dataclasses import replace
from time import monotonic, sleep
from types import SimpleNamespace, TracebackType
from typing import Any, TypeVar

from redis.exceptions import ConnectionError, RedisError, ResponseError, TimeoutError

from . import _connections as connections
from . import _protocol as protocol
from ._lock import LockBase, Number, call_on_lost
from ._plan import NETWORK_ERRORS, RESPONSE_LIMIT, Exchange, Pause, Plan, Step
from ._probe import ServerGone, needs_probe, probe, probe_pause
from ._tenure import Schedule, Tenure, unpack
from .errors import LockError, lock_error

T = TypeVar("T")
#: How often to look, in seconds, whether a probe in another thread has ended.
_POLL_PERIOD = 0.1


class Runtime:
    """Carries out the plans of one client's locks. It has idle connections, and a thread that renews the locks."""

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
        """The thread, the connections and the tenures belong to the parent process."""
        self._restart()
        self._schedule.clear()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, {}
            self._changed.notify_all()
        for connection in itertools.chain.from_iterable(idle.values()):
            connection.disconnect()

    def run(self, plan: Plan[T]) -> T:
        """Carry a plan out."""
        result: Any = None
        failure: BaseException | None = None
        while True:
            try:
                step = plan.send(result) if failure is None else plan.throw(failure)
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
        return self.exchange(step) if isinstance(step, Exchange) else step()

    def exchange(self, exchange: Exchange) -> list[Any]:
        client = self._client()
        if client is None:
            raise ConnectionError("the client has been dropped")
        exchange = connections.remapped(client, exchange)
        if exchange.redirect is not None and not exchange.redirect.is_ask:
            self._refresh_slots(client)
        try:
            node_id = connections.node_id(client, exchange.key, exchange.redirect)
        except RedisError as error:
            self._refresh_slots(client)
            raise ConnectionError(str(error)) from error
        connection = self.connection(client, node_id, exchange)
        try:
            probe = _Probe(self, client, node_id, exchange, connection) if needs_probe(exchange) else None
            replies = _exchange(connection, exchange, probe)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, NETWORK_ERRORS):
                self._connection_lost(client, node_id)
            raise
        self.keep_idle(node_id, connection)
        return replies

    def connection(self, client: Any, node_id: Any, exchange: Exchange, again: Any = None) -> Any:
        """A connection. A new one is made with the server name ``again``, if given, without asking Sentinels."""
        while True:
            with self._changed:
                idle = self._idle.get(node_id)
                connection = idle.pop() if idle else None
            if connection is None:
                break
            try:
                if not connection.can_read(timeout=0):
                    return connection
            except NETWORK_ERRORS:
                self._renew_all_now()
            connection.disconnect()
        cluster = connections.is_cluster(client)
        node = client.get_redis_connection(connections.node(client, exchange.key)) if cluster else client
        try:
            return _connect(node.connection_pool, exchange, cluster, again)
        except NETWORK_ERRORS:
            if cluster:
                self._refresh_slots(client)
            raise

    def keep_idle(self, node_id: Any, connection: Any) -> None:
        with self._changed:
            idle = self._idle.setdefault(node_id, [])
            if not self._closed and len(idle) < connections.MAX_IDLE and connection.pid == os.getpid():
                idle.append(connection)
                return
        connection.disconnect()

    def _connection_lost(self, client: Any, node_id: Any) -> None:
        with self._changed:
            idle = self._idle.pop(node_id, [])
        self._renew_all_now()
        for connection in idle:
            connection.disconnect()
        if connections.is_cluster(client):
            self._refresh_slots(client)

    def _renew_all_now(self) -> None:
        with self._changed:
            self._schedule.renew_all_now()
            self._changed.notify_all()

    def _refresh_slots(self, client: Any) -> None:
        """Load the cluster's slot map again."""
        try:
            client.nodes_manager.initialize()
        except Exception:  # the known nodes may still work
            pass

    # The renewals.

    def watch(self, tenure: Tenure) -> None:
        with self._changed:
            if tenure.is_over or tenure.lost.is_set():
                return
            self._schedule.add(tenure)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._renew_loop, name="lockward", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def unwatch(self, tenure: Tenure) -> None:
        with self._changed:
            self._schedule.remove(tenure)

    def lose(self, tenure: Tenure) -> None:
        with self._changed:
            self._schedule.remove(tenure)
            if tenure.is_over or tenure.lost.is_set():
                return
            tenure.lost.set()
        lock = tenure.lock()
        if lock is not None:
            call_on_lost(lock)

    def _renew_loop(self) -> None:
        while not self._closed:
            self._renew_due()

    def _renew_due(self) -> None:
        with self._changed:
            now = monotonic()
            then = self._schedule.next_event()
            if self._closed:
                return
            if then is None or then > now:
                self._changed.wait(None if then is None else min(then - now, threading.TIMEOUT_MAX))
                return
            due, expired = self._schedule.due(now), self._schedule.expired(now)
            limit = self._schedule.response_limit(due, now) if due else 0.0
        for tenure in expired:
            self.lose(tenure)
        for group in connections.by_node(self._client(), due):
            self.run(protocol.renew_together(group, limit, self._schedule, self.lose))


class _Probe:
    """Probes the server in another thread, so that a reply is read at once. One probe at a time."""

    def __init__(self, runtime: Runtime, client: Any, node_id: Any, exchange: Exchange, waiting: Any) -> None:
        self._runtime, self._client, self._node_id, self._waiting = runtime, client, node_id, waiting
        self._ping = replace(exchange, commands=(("PING",),), limit=RESPONSE_LIMIT)
        self._family, self.address = waiting._sock.family, waiting._sock.getpeername()
        self.sentinels = connections.sentinels(client)
        self._thread: threading.Thread | None = None
        self._gone: ServerGone | None = None
        self._due = monotonic() + probe_pause()

    def poll(self) -> float:
        """Start a probe if it is due. Raise ServerGone if one has found so. Return in how many seconds to poll again."""
        if self._thread is not None and not self._thread.is_alive():
            if self._gone is not None:
                raise self._gone
            self._thread, self._due = None, monotonic() + probe_pause()
        if self._thread is None:
            if monotonic() < self._due:
                return self._due - monotonic()
            thread = threading.Thread(target=self._check, name="lockward-ping", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # too many threads, or the program is ending
                self._due = monotonic() + probe_pause()
                return RESPONSE_LIMIT
            self._thread = thread
        return _POLL_PERIOD

    def _check(self) -> None:
        try:
            self._runtime.run(probe(self))
        except ServerGone as error:
            self._gone = error

    def ping(self) -> Any:
        name = connections.server_name(self._waiting)
        connection = self._runtime.connection(self._client, self._node_id, self._ping, name)
        try:
            if connection._sock.getpeername() != self.address:
                connection.disconnect()
                return connections.server_name(connection)
            _exchange(connection, self._ping)
        except BaseException:
            connection.disconnect()
            raise
        self._runtime.keep_idle(self._node_id, connection)
        return None

    def try_connect(self) -> None:
        with socket.socket(self._family) as probe:
            probe.settimeout(RESPONSE_LIMIT)
            probe.connect(self.address)

    def ask_sentinel(self, sentinel: Any) -> Any:
        manager, pool = connections.manager_for(self._client, sentinel, asynchronous=False)
        try:
            found = manager.discover_master(self._client.connection_pool.service_name)
        finally:
            pool.disconnect()
        return connections.other_name(found, self._waiting)

    def resolve(self, name: Any) -> list[Any]:
        host, port = name
        return [found[4] for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _connect(pool: Any, exchange: Exchange, cluster: bool, again: Any = None) -> Any:
    options = connections.options(pool.connection_kwargs, exchange, asynchronous=False, cluster=cluster)
    connection = pool.connection_class(**options)
    try:
        if again is not None and hasattr(connection, "connect_to"):
            connection.connect_to(again)
        else:
            connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return connection


def _exchange(connection: Any, exchange: Exchange, probe: _Probe | None = None) -> list[Any]:
    until = None if exchange.limit is None else monotonic() + exchange.limit
    commands = exchange.on_the_wire()
    connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies: list[Any] = []
    for _ in commands:
        _wait(connection, until, probe)
        try:
            replies.append(connection.read_response())
        except NETWORK_ERRORS:
            raise
        except ResponseError as error:
            replies.append(error)
    return exchange.replies(replies)


def _wait(connection: Any, until: float | None, probe: _Probe | None) -> None:
    """Wait for a reply."""
    while True:
        left = float("inf") if until is None else until - monotonic()
        span = left if probe is None or left <= RESPONSE_LIMIT else min(left, probe.poll())
        if connection.can_read(timeout=max(0.001, span)):
            return
        if span >= left:
            raise TimeoutError("no reply in time")


_runtimes: weakref.WeakKeyDictionary[Any, Runtime] = weakref.WeakKeyDictionary()
_runtimes_mutex = threading.Lock()


def _forked() -> None:
    global _runtimes_mutex
    _runtimes_mutex = threading.Lock()
    for runtime in list(_runtimes.values()):
        runtime.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def runtime_of(client: Any) -> Runtime:
    with _runtimes_mutex:
        runtime = _runtimes.get(client)
        if runtime is None:
            runtime = _runtimes[client] = Runtime(client)
        return runtime


class Lock(LockBase[threading.Event]):
    """A lock on a server with Lockward, with the interface of redis.lock.Lock. Arguments: see ``Lock.__init__``."""

    _asynchronous = False

    def _prepare(self) -> None:
        self._holder: Any = threading.local() if self.thread_local else SimpleNamespace()

    def _own(self) -> Tenure | None:
        return getattr(self._holder, "tenure", None)

    _releasable = _own

    def _store(self, tenure: Tenure) -> None:
        former = self._own()
        if former is not None:
            self._renewer().unwatch(former)
        self._holder.tenure = tenure

    def _discard(self, tenure: Tenure) -> None:
        if self._own() is tenure:
            self._holder.tenure = None

    def _event(self) -> threading.Event:
        return threading.Event()

    def _renewer(self) -> Runtime:
        return runtime_of(self.redis)

    def _run(self, plan: Plan[T]) -> T:
        return self._renewer().run(plan)

    def acquire(
        self,
        sleep: Number | None = None,
        blocking: bool | None = None,
        blocking_timeout: Number | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock, and wait in the server's queue if it is held. False when the wait limit is over.

        ``sleep`` is ignored. An exception such as KeyboardInterrupt leaves the queue, and gives back what was granted
        meanwhile.
        """
        return self._run(self._acquire(blocking, blocking_timeout, token))

    def release(self) -> None:
        """Give one hold back. LockLost (a LockNotOwnedError) if the lock was lost before."""
        self._run(self._release())

    def extend(self, additional_time: Number, replace_ttl: bool = False) -> bool:
        """Add seconds to the lease, or with ``replace_ttl`` set it to so many from now."""
        return self._run(self._extend(additional_time, replace_ttl))

    def reacquire(self) -> bool:
        """Start the lease of ``timeout`` again."""
        return self._run(self._reacquire())

    def guarded(self, *command: Any) -> Any:
        """Run a command only while the server has this tenure: LOCK.GUARD with the lock's token. Return its reply.

        The data must be on the lock's server, and in a cluster in the lock's slot: name both with the same ``{tag}``. Without
        arguments, this only checks that the lock is held. The reply is that of RESP2, decoded as the client decodes.

        LockLost if the lock is lost: the command did not run. Errors of the command are redis-py's, and the lock stays held.
        The command is not repeated when its reply is lost: Unreachable then means that it may have run.
        """
        return self._run(self._guarded(command))

    def locked(self) -> bool:
        """Whether any owner holds the lock at the server."""
        return self._run(self._locked())

    def owned(self) -> bool:
        """Whether this lock object holds the lock at the server."""
        return self._run(self._owned())

    @classmethod
    def resume(cls, redis: Any, handle: str, **options: Any) -> Lock:
        """Continue a tenure of another object or process, from its ``handle()``. LockLost if the tenure is over."""
        unpacked = unpack(handle)
        lock = cls(redis, unpacked.key, unpacked.timeout, auto_renewal=unpacked.is_renewed, **options)
        lock._run(lock._resume(unpacked))
        return lock

    def __enter__(self) -> Lock:
        if self.acquire():
            return self
        raise lock_error(LockError, "Unable to acquire lock within the time specified", self.name)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._exit())
