"""The code that locks for threads and for asyncio share: the interface of redis-py's locks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import Any, Callable, ClassVar, Generic, TypeVar, Union, cast

import redis.asyncio
from redis.exceptions import LockError

from . import _protocol as protocol
from ._runtime import Runtime, logger, new_owner, runtime_of
from ._tenure import NOTHING, Holding, Tenure, kind_words, unpack
from ._wire import FOREVER, millis
from .errors import LockLostError, UnreachableError, lock_error, lost, readable

Number = Union[int, float]
Name = Union[str, bytes, memoryview]
E = TypeVar("E")  # the type of the event
B = TypeVar("B")  # bool, or an awaitable of it
N = TypeVar("N")  # None, or an awaitable of it
T = TypeVar("T")
L = TypeVar("L", bound="LockBase[Any, Any, Any]")
#: The server's default lease in seconds, if the server has no other setting. If the program names no lease, and the hold limit
#: is shorter than this default, the client asks for the hold limit as the lease.
_DEFAULT_LEASE = 30.0
#: In seconds. The client subtracts a millisecond from each lease, so a lease of one millisecond would be over at once.
_SHORTEST_LEASE = 0.002
#: Options of `Lock` that other constructors refuse. See `refuse`.
_OF_A_KIND = ("shared", "slots", "weight")
_OF_A_LEADER = {
    **dict.fromkeys(("blocking", "blocking_timeout"), "a candidate waits without limit"),
    **dict.fromkeys(_OF_A_KIND, "leadership is an exclusive lock"),
    "thread_local": "any thread or task may use the lock",
    "raise_on_release_error": "a candidate that has lost the lock waits again",
}
_OF_A_HANDLE = (*_OF_A_KIND, "timeout", "lease", "hold_limit", "auto_renewal", "owner")


def refuse(options: dict[str, Any], **reasons: str) -> None:
    """Raise a TypeError if an option would have no effect. The reason says what to do instead."""
    for option in reasons.keys() & options.keys():
        raise TypeError(f"{option} would have no effect: {reasons[option]}")


def check_client(client: Any, asynchronous: bool) -> None:
    if not hasattr(client, "connection_pool") and not hasattr(client, "nodes_manager"):
        raise TypeError(f"the client must be one of redis-py, not {type(client).__name__}")
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)) != asynchronous:
        raise TypeError(f"this client must be used with {'lockward' if asynchronous else 'lockward.asyncio'}.Lock")


@dataclass(eq=False, repr=False)
class LockBase(Generic[E, B, N]):
    """A lock with this key, not yet acquired. The first eight arguments are those of redis-py's Lock. Times are seconds.

    ``timeout``: the lease. The lock ends when the lease is over. None: the client renews the lock until the program releases
    the lock or drops this object. ``timeout``, ``lease`` and ``hold_limit`` are at least 0.002 seconds.

    ``sleep`` has no effect: the client does not poll, because the server hands the lock over.

    ``blocking``: whether ``acquire`` waits. ``blocking_timeout``: the wait limit. None means no limit.

    ``thread_local``: whether only the thread that acquired the lock may release it through this object.

    ``raise_on_release_error``: whether the context manager raises LockLostError if the lock was lost. If False, it logs a
    warning.

    ``shared``: whether all owners that ask for a shared lock may hold it together: a read lock.

    ``slots``: makes the lock a semaphore with this number of slots, up to 1,000,000. All callers should use the same number.
    ``weight``: how many of the slots to acquire. The default is 1.

    ``reentrant``: whether a thread (in asyncio: a task) that holds the lock may acquire it again. With
    ``thread_local=False``, any thread or task may do so. If ``reentrant`` is False, a holder that acquires the lock again waits
    for itself until the wait limit, as with redis-py. Without a wait limit it gets a LockError at once.

    ``auto_renewal``: whether the client renews the held lock. By default, it does so only without a ``timeout``.

    ``lease``: the lease of a lock without ``timeout``: how long the lock stays held after this process dies. None means the
    server's default, which is 30 seconds if the server has no other setting.

    ``hold_limit``: the lock is lost when this time has passed since it was granted, however often its lease is renewed.

    ``owner``: a name for the owner, 1 to 1,024 bytes, but not ``*``. All callers with the same name are one owner, and hold the
    lock together.

    ``on_lost``: a function that the client calls when the lock is lost: see ``lost``. The argument is the lock. The function
    runs in a thread of its own. In asyncio, a coroutine function runs in the event loop instead.

    ``replicas``: a pair (n, seconds). If fewer than n replicas confirm the grant in this time, ``acquire`` raises
    UnreplicatedError.

    ``patience``: how long the client repeats a request while no server answers. Then it raises UnreachableError.

    ``response_limit``: how long the client waits for a reply. Then it closes the connection, and repeats the request.

    ``waiting_connections``: how many acquisitions of this client may wait on connections of their own at a time. Further
    acquisitions poll.
    """

    redis: Any
    name: Name
    timeout: Number | None = None
    sleep: Number = 0.1
    blocking: bool = True
    blocking_timeout: Number | None = None
    thread_local: bool = True
    raise_on_release_error: bool = True
    shared: bool = False
    slots: int | None = None
    weight: int | None = None
    reentrant: bool = False
    auto_renewal: bool | None = None
    lease: Number | None = None
    hold_limit: Number | None = None
    owner: str | bytes | None = None
    on_lost: Callable[[Any], object] | None = None
    replicas: tuple[int, Number] | None = None
    patience: Number = 5.0
    response_limit: Number = 2.0
    waiting_connections: int = 256

    _kind: ClassVar[type[Runtime]]

    def __post_init__(self) -> None:
        check_client(self.redis, self._kind.is_asynchronous)
        if self.timeout is not None and self.lease is not None:
            raise TypeError("lease would have no effect: the timeout is the lease")
        for option in ("timeout", "lease", "hold_limit"):
            seconds = getattr(self, option)
            if seconds is not None and not _SHORTEST_LEASE <= seconds < FOREVER:
                raise ValueError(f"{option} must be None or at least {_SHORTEST_LEASE} seconds, not {seconds}")
        self._owner = self.owner.encode() if isinstance(self.owner, str) else self.owner
        if self._owner in (b"", b"*"):  # for *, the server makes up an owner
            raise ValueError(f"owner must be 1 to 1024 bytes, and not *: {self.owner!r}")
        self._encode = self.redis.get_encoder().encode
        #: The keys in the order in which the client acquires them, each with the kind of its lock.
        self._parts = [(bytes(self._encode(self.name)), kind_words(self.shared, self.slots, self.weight))]
        self._enters_held = False  # whether `Semaphore.acquire` or `resume` returns this lock, perhaps for a `with`
        self._next_lost: Any = None
        self._latest: Callable[[], Holding | None] = lambda: NOTHING
        self._local: Any = self._kind.local() if self.thread_local else SimpleNamespace()

    def _run(self, action: Coroutine[Any, Any, Any]) -> Any:
        """Run a method that sends requests. In asyncio, the caller awaits it."""
        return action

    # What is held.

    def _place(self) -> tuple[dict[Any, Holding], Any]:
        """The holdings by caller, and the present caller."""
        return self._local.__dict__, self._kind.caller() if self.thread_local else None

    @property
    def _is_renewed(self) -> bool:
        return self.timeout is None if self.auto_renewal is None else bool(self.auto_renewal)

    @property
    def _runtime(self) -> Runtime:
        return runtime_of(self.redis, self._kind)

    @property
    def _own(self) -> Holding:
        """The holding that the caller has acquired, or `NOTHING`."""
        holdings, caller = self._place()
        return holdings.get(caller, NOTHING)

    @property
    def _holding(self) -> Holding:
        """The holding that the caller may release, or `NOTHING`."""
        holdings, caller = self._place()
        return holdings.get(caller) or [*holdings.values(), NOTHING][0]

    def _new_holding(self, token: str | bytes | None) -> Holding:
        named = None if token is None else bytes(self._encode(token))
        lease = self.timeout or self.lease
        if self.hold_limit is not None and (lease or self.hold_limit <= _DEFAULT_LEASE):
            lease = min(lease or self.hold_limit, self.hold_limit)
        # With redis-py, two acquisitions with the same token exclude each other. So their owners must differ.
        owner = self._owner or (b"" if named is None else named + b":") + new_owner()
        tenures = [Tenure(key, kind) for key, kind in self._parts]
        # While the caller waits for a key, the client always renews the keys that are granted.
        is_renewed = self._is_renewed or len(tenures) > 1
        return Holding(owner, millis(lease) if lease else 0, tenures, self._kind.event(), named, is_renewed)

    def _holds_already(self, waits: bool = False) -> bool:
        """Whether another acquisition by this caller would wait forever, or hold a shared lock or a semaphore twice."""
        own = self._own
        waits_for_itself = own.is_renewed and waits and self.thread_local
        return own.held and (waits_for_itself or any(kind for _, kind in self._parts))

    def _keep(self, holding: Holding) -> bool:
        """Store a granted holding. Return False if another caller has acquired this object's lock meanwhile."""
        if self._holds_already():
            for tenure in holding.tenures:  # if the owner is named, both acquisitions are one tenure: do not release it
                tenure.is_pending = self._owner is None
            return False
        holding.is_renewed = self._is_renewed
        if self.hold_limit is not None:
            holding.end = holding.granted_at + self.hold_limit
        self._store(holding)
        return True

    def _store(self, holding: Holding) -> None:
        holdings, caller = self._place()
        for former, kept in list(holdings.items()):
            # If a task has not released a lost holding, forget the holding when the task ends or acquires the lock again.
            if former == caller or (not kept.held and (former is None or former.done())):
                if self._owner is None:  # if the owner is named, both holdings may be one tenure
                    self._runtime.lose(kept)
                self._forget(kept)
        holdings[caller] = holding
        self._latest, holding.lock = weakref.ref(holding), weakref.ref(self)
        former, event = holding.lost, self._next_lost
        if event is not None:
            holding.lost, self._next_lost = event, None
        if former.is_set():  # the watcher may have set the former event
            self._runtime.lose(holding)
        for tenure in holding.tenures:
            holding.schedule(tenure)
        self._runtime.watch(holding)

    def _forget(self, holding: Holding) -> None:
        holding.is_over = True
        holdings, _ = self._place()
        for caller, kept in list(holdings.items()):
            if kept is holding:
                del holdings[caller]

    def _current(self, verb: str) -> Holding:
        """The caller's holding. LockLostError if it is lost, even if the watcher has not noticed the loss yet."""
        holding = self._holding
        if holding.pid != os.getpid():
            raise lock_error(LockError, f"Cannot {verb} an unlocked lock", self.name)
        if not holding.held:
            self._runtime.lose(holding)
            raise lost(verb, self.name)
        return holding

    # Methods that send no request.

    @property
    def local(self) -> SimpleNamespace:
        """An object with redis-py's `token`: the token that the program has named, or the owner. None if nothing is held."""
        return SimpleNamespace(token=self._holding.local_token or self._holding.owner or None)

    @property
    def fencing_token(self) -> int | None:
        """The fencing token: larger than the token of every earlier tenure of this lock. Send it with every write.

        None before acquire and after release. For several locks, this is the token of the name that sorts first.
        """
        return next(iter(self.fencing_tokens), None)

    @property
    def fencing_tokens(self) -> list[int]:
        """The fencing tokens of several locks, in the order of the names' bytes."""
        return [tenure.token for tenure in self._holding.tenures]

    @property
    def holds(self) -> int:
        """How many holds the caller has: how many times it must release the lock."""
        return self._holding.holds

    @property
    def held(self) -> bool:
        """Whether the lock is held: by this process's clock the lease is not over, and no server has reported a loss."""
        return self._holding.held

    @property
    def lost(self) -> E:
        """An event that the client sets when the lock is lost: its lease has ended, or its key was deleted or overwritten.

        The client notices a deleted or overwritten key at the next renewal.

        Each acquisition has its own event. For a caller that has not acquired the lock, this is the
        event of the latest acquisition that was not released. If there is no such acquisition, this is
        the event of the next acquisition.
        """
        holding = self._latest() or NOTHING if self._holding is NOTHING else self._holding
        if not holding.is_over:
            return cast(E, holding.lost)
        self._next_lost = self._next_lost or self._kind.event()
        return cast(E, self._next_lost)

    def handle(self, detach: bool = False) -> str:
        """A string with which another thread, task or process continues the tenure: see ``resume``.

        The client continues to renew this object's lock, until a renewal shows that another object has released the lock. With
        ``detach`` this object forgets the lock. Then the client does not renew the lock until ``resume``.
        """
        holding = self._current("hand over")
        handle = holding.pack(self.timeout, self._owner)
        if detach:
            self._forget(holding)
        return handle

    def __repr__(self) -> str:
        state = "held" if self.held else "not held" if self._holding is NOTHING else "lost"
        tokens = f", token {', '.join(map(str, self.fencing_tokens))}" if self.fencing_tokens else ""
        return f"<{type(self).__module__}.{type(self).__name__} {readable(self.name)!r}: {state}{tokens}>"

    # Methods that send requests. In asyncio, these methods return coroutines.

    def acquire(
        self,
        sleep: Number | None = None,
        blocking: bool | None = None,
        blocking_timeout: Number | None = None,
        token: str | bytes | None = None,
    ) -> B:
        """Acquire the lock. If it is held, wait in the server's queue. Return False if it is still held at the wait limit.

        ``sleep`` has no effect. A caller that is interrupted or cancelled leaves the queue, and the client releases what
        the server has granted meanwhile. After LockRefusedError, UnreachableError or UnreplicatedError, the caller holds
        nothing.
        """
        return self._run(self._acquire(blocking, blocking_timeout, token))

    def release(self) -> N:
        """Release one hold. LockLostError (a LockNotOwnedError) if the lock was lost before.

        UnreachableError if no server answers. The client does not renew the lock any more, so the lock ends with its lease.
        """
        return self._run(protocol.release(self))

    def extend(self, additional_time: Number, replace_ttl: bool = False) -> B:
        """Add seconds to the lease. With ``replace_ttl``, the lease is this number of seconds from now."""
        now = FOREVER if replace_ttl else monotonic()
        return self._run(
            protocol.renew(self, "extend", lambda _, tenure: max(0.0, tenure.deadline - now) + additional_time)
        )

    def reacquire(self) -> B:
        """Start the lease of ``timeout`` again."""
        return self._run(protocol.renew(self, "reacquire", lambda *_: self.timeout or 0))

    def renew(self) -> N:
        """Start the lease again. Programs rarely need this method, because the client renews locks itself."""
        return self._run(protocol.renew(self, "renew", lambda holding, _: holding.lease / 1000, needs_timeout=False))

    def downgrade(self, shared: bool = False, slots: int | None = None) -> N:
        """Let other owners hold the lock together with this owner: as readers (``shared``), or in the ``slots`` of a semaphore.

        The token does not change.
        """
        return self._run(protocol.downgrade(self, shared, slots))

    def guarded(self, *command: Any) -> Any:
        """Run a command only while the server has this tenure: send LOCK.GUARD with the token. Return the command's reply.

        The lock must have one key. The data must be on the lock's server. In a cluster, the keys of the data must be in the slot
        of the lock: give all keys a common tag such as ``{order:42}``. Without arguments, the server only checks the token. The
        reply has the types of RESP2. The client decodes the strings in the reply as redis-py's client does.

        LockLostError if the lock is lost: the command did not run. If the command fails, this method raises redis-py's error,
        and the lock stays held. If the reply is lost, the client does not repeat the command. So after an UnreachableError or
        a cancellation, the command may have run.
        """
        return self._run(protocol.guarded(self, command))

    def locked(self) -> B:
        """Whether any owner holds the lock at the server."""
        return self._run(protocol.is_locked(self))

    def owned(self) -> B:
        """Whether this lock object holds the lock at the server."""
        return self._run(protocol.is_owned(self))

    @classmethod
    def resume(cls, redis: Any, handle: str, **options: Any) -> Any:
        """Continue a tenure, with the result of ``handle()`` in any process. LockLostError if the tenure is over."""
        refuse(options, **dict.fromkeys(_OF_A_HANDLE, "the handle decides this"))
        timeout, named, end, tenures, owner, lease, token, is_renewed, holds = unpack(handle)
        lock = cls(redis, tenures[0].key, timeout, auto_renewal=is_renewed, owner=named, **options)
        lock.name = ", ".join(readable(tenure.key) for tenure in tenures)
        lock._parts, lock._enters_held = [(tenure.key, tenure.kind) for tenure in tenures], True
        holding = Holding(owner, lease, tenures, lock._kind.event(), token, is_renewed, holds, end)
        return lock._run(protocol.resume(lock, holding))

    # The coroutines that run these methods.

    async def _acquire(
        self, blocking: bool | None = None, limit: Number | None = None, token: str | bytes | None = None
    ) -> bool:
        limit = self.blocking_timeout if limit is None else limit
        if not (self.blocking if blocking is None else blocking):
            limit = 0
        return await protocol.Acquisition(self, None if limit is None else max(0, limit)).run(token)

    async def _enter(self: L) -> L:
        enters_held, self._enters_held = self._enters_held and self._holding is not NOTHING, False
        if not enters_held and not (await self._acquire()):
            raise lock_error(LockError, "Unable to acquire lock within the time specified", self.name)
        return self

    async def _exit(self, *exception: object) -> None:
        try:
            await protocol.release(self)
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("Lock was unlocked or no longer owned when exiting context manager.")


