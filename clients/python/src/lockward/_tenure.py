"""The locks that this process holds, as far as it knows.

A *holding* is the result of one acquisition. It has a *tenure* for each of its keys. A tenure lasts from the owner's first hold
of the key to the end of its last hold. All tenures of a holding have one owner, and are lost together.

This process counts a lease on its monotonic clock, from before it sent the request. The server starts counting later. So the
lease ends in this process before it ends at the server, even if this process or the server was paused.
"""

from __future__ import annotations

import ast
import base64
import os
import re
from asyncio import CancelledError
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic, time
from typing import Any, Callable

from redis.exceptions import ResponseError

from ._wire import DENIALS, FOREVER, Command, back_off, error_code, lease_end, millis

#: Errors after which the client repeats the request. After MOVED and ASK, the client asks the node that the error names.
#: After the other errors, this server or the next primary may accept the request later.
TRANSIENT = {"MOVED", "ASK", "LOADING", "BUSY", "READONLY", "CLUSTERDOWN", "MASTERDOWN"}
#: After these errors the client repeats each request except a guarded command. If a guarded command runs a script, the script
#: itself may have replied with the error.
ENDED_WAIT = {"TRYAGAIN", "UNBLOCKED", "SUPERSEDED", "NOREPLICAS"}
#: The replies to a renewal that names a kind which the tenure does not have.
WRONG_KIND = {"LIMIT", "ERR"}
_LONGEST_LEASE = re.compile(r"invalid expire time .*: at most (\d+) ")


@dataclass(eq=False)
class Tenure:
    key: bytes
    kind: Command  # the arguments that name the kind of the lock
    token: int = 0
    deadline: float = FOREVER  # the end of the lease, by this process's clock; FOREVER: the key is not granted yet
    is_pending: bool = False  # whether the server may keep a grant or a queue position for the acquisition
    renew_at: float = FOREVER
    failures: int = 0  # the number of failed renewals since the last success
    requests: list[Request] = field(default_factory=list)  # the requests in progress that set the lease
    link: Any = None  # see `Request.link`
    #: The kinds that the server may have instead, if a reply to a downgrade was lost. The client tries them in this order.
    other_kinds: list[Command] = field(default_factory=list)

    def reject(self, kind: Command, request: Request) -> bool:
        """Note that the server has refused a request that names this kind. Return whether the renewals now name another kind.

        The server has the kind only if it has executed an earlier attempt. After WRONG_KIND it does not have the kind.
        """
        kinds = [self.kind, *self.other_kinds]
        if len(kinds) > 1 and kind in kinds:
            kinds.remove(kind)
            if request.lost_replies and request.code not in WRONG_KIND:
                kinds.append(kind)
            self.kind, *self.other_kinds = kinds
        return self.kind != kind


