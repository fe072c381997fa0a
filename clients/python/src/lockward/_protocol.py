"""Plans for all that a lock asks of a server, for threads and for asyncio alike.

A request may be sent twice: when its reply is lost, the client does not know whether the server has carried it out. So each
acquisition names the count of holds that it leads to, and each other request the fencing token of its tenure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Callable, NamedTuple

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from ._plan import NETWORK_ERRORS, RESPONSE_LIMIT, Command, Exchange, Pause, Plan
from ._replies import (
    Holder,
    denies_tenure,
    error_code,
    error_text,
    holders,
    is_transient,
    longest_lease,
    redirect,
)
from ._tenure import Schedule, Tenure
from ._timing import back_off, lease_end, millis
from .errors import LockLost, LockRefused, Unreachable, Unreplicated, lock_error

#: How long a caller that leaves tries to withdraw its acquisition, in seconds.
WITHDRAW_LIMIT = 1.0
_MAX_REDIRECTS = 5


class Answer(NamedTuple):
    sent: float
    replies: list[Any]
    may_have_run: bool  # an earlier attempt, whose reply was lost, may have been carried out


def retrying(exchange: Callable[[float], Exchange], until: float, is_repeatable: bool = True) -> Plan[Answer]:
    """Repeat an exchange until a server answers. Unreachable if none does before `until`.

    An exchange that is not repeatable is sent again only after a reply that says that nothing was carried out.
    """
    failures, may_have_run, to = 0, False, None
    while True:
        sent = monotonic()
        try:
            replies = yield replace(exchange(sent), redirect=to)
        except AuthenticationError:
            raise  # another attempt is useless
        except NETWORK_ERRORS as error:
            if not is_repeatable:
                raise Unreachable(f"no reply, and the command may have run: {error_text(error)}") from error
            cause, may_have_run, to = error, True, None
        else:
            cause, to = replies[0], redirect(replies[0])
            if to is None and not is_transient(cause):
                return Answer(sent, replies, may_have_run)
            if to is not None and failures < _MAX_REDIRECTS:
                failures += 1
                continue
        if monotonic() - sent > 1:
            failures = 0
        pause = back_off(failures)
        failures += 1
        if monotonic() + pause >= until:
            raise Unreachable(f"no server answers: {error_text(cause)}") from cause
        yield Pause(pause)


def ask(key: Any, commands: tuple[Command, ...], patience: float) -> Plan[Answer]:
    """Send commands that do not wait."""
    until = monotonic() + patience
    return (yield from retrying(lambda now: Exchange(key, commands, max(0.1, until - now)), until))


# Acquire.


@dataclass(frozen=True)
class AcquireRequest:
    """What an acquisition asks for."""

    key: Any
    owner: bytes
    lease: int | None  # milliseconds; None: the server's default
    holds: int  # after the acquisition
    replicas: tuple[int, float] | None  # count, seconds
    mode: Command = ()  # the arguments that say with whom the lock is shared

    def commands(self, block: int | None) -> tuple[Command, ...]:
        lease = () if self.lease is None else ("PX", self.lease)
        wait = () if block is None else ("BLOCK", block)
        acquire = ("LOCK.ACQUIRE", self.key, self.owner, *lease, *wait, "HOLDS", self.holds, *self.mode)
        replicas = () if self.replicas is None else (("WAIT", self.replicas[0], millis(self.replicas[1])),)
        return (acquire, *replicas)

    def withdraw_command(self) -> Command:
        return ("LOCK.RELEASE", self.key, self.owner, "HOLDS", self.holds - 1)


class Grant(NamedTuple):
    token: int
    holds: int
    lease: int  # milliseconds
    deadline: float


def acquire(request: AcquireRequest, limit: float | None, patience: float) -> Plan[Grant | None]:
    """Acquire within `limit` seconds (0: do not wait; None: no limit). None if the lock is busy for longer."""
    try:
        return (yield from _PendingAcquire(request, limit, patience).run())
    except LockRefused as error:
        # The tenure's lease may have become too long. A re-entry with a shorter lease does not shorten the tenure's.
        longest = longest_lease(error)
        if request.holds == 1 or longest is None or request.lease is None or request.lease <= longest:
            raise
        return (yield from acquire(replace(request, lease=longest), limit, patience))
    except (LockLost, GeneratorExit):
        raise
    except BaseException:
        # Interrupted, cancelled or disconnected, the grant may have been on its way; or too few replicas have confirmed it.
        yield from _withdraw(request)
        raise


class _PendingAcquire:
    """An acquisition under way."""

    def __init__(self, request: AcquireRequest, limit: float | None, patience: float) -> None:
        started = monotonic()
        self._request, self._limit, self._patience = request, limit, patience
        self._until = float("inf") if limit is None else started + limit
        self._try_until = started + (limit or patience)

    def run(self) -> Plan[Grant | None]:
        answer = yield from retrying(self._try, self._try_until)
        while True:
            grant = yield from self._grant(answer)
            if grant is not None:
                self._check_replicas(answer)
                return grant
            if monotonic() >= self._until:
                return None
            answer = yield from retrying(self._wait, self._until)
            if answer.replies[0] is None:
                return None

    def _try(self, now: float) -> Exchange:
        limit = max(0.1, min(self._patience, self._try_until - now))
        return Exchange(self._request.key, self._request.commands(None), limit)

    def _wait(self, now: float) -> Exchange:
        if self._limit is None:
            return Exchange(self._request.key, self._request.commands(0), None)
        left = self._until - now
        return Exchange(self._request.key, self._request.commands(millis(left)), max(0.0, left) + RESPONSE_LIMIT)

    def _grant(self, answer: Answer) -> Plan[Grant | None]:
        """The grant that the client can rely on. None if the lock is busy, or was lost before."""
        request, first = self._request, answer.replies[0]
        if request.holds > 1 and denies_tenure(first):
            raise lock_error(LockLost, f"The lock was lost: {error_text(first)}", request.key)
        refused = next((reply for reply in answer.replies if isinstance(reply, ResponseError)), None)
        if refused is not None:
            if answer.may_have_run or isinstance(first, list):
                yield from _withdraw(request)
            raise lock_error(LockRefused, error_text(refused), request.key)
        if first is None:
            return None
        token, holds, lease = map(int, first)
        sent = yield from self._confirm(answer.sent, token, holds, lease)
        return None if sent is None else Grant(token, holds, lease, lease_end(sent, lease))

    def _confirm(self, sent: float, token: int, holds: int, lease: int) -> Plan[float | None]:
        """When the request for the lease was sent. None if the lock was lost before.

        The lease counts from before the request was sent, so after a long wait it may be over by this clock. Then it is
        renewed first.
        """
        request = self._request
        if monotonic() - sent <= lease / 3000:
            return sent
        renew = ("LOCK.RENEW", request.key, request.owner, "PX", lease, "TOKEN", token, "HOLDS", holds, *request.mode)
        sent, [reply, *_], _ = yield from ask(request.key, (renew,), self._patience)
        if not isinstance(reply, ResponseError):
            return sent
        if not denies_tenure(reply):
            yield from _withdraw(request)
            raise lock_error(LockRefused, error_text(reply), request.key)
        if request.holds > 1:
            raise lock_error(LockLost, f"The lock was lost: {error_text(reply)}", request.key)
        return None

    def _check_replicas(self, answer: Answer) -> None:
        if self._request.replicas is None:
            return
        wanted, reached = self._request.replicas[0], answer.replies[-1]
        if reached < wanted:
            message = f"{reached} of {wanted} replicas have confirmed the grant in time"
            raise lock_error(Unreplicated, message, self._request.key)


def _withdraw(request: AcquireRequest) -> Plan[None]:
    """Give back what may have been granted."""
    try:
        yield from ask(request.key, (request.withdraw_command(),), WITHDRAW_LIMIT)
    except (RedisError, OSError):
        pass  # it ends with its lease


# Of a tenure.


def release(tenure: Tenure, was_held: bool, patience: float) -> Plan[int]:
    """Give one hold back. Return how many are left. `was_held`: the lease ran when the release began."""
    _, [reply, *_], may_have_run = yield from ask(tenure.key, (tenure.release_command(),), patience)
    if may_have_run and was_held and isinstance(reply, ResponseError) and error_code(reply) == "NOTHELD":
        return 0  # an earlier attempt was carried out, and its reply lost
    if denies_tenure(reply):
        message = f"Cannot release a lock that's no longer owned: {error_text(reply)}"
        raise lock_error(LockLost, message, tenure.key)
    if isinstance(reply, ResponseError):
        raise lock_error(LockRefused, error_text(reply), tenure.key)
    return int(reply)


def renew(tenure: Tenure, lease: int, patience: float, what: str) -> Plan[None]:
    """Give the tenure a lease in milliseconds, from now. `what` is the verb of the error text."""
    try:
        sent, [reply, *_], _ = yield from ask(tenure.key, (tenure.renew_command(lease),), patience)
    finally:
        tenure.renewals_count_from = monotonic()
    if denies_tenure(reply):
        message = f"Cannot {what} a lock that's no longer owned: {error_text(reply)}"
        raise lock_error(LockLost, message, tenure.key)
    if isinstance(reply, ResponseError):
        raise lock_error(LockRefused, error_text(reply), tenure.key)
    tenure.note_lease(sent, lease)


def guarded(tenure: Tenure, command: Command, patience: float) -> Plan[Any]:
    """Run a command if the tenure is held, also by the server's account. LockLost if it is not.

    If the server denies the tenure, it is renewed first: a server in quarantine restores it.
    """
    guard: Command = ("LOCK.GUARD", tenure.key, tenure.token, *command)
    until = monotonic() + patience

    def exchange(now: float) -> Exchange:
        if not tenure.held:
            raise lock_error(LockLost, "Cannot guard a command with a lock that's no longer owned", tenure.key)
        return Exchange(tenure.key, (guard,), max(0.1, until - now))

    _, [reply, *_], _ = yield from retrying(exchange, until, is_repeatable=False)
    if is_fenced(reply):
        yield from renew(tenure, tenure.lease, patience, "guard a command with")
        _, [reply, *_], _ = yield from retrying(exchange, until, is_repeatable=False)
    if is_fenced(reply):
        message = f"Cannot guard a command with a lock that's no longer owned: {error_text(reply)}"
        raise lock_error(LockLost, message, tenure.key)
    if isinstance(reply, ResponseError):
        raise reply
    return reply


def is_fenced(reply: Any) -> bool:
    """Whether LOCK.GUARD has refused the token."""
    return isinstance(reply, ResponseError) and error_code(reply) == "FENCED"


def resume(tenure: Tenure, patience: float) -> Plan[None]:
    """Continue with the tenure's lease, or with the longest that the server accepts."""
    while True:
        try:
            return (yield from renew(tenure, tenure.lease, patience, "resume"))
        except LockRefused as error:
            if not tenure.shorten_lease(error):
                raise


def renew_together(
    tenures: list[Tenure], limit: float, schedule: Schedule, lose: Callable[[Tenure], None]
) -> Plan[None]:
    """Renew tenures of one node in one pipeline. `limit` is in seconds."""
    sent = monotonic()
    replies: list[Any]
    try:
        replies = yield Exchange(tenures[0].key, tuple(t.renew_command() for t in tenures), limit)
    except (RedisError, OSError) as error:
        replies = [error] * len(tenures)
    for tenure, answer in zip(tenures, replies):
        reply, to = answer, redirect(answer)
        if to is not None:
            try:
                [reply] = yield Exchange(tenure.key, (tenure.renew_command(),), limit, to)
            except (RedisError, OSError) as error:
                reply = error
        if schedule.renewed(tenure, sent, reply):
            lose(tenure)


def lock_info(key: Any, patience: float) -> Plan[tuple[float, list[Holder]]]:
    """When LOCK.INFO was sent, and the lock's holders."""
    sent, [reply, *_], _ = yield from ask(key, (("LOCK.INFO", key),), patience)
    return sent, holders(key, reply)