LockBase.__init__.__doc__ = LockBase.__doc__


class MultiLockBase(LockBase[Any, Any, Any]):
    def __init__(self, locks: Sequence[LockBase[Any, Any, Any]], **options: Any) -> None:
        refuse(options, **dict.fromkeys(("redis", "name", *_OF_A_KIND), "give it to the locks instead"))
        if not locks or not all(isinstance(lock, LockBase) for lock in locks):
            raise ValueError("MultiLock needs one or more locks")
        is_reentrant = options.get("reentrant") or any(lock.reentrant for lock in locks)
        if any(lock.redis is not locks[0].redis for lock in locks) or is_reentrant:
            raise ValueError("these must be locks of one client, and cannot be re-entrant")
        for lock in locks:
            self._check_options(lock)
        super().__init__(locks[0].redis, ", ".join(readable(lock.name) for lock in locks), **options)
        self._parts = sorted({part for lock in locks for part in lock._parts})  # a repeated name counts once
        if len(dict(self._parts)) < len(self._parts):
            raise ValueError("a name has two kinds")

    @staticmethod
    def _check_options(lock: LockBase[Any, Any, Any]) -> None:
        """Raise a ValueError if the lock has an option that MultiLock would ignore."""
        taken_over = {"redis", "name", "shared", "slots", "weight", "sleep"}  # `sleep` has no effect in any lock
        if lock.slots is not None:
            taken_over.add("thread_local")  # Semaphore sets it
        for option in fields(lock):
            if option.name not in taken_over and getattr(lock, option.name) != option.default:
                what = f"{option.name} of the lock {readable(lock.name)!r}"
                raise ValueError(f"{what} would have no effect: give it to MultiLock instead")


