"""Locks for threads."""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Coroutine
from concurrent import futures
from time import monotonic, sleep
from typing import Any, Callable, TypeVar

from redis.backoff import NoBackoff
from redis.exceptions import LockError, TimeoutError
from redis.retry import Retry

from ._exchange import NETWORK_ERRORS, Address, T
from ._lock import LockBase, MultiLockBase, Name, ReadWriteLockBase, SemaphoreBase, check_lead_options
from ._runtime import RuntimeBase, bare
from ._wire import Parser
from .errors import LockLostError, UnreachableError


class _Link:
    """An open connection, made by redis-py and used without it."""

    def __init__(self, theirs: Any) -> None:
        self._theirs, self._socket, self.parser = theirs, theirs._sock, Parser()
        self.pid, self.idle_since, self._has_limit = os.getpid(), 0.0, False
        self._poll = select.poll() if hasattr(select, "POLLRDHUP") else None
        if self._poll is not None:
            self._poll.register(self._socket, select.POLLRDHUP)

    def send(self, data: bytes, until: float) -> None:
        self._socket.settimeout(max(0.001, until - monotonic()))
        self._has_limit = True
        self._socket.sendall(data)

    async def receive(self, until: float) -> bytes:
        if not self._has_limit:
            self._socket.settimeout(max(0.001, until - monotonic()))
        self._has_limit = False
        data: bytes = self._socket.recv(65536)
        return data

    def is_open(self, be_sure: bool) -> bool:
        """Whether the server has not closed it, as far as that is known. To be sure takes a system call."""
        try:
            return not be_sure or not self._theirs.can_read(timeout=0)
        except NETWORK_ERRORS:
            return False

    def is_cut(self) -> bool:
        """Whether the server has closed it. This takes no reply away from a thread that uses the connection."""
        return bool(self._poll.poll(0)) if self._poll is not None else False

    def close(self) -> None:
        self._theirs.disconnect()


def _close_late(outcome: futures.Future[_Link]) -> None:
    if outcome.exception() is None:
        outcome.result().close()


def _run(action: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose awaits all block: it never suspends."""
    try:
        action.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("the coroutine was suspended")


def _start_thread(name: str, action: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=action, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the program is ending, or there are too many threads
        action()
    return thread


class Runtime(RuntimeBase):
    """The connections and holdings of one client's locks. A thread watches the leases. It does nothing that could hang."""

    _no_retries = Retry(NoBackoff(), 0)

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        weakref.finalize(client, self.close).atexit = False

    def restart(self) -> None:
        super().restart()
        self._changed = threading.Condition(self._mutex)
        self._thread: threading.Thread | None = None
        self._is_awake = False

    def close(self) -> None:
        self._is_closed = True
        self.wake()
        self.close_idle()

    async def connect(self, source: Any, options: dict[str, Any], address: Address | None, limit: float) -> _Link:
        # In a thread of its own: names, handshakes and TLS have limits of their own, or none.
        outcome: futures.Future[_Link] = futures.Future()

        def connect() -> None:
            connection = bare(source.connection_class(**options))
            try:
                connection.connect() if address is None else connection.connect_to(address)
                outcome.set_result(_Link(connection))
            except BaseException as error:
                connection.disconnect()
                outcome.set_exception(error)

        done: Any = ()
        try:
            _start_thread("lockward-connect", connect)
            done, _ = futures.wait([outcome], max(0.0, limit))
        finally:
            if not done:
                outcome.add_done_callback(_close_late)
        if not done:
            raise TimeoutError("no connection in time")
        return outcome.result()

    async def sleep(self, seconds: float) -> None:
        sleep(seconds)

    def start(self, action: Coroutine[Any, Any, Any]) -> None:
        _start_thread("lockward-task", lambda: _run(action))

    def wake(self) -> None:
        with self._changed:
            self._is_awake = True
            if self._schedule.holdings and not self._is_closed and not (self._thread and self._thread.is_alive()):
                self._thread = threading.Thread(target=self._watch_leases, name="lockward", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _watch_leases(self) -> None:
        while not self._is_closed:
            self._is_awake = False
            then = self.tick()
            with self._changed:
                if not self._is_awake:
                    self._changed.wait(max(0.0, min(then - monotonic(), threading.TIMEOUT_MAX)))


_runtimes: weakref.WeakKeyDictionary[Any, Runtime] = weakref.WeakKeyDictionary()
_runtimes_mutex = threading.Lock()


def _forked() -> None:
    global _runtimes_mutex
    _runtimes_mutex = threading.Lock()
    for runtime in list(_runtimes.values()):
        runtime.restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Lock(LockBase[threading.Event, bool, None]):
    """A lock on a server with Lockward, with the interface of redis.lock.Lock. Arguments: see ``Lock.__init__``."""

    _asynchronous = False
    _make_event = threading.Event

    def _prepare(self) -> None:
        self._local: Any = threading.local() if self.thread_local else _Namespace()
        with _runtimes_mutex:
            runtime = _runtimes.get(self.redis)
            if runtime is None:
                runtime = _runtimes[self.redis] = Runtime(self.redis)
        self._runtime: Runtime = runtime

    def _place(self) -> tuple[dict[Any, Any], Any]:
        return self._local.__dict__, "holding"

    def _run(self, action: Coroutine[Any, Any, T]) -> T:
        return _run(action)

    def __enter__(self: L) -> L:
        self._run(self._enter())
        return self

    def __exit__(self, *exception: object) -> None:
        self._run(self._exit())


L = TypeVar("L", bound=Lock)


class _Namespace:
    pass


class MultiLock(MultiLockBase, Lock):
    """Several locks of one client as one, such as ``MultiLock([Lock(r, "a"), Lock(r, "b")])``: all are held, or none.

    The names and kinds are those of the locks; the other arguments are those of ``Lock``. The locks are acquired in the
    order of their names, so that two programs do not wait for each other. It is lost as soon as one of them is lost.
    """


class ReadWriteLock(ReadWriteLockBase[Lock]):
    """``read()`` makes a lock that readers hold together, ``write()`` one that excludes all others.

    The arguments are those of ``Lock``.
    """

    _make = Lock


class Semaphore(SemaphoreBase[Lock]):
    """A semaphore with so many slots, which should be the same for all. The other arguments are those of ``Lock``.

    ``acquire(permits=2, timeout=1)`` returns the permit: a held lock, to be released with ``release()`` or by ``with``.
    It returns None if the slots are not free in time.
    """

    _make = Lock


def lead(redis: Any, name: Name, run: Callable[[Lock], T], **options: Any) -> T:
    """Become the leader, call ``run`` with the lock, and release it when ``run`` returns. Return its result.

    ``lock.fencing_token`` is the term. ``run`` should return soon after ``lock.lost`` is set, or when ``lock.guarded`` raises
    LockLostError; then this waits to become the leader again. It waits without limit, also while no server answers.
    The options are those of ``Lock``, without those of its waits.
    """
    check_lead_options(options)
    while True:
        lock = Lock(redis, name, thread_local=False, **options)
        try:
            if not lock.acquire():
                continue
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
            try:
                lock.release()
            except (LockError, UnreachableError):
                pass  # it is lost, or ends with its lease
