"""Locks for threads."""

from __future__ import annotations

import select
import threading
from collections.abc import Coroutine
from concurrent import futures
from functools import partial
from time import monotonic
from typing import Any, Callable, TypeVar

from ._lock import LockBase, MultiLockBase, Name, ReadWriteLockBase, SemaphoreBase
from ._lock import lead as lead_with
from ._runtime import WATCHER, Runtime, finish, start_thread
from ._wire import Broken, LinkBase

T = TypeVar("T")
L = TypeVar("L", bound="Lock")


class Link(LinkBase):
    async def open(self) -> None:
        self._theirs.connect()
        self._socket, self._poll = self._theirs._sock, None
        if hasattr(select, "POLLRDHUP"):  # with it, `is_cut` detects a closed connection without a read
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLRDHUP)

    def send(self, data: bytes) -> None:
        self._call(self._socket.sendall, data)

    async def receive(self) -> bytes:
        return self._call(self._socket.recv, 65536)

    def _call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        self._socket.settimeout(max(0.001, self._until - monotonic()))
        try:
            return method(argument)
        except OSError as error:
            # A signal handler of the program may raise such an error, too: for example, TimeoutError when an alarm comes. But an
            # error of the socket has a number, or it comes at the time limit.
            if error.errno is None and monotonic() < self._until - 0.01:
                raise
            raise Broken(str(error)) from error

    def is_cut(self) -> bool:
        return bool(self._poll.poll(0)) if self._poll is not None else False

    def close(self) -> None:
        self._theirs.disconnect()


class ThreadRuntime(Runtime):
    is_asynchronous = False
    event, local = threading.Event, threading.local
    _link = Link

    def start(self, action: Coroutine[Any, Any, T], name: str = "lockward-task") -> futures.Future[T]:
        outcome: futures.Future[T] = futures.Future()
        outcome.set_running_or_notify_cancel()

        def run() -> None:
            try:
                outcome.set_result(finish(action))
            except BaseException as error:
                outcome.set_exception(error)

        try:
            start_thread(name, run)
        except RuntimeError:
            if name == WATCHER:  # `run` would not return
                raise
            run()
        return outcome

    async def wait_for(self, event: threading.Event, limit: float) -> None:
        event.wait(limit)

    async def wait(self, started: futures.Future[Any], limit: float) -> None:
        futures.wait([started], limit)


class Lock(LockBase[threading.Event, bool, None]):
    """A lock on a server with Lockward, with the interface of redis.lock.Lock. Arguments: see ``Lock.__init__``."""

    _kind = ThreadRuntime

    def _run(self, action: Coroutine[Any, Any, T]) -> T:
        return finish(action)

    def __enter__(self: L) -> L:
        return self._run(self._enter())

    def __exit__(self, *exception: object) -> None:
        self._run(self._exit())


class MultiLock(MultiLockBase, Lock):
    """Several locks of one client as one lock, such as ``MultiLock([Lock(r, "a"), Lock(r, "b")])``.

    The caller holds all of the locks or none of them. Give the names and the kinds to the locks, and all other arguments of
    ``Lock`` to the MultiLock. The MultiLock acquires the locks in the order of their names, so that two programs do not
    deadlock. The MultiLock is lost as soon as one of its locks is lost.
    """


class ReadWriteLock(ReadWriteLockBase[Lock]):
    """``read()`` makes a lock that readers hold together. ``write()`` makes a lock that excludes all other holders.

    The arguments are the same as for ``Lock``.
    """

    _make = Lock


class Semaphore(SemaphoreBase[Lock]):
    """A semaphore with this number of slots. All callers should use the same number of slots.

    The other arguments are the same as for ``Lock``.

    ``acquire(permits=2, timeout=1)`` returns a held lock, or None if the slots are not free in time. ``release()`` or
    ``with`` releases the lock. ``with semaphore.permits(2) as permit:`` raises LockError if the slots are not free in time.
    """

    _make = Lock


def lead(redis: Any, name: Name, run: Callable[[Lock], T], **options: Any) -> T:
    """Become the leader, call ``run`` with the lock, and release the lock when ``run`` returns. Return the result of ``run``.

    ``lock.fencing_token`` is the term. ``run`` should return soon after ``lock.lost`` is set, or when ``lock.guarded`` raises
    LockLostError. Then this function waits to become the leader again. This function waits without limit, even while no server
    answers. The options are the options of ``Lock`` that have an effect on a leader. If the release finds that the lock was
    lost, this function raises LockLostError.
    """

    async def call(lock: Lock) -> T:
        return run(lock)

    return finish(lead_with(partial(Lock, redis, name), call, options))
