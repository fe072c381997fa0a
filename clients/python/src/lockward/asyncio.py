"""Locks for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import weakref
from collections.abc import Awaitable
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar

from redis.exceptions import ConnectionError, RedisClusterException, RedisError, ResponseError, TimeoutError

from . import _connections as connections
from . import _protocol as protocol
from ._lock import LockBase, Number, call_on_lost
from ._plan import NETWORK_ERRORS, RESPONSE_LIMIT, Exchange, Pause, Plan, Step
from ._probe import needs_probe, probe, probe_pause
from ._tenure import Schedule, Tenure, unpack
from .errors import LockError, lock_error

__all__ = ["Lock"]

T = TypeVar("T")
#: How many seconds idle connections are kept.
_IDLE_LIMIT = 10.0


class Runtime:
    """Carries out the plans of one client's locks in one event loop. It has idle connections, and a task that renews."""

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._client = weakref.ref(client)
        self.loop = loop
        self.pid = os.getpid()
        self._schedule = Schedule()
        self._idle: dict[Any, list[Any]] = {}
        self._used = monotonic()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def run(self, plan: Plan[T]) -> T:
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
                result = await self._carry_out(step)
            except BaseException as error:
                failure = error

    async def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await (self.exchange(step) if isinstance(step, Exchange) else step())

    async def exchange(self, exchange: Exchange) -> list[Any]:
        """If it is cancelled, or the limit is over, the connection that waits is closed first."""
        task = asyncio.ensure_future(self._exchange(exchange))
        try:
            done, _ = await asyncio.wait({task}, timeout=exchange.limit)
        except asyncio.CancelledError:
            await _stop(task)
            raise
        if not done:
            await _stop(task)
            raise TimeoutError("no reply in time")
        return task.result()

    async def _exchange(self, exchange: Exchange) -> list[Any]:
        client = self._client()
        if client is None:
            raise ConnectionError("the client has been dropped")
        exchange = connections.remapped(client, exchange)
        cluster = connections.is_cluster(client)
        if cluster:
            try:
                await client.initialize()
            except RedisClusterException as error:
                raise ConnectionError(str(error)) from error
            if exchange.redirect is not None and not exchange.redirect.is_ask:
                await self._refresh_slots(client)
        try:
            node_id = connections.node_id(client, exchange.key, exchange.redirect)
        except RedisError as error:
            await self._refresh_slots(client)
            raise ConnectionError(str(error)) from error
        connection = await self.connection(client, node_id, exchange)
        try:
            if needs_probe(exchange):
                server = _Probe(self, client, node_id, exchange, connection)
                replies = await self._exchange_with_probe(connection, exchange, server)
            else:
                replies = await _exchange(connection, exchange)
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, NETWORK_ERRORS):
                await self._connection_lost(client, node_id, cluster)
            raise
        await self.keep_idle(node_id, connection)
        return replies

    async def _exchange_with_probe(self, connection: Any, exchange: Exchange, server: _Probe) -> list[Any]:
        """Probe the server now and then while the replies are awaited."""
        task = asyncio.ensure_future(_exchange(connection, exchange))
        check: asyncio.Future[None] | None = None
        try:
            while not (await asyncio.wait({task}, timeout=probe_pause()))[0]:
                check = asyncio.ensure_future(self.run(probe(server)))
                await asyncio.wait({task, check}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    break
                check.result()
            return task.result()
        finally:
            for each in (task, check):
                if each is not None:
                    await _stop(each)

    async def connection(self, client: Any, node_id: Any, exchange: Exchange, again: Any = None) -> Any:
        """A connection. A new one is made with the server name ``again``, if given, without asking Sentinels."""
        connection = await self._idle_connection(node_id)
        if connection is not None:
            return connection
        cluster = connections.is_cluster(client)
        node = connections.node(client, exchange.key) if cluster else client.connection_pool
        try:
            return await _connect(node, exchange, cluster, again)
        except NETWORK_ERRORS:
            if cluster:
                await self._refresh_slots(client)
            raise

    async def keep_idle(self, node_id: Any, connection: Any) -> None:
        self._used = monotonic()
        self._ensure_task()
        idle = self._idle.setdefault(node_id, [])
        if len(idle) < connections.MAX_IDLE:
            idle.append(connection)
        else:
            await connection.disconnect(nowait=True)

    async def _idle_connection(self, node_id: Any) -> Any:
        idle = self._idle.get(node_id)
        while idle:
            connection = idle.pop()
            if not connection._reader.at_eof() and not connection._writer.is_closing():
                return connection
            self._renew_all_now()
            await connection.disconnect(nowait=True)
        return None

    async def _connection_lost(self, client: Any, node_id: Any, cluster: bool) -> None:
        idle = self._idle.pop(node_id, [])
        self._renew_all_now()
        for connection in idle:
            await connection.disconnect(nowait=True)
        if cluster:
            await self._refresh_slots(client)

    def _renew_all_now(self) -> None:
        self._schedule.renew_all_now()
        self._changed.set()

    async def _refresh_slots(self, client: Any) -> None:
        """Load the cluster's slot map again."""
        try:
            await client.nodes_manager.initialize()
        except Exception:  # the known nodes may still work
            pass

    # The renewals.

    def watch(self, tenure: Tenure) -> None:
        if not tenure.is_over and not tenure.lost.is_set():
            self._schedule.add(tenure)
            self._ensure_task()
            self._changed.set()

    def unwatch(self, tenure: Tenure) -> None:
        self._schedule.remove(tenure)

    def lose(self, tenure: Tenure) -> None:
        self._schedule.remove(tenure)
        if tenure.is_over or tenure.lost.is_set():
            return
        tenure.lost.set()
        lock = tenure.lock()
        if lock is not None:
            call_on_lost(lock)

    def _ensure_task(self) -> None:
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._renew_loop(), name="lockward")

    async def _renew_loop(self) -> None:
        """Run until no lock is held and all connections have been idle for a while."""
        try:
            while len(self._schedule) or monotonic() < self._used + _IDLE_LIMIT:
                await self._renew_due()
        finally:
            idle, self._idle = self._idle, {}
            for connection in itertools.chain.from_iterable(idle.values()):
                await connection.disconnect(nowait=True)

    async def _renew_due(self) -> None:
        self._changed.clear()
        now = monotonic()
        then = self._schedule.next_event()
        then = self._used + _IDLE_LIMIT if then is None else then
        if then > now:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), then - now)
            return
        due = self._schedule.due(now)
        limit = self._schedule.response_limit(due, now) if due else 0.0
        for tenure in self._schedule.expired(now):
            self.lose(tenure)
        groups = connections.by_node(self._client(), due)
        plans = (protocol.renew_together(group, limit, self._schedule, self.lose) for group in groups)
        await asyncio.gather(*(self.run(plan) for plan in plans))


