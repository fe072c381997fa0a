"""Locks for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Coroutine
from time import monotonic
from typing import Any, Callable, TypeVar

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError

from ._exchange import FOREVER, Address, T
from ._lock import LockBase, MultiLockBase, Name, ReadWriteLockBase, SemaphoreBase, check_lead_options
from ._runtime import RuntimeBase, bare, logger
from ._wire import Parser
from .errors import LockLostError, UnreachableError, lost

__all__ = ["Lock", "MultiLock", "ReadWriteLock", "Semaphore", "lead"]


class _Link:
    """An open connection, made by redis-py and used without it."""

    def __init__(self, theirs: Any) -> None:
        self._reader, self._writer, self.parser = theirs._reader, theirs._writer, Parser()
        theirs._reader = theirs._writer = None
        self.pid, self.idle_since = os.getpid(), 0.0

    def send(self, data: bytes, until: float) -> None:
        self._writer.write(data)

    async def receive(self, until: float) -> bytes:
        # asyncio.wait_for would start a task for each read. A timer that closes the connection is cheaper.
        timer = asyncio.get_running_loop().call_later(until - monotonic(), self.close)
        try:
            data: bytes = await self._reader.read(65536)
        finally:
            timer.cancel()
        if not data and monotonic() >= until:
            raise TimeoutError("no reply in time")
        return data

    def is_open(self, be_sure: bool) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    def is_cut(self) -> bool:
        return not self.is_open(True)

    def close(self) -> None:
        self._writer.transport.abort()


def _close_late(task: asyncio.Future[_Link]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


class Runtime(RuntimeBase):
    """The connections and holdings of one client's locks in one event loop. A task watches the leases."""

    _no_retries = Retry(NoBackoff(), 0)
    _gives_up_aside = True

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(client)
        self.loop, self.pid = loop, os.getpid()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._others: set[asyncio.Future[Any]] = set()
        self._loading: asyncio.Future[Any] | None = None

    async def connect(self, source: Any, options: dict[str, Any], address: Address | None, limit: float) -> _Link:
        async def connect() -> _Link:
            connection = bare(source.connection_class(**options))
            try:
                await (connection.connect() if address is None else connection.connect_to(address))
                return _Link(connection)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise

        task, done = asyncio.ensure_future(connect()), None
        try:
            done, _ = await asyncio.wait({task}, timeout=max(0.0, limit))
        finally:
            if not done:
                task.add_done_callback(_close_late)
                task.cancel()
        if not done:
            raise TimeoutError("no connection in time")
        return task.result()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def start(self, action: Coroutine[Any, Any, Any]) -> None:
        self._keep(action)

    def _keep(self, action: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Run a task, and keep it: an event loop has only weak references."""
        task = asyncio.ensure_future(action)
        self._others.add(task)
        task.add_done_callback(self._others.discard)
        return task

    def wake(self) -> None:
        self._changed.set()
        if (self._task is None or self._task.done()) and not self.loop.is_closed():
            self._is_closed = False
            self._task = self.loop.create_task(self._watch_leases(), name="lockward")

    def _keep_idle(self, node: Any, link: Any) -> None:
        super()._keep_idle(node, link)
        if self._task is None:
            self.wake()

    async def _watch_leases(self) -> None:
        """Run until no lock is held and all connections have been idle for a while."""
        try:
            then = 0.0
            while then < FOREVER or self._schedule.holdings:
                self._changed.clear()
                then = self.tick()
                timer = None if then == FOREVER else self.loop.call_later(then - monotonic(), self._changed.set)
                try:
                    if timer is not None or self._schedule.holdings:
                        await self._changed.wait()
                finally:
                    if timer is not None:
                        timer.cancel()
            self._task = None
        except asyncio.CancelledError:
            self._is_closed = True  # the event loop ends
            raise
        finally:
            self.close_idle()

    def load_nodes(self) -> None:
        if self._loading is None or self._loading.done():
            self._loading = self._keep(self.client().initialize())
            self._loading.add_done_callback(lambda done: done.cancelled() or done.exception())

    def call_on_lost(self, lock: Any) -> None:
        if inspect.iscoroutinefunction(lock.on_lost):
            self._keep(self._call_on_lost(lock))
        else:
            super().call_on_lost(lock)

    async def _call_on_lost(self, lock: Any) -> None:
        try:
            await lock.on_lost(lock)
        except Exception:
            logger.exception("the on_lost callback has failed")


_runtimes: weakref.WeakKeyDictionary[Any, Runtime] = weakref.WeakKeyDictionary()


class Lock(LockBase[asyncio.Event, Awaitable[bool], Awaitable[None]]):
    """A lock on a server with Lockward, with the interface of redis.asyncio.lock.Lock. Arguments: see ``Lock.__init__``.

    Tasks that share the object exclude each other, too. A task that has not acquired the lock itself releases what the
    object has acquired first. So a lock may be acquired in one task, as asyncio.wait_for does, and released in another.
    """

    _asynchronous = True
    _make_event = asyncio.Event

    def _prepare(self) -> None:
        self._holdings: dict[Any, Any] = {}

    @property
    def _runtime(self) -> Runtime:  # type: ignore[override]
        loop = asyncio.get_running_loop()
        runtime = _runtimes.get(self.redis)
        if runtime is None or runtime.loop is not loop or runtime.pid != os.getpid():
            runtime = _runtimes[self.redis] = Runtime(self.redis, loop)
        return runtime

    def _place(self) -> tuple[dict[Any, Any], Any]:
        try:
            return self._holdings, asyncio.current_task() if self.thread_local else None
        except RuntimeError:  # not in an event loop
            return self._holdings, None

    def _run(self, action: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return action

    @contextlib.asynccontextmanager
    async def scope(self: L) -> AsyncIterator[L]:
        """Hold the lock in an ``async with`` block. If it is lost, the block is cancelled, and LockLostError is raised.

        Other cancellations of the task pass through.
        """
        async with self:
            block, event = asyncio.current_task(), self.lost
            assert block is not None

            async def cancel_when_lost() -> None:
                await event.wait()
                block.cancel()

            watcher = asyncio.ensure_future(cancel_when_lost())
            try:
                yield self
            except asyncio.CancelledError:
                is_ours = watcher.done() and not watcher.cancelled()
                # Before Python 3.11, a task does not know how often it was cancelled.
                if not is_ours or (hasattr(block, "uncancel") and block.uncancel() > 0):
                    raise
                raise lost("go on with", self.name) from None
            finally:
                watcher.cancel()

    async def __aenter__(self: L) -> L:
        await self._run(self._enter())
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._run(self._exit())


L = TypeVar("L", bound=Lock)


class MultiLock(MultiLockBase, Lock):
    """Several locks of one client as one: see ``lockward.MultiLock``."""


class ReadWriteLock(ReadWriteLockBase[Lock]):
    """``read()`` makes a lock that readers hold together, ``write()`` one that excludes all others."""

    _make = Lock


class Semaphore(SemaphoreBase[Lock]):
    """A semaphore with so many slots: see ``lockward.Semaphore``."""

    _make = Lock


async def lead(redis: Any, name: Name, run: Callable[[Lock], Awaitable[T]], **options: Any) -> T:
    """Become the leader, await ``run(lock)``, and release the lock when it returns. Return its result.

    ``lock.fencing_token`` is the term. When the lock is lost, ``run`` is cancelled, and this waits to become the leader
    again. It waits without limit, also while no server answers. The options are those of ``Lock``, without those
    of its waits.
    """
    check_lead_options(options)
    while True:
        leads = is_done = False
        try:
            async with Lock(redis, name, **options).scope() as lock:
                leads = True
                result = await run(lock)
                is_done = True
        except (LockLostError, UnreachableError) as error:
            if leads and not is_done and isinstance(error, UnreachableError):
                raise
        if is_done:  # what could not be released ends with its lease
            return result
