"""What a lock does, for threads and for asyncio alike.

Nothing here talks to a server. A course of action is a generator: it yields what is to be done next (`Ask`, `Pause`, a call
of an `Onlooker`), and is sent what came of it, or has it raised where it stands. `lockward._sync` and `lockward.asyncio`
carry the steps out, each in its manner.

A request may be sent twice: when its reply is lost nobody knows whether the server has heard it. So each acquisition names
the count of holds that it should lead to, and each other request the fencing token of its tenure.

A lease counts from before its request was sent, by the monotonic clock of this process. The server's lease starts later, so
who believes in the lock here does so no longer than the server does, however long either was paused.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import random
import uuid
import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, Callable, NamedTuple, Protocol, TypeVar, Union

from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError, TimeoutError

from .errors import LockLost, LockRefused, Unreachable, Unreplicated, told

#: How long an exchange may take beyond what the server was asked to wait, in seconds.
GRACE = 2.0
#: After how many seconds without a reply a server is asked by PING, on another connection, whether it is there: one that
#: stands still keeps its connections.
SILENCE = 12.0
#: How long somebody who leaves tries to give back what may have been granted meanwhile, in seconds.
FAREWELL = 1.0
#: What breaks a connection, as opposed to what a server answers.
NETWORK = (ConnectionError, TimeoutError, OSError)

Command = tuple[Any, ...]
T = TypeVar("T")


class Redirect(NamedTuple):
    """The node of a cluster that has the key, or (asking) that is about to."""

    host: str
    port: int
    asking: bool


@dataclass(frozen=True)
class Ask:
    """Send the commands to the node that has `key`, and read their replies within `limit` seconds, or without limit."""

    key: Any
    commands: tuple[Command, ...]
    limit: float | None
    redirect: Redirect | None = None


@dataclass(frozen=True)
class Pause:
    """Do nothing for so many seconds."""

    seconds: float


Step = Union[Ask, Pause, Callable[[], Any]]
Course = Generator[Step, Any, T]


class Event(Protocol):
    """What `threading.Event` and `asyncio.Event` have in common."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...


class _Owners:
    """Names that no other process, thread, task or tenure has."""

    def __init__(self) -> None:
        self.restart()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.restart)

    def restart(self) -> None:
        self._process = str(uuid.uuid4())
        self._count = itertools.count(1)

    def new(self) -> bytes:
        return f"{self._process}:{next(self._count)}".encode()


owners = _Owners()


@dataclass(frozen=True)
class Claim:
    """What an acquisition asks for."""

    key: Any
    owner: bytes
    lease: int | None  # milliseconds; None: the server's default
    holds: int
    replicas: tuple[int, float] | None

    def commands(self, block: int | None) -> tuple[Command, ...]:
        lease = () if self.lease is None else ("PX", self.lease)
        wait = () if block is None else ("BLOCK", block)
        acquire = ("LOCK.ACQUIRE", self.key, self.owner, *lease, *wait, "HOLDS", self.holds)
        replicas = () if self.replicas is None else (("WAIT", self.replicas[0], millis(self.replicas[1])),)
        return (acquire, ("LOCK.INFO", self.key), *replicas) if self.lease is None else (acquire, *replicas)

    def withdrawal(self) -> Command:
        return ("LOCK.RELEASE", self.key, self.owner, "HOLDS", self.holds - 1)


