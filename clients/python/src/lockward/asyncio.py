"""Locks for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from collections.abc import Awaitable
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisClusterException, RedisError, ResponseError, TimeoutError

from . import _connecting as connecting
from . import _course as course
from ._course import Ask, Course, Pause, Schedule, Step, Tenure
from ._lock import LockBase, Number, call
from .errors import LockError, told

__all__ = ["Lock"]

T = TypeVar("T")
_IDLE = 16
#: For how many seconds connections that nobody uses are kept.
_LINGER = 10.0


class Link:
    """What the locks of one client in one event loop share: idle connections, and the task that renews."""

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._client = weakref.ref(client)
        self.loop = loop
        self.pid = os.getpid()
        self._schedule = Schedule()
        self._idle: dict[Any, list[Any]] = {}
        self._used = monotonic()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def run(self, actions: Course[T]) -> T:
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
                result = await self._carry_out(step)
            except BaseException as error:
                failure = error

    async def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await (self.exchange(step) if isinstance(step, Ask) else step())

    async def exchange(self, ask: Ask) -> list[Any]:
        """Within the limit, or with none. Whoever is cancelled leaves no connection behind that waits."""
        exchange = asyncio.ensure_future(self._exchange(ask))
        try:
            done, _ = await asyncio.wait({exchange}, timeout=ask.limit)
        except asyncio.CancelledError:
            await _stop(exchange)
            raise
        if not done:
            await _stop(exchange)
            raise TimeoutError("no reply in time")
        return exchange.result()

    async def _exchange(self, ask: Ask) -> list[Any]:
        client = self._client()
        if client is None:
            raise ConnectionError("the client is gone")
        ask = connecting.remapped(client, ask)
        cluster = connecting.is_cluster(client)
        if cluster:
            try:
                await client.initialize()
            except RedisClusterException as error:
                raise ConnectionError(str(error)) from error
            if ask.redirect is not None and not ask.redirect.asking:
                await self._refresh(client)
        try:
            place = connecting.place(client, ask.key, ask.redirect)
        except RedisError as error:
            await self._refresh(client)
            raise ConnectionError(str(error)) from error
        connection = await self.take(client, place, ask)
        try:
            if course.lasts(ask):
                replies = await self._listen(_Onlooker(self, client, place, ask, connection), ask, connection)
            else:
                replies = await _exchange(connection, ask)
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, course.NETWORK):
                await self._broken(client, place, cluster)
            raise
        await self.give(place, connection)
        return replies

    async def _listen(self, onlooker: _Onlooker, ask: Ask, waiting: Any) -> list[Any]:
        """An exchange that may last: now and then the onlooker asks whether the server is there."""
        exchange = asyncio.ensure_future(_exchange(waiting, ask))
        check: asyncio.Future[None] | None = None
        try:
            while not (await asyncio.wait({exchange}, timeout=course.silence()))[0]:
                check = asyncio.ensure_future(self.run(course.checking(onlooker)))
                await asyncio.wait({exchange, check}, return_when=asyncio.FIRST_COMPLETED)
                if exchange.done():
                    break
                check.result()
            return exchange.result()
        finally:
            for each in (exchange, check):
                if each is not None:
                    await _stop(each)

    async def take(self, client: Any, place: Any, ask: Ask, again: Any = None) -> Any:
        """A connection; where it has to be made, by the same name ``again`` whatever Sentinels say by now."""
        connection = await self._idle_one(place)
        if connection is not None:
            return connection
        cluster = connecting.is_cluster(client)
        node = connecting.node(client, ask.key) if cluster else client.connection_pool
        try:
            return await _connect(node, ask, cluster, again)
        except course.NETWORK:
            if cluster:
                await self._refresh(client)
            raise

    async def give(self, place: Any, connection: Any) -> None:
        self._used = monotonic()
        self._tend()
        idle = self._idle.setdefault(place, [])
        if len(idle) < _IDLE:
            idle.append(connection)
        else:
            await connection.disconnect(nowait=True)

    async def _idle_one(self, place: Any) -> Any:
        idle = self._idle.get(place)
        while idle:
            connection = idle.pop()
            if not connection._reader.at_eof() and not connection._writer.is_closing():
                return connection
            self._hurry()
            await connection.disconnect(nowait=True)
        return None

    async def _broken(self, client: Any, place: Any, cluster: bool) -> None:
        idle = self._idle.pop(place, [])
        self._hurry()
        for connection in idle:
            await connection.disconnect(nowait=True)
        if cluster:
            await self._refresh(client)

    def _hurry(self) -> None:
        self._schedule.hurry()
        self._changed.set()

    async def _refresh(self, client: Any) -> None:
        """Learn anew which node of a cluster has which slots."""
        try:
            await client.nodes_manager.initialize()
        except Exception:  # the nodes that are known may still do
            pass

    # The task.

    def watch(self, tenure: Tenure) -> None:
        if not tenure.over and not tenure.lost.is_set():
            self._schedule.add(tenure)
            self._tend()
            self._changed.set()

    def unwatch(self, tenure: Tenure) -> None:
        self._schedule.remove(tenure)

    def lose(self, tenure: Tenure) -> None:
        self._schedule.remove(tenure)
        if tenure.over or tenure.lost.is_set():
            return
        tenure.lost.set()
        lock = tenure.lock()
        if lock is not None:
            call(lock.on_lost, lock)

    def _tend(self) -> None:
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._keep_on(), name="lockward")

    async def _keep_on(self) -> None:
        """Until nothing is held, and no connection has been used for a while."""
        try:
            while len(self._schedule) or monotonic() < self._used + _LINGER:
                await self._turn()
        finally:
            idle, self._idle = self._idle, {}
            for connection in (c for connections in idle.values() for c in connections):
                await connection.disconnect(nowait=True)

    async def _turn(self) -> None:
        self._changed.clear()
        now = monotonic()
        then = self._schedule.next()
        then = self._used + _LINGER if then is None else then
        if then > now:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), then - now)
            return
        due = self._schedule.due(now)
        limit = self._schedule.limit(due, now) if due else 0.0
        for tenure in self._schedule.expired(now):
            self.lose(tenure)
        await asyncio.gather(*(self._renew_together(group, limit) for group in self._by_place(due)))

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

    async def _renew_together(self, tenures: list[Tenure], limit: float) -> None:
        sent = monotonic()
        replies: list[Any]
        try:
            replies = await self.exchange(Ask(tenures[0].key, tuple(t.renewal() for t in tenures), limit))
        except (RedisError, OSError) as error:
            replies = [error] * len(tenures)
        for tenure, answer in zip(tenures, replies):
            reply = answer
            to = course.redirect(reply)
            if to is not None:
                try:
                    [reply] = await self.exchange(Ask(tenure.key, (tenure.renewal(),), limit, to))
                except (RedisError, OSError) as error:
                    reply = error
            if self._schedule.answered(tenure, sent, reply):
                self.lose(tenure)


async def _stop(exchange: asyncio.Future[Any]) -> None:
    exchange.cancel()
    await asyncio.wait({exchange})
    if not exchange.cancelled():
        exchange.exception()  # seen


async def _within(seconds: float, action: Awaitable[T]) -> T:
    try:
        return await asyncio.wait_for(action, seconds)
    except asyncio.TimeoutError:
        raise TimeoutError("no reply in time") from None


class _Onlooker:
    """Asks in a task of its own."""

    def __init__(self, link: Link, client: Any, place: Any, ask: Ask, waiting: Any) -> None:
        self._link, self._client, self._place, self._waiting = link, client, place, waiting
        self._ping = replace(ask, commands=(("PING",),), limit=course.GRACE)
        self._family, self.there = waiting._writer.get_extra_info("socket").family, _peer(waiting)
        self.sentinels = connecting.sentinels(client)

    async def ping(self) -> Any:
        name = connecting.name(self._waiting)
        connection = await self._link.take(self._client, self._place, self._ping, name)
        try:
            if _peer(connection) != self.there:
                await connection.disconnect(nowait=True)
                return connecting.name(connection)
            await _within(course.GRACE, _exchange(connection, self._ping))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        await self._link.give(self._place, connection)
        return None

    async def knock(self) -> None:
        with socket.socket(self._family) as probe:
            probe.setblocking(False)
            await _within(course.GRACE, self._link.loop.sock_connect(probe, self.there))

    async def named(self, sentinel: Any) -> Any:
        kind, retry = redis.asyncio, Retry(NoBackoff(), 0)
        manager, pool = connecting.asking(self._client, sentinel, kind, retry, reads_end=False)
        service = self._client.connection_pool.service_name
        try:
            found = await _within(course.GRACE, manager.discover_master(service))
        finally:
            await pool.disconnect()
        return connecting.another(found, self._waiting)

    async def addresses(self, name: Any) -> list[Any]:
        return await _addresses(name)


def _peer(connection: Any) -> Any:
    return connection._writer.get_extra_info("peername")


async def _addresses(name: Any) -> list[Any]:
    host, port = name
    return [found[4] for found in await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)]


async def _connect(node: Any, ask: Ask, cluster: bool, again: Any = None) -> Any:
    retry = Retry(NoBackoff(), 0)
    settings = connecting.settings(node.connection_kwargs, ask, retry, cluster, reads_end=False)
    connection = node.connection_class(**settings)
    try:
        is_known = again is not None and hasattr(connection, "connect_to")
        if again is not None:
            await _addresses(again)  # a name server that is slow is not the server
        connected = connection.connect_to(again) if is_known else connection.connect()
        await _within(min(ask.limit or connecting.PROMPT, connecting.PROMPT), connected)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


async def _exchange(connection: Any, ask: Ask) -> list[Any]:
    asking = ask.redirect is not None and ask.redirect.asking
    # It counts for the next command alone.
    commands = [each for command in ask.commands for each in (("ASKING",), command)] if asking else ask.commands
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except course.NETWORK:
            raise
        except ResponseError as error:
            replies.append(error)
    return replies[1::2] if asking else replies


_links: weakref.WeakKeyDictionary[Any, Link] = weakref.WeakKeyDictionary()


def link_of(client: Any) -> Link:
    loop = asyncio.get_running_loop()
    link = _links.get(client)
    if link is None or link.loop is not loop or link.pid != os.getpid():
        link = _links[client] = Link(client, loop)
    return link


class Lock(LockBase[asyncio.Event]):
    """A lock on a server with Lockward, with the interface of redis.asyncio.lock.Lock. See ``Lock.__init__``.

    The tasks that share the object exclude each other, too. A task that has not acquired it itself releases what was
    acquired first: so a lock may be acquired in one task, as asyncio.wait_for does, and released in another.
    """

    _asynchronous = True

    def _prepare(self) -> None:
        self._tenures: dict[asyncio.Task[Any] | None, Tenure] = {}

    def _own(self) -> Tenure | None:
        return self._tenures.get(_current_task())

    def _find(self) -> Tenure | None:
        return self._own() or next(iter(self._tenures.values()), None)

    def _keep(self, tenure: Tenure) -> None:
        # What a task has lost, and will not release any more, nobody has to be told of.
        for task, former in list(self._tenures.items()):
            if (task is None or task.done() or task is _current_task()) and not former.held:
                del self._tenures[task]
        own = self._tenures.pop(_current_task(), None)
        if own is not None:
            self._keeper().unwatch(own)
        self._tenures[_current_task()] = tenure

    def _drop(self, tenure: Tenure) -> None:
        for task, kept in list(self._tenures.items()):
            if kept is tenure:
                del self._tenures[task]

    def _event(self) -> asyncio.Event:
        return asyncio.Event()

    def _keeper(self) -> Link:
        return link_of(self.redis)

    async def _run(self, actions: Course[T]) -> T:
        return await self._keeper().run(actions)

    async def acquire(
        self,
        sleep: Number | None = None,
        blocking: bool | None = None,
        blocking_timeout: Number | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock, waiting in the server's queue if need be: whether it is held now. ``sleep`` is not used.

        Cancelled, it leaves the queue, and gives back what was granted meanwhile.
        """
        return await self._run(self._acquire(blocking, blocking_timeout, token))

    async def release(self) -> None:
        """Give one hold back. LockLost (a LockNotOwnedError) when the lock had been lost."""
        await self._run(self._release())

    async def extend(self, additional_time: Number, replace_ttl: bool = False) -> bool:
        """Add seconds to the lease, or replace it with so many."""
        return await self._run(self._extend(additional_time, replace_ttl))

    async def reacquire(self) -> bool:
        """Start the lease of ``timeout`` anew."""
        return await self._run(self._reacquire())

    async def locked(self) -> bool:
        """Whether anybody holds the lock, as the server says."""
        return await self._run(self._locked())

    async def owned(self) -> bool:
        """Whether this lock object holds the lock, as the server says."""
        return await self._run(self._owned())

    @classmethod
    async def resume(cls, redis: Any, handle: str, **options: Any) -> Lock:
        """The lock that another process has acquired, from its ``handle()``. LockLost when it holds it no more."""
        unpacked = course.unpack(handle)
        lock = cls(redis, unpacked.key, unpacked.timeout, auto_renewal=unpacked.renewed, **options)
        await lock._run(lock._resume(unpacked))
        return lock

    async def __aenter__(self) -> Lock:
        if await self.acquire():
            return self
        raise told(LockError, "Unable to acquire lock within the time specified", self.name)

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
