"""What the locks for threads and for asyncio have in common: the interface of redis-py's locks."""

from __future__ import annotations

import logging
import os
import weakref
from time import monotonic
from typing import Any, Callable, ClassVar, Generic, Protocol, TypeVar, Union

from . import _connections as connections
from . import _protocol as protocol
from ._plan import Command, Plan
from ._protocol import AcquireRequest
from ._replies import decoded
from ._tenure import Event, Handle, Tenure, owners, pack
from ._timing import lease_end, millis
from .errors import LockError, LockLost, lock_error

logger = logging.getLogger("lockward")

Number = Union[int, float]
Name = Union[str, bytes, memoryview]
E = TypeVar("E", bound=Event)


class Renewer(Protocol):
    """Renews tenures, and reports their loss."""

    def watch(self, tenure: Tenure) -> None: ...
    def unwatch(self, tenure: Tenure) -> None: ...
    def lose(self, tenure: Tenure) -> None: ...


class Local:
    """redis-py's `lock.local`, with the token while the lock is held."""

    def __init__(self, lock: LockBase[Any]) -> None:
        self._lock = weakref.ref(lock)

    @property
    def token(self) -> bytes | None:
        lock = self._lock()
        tenure = lock._releasable() if lock is not None else None
        return tenure.local_token if tenure is not None else None