@dataclass(eq=False)
class Tenure:
    """From the first hold of an owner to its last, as this process knows it."""

    key: Any
    owner: bytes
    token: int
    holds: int
    lease: int  # milliseconds
    renewed: bool  # while it is held
    deadline: float  # by the own clock
    lost: Event
    lock: Callable[[], Any]  # a weak reference
    named: bytes  # what redis-py calls the token
    pid: int = field(default_factory=os.getpid)
    over: bool = False
    since: float = 0.0  # when renewals were sent that count
    failures: int = 0
    retry_at: float = 0.0
    soon: bool = False

    @property
    def held(self) -> bool:
        return not self.over and not self.lost.is_set() and monotonic() < self.deadline and self.pid == os.getpid()

    @property
    def due(self) -> float:
        """When a third of the lease is gone."""
        if self.soon:
            return self.retry_at
        if not self.renewed:
            return float("inf")
        return max(self.deadline - self.lease / 1000 * 2 / 3, self.retry_at)

    def renewal(self, lease: int | None = None) -> Command:
        if lease is None:  # one that is not renewed gets no more than it has
            lease = self.lease if self.renewed else millis(self.deadline - monotonic())
        return ("LOCK.RENEW", self.key, self.owner, "PX", lease, "TOKEN", self.token, "HOLDS", self.holds)

    def release(self) -> Command:
        """`HOLDS 0` would be answered alike whether the lock was held or had been lost; `ALL` with the token tells."""
        count = ("HOLDS", self.holds - 1) if self.holds > 1 else ("ALL",)
        return ("LOCK.RELEASE", self.key, self.owner, *count, "TOKEN", self.token)

    def lasts(self, sent: float, lease: int) -> None:
        self.deadline = end(sent, lease)
        self.remembered()

    def lasts_at_most(self, lease: int) -> None:
        """A lease is about to be asked for, shorter perhaps than it was, which may be heard though no reply comes.

        Of another renewal that is under way, nobody knows which one the server hears last: it does not count.
        """
        self.deadline = min(self.deadline, end(monotonic(), lease))
        self.since = float("inf")

    def remembered(self) -> None:
        self.failures, self.retry_at, self.soon = 0, 0.0, False

    def shorten(self, reply: Exception) -> bool:
        """Whether to ask for half the lease at once, as the server takes it no longer. That may be heard without a reply."""
        if not self.renewed or self.lease == 1 or not too_long(reply):
            return False
        self.lease //= 2
        self.deadline = min(self.deadline, end(monotonic(), self.lease))
        self.remembered()
        self.soon = True
        return True

    def postpone(self, now: float) -> None:
        self.retry_at = now + back_off(self.failures)
        self.failures += 1


