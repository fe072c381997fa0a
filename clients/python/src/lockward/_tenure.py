"""What is held, as this process knows it.

A *tenure* is one key's, from an owner's first hold to its last. A *holding* is what one acquisition has given the program:
a tenure, or with several keys one for each. All tenures of a holding are lost together.

A lease is counted from before its request was sent, by the monotonic clock of this process. The server starts counting
later. So the lease ends here before it ends at the server, however long either was paused.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import threading
import uuid
import weakref
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Callable

from ._exchange import FOREVER, Command, back_off, lease_end, millis
from ._wire import DENIALS, error_code, longest_lease

#: Renewals that are due within so many seconds are sent together.
_TOGETHER = 0.1


class _Owners:
    """Makes owners that no other process, thread, task or tenure has."""

    def __init__(self) -> None:
        self.restart()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.restart)

    def restart(self) -> None:
        self._process, self._count = str(uuid.uuid4()), itertools.count(1)

    def new(self) -> bytes:
        return f"{self._process}:{next(self._count)}".encode()


owners = _Owners()


@dataclass(eq=False)
class Holding:
    lost: Any  # a `threading.Event` or an `asyncio.Event`
    lock: Callable[[], Any]  # a weak reference
    local_token: bytes  # redis-py's `lock.local.token`
    is_renewed: bool
    end: float = FOREVER  # when the hold limit is reached, by this process's clock
    tenures: list[Tenure] = field(default_factory=list)
    is_over: bool = False  # given back, or about to be
    pid: int = field(default_factory=os.getpid)

    @property
    def held(self) -> bool:
        if self.is_over or self.lost.is_set() or self.pid != os.getpid():
            return False
        return monotonic() < min([self.end, *(tenure.deadline for tenure in self.tenures)])

    def pack(self, timeout: float | None) -> str:
        """A handle with which another process can continue."""
        left = None if self.end == FOREVER else self.end - monotonic()
        tenures = [[_text(t.key), _text(t.owner), t.token, t.holds, t.lease, t.kind] for t in self.tenures]
        parts = [2, timeout, left, self.is_renewed, _text(self.local_token), tenures]
        return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


def unpack(handle: str) -> tuple[float | None, float | None, bool, bytes, list[Tenure]]:
    """The timeout, what is left of the hold limit, whether the leases are renewed, the local token, and the tenures."""
    try:
        version, timeout, left, is_renewed, token, tenures = json.loads(base64.urlsafe_b64decode(handle))
        if version != 2:
            raise ValueError("another version")
        listed = [Tenure(_bytes(k), _bytes(o), t, h, lease, 0.0, tuple(kind)) for k, o, t, h, lease, kind in tenures]
        return timeout, left, is_renewed, _bytes(token), listed
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("this is not a handle of a lock") from error


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


@dataclass(eq=False)
class Tenure:
    key: bytes
    owner: bytes
    token: int
    holds: int
    lease: int  # milliseconds
    deadline: float  # when the lease ends, by this process's clock
    kind: Command = ()
    renewals_count_from: float = 0.0  # the reply to a renewal that was sent earlier is ignored
    failures: int = 0
    retry_at: float = 0.0
    is_urgent: bool = False

    def renewal_due(self, holding: Holding) -> float:
        """When a third of the lease is over."""
        if self.is_urgent:
            return self.retry_at
        reaches_end = self.deadline + self.lease / 500_000 + 0.005 >= holding.end
        if not holding.is_renewed or (reaches_end and self.deadline <= holding.end + 0.01):
            return FOREVER
        if self.deadline > holding.end + 0.01:  # the server must not keep the lock past the hold limit
            return self.retry_at
        return max(self.deadline - self.lease / 1000 * 2 / 3, self.retry_at)

    def renewal(self, holding: Holding) -> Command:
        """The command that renews the lease. A tenure that is not renewed gets no more than what is left."""
        now = monotonic()
        lease, left = self.lease if holding.is_renewed else millis(self.deadline - now), holding.end - now
        return self.renew_command(min(lease, millis(left)) if left < FOREVER else lease)

    def renew_command(self, lease: int) -> Command:
        return ("LOCK.RENEW", self.key, self.owner, "PX", lease, "TOKEN", self.token, "HOLDS", self.holds, *self.kind)

    def release_command(self) -> Command:
        """The reply to `HOLDS 0` does not tell whether the lock was lost. The reply to `ALL` with the token does."""
        count = ("HOLDS", self.holds - 1) if self.holds > 1 else ("ALL",)
        return ("LOCK.RELEASE", self.key, self.owner, *count, "TOKEN", self.token)

    def note_lease_request(self, lease: int) -> None:
        """Note that the program requests a lease: it may be shorter, and be set though no reply arrives.

        If another renewal is under way, the client does not know which of the two the server carries out last. So the reply
        to that one is ignored.
        """
        self.deadline = min(self.deadline, lease_end(monotonic(), lease))
        self.renewals_count_from = FOREVER

    def note_lease(self, sent: float, lease: int) -> None:
        """Note a lease that the server has set."""
        self.deadline = lease_end(sent, lease)
        self.note_answer()

    def note_answer(self) -> None:
        self.failures, self.retry_at, self.is_urgent = 0, 0.0, False

    def is_lost(self, is_renewed: bool, sent: float, command: Command, reply: Any) -> bool:
        """Note the reply to a renewal. Return whether the tenure is lost."""
        if error_code(reply) in DENIALS:
            return True
        longest = longest_lease(reply)
        if not isinstance(reply, Exception):
            if is_renewed and sent >= self.renewals_count_from:
                self.deadline = lease_end(sent, command[4])
            self.note_answer()
        elif is_renewed and longest is not None and self.lease > longest:
            self.lease = longest
            self.deadline = min(self.deadline, lease_end(monotonic(), longest))
            self.note_answer()
            self.is_urgent = True
        else:
            self.retry_at = monotonic() + back_off(self.failures)
            self.failures += 1
        return False


class Schedule:
    """The holdings of a client, and when the next one is to be renewed or ends.

    References are weak: what the program has dropped is renewed no more.
    """

    def __init__(self) -> None:
        self.holdings: weakref.WeakSet[Holding] = weakref.WeakSet()
        self._mutex = threading.RLock()
        #: Only a holding that needs something before that needs to wake the thread or task which watches.
        self.next = FOREVER

    def add(self, holding: Holding) -> bool:
        """Watch a holding. Return whether it needs something before all others."""
        with self._mutex:
            self.holdings.add(holding)
        return self.next > min([holding.end, *(min(t.renewal_due(holding), t.deadline) for t in holding.tenures)])

    def all(self) -> list[Holding]:
        with self._mutex:  # a set must not change while it is iterated over
            return list(self.holdings)

    def take(self, now: float) -> tuple[list[Holding], list[tuple[Holding, Tenure]]]:
        """What is over, and what is to be renewed now."""
        self.next = FOREVER  # from here on, `add` wakes the watcher: it may come too late for this round
        expired, due, then = [], [], FOREVER
        for holding in self.all():
            if holding.is_over or holding.lost.is_set():
                with self._mutex:
                    self.holdings.discard(holding)
            elif not holding.tenures or now < min([holding.end, *(tenure.deadline for tenure in holding.tenures)]):
                then = min(then, holding.end)
                for tenure in holding.tenures:
                    if tenure.renewal_due(holding) <= now + min(_TOGETHER, tenure.lease / 30_000):
                        due.append((holding, tenure))
                        # The outcome sets it anew.
                        tenure.is_urgent, tenure.retry_at = True, now + tenure.lease / 3000
                    then = min(then, tenure.deadline, tenure.renewal_due(holding))
            else:
                expired.append(holding)
        self.next = then
        return expired, due
