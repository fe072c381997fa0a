"""What the locks for threads and for asyncio have in common: the interface of redis-py's, and when it may be used."""

from __future__ import annotations

import logging
import os
import weakref
from time import monotonic
from typing import Any, Callable, ClassVar, Generic, Protocol, TypeVar, Union

from . import _connecting as connecting
from . import _course as course
from ._course import Claim, Course, Tenure
from .errors import LockError, LockLost, told

logger = logging.getLogger("lockward")

Number = Union[int, float]
Name = Union[str, bytes, memoryview]
E = TypeVar("E", bound=course.Event)


class Keeper(Protocol):
    """Whoever renews the tenures, and tells when one is lost."""

    def watch(self, tenure: Tenure) -> None: ...
    def unwatch(self, tenure: Tenure) -> None: ...
    def lose(self, tenure: Tenure) -> None: ...


class Local:
    """What redis-py keeps in `lock.local`: the owner's name while the lock is held."""

    def __init__(self, lock: LockBase[Any]) -> None:
        self._lock = weakref.ref(lock)

    @property
    def token(self) -> bytes | None:
        lock = self._lock()
        tenure = lock._find() if lock is not None else None
        return tenure.named if tenure is not None else None


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
        reentrant: bool = False,
        auto_renewal: bool | None = None,
        lease: Number | None = None,
        on_lost: Callable[[Any], object] | None = None,
        replicas: tuple[int, Number] | None = None,
        patience: Number = 5.0,
    ) -> None:
        """A lock of this name, not yet acquired. The first eight arguments are those of redis-py's Lock.

        ``timeout``: the lock's lease in seconds, after which it is over whatever its holder does. None: it is held until
        release, by a lease that is renewed while this object lives.

        ``sleep`` is accepted, and not used: the server hands the lock over, and nobody polls.

        ``blocking``: whether acquire waits. ``blocking_timeout``: for how many seconds at most; None: without limit.

        ``thread_local``: whether only the thread that acquired the lock may release it through this object.

        ``raise_on_release_error``: whether leaving the context manager raises when the lock was lost, or logs a warning.

        ``reentrant``: whether a thread (with ``thread_local=False``: the object; in asyncio: a task) that holds the lock
        acquires it once more. If not, it waits for itself, as with redis-py and threading.Lock.

        ``auto_renewal``: whether to renew the lease while the lock is held; by default where there is no ``timeout``.

        ``lease``: the lease of a lock without ``timeout``, in seconds: how long the lock stays when this process dies. None: the
        server's default, 30 seconds if it was not set.

        ``on_lost``: called with the lock when it is lost while held: see ``lost``. Whoever renews the locks calls it: be brief.

        ``replicas``: (n, seconds): fail with Unreplicated unless n replicas have heard of the grant within so long.

        ``patience``: how many seconds to go on asking a server that does not answer, before Unreachable.
        """
        connecting.check(redis, self._asynchronous)
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
        self.local = Local(self)
        self._prepare()

    # Where the tenures are: one for each thread, one for the object, or one for each task.

    def _prepare(self) -> None:
        raise NotImplementedError

    def _own(self) -> Tenure | None:
        """The tenure that whoever calls has acquired."""
        raise NotImplementedError

    def _find(self) -> Tenure | None:
        """The tenure that whoever calls may release."""
        raise NotImplementedError

    def _keep(self, tenure: Tenure) -> None:
        raise NotImplementedError

    def _drop(self, tenure: Tenure) -> None:
        raise NotImplementedError

    def _event(self) -> E:
        raise NotImplementedError

    def _keeper(self) -> Keeper:
        raise NotImplementedError

    # What the holder may know without asking a server.

    @property
    def fencing_token(self) -> int | None:
        """Larger than that of any earlier holder of this lock: to be sent along with every write.

        None before acquire and after release.
        """
        tenure = self._find()
        return tenure.token if tenure is not None else None

    @property
    def holds(self) -> int:
        """How many times the lock has been acquired and not released."""
        tenure = self._find()
        return tenure.holds if tenure is not None else 0

    @property
    def held(self) -> bool:
        """Whether the lock is held for certain: the lease runs by the own clock, and no server has said otherwise."""
        tenure = self._find()
        return tenure is not None and tenure.held

    @property
    def lost(self) -> E:
        """Set when this tenure is lost: its lease over before it could be renewed, or the lock deleted or taken away.

        Each tenure has an event of its own: take it after acquire.
        """
        tenure = self._find()
        event: E = tenure.lost if tenure is not None else self._event()  # type: ignore[assignment]
        return event

    def handle(self, detach: bool = False) -> str:
        """What another thread, task or process goes on with: see ``resume``.

        This object holds and renews the lock as before, until it learns that it was released. With ``detach`` it forgets
        the lock: from now until somebody resumes, nobody renews it.
        """
        tenure = self._find()
        if tenure is None:
            raise told(LockError, "Cannot hand over an unlocked lock", self.name)
        handle = course.pack(tenure, self.timeout)
        if detach:
            self._forget(tenure)
        return handle

    # The courses of action.

    def _acquire(
        self, blocking: bool | None, blocking_timeout: Number | None, token: str | bytes | None
    ) -> Course[bool]:
        limit: Number | None = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        if not (self.blocking if blocking is None else blocking):
            limit = 0
        own = self._own()
        again = own if self.reentrant else None
        if again is not None and not again.held:
            raise told(LockLost, "Cannot acquire once more a lock that's no longer owned", self.name)
        if own is not None and again is None and own.held and own.renewed and limit is None and self.thread_local:
            raise told(
                LockError, "Would wait for itself forever: the lock is held already (reentrant=True?)", self.name
            )
        owner = course.owners.new() if again is None else again.owner
        named = owner
        if token is not None and again is None:
            # The same token twice is two owners, as with redis-py: it is refused while the first one holds the lock.
            named = token.encode() if isinstance(token, str) else bytes(token)
            owner = named + b":" + owner
        seconds = self.timeout or self.lease
        lease = None if seconds is None else course.millis(seconds)
        if again is not None:
            lease = again.lease
        claim = Claim(self.name, owner, lease, 1 if again is None else again.holds + 1, self.replicas)
        grant = yield from course.acquiring(claim, None if limit is None else max(0, limit), self.patience)
        if grant is None:
            return False
        if again is not None:
            again.holds = grant.holds
            again.deadline = max(again.deadline, grant.deadline)
            return True
        handle = course.Handle(self.name, owner, named, grant.token, grant.holds, grant.lease, self.auto_renewal, None)
        self._take(self._tenure(handle, grant.deadline))
        return True

    def _tenure(self, handle: course.Handle, deadline: float) -> Tenure:
        return Tenure(
            key=handle.key,
            owner=handle.owner,
            token=handle.token,
            holds=handle.holds,
            lease=handle.lease,
            renewed=handle.renewed,
            deadline=deadline,
            lost=self._event(),
            lock=weakref.ref(self),
            named=handle.named,
        )

    def _take(self, tenure: Tenure) -> None:
        self._keep(tenure)
        self._keeper().watch(tenure)

    def _forget(self, tenure: Tenure) -> None:
        tenure.over = True
        self._drop(tenure)
        self._keeper().unwatch(tenure)

    def _release(self) -> Course[None]:
        tenure = self._find()
        if tenure is None:
            raise told(LockError, "Cannot release a lock that's not owned or is already unlocked.", self.name)
        if tenure.pid != os.getpid():
            raise told(LockLost, "Cannot release a lock that was acquired before the fork", self.name)
        last, trusted = tenure.holds == 1, tenure.held
        if last or not trusted:
            # Before the request is sent: a renewal after the release would find the lock lost.
            self._forget(tenure)
        try:
            left = yield from course.releasing(tenure, trusted, self.patience)
        except LockLost:
            if not last:
                self._keeper().lose(tenure)
                self._forget(tenure)
            raise
        tenure.holds = left

    def _extend(self, additional_time: Number, replace_ttl: bool) -> Course[bool]:
        tenure = self._renewable("extend")
        left = 0.0 if replace_ttl else max(0.0, tenure.deadline - monotonic())
        yield from self._renew(tenure, left + additional_time, "extend")
        return True

    def _reacquire(self) -> Course[bool]:
        tenure = self._renewable("reacquire")
        yield from self._renew(tenure, self.timeout or tenure.lease / 1000, "reacquire")
        return True

    def _renewable(self, what: str) -> Tenure:
        tenure = self._find()
        if tenure is None or tenure.pid != os.getpid():
            raise told(LockError, f"Cannot {what} an unlocked lock", self.name)
        if self.timeout is None:
            raise told(LockError, f"Cannot {what} a lock with no timeout", self.name)
        return tenure

    def _renew(self, tenure: Tenure, lease: float, what: str) -> Course[None]:
        tenure.lasts_at_most(course.millis(lease))
        self._keeper().watch(tenure)
        try:
            yield from course.renewing(tenure, course.millis(lease), self.patience, what)
        except LockLost:
            self._keeper().lose(tenure)
            raise
        self._keeper().watch(tenure)

    def _locked(self) -> Course[bool]:
        _, holders = yield from course.asking(self.name, self.patience)
        return bool(holders)

    def _owned(self) -> Course[bool]:
        tenure = self._find()
        if tenure is None or tenure.pid != os.getpid():
            return False
        _, holders = yield from course.asking(self.name, self.patience)
        return any((h.owner, h.token) == (tenure.owner, tenure.token) for h in holders)

    def _resume(self, handle: course.Handle) -> Course[None]:
        """Go on with a tenure, if it is still one."""
        if handle.renewed:
            tenure = self._tenure(handle, 0.0)
            yield from course.resuming(tenure, self.patience)
            self._take(tenure)
            return
        asked, holders = yield from course.asking(self.name, self.patience)
        for holder in holders:
            if (holder.owner, holder.token) == (handle.owner, handle.token):
                self._take(self._tenure(handle._replace(holds=holder.holds), course.end(asked, holder.lease_left)))
                return
        raise told(LockLost, "Cannot resume a lock that's no longer owned", self.name)

    def _exit(self) -> Course[None]:
        try:
            yield from self._release()
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("Lock was unlocked or no longer owned when exiting context manager.")


def call(on_lost: Callable[[Any], object] | None, lock: Any) -> None:
    """Tell that the lock is lost; what the program makes of it must not stop other renewals."""
    if on_lost is not None:
        try:
            on_lost(lock)
        except Exception:
            logger.exception("on_lost failed")