def millis(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def end(sent: float, lease: int) -> float:
    """When a lease of so many milliseconds ends that was asked for at ``sent``.

    The server begins to count later; what its clock may be faster than ours, a thousandth and a millisecond, is left out.
    """
    return sent + (lease - lease // 1000 - 1) / 1000


def back_off(failures: int) -> float:
    """Seconds before the next attempt.

    None at first: the connection may have been cut while it was idle. Then 50 ms, doubling to a second, with jitter.
    """
    return min(1.0, 0.025 * float(2 ** min(failures, 6))) * random.uniform(0.5, 1.0) if failures else 0.0


def silence() -> float:
    """Seconds until the server is asked whether it is there. Those who began to wait together do not all ask at once."""
    return SILENCE * random.uniform(1.0, 1.5)


def lasts(ask: Ask) -> bool:
    """Whether it may take so long that the server is asked meanwhile whether it is there."""
    return ask.limit is None or ask.limit > SILENCE


class Gone(ConnectionError):
    """The server where somebody waits is silent, or has been replaced."""


class Onlooker(Protocol):
    """Asks, beside a connection that waits, about its server. In asyncio these are coroutines."""

    there: Any  # the address where it waits
    sentinels: list[Any]

    def ping(self) -> Any:
        """The server, on another connection: the name, if that has led to another address."""

    def knock(self) -> Any:
        """At its address: whether a connection can be made at all."""

    def named(self, sentinel: Any) -> Any:
        """By a Sentinel: the name of the primary, if it is another one."""

    def addresses(self, name: Any) -> Any:
        """Where a name leads now."""


def checking(server: Onlooker) -> Course[None]:
    """Raise Gone if the server is. An answer of any kind is one."""
    with _telling_nothing():
        yield from _pinging(server)
    for sentinel in server.sentinels:
        with _telling_nothing():
            yield from _comparing(server, (yield partial(server.named, sentinel)))
            return


@contextlib.contextmanager
def _telling_nothing() -> Iterator[None]:
    """What keeps us from asking the server tells nothing about it."""
    try:
        yield
    except Gone:
        raise
    except Exception:
        pass


def _pinging(server: Onlooker) -> Course[None]:
    try:
        name = yield server.ping
    except Exception as error:
        try:
            yield server.knock
        except ConnectionRefusedError as refusal:
            raise Gone("the server refuses connections") from refusal
        if isinstance(error, TimeoutError):
            raise Gone("no reply in time") from error
    else:
        yield from _comparing(server, name)


def _comparing(server: Onlooker, name: Any) -> Course[None]:
    if name is not None and server.there not in (yield partial(server.addresses, name)):
        raise Gone("another server has taken its place")


_CODES = {
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "OutOfMemoryError": "OOM",
    "NoPermissionError": "NOPERM",
}
_PASSING = {"UNBLOCKED", "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"}
#: The lock is not there any more as this owner had it. (WRONGTYPE: it was overwritten.)
_GONE = {"NOTHELD", "HOLDS", "WRONGTYPE"}


def words(error: Exception) -> str:
    """What the server said. redis-py cuts the first word off some errors, and gives them a class instead."""
    text = str(error)
    code = _CODES.get(type(error).__name__)
    return text if code is None or text.startswith(code) else f"{code} {text}".strip()


def code(error: Exception) -> str:
    return words(error).partition(" ")[0]


def gone(reply: Any) -> bool:
    return isinstance(reply, ResponseError) and code(reply) in _GONE


def too_long(reply: Any) -> bool:
    """Whether the server takes no lease that long, since a setting was changed perhaps."""
    return isinstance(reply, ResponseError) and words(reply).startswith("invalid expire time")


def redirect(reply: Any) -> Redirect | None:
    if not isinstance(reply, ResponseError) or code(reply) not in ("MOVED", "ASK"):
        return None
    host, _, port = words(reply).split()[-1].rpartition(":")
    return Redirect(host, int(port), code(reply) == "ASK")


def persistently(request: Callable[[float], Ask], until: float) -> Course[tuple[float, list[Any], bool]]:
    """Ask until a server answers: when that was sent, the replies, and whether an earlier request may have been heard."""
    failures, repeated, to = 0, False, None
    while True:
        sent = monotonic()
        ask = request(sent)
        try:
            replies = yield Ask(ask.key, ask.commands, ask.limit, to)
        except AuthenticationError:
            raise  # asking again does not help
        except NETWORK as error:
            cause, repeated, to = error, True, None
        else:
            cause, to = replies[0], redirect(replies[0])
            if to is None and not (isinstance(cause, ResponseError) and code(cause) in _PASSING):
                return sent, replies, repeated
            if to is not None and failures < 5:
                failures += 1
                continue
        if monotonic() - sent > 1:
            failures = 0
        pause = back_off(failures)
        failures += 1
        if monotonic() + pause >= until:
            raise Unreachable(f"no server answers: {words(cause)}") from cause
        yield Pause(pause)


def once(key: Any, commands: tuple[Command, ...], patience: float) -> Course[tuple[float, list[Any], bool]]:
    """Ask what takes no time."""
    until = monotonic() + patience
    return (yield from persistently(lambda now: Ask(key, commands, max(0.1, until - now)), until))


class Grant(NamedTuple):
    token: int
    holds: int
    lease: int
    deadline: float


def acquiring(claim: Claim, limit: float | None, patience: float) -> Course[Grant | None]:
    """Acquire within `limit` seconds (0: at once; None: without limit), or None when it is busy for longer."""
    try:
        return (yield from _acquiring(claim, limit, patience))
    except LockRefused as error:
        # A re-entry shortens no lease. The server may take the one of the tenure no longer.
        if claim.holds == 1 or claim.lease in (None, 1) or not too_long(error):
            raise
        return (yield from acquiring(replace(claim, lease=claim.lease // 2), limit, patience))
    except (LockLost, GeneratorExit):
        raise
    except BaseException:
        # Interrupted, cancelled or cut off, the grant may have been on its way; or too few replicas have heard of it.
        yield from _withdrawing(claim)
        raise


def _acquiring(claim: Claim, limit: float | None, patience: float) -> Course[Grant | None]:
    started = monotonic()
    until = float("inf") if limit is None else started + limit
    try_until = started + (limit if limit else patience)

    def attempt(now: float) -> Ask:
        return Ask(claim.key, claim.commands(None), max(0.1, min(patience, try_until - now)))

    def wait(now: float) -> Ask:
        if limit is None:
            return Ask(claim.key, claim.commands(0), None)
        left = until - now
        return Ask(claim.key, claim.commands(millis(left)), max(0.0, left) + GRACE)

    sent, replies, repeated = yield from persistently(attempt, try_until)
    while True:
        refused = next((reply for reply in replies if isinstance(reply, ResponseError)), None)
        is_reentry_denied = claim.holds > 1 and gone(replies[0])
        if refused is not None and not is_reentry_denied:
            if repeated or isinstance(replies[0], list):  # it may be granted all the same
                yield from _withdrawing(claim)
            raise told(LockRefused, words(refused), claim.key)
        grant = _read(claim, replies)
        if grant is not None:
            token, holds, lease = grant
            over = "its lease is over"
            if lease > 0:
                if monotonic() - sent <= lease / 3000:
                    break
                # By our clock the lease of a grant that was long in coming may be over: have a new one before it is relied on.
                renewal = ("LOCK.RENEW", claim.key, claim.owner, "PX", lease, "TOKEN", token, "HOLDS", holds)
                sent, [reply, *_], _ = yield from once(claim.key, (renewal,), patience)
                if not isinstance(reply, ResponseError):
                    break
                if not gone(reply):
                    yield from _withdrawing(claim)
                    raise told(LockRefused, words(reply), claim.key)
                over = words(reply)
            if claim.holds > 1:
                raise told(LockLost, f"The lock was lost: {over}", claim.key)
        if monotonic() >= until:
            return None
        sent, replies, repeated = yield from persistently(wait, until)
        if replies[0] is None:
            return None
    if claim.replicas is not None and replies[-1] < claim.replicas[0]:
        message = f"{replies[-1]} of {claim.replicas[0]} replicas have heard of the grant in time"
        raise told(Unreplicated, message, claim.key)
    return Grant(token, holds, lease, end(sent, lease))


def _read(claim: Claim, replies: list[Any]) -> tuple[int, int, int] | None:
    """Token, holds and lease; the lease is 0 when it is over."""
    grant = replies[0]
    if grant is None:
        return None
    if isinstance(grant, ResponseError):
        raise told(LockLost, f"The lock was lost: {words(grant)}", claim.key)
    token, holds = int(grant[0]), int(grant[1])
    if claim.lease is not None:
        return token, holds, claim.lease
    left = (h.lease_left for h in _holders(claim.key, replies[1]) if (h.owner, h.token) == (claim.owner, token))
    return token, holds, next(left, 0)


def _withdrawing(claim: Claim) -> Course[None]:
    try:
        yield from once(claim.key, (claim.withdrawal(),), FAREWELL)
    except (RedisError, OSError):
        pass  # the lease ends it


def releasing(tenure: Tenure, trusted: bool, patience: float) -> Course[int]:
    """Give one hold back: how many are left. `trusted`: the own lease ran when that was begun."""
    _, [reply, *_], repeated = yield from once(tenure.key, (tenure.release(),), patience)
    if repeated and trusted and isinstance(reply, ResponseError) and code(reply) == "NOTHELD":
        return 0  # an earlier request was heard, and its reply lost
    if gone(reply):
        message = f"Cannot release a lock that's no longer owned: {words(reply)}"
        raise told(LockLost, message, tenure.key)
    if isinstance(reply, ResponseError):
        raise told(LockRefused, words(reply), tenure.key)
    return int(reply)


def renewing(tenure: Tenure, lease: int, patience: float, what: str) -> Course[None]:
    """Give the tenure a lease of so many milliseconds from now."""
    try:
        sent, [reply, *_], _ = yield from once(tenure.key, (tenure.renewal(lease),), patience)
    finally:
        tenure.since = monotonic()
    if gone(reply):
        raise told(LockLost, f"Cannot {what} a lock that's no longer owned: {words(reply)}", tenure.key)
    if isinstance(reply, ResponseError):
        raise told(LockRefused, words(reply), tenure.key)
    tenure.lasts(sent, lease)


def resuming(tenure: Tenure, patience: float) -> Course[None]:
    """Go on with the lease that the tenure had, or with as long a one as the server takes."""
    while True:
        try:
            return (yield from renewing(tenure, tenure.lease, patience, "resume"))
        except LockRefused as error:
            if not tenure.shorten(error):
                raise


class Holder(NamedTuple):
    owner: bytes
    token: int
    holds: int
    lease_left: int


def asking(key: Any, patience: float) -> Course[tuple[float, list[Holder]]]:
    """Who holds the lock, and when that was asked."""
    sent, [reply, *_], _ = yield from once(key, (("LOCK.INFO", key),), patience)
    return sent, _holders(key, reply)


def _holders(key: Any, reply: Any) -> list[Holder]:
    if isinstance(reply, ResponseError):
        raise told(LockRefused, words(reply), key)
    holders = map(_map, _map(reply)[b"holders"] if reply is not None else [])
    return [Holder(h[b"owner"], h[b"token"], h[b"holds"], h[b"lease-left"]) for h in holders]


def _map(reply: Any) -> dict[Any, Any]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2]))


class Schedule:
    """Which tenures to renew, and which are lost. It keeps none alive: what the program has dropped is renewed no more."""

    def __init__(self) -> None:
        self._tenures: weakref.WeakSet[Tenure] = weakref.WeakSet()

    def add(self, tenure: Tenure) -> None:
        self._tenures.add(tenure)

    def remove(self, tenure: Tenure) -> None:
        self._tenures.discard(tenure)

    def clear(self) -> None:
        self._tenures = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._tenures)

    def next(self) -> float | None:
        """When there is something to do, if ever."""
        return min((min(t.due, t.deadline) for t in list(self._tenures)), default=None)

    def due(self, now: float) -> list[Tenure]:
        return [t for t in list(self._tenures) if t.due <= now < t.deadline]

    def expired(self, now: float) -> list[Tenure]:
        return [t for t in list(self._tenures) if t.deadline <= now]

    def limit(self, due: list[Tenure], now: float) -> float:
        """How long to wait for the replies: a sixth of a lease, and never past the end of any lease."""
        first = min((t.deadline for t in list(self._tenures)), default=now)
        return max(0.05, min(first - now, *(t.lease / 6000 for t in due)))

    def hurry(self) -> None:
        """The server may have started anew and forgotten: let it hear of all tenures at once."""
        for tenure in list(self._tenures):
            tenure.soon = True

    def answered(self, tenure: Tenure, sent: float, reply: Any) -> bool:
        """Whether the reply to a renewal says that the tenure is lost."""
        if tenure.over:
            return False
        if gone(reply):
            return True
        if isinstance(reply, Exception):
            if not tenure.shorten(reply):
                tenure.postpone(monotonic())
        elif tenure.renewed and sent >= tenure.since:
            tenure.lasts(sent, tenure.lease)
        else:
            tenure.remembered()
        return False


def pack(tenure: Tenure, timeout: float | None) -> str:
    """A tenure as a string that another process can go on from."""
    key = tenure.key if isinstance(tenure.key, str) else {"bytes": base64.b64encode(bytes(tenure.key)).decode()}
    owner, named = (base64.b64encode(b).decode() for b in (tenure.owner, tenure.named))
    text = json.dumps([1, key, owner, named, tenure.token, tenure.holds, tenure.lease, tenure.renewed, timeout])
    return base64.urlsafe_b64encode(text.encode()).decode()


class Handle(NamedTuple):
    key: Any
    owner: bytes
    named: bytes
    token: int
    holds: int
    lease: int
    renewed: bool
    timeout: float | None


def unpack(handle: str) -> Handle:
    try:
        version, key, owner, named, *rest = json.loads(base64.urlsafe_b64decode(handle))
        if version != 1:
            raise ValueError("another version")
        if isinstance(key, dict):
            key = base64.b64decode(key["bytes"])
        return Handle(key, base64.b64decode(owner), base64.b64decode(named), *rest)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("this is no handle of a lock") from error
