"""Locks for threads."""

from __future__ import annotations

import select
import threading
from collections.abc import Coroutine
from concurrent import futures
from contextlib import suppress
from time import monotonic
from types import SimpleNamespace
from typing import Any, Callable, TypeVar

from redis.exceptions import LockError

from ._lock import OF_A_LEADER, LockBase, MultiLockBase, Name, ReadWriteLockBase, SemaphoreBase, refuse
from ._runtime import Runtime, finish
from ._wire import Address, LinkBase
from .errors import LockLostError, UnreachableError

T = TypeVar("T")
L = TypeVar("L", bound="Lock")


class Link(LinkBase):
    async def open(self, address: Address | None) -> None:
        self._theirs.connect() if address is None else self._theirs.connect_to(address)
        self._socket, self._poll = self._theirs._sock, None
        if hasattr(select, "POLLRDHUP"):  # poll reads nothing, so no thread misses a part of its reply
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLRDHUP)

    def send(self, data: bytes, until: float) -> None:
        self._until = until
        self._socket.settimeout(max(0.001, until - monotonic()))
        self._socket.sendall(data)

    async def receive(self) -> bytes:
        self._socket.settimeout(max(0.001, self._until - monotonic()))
        return self._socket.recv(65536)

    def is_cut(self) -> bool:
        return bool(self._poll.poll(0)) if self._poll is not None else False

    def close(self) -> None:
        self._theirs.disconnect()


class ThreadRuntime(Runtime):
    is_asynchronous = False
    event = threading.Event
    _link = Link

    def start(self, action: Coroutine[Any, Any, T]) -> futures.Future[T]:
        outcome: futures.Future[T] = futures.Future()
        outcome.set_running_or_notify_cancel()

        def run() -> None:
            try:
                outcome.set_result(finish(action))
            except BaseException as error:
                outcome.set_exception(error)

        try:
            threading.Thread(target=run, name="lockward-task", daemon=True).start()
        except RuntimeError:  # the program is ending, or there are too many threads
            run()
        return outcome

    def start_watch(self, watch: Coroutine[Any, Any, None]) -> None:
        threading.Thread(target=finish, args=(watch,), name="lockward", daemon=True).start()

    async def wait_for(self, event: threading.Event, limit: float) -> None:
        event.wait(limit)


class Lock(LockBase[threading.Event, bool, None]):
    """A lock on a server with Lockward, with the interface of redis.lock.Lock. Arguments: see ``Lock.__init__``."""

    _kind = ThreadRuntime

    def _prepare(self) -> None:
        self._local: Any = threading.local() if self.thread_local else SimpleNamespace()

    def _place(self) -> tuple[dict[Any, Any], Any]:
        return self._local.__dict__, "holding"

    def _run(self, action: Coroutine[Any, Any, T]) -> T:
        return finish(action)

    def __enter__(self: L) -> L:
        return self._run(self._enter())

    def __exit__(self, *exception: object) -> None:
        self._run(self._exit())


class MultiLock(MultiLockBase, Lock):
    """Several locks of one client as one, such as ``MultiLock([Lock(r, "a"), Lock(r, "b")])``: all are held, or none.

    The names and kinds are those of the locks. The other arguments are those of ``Lock``: give them to the MultiLock,
    because the locks must have none. The locks are acquired in the order of their names, so that two programs do not
    deadlock. A MultiLock is lost as soon as one of its locks is lost.
    """


class ReadWriteLock(ReadWriteLockBase[Lock]):
    """``read()`` makes a lock that readers hold together, ``write()`` one that excludes all others.

    The arguments are those of ``Lock``.
    """

    _make = Lock


class Semaphore(SemaphoreBase[Lock]):
    """A semaphore with this number of slots. All callers should use the same number. The other arguments are those of ``Lock``.

    ``acquire(permits=2, timeout=1)`` returns the permit: a held lock, to be released with ``release()`` or by ``with``.
    It returns None if the slots are not free in time. ``with semaphore.permits(2) as permit:`` raises LockError instead.
    """

    _make = Lock


def lead(redis: Any, name: Name, run: Callable[[Lock], T], **options: Any) -> T:
    """Become the leader, call ``run`` with the lock, and release it when ``run`` returns. Return its result.

    ``lock.fencing_token`` is the term. ``run`` should return soon after ``lock.lost`` is set, or
    when ``lock.guarded`` raises LockLostError. Then this function waits to become the leader again. It
    waits without limit, even while no server answers. The options are those of ``Lock``, except those
    for a wait.
    """
    refuse(options, OF_A_LEADER)
    while True:
        lock = Lock(redis, name, blocking=True, blocking_timeout=None, thread_local=False, **options)
        try:
            lock.acquire()
        except UnreachableError:
            continue
        try:
            result = run(lock)
            if lock.held:
                return result
        except LockLostError:
            if lock.held:
                raise
        finally:
            with suppress(LockError, UnreachableError):  # the lock was lost, or it ends with its lease
                lock.release()