class LockBase(Generic[E]):
    _asynchronous: ClassVar[bool]

    def __init__(
        self,
        redis: Any,
        name: Name,
        timeout: Number | None = None,
        sleep: Number = 0.1,
        blocking: bool = True,
        blocking_timeout: Number | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        *,
        shared: bool = False,
        slots: int | None = None,
        weight: int | None = None,
        reentrant: bool = False,
        auto_renewal: bool | None = None,
        lease: Number | None = None,
        on_lost: Callable[[Any], object] | None = None,
        replicas: tuple[int, Number] | None = None,
        patience: Number = 5.0,
    ) -> None:
        """A lock with this key, not yet acquired. The first eight arguments are those of redis-py's Lock.

        ``timeout``: the lease in seconds. The lock ends after it. None: the lock is held until it is released, and its lease
        is renewed while this object lives.

        ``sleep`` is accepted and ignored: the server hands the lock over, so the client does not poll.

        ``blocking``: whether acquire waits. ``blocking_timeout``: the wait limit in seconds; None: no limit.

        ``thread_local``: whether only the thread that acquired the lock may release it through this object.

        ``raise_on_release_error``: if the lock was lost when the context manager exits: True raises, False logs a warning.

        ``shared``: whether the lock is held together with all others who ask for it as shared: a read lock.

        ``slots``, ``weight``: acquire one of so many slots, or ``weight`` of them: a semaphore. The number of slots should be the
        same for all.

        ``reentrant``: whether a thread that holds the lock may acquire it again (with ``thread_local=False``: any thread; in
        asyncio: a task). If not, it waits for itself, as with redis-py and threading.Lock.

        ``auto_renewal``: whether to renew the lease while the lock is held; by default only without a ``timeout``.

        ``lease``: the lease of a lock without ``timeout``, in seconds: how long the lock stays held after this process dies.
        None: the server's default, 30 seconds unless set.

        ``on_lost``: called with the lock when it is lost while held: see ``lost``. It must return quickly, because the
        client's renewals wait for it.

        ``replicas``: (n, seconds): raise Unreplicated unless n replicas confirm the grant in this time.

        ``patience``: how many seconds a request is repeated while no server answers, before Unreachable.
        """
        connections.check_client(redis, self._asynchronous)
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.reentrant = reentrant
        self.auto_renewal = not timeout if auto_renewal is None else auto_renewal
        self.lease = lease
        self.on_lost = on_lost
        self.replicas = replicas
        self.patience = patience
        self._mode: Command = (
            *(("SHARED",) if shared else ()),
            *(("SLOTS", slots) if slots is not None else ()),
            *(("WEIGHT", weight) if weight is not None else ()),
        )
        self.local = Local(self)
        self._prepare()

    # The tenures: one for each thread, one for the object, or one for each task.

    def _prepare(self) -> None:
        raise NotImplementedError

    def _own(self) -> Tenure | None:
        """The tenure that the caller has acquired."""
        raise NotImplementedError

    def _releasable(self) -> Tenure | None:
        """The tenure that the caller may release."""
        raise NotImplementedError

    def _store(self, tenure: Tenure) -> None:
        raise NotImplementedError

    def _discard(self, tenure: Tenure) -> None:
        raise NotImplementedError

    def _event(self) -> E:
        raise NotImplementedError

    def _renewer(self) -> Renewer:
        raise NotImplementedError

    # Without a request to a server.

    @property
    def fencing_token(self) -> int | None:
        """The fencing token: larger than that of every earlier tenure of this lock. Send it along with every write.

        None before acquire and after release.
        """
        tenure = self._releasable()
        return tenure.token if tenure is not None else None

    @property
    def holds(self) -> int:
        """How many times the lock was acquired and not released."""
        tenure = self._releasable()
        return tenure.holds if tenure is not None else 0

    @property
    def held(self) -> bool:
        """Whether the lock is held: the lease runs by this process's clock, and no server has denied it."""
        tenure = self._releasable()
        return tenure is not None and tenure.held

    @property
    def lost(self) -> E:
        """An event that is set when the lock is lost: its lease ended before it was renewed, or the key was deleted or
        overwritten.

        Each tenure has its own event: read this property after acquire.
        """
        tenure = self._releasable()
        event: E = tenure.lost if tenure is not None else self._event()  # type: ignore[assignment]
        return event

    def handle(self, detach: bool = False) -> str:
        """A string with which another thread, task or process continues the tenure: see ``resume``.

        This object still holds and renews the lock, until it finds out that the lock was released. With ``detach`` it forgets
        the lock, which is then not renewed until ``resume``.
        """
        tenure = self._releasable()
        if tenure is None:
            raise lock_error(LockError, "Cannot hand over an unlocked lock", self.name)
        handle = pack(tenure, self.timeout)
        if detach:
            self._forget(tenure)
        return handle

    # The plans.

    def _acquire(self, blocking: bool | None, blocking_timeout: Number | None, token: str | bytes | None) -> Plan[bool]:
        limit: Number | None = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        if not (self.blocking if blocking is None else blocking):
            limit = 0
        own = self._own()
        again = own if self.reentrant else None
        if again is not None and not again.held:
            raise lock_error(LockLost, "Cannot acquire once more a lock that's no longer owned", self.name)
        if again is None and own is not None and own.held and self._mode:
            raise lock_error(LockError, "The caller holds the lock already (reentrant=True?)", self.name)
        if again is None and own is not None and own.held and own.is_renewed and limit is None and self.thread_local:
            message = "The caller holds the lock, and would wait for itself forever (reentrant=True?)"
            raise lock_error(LockError, message, self.name)
        limit = None if limit is None else max(0, limit)
        if again is not None:
            return (yield from self._reenter(again, limit))
        owner = local_token = owners.new()
        if token is not None:
            # The same token twice makes two owners, so the second has to wait, as with redis-py.
            local_token = token.encode() if isinstance(token, str) else bytes(token)
            owner = local_token + b":" + owner
        seconds = self.timeout or self.lease
        lease = None if seconds is None else millis(seconds)
        request = AcquireRequest(self.name, owner, lease, 1, self.replicas, self._mode)
        grant = yield from protocol.acquire(request, limit, self.patience)
        if grant is None:
            return False
        tenure = (self.name, owner, local_token, grant.token, grant.holds, grant.lease, self.auto_renewal)
        self._add(self._tenure(Handle(*tenure, None, self._mode), grant.deadline))
        return True

    def _reenter(self, tenure: Tenure, limit: Number | None) -> Plan[bool]:
        request = AcquireRequest(self.name, tenure.owner, tenure.lease, tenure.holds + 1, self.replicas, tenure.mode)
        grant = yield from protocol.acquire(request, limit, self.patience)
        if grant is None:
            return False
        tenure.holds = grant.holds
        tenure.deadline = max(tenure.deadline, grant.deadline)
        return True

    def _tenure(self, handle: Handle, deadline: float) -> Tenure:
        return Tenure(
            key=handle.key,
            owner=handle.owner,
            token=handle.token,
            holds=handle.holds,
            lease=handle.lease,
            is_renewed=handle.is_renewed,
            deadline=deadline,
            lost=self._event(),
            lock=weakref.ref(self),
            local_token=handle.local_token,
            mode=handle.mode,
        )

    def _add(self, tenure: Tenure) -> None:
        self._store(tenure)
        self._renewer().watch(tenure)

    def _forget(self, tenure: Tenure) -> None:
        tenure.is_over = True
        self._discard(tenure)
        self._renewer().unwatch(tenure)

    def _release(self) -> Plan[None]:
        tenure = self._releasable()
        if tenure is None:
            raise lock_error(LockError, "Cannot release a lock that's not owned or is already unlocked.", self.name)
        if tenure.pid != os.getpid():
            raise lock_error(LockLost, "Cannot release a lock that was acquired before the fork", self.name)
        is_last, was_held = tenure.holds == 1, tenure.held
        if is_last or not was_held:
            # Before the request is sent: a renewal after it would find the lock lost.
            self._forget(tenure)
        try:
            left = yield from protocol.release(tenure, was_held, self.patience)
        except LockLost:
            if not is_last:
                self._renewer().lose(tenure)
                self._forget(tenure)
            raise
        tenure.holds = left

    def _extend(self, additional_time: Number, replace_ttl: bool) -> Plan[bool]:
        tenure = self._renewable("extend")
        left = 0.0 if replace_ttl else max(0.0, tenure.deadline - monotonic())
        yield from self._renew(tenure, left + additional_time, "extend")
        return True

    def _reacquire(self) -> Plan[bool]:
        tenure = self._renewable("reacquire")
        yield from self._renew(tenure, self.timeout or tenure.lease / 1000, "reacquire")
        return True

    def _renewable(self, what: str) -> Tenure:
        tenure = self._releasable()
        if tenure is None or tenure.pid != os.getpid():
            raise lock_error(LockError, f"Cannot {what} an unlocked lock", self.name)
        if self.timeout is None:
            raise lock_error(LockError, f"Cannot {what} a lock with no timeout", self.name)
        return tenure

    def _renew(self, tenure: Tenure, lease: float, what: str) -> Plan[None]:
        tenure.note_lease_request(millis(lease))
        self._renewer().watch(tenure)
        try:
            yield from protocol.renew(tenure, millis(lease), self.patience, what)
        except LockLost:
            self._renewer().lose(tenure)
            raise
        self._renewer().watch(tenure)

    def _guarded(self, command: Command) -> Plan[Any]:
        tenure = self._releasable()
        if tenure is None or tenure.pid != os.getpid():
            raise lock_error(LockError, "Cannot guard a command with an unlocked lock", self.name)
        try:
            reply = yield from protocol.guarded(tenure, command, self.patience)
        except LockLost:
            self._renewer().lose(tenure)
            raise
        return decoded(reply, self.redis.get_encoder().decode)

    def _locked(self) -> Plan[bool]:
        _, holders = yield from protocol.lock_info(self.name, self.patience)
        return bool(holders)

    def _owned(self) -> Plan[bool]:
        tenure = self._releasable()
        if tenure is None or tenure.pid != os.getpid():
            return False
        _, holders = yield from protocol.lock_info(self.name, self.patience)
        return any((h.owner, h.token) == (tenure.owner, tenure.token) for h in holders)

    def _resume(self, handle: Handle) -> Plan[None]:
        """Continue a tenure. LockLost if it is over."""
        self._mode = tuple(handle.mode)
        if handle.is_renewed:
            tenure = self._tenure(handle, 0.0)
            yield from protocol.resume(tenure, self.patience)
            self._add(tenure)
            return
        asked, holders = yield from protocol.lock_info(self.name, self.patience)
        for holder in holders:
            if (holder.owner, holder.token) == (handle.owner, handle.token):
                self._add(self._tenure(handle._replace(holds=holder.holds), lease_end(asked, holder.lease_left)))
                return
        raise lock_error(LockLost, "Cannot resume a lock that's no longer owned", self.name)

    def _exit(self) -> Plan[None]:
        try:
            yield from self._release()
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("Lock was unlocked or no longer owned when exiting context manager.")


def call_on_lost(lock: Any) -> None:
    """Call the callback. Its errors are logged: they must not stop the renewals."""
    on_lost = lock.on_lost
    if on_lost is not None:
        try:
            on_lost(lock)
        except Exception:
            logger.exception("the on_lost callback has failed")
