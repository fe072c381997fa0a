"""All that a lock asks of a server, for threads and for asyncio alike: see clients/README.md.

A request may be sent twice: when its reply is lost, the client does not know whether the server has carried it out. So each
acquisition names the count of holds that it leads to, and each other request the fencing token of its tenure.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, Callable, NamedTuple

from redis.exceptions import AuthenticationError, ResponseError

from ._exchange import (
    FOREVER,
    NETWORK_ERRORS,
    Address,
    Command,
    Exchange,
    NotSent,
    TooManyWaits,
    back_off,
    lease_end,
    millis,
)
from ._runtime import GIVE_UP_LIMIT, RuntimeBase
from ._tenure import Holding, Tenure
from ._wire import DENIALS, TRANSIENT, error_code, longest_lease, redirected_to
from .errors import LockLostError, UnreachableError, UnreplicatedError, lock_error, lost, refused

#: The server is asked to wait for so many seconds at a time.
SLICE = 10.0
#: Between two slices, and while it reconnects, a waiter keeps its place for so many milliseconds.
KEEP = 5000
#: The longest lease of a grant that is not confirmed yet, in milliseconds.
SHORT_LEASE = 3000
_MAX_REDIRECTS = 5


class Answer(NamedTuple):
    sent: float
    replies: list[Any]


Make = Callable[[float], Exchange]


class Call:
    """One call of the program: how long it may take, and whether a server has answered.

    `limit` is the wait limit in seconds; 0: it does not wait; None: it waits without limit.
    """

    def __init__(self, runtime: RuntimeBase, patience: float, response_limit: float, limit: float | None = 0) -> None:
        now = monotonic()
        self.runtime, self._patience, self.response_limit = runtime, patience, response_limit
        self.waits = limit != 0
        self.wait_until = FOREVER if limit is None else now + limit
        self.until = FOREVER  # there is no point in asking any longer
        self.answered = False
        self.may_have_run = False  # a request without a reply may have been carried out
        self._heard_at = now  # for a call that waits, each answer starts the patience again

    def is_late(self) -> bool:
        return monotonic() >= self.wait_until

    def end(self, grace: float = 0.0, extra: float = 0.0) -> float:
        """When to stop asking if no server answers."""
        end = min(self._heard_at + self._patience + extra, self.until)
        return min(end, max(self.wait_until, monotonic()) + grace) if self.waits else end

    def give_up_limit(self, limit: float) -> float:
        """For how long to give back what may have been granted."""
        return max(0.05, min(limit, self.wait_until + 0.19 - monotonic())) if self.waits else limit

    def request(self, key: bytes, *commands: Command, extra: float = 0.0, grace: float = 0.0) -> Make:
        """A request that does not wait, but may take `extra` seconds."""

        def make(now: float) -> Exchange:
            return Exchange(key, commands, max(0.05, min(self.response_limit + extra, self.end(grace, extra) - now)))

        return make

    async def ask(self, make: Make, end: float | None = None) -> Answer:  # noqa: PLR0912
        """Send a request until a server answers. UnreachableError if none does."""
        failures, attempt, redirects = 0, 0, 0
        asking: Address | None = None
        while True:
            sent = monotonic()
            exchange = make(sent)
            if attempt or asking:
                exchange = exchange._replace(attempt=attempt, asking=asking)
            asking, cause = None, None
            try:
                replies = await self.runtime.exchange(exchange)
            except (AuthenticationError, ResponseError) as error:  # from opening a connection
                raise refused(error, exchange.key) from error
            except NETWORK_ERRORS as error:
                cause = error
                if not isinstance(error, NotSent):
                    self.may_have_run = True
                    if not exchange.is_repeatable:
                        raise UnreachableError(f"no reply, and the command may have run: {error}") from error
            else:
                cause, code = replies[0], error_code(replies[0])
                self.answered = True
                if self.waits:
                    self._heard_at = monotonic()
                if code in ("MOVED", "ASK") and redirects < _MAX_REDIRECTS:
                    attempt, redirects = 0, redirects + 1
                    asking = redirected_to(cause) if code == "ASK" else None
                    continue
                if code not in TRANSIENT and code not in ("MOVED", "ASK"):
                    return Answer(sent, replies)
            if monotonic() - sent > 1:
                failures = min(failures, 1)
            left = (self.end() if end is None else end) - monotonic()
            if left <= 0:
                raise UnreachableError(f"no server answers: {cause}") from cause
            pause = min(left, back_off(failures))
            failures += 1
            attempt = failures
            if pause:
                await self.runtime.sleep(pause)


# Acquire.


class AcquireRequest(NamedTuple):
    """What an acquisition asks for."""

    key: bytes
    owner: bytes
    lease: int | None  # milliseconds; None: the server's default
    holds: int  # after the acquisition
    kind: Command = ()  # the arguments that say with whom the lock is shared
    replicas: tuple[int, float] | None = None  # count, seconds
    waiting_connections: int = 256

    def acquire(self, lease: int | None, *wait: Any) -> Command:
        px = () if lease is None else ("PX", lease)
        return ("LOCK.ACQUIRE", self.key, self.owner, *px, *wait, "HOLDS", self.holds, *self.kind)

    def confirm(self, token: int, holds: int) -> Command:
        return ("LOCK.RENEW", self.key, self.owner, "PX", self.lease, "TOKEN", token, "HOLDS", holds, *self.kind)

    def release(self) -> Command:
        return ("LOCK.RELEASE", self.key, self.owner, "HOLDS", self.holds - 1)


class Grant(NamedTuple):
    token: int
    holds: int
    lease: int  # milliseconds
    sent: float  # when the lease was requested

    @property
    def deadline(self) -> float:
        return lease_end(self.sent, self.lease)


class Acquisition:
    """One acquisition. If the caller leaves, what may have been granted is given back."""

    def __init__(self, request: AcquireRequest, call: Call) -> None:
        self._request, self._call = request, call
        self._is_last_slice = False
        self._keeps_place = False
        self._leaves_something = False  # at the server, if the caller leaves now

    async def run(self) -> Grant | None:
        """Acquire within the call's wait limit. None if the lock is busy for longer."""
        try:
            grant = await self._run()
        except LockLostError:
            raise
        except BaseException as error:
            await self._give_up(error)
            if isinstance(error, UnreachableError) and self._call.answered and self._call.is_late():
                return None
            raise
        if grant is None:
            await self._give_up(None)
        return grant

    async def _run(self) -> Grant | None:
        answer, is_confirmed = (await self._ask(self._try)), True
        while True:
            if answer.replies[0] is not None:
                grant = await self._grant(answer, is_confirmed)
                if grant is not None:
                    return grant
            elif self._is_last_slice:
                return None
            if not self._call.waits or self._call.is_late():
                return None
            answer, is_confirmed = await self._wait()

    async def _give_up(self, error: BaseException | None) -> None:
        if self._leaves_something:
            limit = self._call.give_up_limit(0.05 if isinstance(error, UnreachableError) else GIVE_UP_LIMIT)
            await self._call.runtime.give_up(self._request.key, self._request.release(), error=error, limit=limit)

    async def _wait(self) -> tuple[Answer, bool]:
        """The answer to a slice, or while all waiting connections are in use, to a try: whether it needs no confirmation."""
        pause = 0.05
        while True:
            try:
                return (await self._ask(self._slice, self._call.wait_until)), False
            except TooManyWaits:
                await self._call.runtime.sleep(max(0.0, min(pause, self._call.wait_until - monotonic())))
                pause = min(1.0, pause * 2)
                answer = await self._ask(self._try, self._call.wait_until)
                if answer.replies[0] is not None or self._call.is_late():
                    return answer, True

    def _try(self, now: float) -> Exchange:
        self._is_last_slice = False
        return self._with_replicas(self._request.acquire(self._request.lease), now)

    def _with_replicas(self, command: Command, now: float) -> Exchange:
        """The command, and with it the wait for the replicas that are to confirm it."""
        count, within = self._request.replicas or (0, 0.0)
        wait: tuple[Command, ...] = (("WAIT", count, millis(within)),) if self._request.replicas else ()
        return self._call.request(self._request.key, command, *wait, extra=within, grace=0.05)(now)

    def _slice(self, now: float) -> Exchange:
        request, call = self._request, self._call
        left = max(0.0, call.wait_until - now)
        self._is_last_slice = left <= SLICE
        keep = () if self._is_last_slice else ("KEEP", KEEP)
        lease = None if request.lease is None else min(request.lease, SHORT_LEASE)
        command = request.acquire(lease, "BLOCK", millis(min(SLICE, left)), *keep)
        limit = min(SLICE + call.response_limit, left + min(call.response_limit, 0.06))
        return Exchange(request.key, (command,), limit, waits=request.waiting_connections)

    async def _grant(self, answer: Answer, is_confirmed: bool) -> Grant | None:
        """What the client can rely on. None if the lock was lost before."""
        token, holds, lease = map(int, answer.replies[0])
        lease = self._request.lease or lease
        self._request = self._request._replace(lease=lease)
        if is_confirmed and monotonic() < lease_end(answer.sent, lease):
            self._check_replicas(answer)
            return Grant(token, holds, lease, answer.sent)

        def confirm(now: float) -> Exchange:
            return self._with_replicas(self._request.confirm(token, holds), now)

        answer = await self._ask(confirm, self._call.end(grace=0.05))
        if isinstance(answer.replies[0], ResponseError):
            return None
        self._check_replicas(answer)
        return Grant(token, holds, self._request.lease or lease, answer.sent)

    async def _ask(self, make: Make, end: float | None = None) -> Answer:
        """Ask, and take the longest lease that the server accepts if the request's is refused."""
        self._leaves_something = True
        answer = await self._call.ask(make, end)
        longest = longest_lease(answer.replies[0])
        if longest is not None and self._request.lease is not None and self._request.lease > longest:
            self._request = self._request._replace(lease=longest)
            answer = await self._call.ask(make, end)
        first = answer.replies[0]
        if isinstance(first, list):
            self._keeps_place = False
        elif first is None:
            if make == self._slice:
                self._keeps_place = not self._is_last_slice
            self._leaves_something = self._keeps_place
        elif isinstance(first, ResponseError):
            is_confirmation = make not in (self._try, self._slice)
            if error_code(first) in DENIALS and (is_confirmation or self._request.holds > 1):
                self._leaves_something = False
                if self._request.holds > 1:
                    raise lost("acquire once more", self._request.key, first)
                return answer
            self._leaves_something = is_confirmation or self._keeps_place or self._call.may_have_run
        error = next((reply for reply in answer.replies if isinstance(reply, ResponseError)), None)
        if error is not None:
            raise refused(error, self._request.key)
        return answer

    def _check_replicas(self, answer: Answer) -> None:
        if self._request.replicas is not None:
            wanted, reached = self._request.replicas[0], answer.replies[-1]
            if reached < wanted:
                what = f"{reached} of {wanted} replicas have confirmed the grant in time, so it was given back"
                raise lock_error(UnreplicatedError, what, self._request.key)


