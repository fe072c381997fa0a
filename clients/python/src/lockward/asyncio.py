"""Locks for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import Any, Callable, TypeVar, cast

from redis.exceptions import LockError, LockNotOwnedError

from ._lock import LockBase, MultiLockBase, Name, ReadWriteLockBase, SemaphoreBase
from ._lock import lead as lead_with
from ._runtime import Runtime
from ._wire import Broken, LinkBase
from .errors import LockLostError, LockRefusedError, UnreachableError, UnreplicatedError, lost

__all__ = ["Lock", "MultiLock", "ReadWriteLock", "Semaphore", "lead"]
__all__ += ["LockError", "LockLostError", "LockNotOwnedError", "LockRefusedError"]
__all__ += ["UnreachableError", "UnreplicatedError"]

T = TypeVar("T")
L = TypeVar("L", bound="Lock")


class Link(LinkBase):
    _writer: Any = None

    async def open(self) -> None:
        try:
            await self._theirs.connect()
        except RuntimeError:
            if asyncio._get_running_loop() is not None:  # without a loop: the loop has closed and drops its tasks
                raise
        finally:
            self._reader, self._writer = self._theirs._reader, self._theirs._writer
            self._theirs._reader = self._theirs._writer = None

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> bytes:
        # asyncio.wait_for would start a task for each read. A timer that closes the connection is cheaper.
        timer = asyncio.get_running_loop().call_later(self._until - monotonic(), self.close)
        try:
            data: bytes = await self._reader.read(65536)
        except OSError as error:
            raise Broken(str(error)) from error
        finally:
            timer.cancel()
        if not data and monotonic() >= self._until:
            raise Broken("no reply in time")
        return data

    def is_cut(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        # AttributeError: the connection is not open. RuntimeError: the event loop has closed.
        with contextlib.suppress(AttributeError, RuntimeError):
            self._writer.transport.abort()


class TaskRuntime(Runtime):
    is_asynchronous = True
    event, local = asyncio.Event, SimpleNamespace
    _link = Link

    @staticmethod
    def caller() -> asyncio.Task[Any] | None:
        return asyncio.current_task() if asyncio._get_running_loop() else None

    def start(self, action: Coroutine[Any, Any, T], name: str = "lockward-task") -> asyncio.Future[T]:
        task = self.loop.create_task(action, name=name)
        task._log_destroy_pending = False  # the program may close the event loop at any time
        self._tasks.add(task)  # the event loop keeps only a weak reference to the task
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def wait_for(self, event: asyncio.Event, limit: float) -> None:
        timer = self.loop.call_later(limit, event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()

    async def wait(self, started: asyncio.Future[Any], limit: float) -> None:
        await asyncio.wait({started}, timeout=limit)


class Lock(LockBase[asyncio.Event, Awaitable[bool], Awaitable[None]]):
    """A lock on a server with Lockward, with the interface of redis.asyncio.lock.Lock. Arguments: see ``Lock.__init__``.

    Tasks that share one object also exclude each other. If a task that has not acquired the lock releases it, the oldest
    acquisition of the object ends. So one task may acquire the lock, and another task may release it. For example,
    asyncio.wait_for may acquire the lock in a task of its own.
    """

    _kind = TaskRuntime

    @contextlib.asynccontextmanager
    async def scope(self: L) -> AsyncIterator[L]:
        """Hold the lock in an ``async with`` block. If the lock is lost, cancel the block and raise LockLostError.

        Any other cancellation of the task raises CancelledError as usual.
        """
        async with self, self._cancelled_when_lost():
            yield self

    @contextlib.asynccontextmanager
    async def _cancelled_when_lost(self) -> AsyncIterator[None]:
        block, event, ours = asyncio.current_task(), self.lost, []
        # Before Python 3.11, a task does not know how often it was cancelled.
        count, uncancel = getattr(block, "cancelling", lambda: 0), getattr(block, "uncancel", lambda: 0)
        others = count()

        async def cancel_when_lost() -> None:
            await event.wait()
            ours.append(cast(Any, block).cancel())

        watcher = asyncio.ensure_future(cancel_when_lost())
        try:
            yield
        except asyncio.CancelledError:
            if not ours or count() > others + 1:
                raise
            raise lost("go on with", self.name) from None
        finally:
            watcher.cancel()
            if ours:  # also needed if the block has ended without a CancelledError
                uncancel()

    __aenter__, __aexit__ = LockBase._enter, LockBase._exit


class MultiLock(MultiLockBase, Lock):
    """Several locks of one client as one lock: see ``lockward.MultiLock``."""


class ReadWriteLock(ReadWriteLockBase[Lock]):
    """``read()`` makes a lock that readers hold together. ``write()`` makes a lock that excludes all other holders."""

    _make = Lock


class Semaphore(SemaphoreBase[Lock]):
    """A semaphore: see ``lockward.Semaphore``."""

    _make = Lock


async def lead(redis: Any, name: Name, run: Callable[[Lock], Awaitable[T]], **options: Any) -> T:
    """Become the leader, await ``run(lock)``, and release the lock when ``run`` returns. Return the result of ``run``.

    ``lock.fencing_token`` is the term. When the lock is lost, this function cancels ``run``, and waits to become the leader
    again. This function waits without limit, even while no server answers. The options are the options of ``Lock`` that have
    an effect on a leader. If the release finds that the lock was lost, this function raises LockLostError.
    """

    async def call(lock: Lock) -> T:
        async with lock._cancelled_when_lost():
            return await run(lock)

    return await lead_with(partial(Lock, redis, name), call, options)