@dataclass(eq=False)
class Request:
    """A command about one key, and its outcome. The client sends the commands `more` after all requests of the pipeline.

    If a command sets a lease, the client builds the command when it sends it, because the lease may change until then. If
    several requests set the lease at the same time, the shortest lease counts, because the client does not know which request
    the server executes last.
    """

    key: bytes
    make: Command | Callable[[Tenure, int, int], Command]
    more: tuple[Command, ...] = ()
    holding: Any = None  # this field, `tenure`, `holds` and `lease` are for requests that set a lease
    tenure: Any = None
    holds: int = 0
    lease: int = 0
    is_wait: bool = False  # whether the request waits in the queue
    is_repeatable: bool = True  # whether the command is sent again after a lost reply
    leases: list[int] = field(default_factory=list)  # the leases of other requests in progress
    #: The connection of an acquisition that the caller has left before the reply. The release of the grant uses this connection,
    #: because the server may read its connections in any order.
    link: Any = None
    command: Command = field(default=(), init=False)  # the command as it was sent last
    replies: Sequence[Any] = field(default=(), init=False)
    # These names have no type annotations, so they are attributes of the class, and not fields. A request stores such a value
    # only when the value changes. So the many renewals are cheaper.
    sent = 0.0
    code = ""  # the code of the error, if the first reply is an error
    lost_replies = 0  # the number of attempts that the server may have executed, and that had no valid reply
    failures = 0  # the number of failed attempts
    is_shortened = False
    is_cancelled = False  # whether the caller has left, so that another thread must not send the request any more

    def __post_init__(self) -> None:
        if self.tenure is not None:
            self.tenure.requests.append(self)

    def begin(self) -> Command:
        """The command for the attempt that begins now."""
        self.sent = monotonic()
        self.lost_replies += 1  # the reply counts as lost until it is read
        if self.is_cancelled:
            raise CancelledError("the caller has left")
        self.command = self.make(self.tenure, self.holds, self.lease) if callable(self.make) else self.make
        if self.tenure is not None:
            if len(self.tenure.requests) > 1:
                for other in list(self.tenure.requests):
                    self.leases.append(other.lease)
                    other.leases.append(self.lease)
            if self.command[0] == "LOCK.RENEW" and self.tenure.deadline < FOREVER:
                # The lease may be shorter than before, and the server may set it although no reply arrives.
                self.tenure.deadline = min(self.tenure.deadline, lease_end(self.sent, self.lease))
        return self.command

    def take(self, replies: list[Any]) -> None:
        """Store the replies. A reply of an unexpected type counts as an error, but the command may have run."""
        for number, command in enumerate((self.command, *self.more)):
            if not is_expected(command[0], replies[number]):
                replies[number] = ResponseError(f"ERR an unexpected reply to {command[0]}: {replies[number]!r}"[:200])
                self.lost_replies += 1
        self.lost_replies += "UNBLOCKED" in map(error_code, replies[1:])  # the client sends the request again
        self.replies, self.code = replies, error_code(replies[0])
        self.lost_replies -= 1  # at the end: after an interruption the reply counts as lost

    def shorten(self) -> bool:
        """If the server refuses the lease as too long, set the longest lease that it accepts. Do this only once.

        Return whether to send the request again.
        """
        longest = _LONGEST_LEASE.search(str(self.reply)) if self.code else None
        if longest is None or int(longest[1]) >= self.lease or self.is_shortened:
            return False
        self.lease, self.is_shortened = int(longest[1]), True
        self.holding.lease = min(self.holding.lease, self.lease)
        return True

    def end(self) -> None:
        """Remove the request from the requests in progress."""
        if self.tenure is not None:
            self.tenure.requests.remove(self)

    @property
    def may_be_granted(self) -> bool:
        return bool(self.lost_replies) or (self.reply is not None and not self.code)

    @property
    def kind(self) -> Command:
        """The kind that a renewal has named: see `Holding.renew_command`."""
        return self.command[9:]

    @property
    def reply(self) -> Any:
        """The reply to the first command. Also None if no reply has arrived."""
        return self.replies[0] if self.replies else None

    @property
    def is_answered(self) -> bool:
        is_final = self.code not in TRANSIENT and not (self.is_repeatable and self.code in ENDED_WAIT)
        # MISCONF means that the server cannot write to its disk. The command WAIT may be unblocked, too.
        is_repeated = self.code == "MISCONF" and self.command[0] == "LOCK.RELEASE"
        is_repeated = is_repeated or (not self.code and "UNBLOCKED" in map(error_code, self.replies[1:]))
        return bool(self.replies) and is_final and not is_repeated