class ReadWriteLockBase(Generic[L]):
    _make: Callable[..., L]

    def __init__(self, redis: Any, name: Name, **options: Any) -> None:
        refuse(options, shared="call read() or write()", slots="use Semaphore", weight="use Semaphore")
        self._lock = partial(type(self)._make, redis, name, **options)
        self._lock()  # raise the error for an unknown option now, not at the first call

    def read(self) -> L:
        """A lock that readers hold together, not yet acquired."""
        return self._lock(shared=True)

    def write(self) -> L:
        """A lock that excludes all other holders, not yet acquired."""
        return self._lock()


class SemaphoreBase(Generic[L]):
    _make: Callable[..., L]

    def __init__(self, redis: Any, name: Name, slots: int, **options: Any) -> None:
        refuse(options, shared="use ReadWriteLock", weight="call permits(n)", thread_local="any thread may release it")
        self._lock = partial(type(self)._make, redis, name, slots=slots, thread_local=False, **options)
        self._lock()  # raise the error for an unknown option now, not at the first call

    def permits(self, permits: int = 1) -> L:
        """A lock of ``permits`` slots, not yet acquired."""
        return self._lock(weight=None if permits == 1 else permits)

    def acquire(self, permits: int = 1, blocking: bool | None = None, timeout: Number | None = None) -> Any:
        """Acquire ``permits`` slots. Return a held lock, or None if the slots are not free within ``timeout`` seconds."""
        lock = self.permits(permits)
        lock._enters_held = True
        return lock._run(self._acquire(lock, blocking, timeout))

    async def _acquire(self, lock: L, blocking: bool | None, timeout: Number | None) -> L | None:
        return lock if (await lock._acquire(blocking, timeout)) else None


async def lead(make: Callable[..., L], run: Callable[[L], Awaitable[T]], options: dict[str, Any]) -> T:
    """Run the program's function as the leader. When the leadership is lost, wait for the lock again."""
    refuse(options, **_OF_A_LEADER)
    while True:
        lock = make(blocking=True, blocking_timeout=None, thread_local=False, **options)
        try:
            await lock._acquire()
        except UnreachableError:
            continue
        try:
            result = await run(lock)
        except BaseException as error:
            is_deposed = isinstance(error, LockLostError) and not lock.held
            with suppress(LockError, UnreachableError):  # the lock was lost, or it ends with its lease
                await protocol.release(lock)
            if not is_deposed:
                raise
        else:
            if lock.held:
                await protocol.release(lock)
                return result