async def _stop(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # otherwise asyncio would log it as never retrieved


async def _within(seconds: float, action: Awaitable[T]) -> T:
    try:
        return await asyncio.wait_for(action, seconds)
    except asyncio.TimeoutError:
        raise TimeoutError("no reply in time") from None


class _Probe:
    """Probes the server of a connection that waits."""

    def __init__(self, runtime: Runtime, client: Any, node_id: Any, exchange: Exchange, waiting: Any) -> None:
        self._runtime, self._client, self._node_id, self._waiting = runtime, client, node_id, waiting
        self._ping = replace(exchange, commands=(("PING",),), limit=RESPONSE_LIMIT)
        self._family, self.address = waiting._writer.get_extra_info("socket").family, _peer(waiting)
        self.sentinels = connections.sentinels(client)

    async def ping(self) -> Any:
        name = connections.server_name(self._waiting)
        connection = await self._runtime.connection(self._client, self._node_id, self._ping, name)
        try:
            if _peer(connection) != self.address:
                await connection.disconnect(nowait=True)
                return connections.server_name(connection)
            await _within(RESPONSE_LIMIT, _exchange(connection, self._ping))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        await self._runtime.keep_idle(self._node_id, connection)
        return None

    async def try_connect(self) -> None:
        with socket.socket(self._family) as probe:
            probe.setblocking(False)
            await _within(RESPONSE_LIMIT, self._runtime.loop.sock_connect(probe, self.address))

    async def ask_sentinel(self, sentinel: Any) -> Any:
        manager, pool = connections.manager_for(self._client, sentinel, asynchronous=True)
        service = self._client.connection_pool.service_name
        try:
            found = await _within(RESPONSE_LIMIT, manager.discover_master(service))
        finally:
            await pool.disconnect()
        return connections.other_name(found, self._waiting)

    async def resolve(self, name: Any) -> list[Any]:
        return await _addresses(name)


def _peer(connection: Any) -> Any:
    return connection._writer.get_extra_info("peername")


async def _addresses(name: Any) -> list[Any]:
    host, port = name
    return [found[4] for found in await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)]


async def _connect(node: Any, exchange: Exchange, cluster: bool, again: Any = None) -> Any:
    options = connections.options(node.connection_kwargs, exchange, asynchronous=True, cluster=cluster)
    connection = node.connection_class(**options)
    try:
        is_known = again is not None and hasattr(connection, "connect_to")
        if again is not None:
            await _addresses(again)  # a slow name server says nothing about the server: not within the limit
        connected = connection.connect_to(again) if is_known else connection.connect()
        await _within(min(exchange.limit or connections.CONNECT_LIMIT, connections.CONNECT_LIMIT), connected)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