@dataclass(eq=False)
class Holding:
    owner: bytes
    lease: int  # in milliseconds; 0: the server's default, until a reply names it
    tenures: list[Tenure]
    lost: Any  # a `threading.Event` or an `asyncio.Event`
    local_token: bytes | None  # the token that the program has passed to `acquire`: redis-py's `lock.local.token`
    is_renewed: bool
    holds: int = 0
    end: float = FOREVER  # the end of the hold limit, by this process's clock
    granted_at: float = 0.0
    lock: Callable[[], Any] = lambda: None  # a weak reference to the lock object, from the acquisition to the loss
    is_over: bool = False  # whether the release has begun
    pid: int = field(default_factory=os.getpid)
    #: The queue of the callers that want to change the count of holds. One caller has its turn at a time: see `_runtime.Turn`.
    turns: dict[Any, None] = field(default_factory=dict)

    @property
    def deadline(self) -> float:
        return min([self.end, *[tenure.deadline for tenure in self.tenures]])

    @property
    def held(self) -> bool:
        return not (self.is_over or self.lost.is_set() or self.pid != os.getpid()) and monotonic() < self.deadline

    def acquire_command(self, tenure: Tenure, holds: int, lease: int, *wait: Any) -> Command:
        px = ("PX", lease) if lease else ()
        return ("LOCK.ACQUIRE", tenure.key, self.owner, *px, *wait, "HOLDS", holds, *tenure.kind)

    def renew_command(self, tenure: Tenure, holds: int, lease: int) -> Command:
        token = ("TOKEN", tenure.token)
        return ("LOCK.RENEW", tenure.key, self.owner, "PX", lease, *token, "HOLDS", holds, *tenure.kind)

    def releases(self) -> list[Request]:
        """The requests that release one hold. The last hold needs `ALL`, because the reply to `HOLDS 0` shows no loss."""
        count = ("HOLDS", self.holds - 1) if self.holds > 1 else ("ALL",)
        return [Request(t.key, ("LOCK.RELEASE", t.key, self.owner, *count, "TOKEN", t.token)) for t in self.tenures]

    def limited(self, lease: int) -> int:
        """The lease, or the time until the end of the hold limit if this time is shorter."""
        return min(lease, millis(self.end - monotonic())) if self.end < FOREVER else lease

    def renewal(self, tenure: Tenure, lease: int) -> Request:
        return Request(tenure.key, self.renew_command, (), self, tenure, self.holds, self.limited(lease))

    def schedule(self, tenure: Tenure) -> None:
        """Set the time of the next renewal. The client renews the lease when a third of it has passed."""
        if not self.is_renewed:
            tenure.renew_at = FOREVER
        elif tenure.deadline + self.lease / 500_000 + 0.005 < self.end:
            tenure.renew_at = tenure.deadline - self.lease * 2 / 3000
        else:  # the server must not keep the lock longer than the hold limit
            tenure.renew_at = 0.0 if tenure.deadline > self.end + 0.01 else FOREVER

    def note_lease(self, tenure: Tenure, request: Request) -> None:
        """Store a lease that the server has set. A re-entry never shortens the lease."""
        is_reentry = request.command[0] == "LOCK.ACQUIRE" and tenure.deadline < FOREVER
        end = lease_end(request.sent, min(filter(None, [request.lease, *request.leases])))
        tenure.deadline, tenure.failures = max(end, tenure.deadline) if is_reentry else end, 0
        if request.command[0] == "LOCK.RENEW" and request.kind == tenure.kind:
            tenure.other_kinds = []
        self.schedule(tenure)

    def note_renewal(self, tenure: Tenure, request: Request) -> bool:
        """Store the outcome of a renewal by the watcher. Return whether the tenure is lost."""
        if isinstance(request.reply, int):
            self.note_lease(tenure, request)
        elif self.is_renewed and request.shorten():
            tenure.renew_at = 0.0
        else:
            if request.code in WRONG_KIND:
                tenure.reject(request.kind, request)
            tenure.renew_at = monotonic() + min(back_off(tenure.failures), self.lease / 6000)
            tenure.failures += 1
        return request.code in DENIALS

    def pack(self, timeout: float | None, owner: bytes | None) -> str:
        """A handle with which another process can continue the tenures. ``owner`` is the owner that the program has named."""
        left = self.end - monotonic()
        end = None if self.end == FOREVER else (left, time() + left)
        keys = [(tenure.key, tenure.kind, tenure.token, tenure.other_kinds) for tenure in self.tenures]
        parts = (5, timeout, owner, end, keys, self.owner, self.lease, self.local_token, self.is_renewed, self.holds)
        return base64.urlsafe_b64encode(repr(parts).encode()).decode()


#: The holding of a caller that holds nothing.
NOTHING = Holding(b"", 0, [], None, None, False, is_over=True, pid=0)


def kind_words(shared: bool, slots: int | None, weight: int | None = None) -> Command:
    """The arguments of a command that name the kind of a lock."""
    numbers = [word for word in (("SLOTS", slots), ("WEIGHT", weight)) if word[1] is not None]
    return (*(("SHARED",) if shared else ()), *chain(*numbers))


def unpack(handle: str) -> list[Any]:
    """The values in a handle, with a Tenure for each key. ValueError if the text is not a handle."""
    try:
        version, timeout, owner, end, keys, *parts = ast.literal_eval(base64.urlsafe_b64decode(handle).decode())
        if version != 5:
            raise ValueError("another version")
        # The handle may have travelled for some time. If the clocks of the two computers differ, the hold limit does not grow.
        left = FOREVER if end is None else min(end[0], end[1] - time())
        tenures = [Tenure(key, kind, token, other_kinds=others) for key, kind, token, others in keys]
        return [timeout, owner, monotonic() + left, tenures, *parts]
    except (ValueError, SyntaxError, TypeError) as error:
        raise ValueError("this is not a handle of a lock") from error


def is_expected(command: str, reply: Any) -> bool:
    """Whether a server with Lockward may send this reply to the command."""
    if command == "LOCK.ACQUIRE":
        is_grant = isinstance(reply, list) and [type(each) for each in reply] == [int, int, int] and min(reply) > 0
        return is_grant or reply is None or isinstance(reply, ResponseError)
    return isinstance(reply, (int, ResponseError)) or command not in ("LOCK.RELEASE", "LOCK.RENEW", "WAIT")
