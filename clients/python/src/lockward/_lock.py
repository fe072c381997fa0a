"""What the locks for threads and for asyncio have in common: the interface of redis-py's locks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import Any, Callable, ClassVar, Generic, TypeVar, Union, cast

import redis.asyncio
from redis._parsers import BaseParser
from redis.exceptions import LockError, ResponseError

from . import _protocol as protocol
from ._protocol import Acquisition, Call
from ._runtime import Runtime, logger, new_owner, runtime_of
from ._tenure import Holding, Request, Tenure, unpack
from ._wire import FOREVER, Command, decoded, error_code, millis
from .errors import LockLostError, lock_error, lost, readable, refused

Number = Union[int, float]
Name = Union[str, bytes, memoryview]
E = TypeVar("E")  # the type of the event
B = TypeVar("B")  # bool, or an awaitable of it
N = TypeVar("N")  # None, or an awaitable of it
L = TypeVar("L", bound="LockBase[Any, Any, Any]")
#: The client does not know the server's default lease. Without a named lease, a hold limit up to this one is the lease, too.
_DEFAULT_LEASE = 30.0
#: The client subtracts a millisecond from each lease, so a lease of one millisecond is over when it begins.
_SHORTEST_LEASE = 0.002
#: Options of `Lock` that `lead` and `resume` refuse, each with the reason: see `refuse`.
OF_A_LEADER = {
    **dict.fromkeys(("blocking", "blocking_timeout"), "a candidate waits without limit"),
    **dict.fromkeys(("shared", "slots", "weight"), "leadership is an exclusive lock"),
    "thread_local": "any thread or task may use the lock",
    "raise_on_release_error": "a candidate that has lost the lock waits again",
}
_OF_A_HANDLE = ("shared", "slots", "weight", "timeout", "lease", "hold_limit", "auto_renewal", "owner")


def refuse(options: Iterable[str], reasons: dict[str, str]) -> None:
    """TypeError if an option would have no effect. The reason says what to do instead."""
    for option in options:
        if option in reasons:
            raise TypeError(f"{option} would have no effect: {reasons[option]}")


def kind(shared: bool, slots: int | None, weight: int | None = None) -> Command:
    """The arguments that say with whom a lock is shared."""
    return (
        *(("SHARED",) if shared else ()),
        *(("SLOTS", slots) if slots is not None else ()),
        *(("WEIGHT", weight) if weight is not None else ()),
    )


def check_client(client: Any, asynchronous: bool) -> None:
    if not hasattr(client, "connection_pool") and not hasattr(client, "nodes_manager"):
        raise TypeError(f"the client must be one of redis-py, not {type(client).__name__}")
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)) != asynchronous:
        raise TypeError(f"this client must be used with {'lockward' if asynchronous else 'lockward.asyncio'}.Lock")


@dataclass(eq=False, repr=False)
class LockBase(Generic[E, B, N]):
    """A lock with this key, not yet acquired. The first eight arguments are those of redis-py's Lock. Times are seconds.

    ``timeout``: the lease, after which the lock ends. None: the lock is held until it is released, and its lease is
    renewed while this object lives. ``timeout``, ``lease`` and ``hold_limit`` are at least 0.002 seconds.

    ``sleep`` is accepted and ignored: the server hands the lock over, so the client does not poll.

    ``blocking``: whether acquire waits. ``blocking_timeout``: the wait limit; None: no limit.

    ``thread_local``: whether only the thread that acquired the lock may release it through this object.

    ``raise_on_release_error``: if the lock was lost when the context manager exits: True raises, False logs a warning.

    ``shared``: whether the lock may have other holders that also ask for it as shared: a read lock.

    ``slots``, ``weight``: acquire one of so many slots (up to 1,000,000), or ``weight`` of them: a semaphore. All
    callers should use the same number of slots.

    ``reentrant``: whether a thread (in asyncio: a task) that holds the lock may acquire it again. With
    ``thread_local=False``, any thread or task may. If ``reentrant`` is False, a holder that acquires the lock again waits
    for itself, as with redis-py and threading.Lock.

    ``auto_renewal``: whether to renew the lease while the lock is held; by default only without a ``timeout``.

    ``lease``: the lease of a lock without ``timeout``: how long the lock stays held after this process dies.
    None: the server's default, 30 seconds unless set.

    ``hold_limit``: the lock is lost when this time has passed since it was granted, however often its lease is renewed.

    ``owner``: a name for the owner, up to 1,024 bytes. All callers with the same name are one owner, and hold the lock together.

    ``on_lost``: a function that is called with the lock when the lock is lost: see ``lost``. The function runs in a thread
    of its own. In asyncio, a coroutine function runs in the event loop instead.

    ``replicas``: (n, seconds): raise UnreplicatedError unless n replicas confirm the grant in this time.

    ``patience``: how long a request is repeated while no server answers. Then UnreachableError is raised.

    ``response_limit``: a reply that takes longer than this counts as lost, and so does the connection.

    ``waiting_connections``: how many acquisitions of this client wait on their own connections. Further acquisitions poll.
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
            if seconds is not None and not seconds >= _SHORTEST_LEASE:
                raise ValueError(f"{option} must be None or at least {_SHORTEST_LEASE} seconds, not {seconds}")
        self._owner = self.owner.encode() if isinstance(self.owner, str) else self.owner
        self._encode = self.redis.get_encoder().encode
        #: The keys, in the order in which they are acquired, and the kind of lock that each is.
        self._parts = [(bytes(self._encode(self.name)), kind(self.shared, self.slots, self.weight))]
        self._enters_held = False  # the context manager releases the lock, but has not acquired it
        self._next_lost: Any = None
        self._latest: Callable[[], Holding | None] = lambda: None
        self._prepare()

    # What threads and asyncio do differently.

    def _prepare(self) -> None:
        raise NotImplementedError

    def _place(self) -> tuple[dict[Any, Holding], Any]:
        """The holdings by thread, object or task, and the caller."""
        raise NotImplementedError

    def _run(self, action: Coroutine[Any, Any, Any]) -> Any:
        raise NotImplementedError

    # What is held.

    @property
    def _is_renewed(self) -> bool:
        return self.timeout is None if self.auto_renewal is None else bool(self.auto_renewal)

    @property
    def _runtime(self) -> Runtime:
        return runtime_of(self.redis, self._kind)

    def _releasable(self) -> Holding | None:
        """The holding that the caller may release."""
        holdings, caller = self._place()
        return holdings.get(caller) or next(iter(holdings.values()), None)

    def _store(self, holding: Holding) -> None:
        holdings, caller = self._place()
        for former, kept in list(holdings.items()):
            # A lost holding is forgotten if its task has ended, or acquires again, without a
            # release.
            if former == caller or (not kept.held and (former is None or former.done())):
                if self._owner is None:  # with a named owner, the new holding may be the same tenure
                    self._runtime.lose(kept)
                self._forget(kept)
        holdings[caller] = holding
        self._latest, holding.lock = weakref.ref(holding), weakref.ref(self)
        former, event = holding.lost, self._next_lost
        if event is not None:
            holding.lost, self._next_lost = event, None
        if former.is_set():  # the watcher may have reported a loss with the former event
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
        """The holding of the caller. LockLostError if it was lost. The clock may show the loss before the watcher does."""
        holding = self._releasable()
        if holding is None or holding.pid != os.getpid():
            raise lock_error(LockError, f"Cannot {verb} an unlocked lock", self.name)
        if not holding.held:
            self._runtime.lose(holding)
            raise lost(verb, self.name)
        return holding

    # Methods that send no request.

    @property
    def local(self) -> SimpleNamespace:
        """redis-py's `lock.local`, with the token while the lock is held."""
        holding = self._releasable()
        return SimpleNamespace(token=holding and (holding.local_token or holding.owner))

    @property
    def fencing_token(self) -> int | None:
        """The fencing token: larger than that of every earlier tenure of this lock. Send it along with every write.

        None before acquire and after release. For several locks, the token of the first one.
        """
        tokens = self.fencing_tokens
        return tokens[0] if tokens else None

    @property
    def fencing_tokens(self) -> list[int]:
        """The fencing tokens of several locks, in the order of the names' bytes."""
        holding = self._releasable()
        return [tenure.token for tenure in holding.tenures] if holding is not None else []

    @property
    def holds(self) -> int:
        """How many times the lock was acquired and not released."""
        holding = self._releasable()
        return holding.holds if holding is not None else 0

    @property
    def held(self) -> bool:
        """Whether the lock is held: by this process's clock the lease is not over, and no server has reported a loss."""
        holding = self._releasable()
        return holding is not None and holding.held

    @property
    def lost(self) -> E:
        """An event that is set when the lock is lost: its lease ended before it was renewed, or the
        key was deleted or overwritten. The client notices a deleted or overwritten key at the next
        renewal.

        Each acquisition has its own event. For a caller that has not acquired the lock, this is the
        event of the latest acquisition that was not released. If there is none, it is the event of
        the next acquisition.
        """
        holding = self._releasable() or self._latest()
        if holding is None or holding.is_over:
            self._next_lost = self._next_lost or self._kind.event()
            return cast(E, self._next_lost)
        return cast(E, holding.lost)

    def handle(self, detach: bool = False) -> str:
        """A string with which another thread, task or process continues the tenure: see ``resume``.

        This object still holds and renews the lock, until it finds out that the lock was released. With ``detach`` this
        object forgets the lock, and nobody renews the lock until ``resume``.
        """
        holding = self._current("hand over")
        handle = holding.pack(self.timeout, self._owner)
        if detach:
            self._forget(holding)
        return handle

    def __repr__(self) -> str:
        holding = self._releasable()
        state = "not held" if holding is None else "held" if holding.held else "lost"
        tokens = f", token {', '.join(map(str, self.fencing_tokens))}" if holding is not None else ""
        return f"<{type(self).__module__}.{type(self).__name__} {readable(self.name)!r}: {state}{tokens}>"

    # Methods that send requests. In asyncio, these return coroutines.

    def acquire(
        self,
        sleep: Number | None = None,
        blocking: bool | None = None,
        blocking_timeout: Number | None = None,
        token: str | bytes | None = None,
    ) -> B:
        """Acquire the lock, and wait in the server's queue if it is held. False at the wait limit, in seconds.

        ``sleep`` is ignored. A caller that is interrupted or cancelled leaves the queue. The client
        gives back what was granted meanwhile. After LockRefusedError, UnreachableError or
        UnreplicatedError, nothing is held.
        """
        return self._run(self._acquire(blocking, blocking_timeout, token))

    def release(self) -> N:
        """Give one hold back. LockLostError (a LockNotOwnedError) if the lock was lost before.

        UnreachableError: no server has answered. The lock is not renewed any more, and ends with its lease.
        """
        return self._run(self._release())

    def extend(self, additional_time: Number, replace_ttl: bool = False) -> B:
        """Add seconds to the lease. With ``replace_ttl``, the lease is this number of seconds from now."""
        now = FOREVER if replace_ttl else monotonic()
        return self._run(self._renew("extend", lambda _, tenure: max(0.0, tenure.deadline - now) + additional_time))

    def reacquire(self) -> B:
        """Start the lease of ``timeout`` again."""
        return self._run(self._renew("reacquire", lambda *_: self.timeout or 0))

    def renew(self) -> N:
        """Start the lease again. The client does that by itself, unless ``auto_renewal`` is off."""
        return self._run(self._renew("renew", lambda holding, _: holding.lease / 1000, needs_timeout=False))

    def downgrade(self, shared: bool = False, slots: int | None = None) -> N:
        """Let other owners hold the lock too: from now on it is ``shared`` with readers, or one of more ``slots``.

        The token does not change.
        """
        return self._run(self._downgrade(shared, slots))

    def guarded(self, *command: Any) -> Any:
        """Run a command only while the server has this tenure: LOCK.GUARD with the lock's token. Return its reply.

        The data must be on the lock's server, and in a cluster in the lock's slot: name both with the same ``{tag}``. Without
        arguments, this only checks that the lock is held. The lock must have one key. The reply is that of RESP2, decoded as
        the client decodes.

        LockLostError if the lock is lost: the command did not run. Errors of the command are
        redis-py's, and the lock stays held. The command is not repeated when its reply is lost: after an
        UnreachableError or a cancellation, the command may have run.
        """
        return self._run(self._guarded(command))

    def locked(self) -> B:
        """Whether any owner holds the lock at the server."""
        return self._run(self._locked())

    def owned(self) -> B:
        """Whether this lock object holds the lock at the server."""
        return self._run(self._owned())

    @classmethod
    def resume(cls, redis: Any, handle: str, **options: Any) -> Any:
        """Continue a tenure of another object or process, from its ``handle()``. LockLostError if the tenure is over."""
        refuse(options, dict.fromkeys(_OF_A_HANDLE, "the handle decides this"))
        timeout, named, left, tenures, owner, lease, token, is_renewed, holds = unpack(handle)
        lock = cls(redis, tenures[0].key, timeout, auto_renewal=is_renewed, owner=named, **options)
        lock.name = ", ".join(readable(tenure.key) for tenure in tenures)
        lock._parts = [(tenure.key, tenure.kind) for tenure in tenures]
        end = FOREVER if left is None else monotonic() + left
        holding = Holding(owner, lease, tenures, lock._kind.event(), token, is_renewed, holds, end)
        return lock._run(lock._resume(holding))

    # The coroutines that run these methods.

    def _call(self, limit: float | None = 0) -> Call:
        return Call(self._runtime, self.patience, self.response_limit, limit)

    async def _acquire(self, blocking: bool | None, blocking_timeout: Number | None, token: str | bytes | None) -> bool:
        limit: Number | None = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        if not (self.blocking if blocking is None else blocking):
            limit = 0
        call = self._call(None if limit is None else max(0, limit))
        is_held = await self._reenter(call)
        if is_held is not None:
            return is_held
        self._check_alone(waits=limit is None)
        named = token.encode() if isinstance(token, str) else None if token is None else bytes(token)

        def owner() -> bytes:
            # Two acquisitions with the same token have different owners, so the second must wait,
            # as with redis-py.
            return self._owner or (new_owner() if named is None else named + b":" + new_owner())

        lease = self.timeout or self.lease
        if self.hold_limit is not None and (lease or self.hold_limit <= _DEFAULT_LEASE):
            lease = min(lease or self.hold_limit, self.hold_limit)
        while is_held is None:
            tenures = [Tenure(key, kind) for key, kind in self._parts]
            # While the caller waits for a later key, the keys that it already has are renewed in any case.
            is_renewed = self._is_renewed or len(tenures) > 1
            holding = Holding(owner(), millis(lease) if lease else 0, tenures, self._kind.event(), named, is_renewed)
            try:
                is_held = await Acquisition(self, call, holding, None if self._owner else owner).run()
            except LockLostError:  # before all keys were held, so the program has lost nothing
                if not call.waits:
                    raise
                await self._runtime.sleep(0.05)  # the lease may be shorter than a round trip
            finally:
                holding.is_over = not is_held
        if not is_held:
            return False
        try:
            self._check_alone()
        except LockError:  # another thread or task has acquired meanwhile, with the same object
            holding.is_over = True
            if self._owner is None:  # with a named owner, both acquisitions are the same tenure
                await protocol.release(holding, self._call(), False)
            if self.reentrant:
                return await self._acquire(blocking, blocking_timeout, token)
            raise
        holding.is_renewed = self._is_renewed
        if self.hold_limit is not None:
            holding.end = holding.granted_at + self.hold_limit
        self._store(holding)
        return True

    def _check_alone(self, waits: bool = False) -> None:
        """LockError if the caller holds the lock, and would wait for itself or hold it twice."""
        holdings, caller = self._place()
        own = holdings.get(caller)
        if own is not None and own.held:
            waits_for_itself = own.is_renewed and waits and self.thread_local
            if waits_for_itself or any(kind for _, kind in self._parts):
                raise lock_error(LockError, "The caller holds the lock already (reentrant=True?)", self.name)

    async def _reenter(self, call: Call) -> bool | None:
        """Acquire once more. None if the caller does not hold the lock, or if another thread or task has just released it."""
        holdings, caller = self._place()
        holding = holdings.get(caller)
        if holding is None or holding.pid != os.getpid() or not self.reentrant:
            return None
        turn = self._runtime.enter_turns(holding.turns)
        try:
            await call.wait_for_turn(holding, turn)
            if holding.is_over:
                return None
            return await Acquisition(self, call, self._current("acquire once more"), None).run()
        finally:
            self._runtime.leave_turns(holding.turns, turn, 1)

    async def _release(self) -> None:
        holding = self._releasable()
        if holding is None:
            raise lock_error(LockError, "Cannot release a lock that's not owned or is already unlocked.", self.name)
        if holding.pid != os.getpid():
            raise lost("release", self.name)
        await self._release_one(holding)

    async def _release_one(self, holding: Holding) -> None:
        call, turn = self._call(), self._runtime.enter_turns(holding.turns)
        try:
            await call.wait_for_turn(holding, turn)
        except BaseException as error:
            self._runtime.leave_turns(holding.turns, turn, 1)
            if not isinstance(error, (Exception, GeneratorExit)):  # the release goes on in the background
                self._runtime.start(self._release_one(holding))
            raise
        try:
            await self._release_now(holding, call)
        finally:
            self._runtime.leave_turns(holding.turns, turn, 1)

    async def _release_now(self, holding: Holding, call: Call) -> None:
        if holding.is_over:
            raise lock_error(LockError, "Cannot release a lock that's already unlocked.", self.name)
        if not holding.held:
            self._runtime.lose(holding)
            self._forget(holding)
            await self._release_others(holding, call)
            raise lost("release", self.name)
        if holding.holds == 1:
            # Forget the holding before the request is sent: a renewal after the release would report a loss.
            self._forget(holding)
        await protocol.release(holding, call, self._owner is not None)

    async def _release_others(self, holding: Holding, call: Call) -> None:
        """Give back all keys of a lock that is lost because one of its keys is lost."""
        if len(holding.tenures) > 1:
            requests = [Request(tenure.key, holding.release_command(tenure)) for tenure in holding.tenures]
            # A late release must not end the next tenure of the same owner. So with a named owner, the requests are
            # not repeated for long.
            await call.give_up(requests, None, self.patience if self._owner is None else protocol.GIVE_UP_LIMIT)

    async def _renew(
        self, verb: str, lease_of: Callable[[Holding, Tenure], Number], needs_timeout: bool = True
    ) -> bool:
        """Set the leases to this number of seconds."""
        if needs_timeout and self.timeout is None and self._releasable() is not None:
            raise lock_error(LockError, f"Cannot {verb} a lock with no timeout", self.name)
        holding = self._current(verb)
        leases = {tenure: millis(lease_of(holding, tenure)) for tenure in holding.tenures}
        await protocol.renew(holding, self._call(), verb, leases)
        return True

    async def _downgrade(self, shared: bool, slots: int | None) -> None:
        holding, call = self._current("downgrade"), self._call()
        for tenure in holding.tenures:
            former = tenure.kind
            weight = former[-1] if "WEIGHT" in former and not shared else None
            tenure.kind = kind(shared, slots, weight)  # renewals name the new mode, even if no reply arrives
            try:
                await protocol.renew(holding, call, "downgrade", {tenure: holding.lease})
            except LockError:
                tenure.kind = former
                raise

    async def _guarded(self, command: Command) -> Any:
        holding = self._current("guard a command with")
        if len(holding.tenures) > 1:
            raise TypeError("a guarded command needs a lock of one key, because the server checks only one key")
        encoded = tuple(bytes(self._encode(each)) for each in command)
        reply = await protocol.guarded(holding, encoded, self._call())
        if isinstance(reply, ResponseError):
            raise BaseParser.parse_error(str(reply))  # type: ignore[no-untyped-call]
        return decoded(reply, self.redis.get_encoder().decode)

    async def _query(self, commands: list[Command], *expected: str) -> list[Any]:
        """Send commands that change nothing, each about one key. Return the replies, also errors that are expected."""
        requests = [Request(command[1], command) for command in commands]
        await self._call().ask(requests)
        for request in requests:
            if request.code and request.code not in expected:
                raise refused(request.reply, self.name)
        return [request.reply for request in requests]

    async def _locked(self) -> bool:
        replies = await self._query([("LOCK.INFO", key) for key, _ in self._parts])
        return any(reply is not None for reply in replies)

    async def _owned(self) -> bool:
        holding = self._releasable()
        if holding is None or holding.pid != os.getpid():
            return False
        commands = [("LOCK.GUARD", tenure.key, tenure.token) for tenure in holding.tenures]
        return not any(map(error_code, await self._query(commands, "FENCED", "WRONGTYPE")))

    async def _resume(self: L, holding: Holding) -> L:
        call = self._call()
        try:
            await protocol.renew(holding, call, "resume")
        except LockLostError:
            await self._release_others(holding, call)
            raise
        self._store(holding)
        return self

    async def _enter(self: L) -> L:
        if not self._enters_held and not (await self._acquire(None, None, None)):
            raise lock_error(LockError, "Unable to acquire lock within the time specified", self.name)
        return self

    async def _exit(self) -> None:
        try:
            await self._release()
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("Lock was unlocked or no longer owned when exiting context manager.")