async def acquire_together(requests: list[AcquireRequest], call: Call) -> list[Grant] | None:
    """Acquire several keys at once if all are free, without waiting.

    None if one is busy, and nothing if a server has replied with an error; then all are given back.
    """
    of_key = {request.key: request for request in requests}
    grants: dict[bytes, Grant] = {}
    has_failed = False
    try:
        for keys in call.runtime.by_node(of_key):
            commands = [of_key[key].acquire(of_key[key].lease) for key in keys]
            sent, replies = await call.ask(call.request(keys[0], *commands))
            for key, reply in zip(keys, replies):
                if isinstance(reply, list):
                    token, holds, lease = map(int, reply)
                    grants[key] = Grant(token, holds, lease, sent)
            if not all(isinstance(reply, list) for reply in replies):
                has_failed = any(isinstance(reply, ResponseError) for reply in replies)
                break
        else:
            return [grants[request.key] for request in requests]
        for keys in call.runtime.by_node(grants):
            await call.ask(call.request(keys[0], *(of_key[key].release() for key in keys), grace=0.05))
    except BaseException as error:
        for keys in call.runtime.by_node(of_key):
            commands = [of_key[key].release() for key in keys]
            await call.runtime.give_up(keys[0], *commands, error=error, limit=call.give_up_limit(GIVE_UP_LIMIT))
        raise
    return [] if has_failed else None