async def _exchange(connection: Any, exchange: Exchange) -> list[Any]:
    commands = exchange.on_the_wire()
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except NETWORK_ERRORS:
            raise
        except ResponseError as error:
            replies.append(error)
    return exchange.replies(replies)


_runtimes: weakref.WeakKeyDictionary[Any, Runtime] = weakref.WeakKeyDictionary()


def runtime_of(client: Any) -> Runtime:
    loop = asyncio.get_running_loop()
    runtime = _runtimes.get(client)
    if runtime is None or runtime.loop is not loop or runtime.pid != os.getpid():
        runtime = _runtimes[client] = Runtime(client, loop)
    return runtime


class Lock(LockBase[asyncio.Event]):
    """A lock on a server with Lockward, with the interface of redis.asyncio.lock.Lock. Arguments: see ``Lock.__init__``.

    Tasks that share the object exclude each other, too. A task that has not acquired the lock itself releases the first
    tenure of the object. So a lock may be acquired in one task, as asyncio.wait_for does, and released in another.
    """

    _asynchronous = True

    def _prepare(self) -> None:
        self._tenures: dict[asyncio.Task[Any] | None, Tenure] = {}

    def _own(self) -> Tenure | None:
        return self._tenures.get(_current_task())

    def _releasable(self) -> Tenure | None:
        return self._own() or next(iter(self._tenures.values()), None)

    def _store(self, tenure: Tenure) -> None:
        # Forget tenures that are lost, if their tasks have ended, or acquire again, without a release.
        for task, former in list(self._tenures.items()):
            if (task is None or task.done() or task is _current_task()) and not former.held:
                del self._tenures[task]
        own = self._tenures.pop(_current_task(), None)
        if own is not None:
            self._renewer().unwatch(own)
        self._tenures[_current_task()] = tenure

    def _discard(self, tenure: Tenure) -> None:
        for task, kept in list(self._tenures.items()):
            if kept is tenure:
                del self._tenures[task]

    def _event(self) -> asyncio.Event:
        return asyncio.Event()

    def _renewer(self) -> Runtime:
        return runtime_of(self.redis)

    async def _run(self, plan: Plan[T]) -> T:
        return await self._renewer().run(plan)

    async def acquire(
        self,
        sleep: Number | None = None,
        blocking: bool | None = None,
        blocking_timeout: Number | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock, and wait in the server's queue if it is held. False when the wait limit is over.

        ``sleep`` is ignored. A cancelled task leaves the queue, and gives back what was granted meanwhile.
        """
        return await self._run(self._acquire(blocking, blocking_timeout, token))

    async def release(self) -> None:
        """Give one hold back. LockLost (a LockNotOwnedError) if the lock was lost before."""
        await self._run(self._release())

    async def extend(self, additional_time: Number, replace_ttl: bool = False) -> bool:
        """Add seconds to the lease, or with ``replace_ttl`` set it to so many from now."""
        return await self._run(self._extend(additional_time, replace_ttl))

    async def reacquire(self) -> bool:
        """Start the lease of ``timeout`` again."""
        return await self._run(self._reacquire())

    async def guarded(self, *command: Any) -> Any:
        """Run a command only while the server has this tenure: LOCK.GUARD with the lock's token. Return its reply.

        The data must be on the lock's server, and in a cluster in the lock's slot: name both with the same ``{tag}``. Without
        arguments, this only checks that the lock is held. The reply is that of RESP2, decoded as the client decodes.

        LockLost if the lock is lost: the command did not run. Errors of the command are redis-py's, and the lock stays held.
        The command is not repeated when its reply is lost: Unreachable then means that it may have run, as after a
        cancelled task.
        """
        return await self._run(self._guarded(command))

    async def locked(self) -> bool:
        """Whether any owner holds the lock at the server."""
        return await self._run(self._locked())

    async def owned(self) -> bool:
        """Whether this lock object holds the lock at the server."""
        return await self._run(self._owned())

    @classmethod
    async def resume(cls, redis: Any, handle: str, **options: Any) -> Lock:
        """Continue a tenure of another object or process, from its ``handle()``. LockLost if the tenure is over."""
        unpacked = unpack(handle)
        lock = cls(redis, unpacked.key, unpacked.timeout, auto_renewal=unpacked.is_renewed, **options)
        await lock._run(lock._resume(unpacked))
        return lock

    async def __aenter__(self) -> Lock:
        if await self.acquire():
            return self
        raise lock_error(LockError, "Unable to acquire lock within the time specified", self.name)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._run(self._exit())


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