LockBase.__init__.__doc__ = LockBase.__doc__


class MultiLockBase(LockBase[Any, Any, Any]):
    def __init__(self, locks: Sequence[LockBase[Any, Any, Any]], **options: Any) -> None:
        refuse(options, dict.fromkeys(("redis", "name", "shared", "slots", "weight"), "give it to the locks instead"))
        is_reentrant = options.get("reentrant") or any(lock.reentrant for lock in locks)
        if not locks or any(lock.redis is not locks[0].redis for lock in locks) or is_reentrant:
            raise ValueError("these must be locks of one client, and cannot be re-entrant")
        for lock in locks:
            self._check_options(lock)
        super().__init__(locks[0].redis, ", ".join(readable(lock.name) for lock in locks), **options)
        self._parts = sorted(part for lock in locks for part in lock._parts)
        if len({key for key, _ in self._parts}) < len(self._parts):
            raise ValueError("the names must be distinct")

    @staticmethod
    def _check_options(lock: LockBase[Any, Any, Any]) -> None:
        """ValueError if the lock has an option that this class would ignore."""
        taken_over = {"redis", "name", "shared", "slots", "weight", "sleep"}  # `sleep` has no effect in any lock
        if lock.slots is not None:
            taken_over.add("thread_local")  # Semaphore sets it
        for option in fields(lock):
            if option.name not in taken_over and getattr(lock, option.name) != option.default:
                name = readable(lock.name)
                raise ValueError(
                    f"{option.name} of the lock {name!r} would have no effect: give it to MultiLock instead"
                )