# What is held.


async def release(tenure: Tenure, call: Call) -> int:
    """Give one hold back. Return how many are left. The tenure was held when the release began."""
    command = tenure.release_command()
    call.until = tenure.deadline
    _, [reply, *_] = await call.ask(call.request(tenure.key, command))
    if call.may_have_run and error_code(reply) == "NOTHELD" and "ALL" in command:
        return 0  # an earlier attempt was carried out, and its reply lost
    if error_code(reply) in DENIALS:
        raise lost("release", tenure.key, reply)
    if isinstance(reply, ResponseError):
        raise refused(reply, tenure.key)
    return int(reply)


async def renew(tenure: Tenure, lease: int, call: Call, verb: str) -> None:
    """Give the tenure a lease in milliseconds, from now, or the longest that the server accepts."""
    while True:
        tenure.note_lease_request(lease)
        try:
            sent, [reply, *_] = await call.ask(call.request(tenure.key, tenure.renew_command(lease)))
        finally:
            tenure.renewals_count_from = monotonic()
        longest = longest_lease(reply)
        if longest is None or longest >= lease:
            break
        lease = longest
        tenure.lease = min(tenure.lease, longest)
    if error_code(reply) in DENIALS:
        raise lost(verb, tenure.key, reply)
    if isinstance(reply, ResponseError):
        raise refused(reply, tenure.key)
    tenure.note_lease(sent, lease)


async def guarded(holding: Holding, command: Command, call: Call) -> Any:
    """Run a command if the lock is held, also by the server's account. LockLostError if it is not.

    If the server denies the tenure, it is renewed first: a server in quarantine restores it.
    """
    tenure, verb = holding.tenures[0], "guard a command with"
    request = call.request(tenure.key, ("LOCK.GUARD", tenure.key, tenure.token, *command))

    def make(now: float) -> Exchange:
        if not holding.held:
            raise lost(verb, tenure.key)
        return request(now)._replace(is_repeatable=False)

    _, [reply, *_] = await call.ask(make)
    if error_code(reply) == "FENCED":
        await renew(tenure, tenure.lease, call, verb)
        _, [reply, *_] = await call.ask(make)
    if error_code(reply) == "FENCED":
        raise lost(verb, tenure.key, reply)
    return reply


async def query(key: bytes, command: Command, call: Call) -> Any:
    """Send a command that changes nothing, and return its reply."""
    return (await call.ask(call.request(key, command))).replies[0]
