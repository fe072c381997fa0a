"""What is held, as far as this process knows.

A *tenure* is about one key: from an owner's first hold to its last. A *holding* is the result of
one acquisition: a tenure, or for several keys one for each. All tenures of a holding are lost
together.

A lease is counted from before its request was sent, by the monotonic clock of this process. The
server starts counting later. So the lease ends here before it ends at the server, even if one of
them was paused.
"""

from __future__ import annotations

import ast
import base64
import os
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Callable

from ._wire import DENIALS, FOREVER, Command, back_off, error_code, lease_end, longest_lease, millis


@dataclass(eq=False)
class Tenure:
    key: bytes
    owner: bytes
    kind: Command  # the arguments that say with whom the lock is shared
    lease: int  # milliseconds; 0: the server's default, until a reply names it
    token: int = 0
    holds: int = 0
    deadline: float = 0.0  # when the lease ends, by this process's clock
    granted_at: float = 0.0
    is_pending: bool = False  # whether an acquisition leaves something at the server if it ends now
    renew_at: float = FOREVER
    failures: int = 0  # the number of failed renewals since the last success
    renewals: list[Any] = field(default_factory=list)  # the requests for a lease that have no reply yet

    def acquire_command(self, lease: int, holds: int, *wait: Any) -> Command:
        px = ("PX", lease) if lease else ()
        return ("LOCK.ACQUIRE", self.key, self.owner, *px, *wait, "HOLDS", holds, *self.kind)

    def renew_command(self, lease: int, holds: int) -> Command:
        return ("LOCK.RENEW", self.key, self.owner, "PX", lease, "TOKEN", self.token, "HOLDS", holds, *self.kind)

    def release_command(self) -> Command:
        """The reply to `HOLDS 0` does not say whether the lock was lost. The reply to `ALL` with the token says it."""
        count = ("HOLDS", self.holds - 1) if self.holds > 1 else ("ALL",)
        return ("LOCK.RELEASE", self.key, self.owner, *count, "TOKEN", self.token)

    def give_up_command(self, holds: int) -> Command:
        return ("LOCK.RELEASE", self.key, self.owner, "HOLDS", holds)

    def expect_lease(self, lease: int) -> None:
        """Note that the program requests a lease. It may be shorter than before, and the server may set it without a reply."""
        self.deadline = min(self.deadline, lease_end(monotonic(), lease))


@dataclass(eq=False)
class Holding:
    lost: Any  # a `threading.Event` or an `asyncio.Event`
    local_token: bytes | None  # redis-py's `lock.local.token`, if the program has named it
    is_renewed: bool
    end: float = FOREVER  # when the hold limit is reached, by this process's clock
    lock: Callable[[], Any] = lambda: None  # a weak reference, once the program has the lock
    tenures: list[Tenure] = field(default_factory=list)
    is_over: bool = False  # whether it was released, or the release has begun
    pid: int = field(default_factory=os.getpid)

    @property
    def deadline(self) -> float:
        return min([self.end, *[tenure.deadline for tenure in self.tenures]])

    @property
    def held(self) -> bool:
        return not (self.is_over or self.lost.is_set() or self.pid != os.getpid()) and monotonic() < self.deadline

    def schedule(self, tenure: Tenure) -> None:
        """Set the time of the next renewal: when a third of the lease has passed."""
        if not self.is_renewed:
            tenure.renew_at = FOREVER
        elif tenure.deadline + tenure.lease / 500_000 + 0.005 < self.end:
            tenure.renew_at = tenure.deadline - tenure.lease * 2 / 3000
        else:  # the server must not keep the lock past the hold limit
            tenure.renew_at = 0.0 if tenure.deadline > self.end + 0.01 else FOREVER

    def next_lease(self, tenure: Tenure, now: float) -> int:
        """The lease to renew with. A tenure that is not renewed gets at most what is left."""
        return self.limited(tenure.lease if self.is_renewed else millis(tenure.deadline - now), now)

    def limited(self, lease: int, now: float) -> int:
        """The lease, or what is left of the hold limit if that is less."""
        return lease if self.end == FOREVER else min(lease, millis(self.end - now))

    def note_lease(self, tenure: Tenure, request: Any) -> None:
        """Note a lease that the server has set."""
        tenure.deadline, tenure.failures = lease_end(request.sent, request.lease), 0
        self.schedule(tenure)

    def note_renewal(self, tenure: Tenure, request: Any, reply: Any) -> bool:
        """Note the reply to a renewal that the client itself has sent. Return whether the tenure is lost."""
        longest = longest_lease(reply)
        if isinstance(reply, int):
            self.note_lease(tenure, request)
        elif self.is_renewed and longest is not None and tenure.lease > longest:
            tenure.lease, tenure.renew_at = longest, 0.0
            tenure.deadline = min(tenure.deadline, lease_end(monotonic(), longest))
        else:
            tenure.renew_at = monotonic() + back_off(tenure.failures)
            tenure.failures += 1
        return error_code(reply) in DENIALS

    def pack(self, timeout: float | None, owner: bytes | None) -> str:
        """A handle with which another process can continue. `owner` is the name of the owner, if the program has named it."""
        left = None if self.end == FOREVER else self.end - monotonic()
        tenures = [(t.key, t.owner, t.kind, t.lease, t.token, t.holds) for t in self.tenures]
        parts = (4, timeout, owner, left, self.is_renewed, self.local_token, tenures)
        return base64.urlsafe_b64encode(repr(parts).encode()).decode()


def unpack(handle: str) -> tuple[float | None, bytes | None, float | None, bool, bytes | None, list[Tenure]]:
    """What `pack` has packed: with the rest of the hold limit, whether the leases are renewed, and the local token."""
    try:
        version, *parts, tenures = ast.literal_eval(base64.urlsafe_b64decode(handle).decode())
        if version != 4:
            raise ValueError("another version")
        timeout, owner, left, is_renewed, token = parts
        return timeout, owner, left, is_renewed, token, [Tenure(*each) for each in tenures]
    except (ValueError, SyntaxError, TypeError) as error:
        raise ValueError("this is not a handle of a lock") from error