class ReadWriteLockBase(Generic[L]):
    _make: Callable[..., L]

    def __init__(self, redis: Any, name: Name, **options: Any) -> None:
        refuse(options, {"shared": "call read() or write()", **dict.fromkeys(("slots", "weight"), "use Semaphore")})
        self._lock = partial(type(self)._make, redis, name, **options)
        self._lock()  # checks the options now

    def read(self) -> L:
        """A lock that is held together with other readers, not yet acquired."""
        return self._lock(shared=True)

    def write(self) -> L:
        """A lock that excludes all others, not yet acquired."""
        return self._lock()


class SemaphoreBase(Generic[L]):
    _make: Callable[..., L]

    def __init__(self, redis: Any, name: Name, slots: int, **options: Any) -> None:
        refuse(
            options,
            {
                "shared": "use ReadWriteLock",
                "weight": "give the number of slots to permits() or acquire()",
                "thread_local": "any thread or task may release a permit",
            },
        )
        self._lock = partial(type(self)._make, redis, name, slots=slots, thread_local=False, **options)
        self._lock()  # checks the options now

    def permits(self, permits: int = 1) -> L:
        """A lock of ``permits`` slots, not yet acquired."""
        return self._lock(weight=None if permits == 1 else permits)

    def acquire(self, permits: int = 1, blocking: bool | None = None, timeout: Number | None = None) -> Any:
        """Acquire ``permits`` slots within `timeout` seconds. Return a held lock, or None."""
        lock = self.permits(permits)
        lock._enters_held = True
        return lock._run(self._acquire(lock, blocking, timeout))

    async def _acquire(self, lock: L, blocking: bool | None, timeout: Number | None) -> L | None:
        return lock if (await lock._acquire(blocking, timeout, None)) else None
