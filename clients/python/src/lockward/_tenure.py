"""A tenure, from an owner's first hold to its last, as this process knows it; and which tenures to renew when.

A lease is counted from before its request was sent, by the monotonic clock of this process. The server starts counting
later. So the lease ends here before it ends at the server, however long either was paused.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import uuid
import weakref
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Callable, NamedTuple, Protocol

from ._plan import Command
from ._replies import denies_tenure, longest_lease
from ._timing import back_off, lease_end, millis


class Event(Protocol):
    """What `threading.Event` and `asyncio.Event` have in common."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...


class _Owners:
    """Makes owners that no other process, thread, task or tenure has."""

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


@dataclass(eq=False)
class Tenure:
    key: Any
    owner: bytes
    token: int
    holds: int
    lease: int  # milliseconds
    is_renewed: bool
    deadline: float  # when the lease ends, by this process's clock
    lost: Event
    lock: Callable[[], Any]  # a weak reference
    local_token: bytes  # redis-py's `lock.local.token`
    mode: Command = ()
    pid: int = field(default_factory=os.getpid)
    is_over: bool = False
    renewals_count_from: float = 0.0  # the reply to a renewal that was sent earlier is ignored
    failures: int = 0
    retry_at: float = 0.0
    is_urgent: bool = False

    @property
    def held(self) -> bool:
        return not self.is_over and not self.lost.is_set() and monotonic() < self.deadline and self.pid == os.getpid()

    @property
    def renewal_due(self) -> float:
        """When a third of the lease is over."""
        if self.is_urgent:
            return self.retry_at
        if not self.is_renewed:
            return float("inf")
        return max(self.deadline - self.lease / 1000 * 2 / 3, self.retry_at)

    def renew_command(self, lease: int | None = None) -> Command:
        if lease is None:  # a tenure that is not renewed gets no more than what is left
            lease = self.lease if self.is_renewed else millis(self.deadline - monotonic())
        return ("LOCK.RENEW", self.key, self.owner, "PX", lease, "TOKEN", self.token, "HOLDS", self.holds, *self.mode)

    def release_command(self) -> Command:
        """The reply to `HOLDS 0` does not tell whether the lock was lost. The reply to `ALL` with the token does."""
        count = ("HOLDS", self.holds - 1) if self.holds > 1 else ("ALL",)
        return ("LOCK.RELEASE", self.key, self.owner, *count, "TOKEN", self.token)

    def note_lease(self, sent: float, lease: int) -> None:
        """Note a lease that the server has set."""
        self.deadline = lease_end(sent, lease)
        self.note_success()

    def note_lease_request(self, lease: int) -> None:
        """Note that a lease is about to be requested: it may be shorter, and be set though no reply arrives.

        If another renewal is under way, the client does not know which of the two the server carries out last. So the reply
        to that one is ignored.
        """
        self.deadline = min(self.deadline, lease_end(monotonic(), lease))
        self.renewals_count_from = float("inf")

    def note_success(self) -> None:
        self.failures, self.retry_at, self.is_urgent = 0, 0.0, False

    def shorten_lease(self, reply: Exception) -> bool:
        """Take the longest lease that the server accepts, if it refuses this one. Return whether to renew the tenure again at
        once."""
        longest = longest_lease(reply)
        if not self.is_renewed or longest is None or self.lease <= longest:
            return False
        self.lease = longest
        self.deadline = min(self.deadline, lease_end(monotonic(), self.lease))
        self.note_success()
        self.is_urgent = True
        return True

    def postpone_renewal(self, now: float) -> None:
        self.retry_at = now + back_off(self.failures)
        self.failures += 1


class Schedule:
    """The tenures of a client. References are weak: a tenure that the program has dropped is renewed no more."""

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

    def next_event(self) -> float | None:
        """When the next tenure is to be renewed, or ends."""
        return min((min(t.renewal_due, t.deadline) for t in list(self._tenures)), default=None)

    def due(self, now: float) -> list[Tenure]:
        return [t for t in list(self._tenures) if t.renewal_due <= now < t.deadline]

    def expired(self, now: float) -> list[Tenure]:
        return [t for t in list(self._tenures) if t.deadline <= now]

    def response_limit(self, due: list[Tenure], now: float) -> float:
        """How long to wait for the replies: a sixth of a lease, and never past the end of any lease."""
        first = min((t.deadline for t in list(self._tenures)), default=now)
        return max(0.05, min(first - now, *(t.lease / 6000 for t in due)))

    def renew_all_now(self) -> None:
        """Make all renewals due: a server that was restarted may have forgotten the tenures."""
        for tenure in list(self._tenures):
            tenure.is_urgent = True

    def renewed(self, tenure: Tenure, sent: float, reply: Any) -> bool:
        """Note the reply to a renewal. Return whether the tenure is lost."""
        if tenure.is_over:
            return False
        if denies_tenure(reply):
            return True
        if isinstance(reply, Exception):
            if not tenure.shorten_lease(reply):
                tenure.postpone_renewal(monotonic())
        elif tenure.is_renewed and sent >= tenure.renewals_count_from:
            tenure.note_lease(sent, tenure.lease)
        else:
            tenure.note_success()
        return False


class Handle(NamedTuple):
    """A tenure as another process can continue it."""

    key: Any
    owner: bytes
    local_token: bytes
    token: int
    holds: int
    lease: int
    is_renewed: bool
    timeout: float | None
    mode: Command


def pack(tenure: Tenure, timeout: float | None) -> str:
    key = tenure.key if isinstance(tenure.key, str) else {"bytes": base64.b64encode(bytes(tenure.key)).decode()}
    owner, local_token = (base64.b64encode(b).decode() for b in (tenure.owner, tenure.local_token))
    rest = [tenure.token, tenure.holds, tenure.lease, tenure.is_renewed, timeout, tenure.mode]
    return base64.urlsafe_b64encode(json.dumps([1, key, owner, local_token, *rest]).encode()).decode()


def unpack(handle: str) -> Handle:
    try:
        version, key, owner, local_token, *rest = json.loads(base64.urlsafe_b64decode(handle))
        if version != 1:
            raise ValueError("another version")
        if isinstance(key, dict):
            key = base64.b64decode(key["bytes"])
        return Handle(key, base64.b64decode(owner), base64.b64decode(local_token), *rest)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("this is not a handle of a lock") from error
