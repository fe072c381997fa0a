"""The requests of a lock to a server. Threads and asyncio share this code. See clients/README.md.

When a reply is lost, the client does not know whether the server has executed the request. Then the client repeats the request.
So that no hold counts twice, each acquisition names the resulting count of holds, and each other request names the fencing
token of its tenure.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, Callable

from redis.exceptions import AuthenticationError, ResponseError

from ._runtime import Runtime, Turn
from ._tenure import Holding, Request, Tenure
from ._wire import DENIALS, FOREVER, NETWORK_ERRORS, Address, Command, NotSent, back_off, lease_end, millis
from .errors import UnreachableError, UnreplicatedError, lock_error, lost, refused

#: The length of a slice in seconds. A long wait is a series of requests, and each request waits for one slice.
SLICE = 10.0
#: How long the server keeps the queue position between two slices, or while the client reconnects, in milliseconds.
KEEP = 5000
#: The longest lease of a grant that the client has not confirmed, in milliseconds.
SHORT_LEASE = 3000
#: How long a caller that leaves waits for the release of a lock that may have been granted, in seconds.
GIVE_UP_LIMIT = 0.2
#: How long after the wait limit a reply may come, in seconds.
_GRACE = 0.06
#: The time for the reply to the last attempt, in seconds.
_SHORTEST = 0.05
#: The longest patience in seconds. A socket does not accept an infinite time limit.
_LONGEST = 1_000_000.0


class Call:
    """One call of the program: how long it may take, and whether a server has answered.

    `limit` is the wait limit in seconds. With 0 the call does not wait, and with None it waits without limit.
    """

    def __init__(self, runtime: Runtime, patience: float, response_limit: float, limit: float | None = 0) -> None:
        now = monotonic()
        self.runtime, self.patience = runtime, min(patience, _LONGEST)
        self._response_limit = min(response_limit, _LONGEST)
        self.waits = limit != 0
        self.wait_until = FOREVER if limit is None else now + limit
        self.until = FOREVER  # after this time the call fails
        self.answered = False
        self._heard_at = now  # for a call that waits, each answer starts the patience again

    def is_late(self) -> bool:
        return monotonic() >= self.wait_until

    async def wait_for(self, turn: Turn) -> None:
        """Wait until this caller may change the count of holds. UnreachableError if an earlier caller gets no answer."""
        while not turn.has_begun():
            left = self._end(None, 0.0) - monotonic()
            if left <= 0:
                raise UnreachableError("no server answers what another caller asks about this lock")
            await turn.wait(left)

    async def ask(self, requests: list[Request], end: float | None = None, extra: float = 0.0) -> None:
        """Send requests, one pipeline for each node, until each request has an answer. UnreachableError if no server answers.

        A reply may take ``extra`` seconds longer than the response limit. If ``end`` is given, the client repeats the requests
        until this time, and the patience does not count.
        """
        unanswered = requests
        while unanswered:
            cause: Any = None
            for node, group in self.runtime.by_node(unanswered):
                left = self._end(end, extra) + (_GRACE if self.waits else 0.0) - monotonic()
                limit = max(_SHORTEST, min(self._response_limit + extra, left))
                cause = await self._send(node, group, limit) or cause
            unanswered = [request for request in unanswered if not request.is_answered or request.shorten()]
            left = self._end(end, extra) - monotonic()
            if unanswered and left <= 0:
                cause = cause or unanswered[0].reply
                raise UnreachableError(f"no server answers: {cause}") from cause
            pause = min([left, *[back_off(request.failures) for request in unanswered]])
            for request in unanswered:
                request.failures += 1
            if unanswered and pause:
                await self.runtime.sleep(pause)

    async def _send(self, node: Address | None, requests: list[Request], limit: float) -> Exception | None:
        """Send requests to a node. Return the error if a reply is missing."""
        failure: Exception | None = None
        for request in requests:
            request.replies = ()
        try:
            await self.runtime.send(node, requests, limit)
        except (AuthenticationError, ResponseError) as error:  # the server has refused to open a connection
            raise refused(error, requests[0].key) from error
        except NETWORK_ERRORS as error:
            if not requests[0].is_repeatable and not isinstance(error, NotSent):
                raise UnreachableError(f"no reply, and the command may have run: {error}") from error
            failure = error
        if any(request.replies for request in requests):
            self.answered = True
            self._heard_at = monotonic() if self.waits else self._heard_at
        return failure

    def _end(self, end: float | None, extra: float) -> float:
        """The time until which the client repeats requests if no server answers."""
        end = min(self._heard_at + self.patience + extra, self.until) if end is None else end
        return min(end, max(self.wait_until, monotonic())) if self.waits else end

    def lost(self, holding: Holding, verb: str, key: bytes, reply: Any = None) -> Exception:
        """The error for a loss that this call finds. The program also gets the lost signal."""
        self.runtime.lose(holding)
        return lost(verb, key, reply)

    async def give_up(self, requests: list[Request], error: BaseException | None, is_owner_used_again: bool) -> None:
        """Release locks that may have been granted. ``error`` is the reason, or None.

        The caller waits for the replies for at most 200 ms. A cancelled task does not wait. Then the client repeats the
        requests in the background until the patience is over. A lock that the client cannot release ends with its lease.

        ``is_owner_used_again``: the same owner may soon acquire the lock again, and a late release would end the new tenure.
        So the client does not repeat the requests in the background, and even a cancelled task waits.
        """
        if not requests or isinstance(error, GeneratorExit):  # the event loop has closed
            return
        limit = _SHORTEST if isinstance(error, UnreachableError) else GIVE_UP_LIMIT
        if self.waits:
            limit = max(_SHORTEST, min(limit, self.wait_until + 0.19 - monotonic()))
        # The last attempt may take `_SHORTEST` seconds more than the patience.
        patience = limit - _SHORTEST if is_owner_used_again else self.patience
        giving_up = [  # a silent node delays no other node
            self.runtime.start(Call(self.runtime, patience, self._response_limit).ask(group))
            for _, group in self.runtime.by_node(requests)
        ]
        if is_owner_used_again:
            limit = 2.0  # on a busy machine, the last attempt may take longer
        elif self.runtime.is_asynchronous and not isinstance(error, (Exception, type(None))):
            return
        until, cancelled_again = monotonic() + limit, None
        for each in giving_up:
            while not each.done() and monotonic() < until:
                try:
                    await self.runtime.wait(each, until - monotonic())
                except asyncio.CancelledError as cancellation:
                    cancelled_again = cancellation
                    if not is_owner_used_again:
                        raise
        if cancelled_again is not None:
            raise cancelled_again


class Acquisition:
    """One acquisition of all keys of a holding. If the keys are already held, it acquires one more hold of each key.

    If the acquisition fails, it releases what the server may have granted.
    """

    def __init__(self, lock: Any, call: Call, holding: Holding) -> None:
        self._lock, self._call, self._holding = lock, call, holding
        self._holds = holding.holds + 1  # the count of holds if the acquisition succeeds
        for tenure in holding.tenures:
            tenure.is_pending = False

    async def run(self, waits: bool, keep: Callable[[], None] = lambda: None) -> bool:
        """Acquire one key after the other, within the call's wait limit. Return False if a key is still busy at the limit.

        If ``waits`` is False, try all keys in one pipeline instead. LockLostError if a key was lost before all keys were
        held. A wait for another key notices the loss when a slice ends. When all keys are held, call ``keep``. If ``keep``
        raises an error, release the keys.
        """
        try:
            is_held = await self._run(waits)
            if is_held:
                keep()
        except BaseException as error:
            await self._give_back(error)
            call = self._call
            if isinstance(error, UnreachableError) and call.waits and call.answered and call.is_late():
                return False
            raise
        if not is_held:
            await self._give_back()
        return is_held

    async def _run(self, waits: bool) -> bool:
        tenures = self._holding.tenures
        for group in [[tenure] for tenure in tenures] if waits else [tenures]:
            if not (await self._try(group) or (waits and await self._wait(group[0]))):
                return False
            self._holding.holds = self._holds
            if len(tenures) > 1:  # renew this key during the wait for the next key
                self._call.runtime.watch(self._holding)
            if not self._holding.held:
                raise lost("acquire", group[0].key)
        return True

    async def _give_back(self, error: BaseException | None = None) -> None:
        requests = []
        self._holding.holds, self._holding.is_over = self._holds - 1, self._holds == 1
        for tenure in self._holding.tenures:
            if tenure.is_pending or any(request.may_be_granted for request in tenure.requests):
                tenure.is_pending = False
                command = ("LOCK.RELEASE", tenure.key, self._holding.owner, "HOLDS", self._holds - 1)
                requests.append(Request(tenure.key, command))
        await self._call.give_up(requests, error, self._lock._owner is not None or self._holds > 1)

    async def _try(self, tenures: list[Tenure], end: float | None = None) -> bool:
        requests = await self._ask(tenures, self._holding.acquire_command, end)
        return all([r.reply is not None and await self._accept(t, r) for t, r in zip(tenures, requests)])

    async def _wait(self, tenure: Tenure) -> bool:
        """Wait in the server's queue. While all waiting connections are in use, poll instead."""
        call, runtime, pause = self._call, self._call.runtime, 0.05
        with Turn(runtime, runtime.turns, self._lock.waiting_connections) as turn:
            while not call.is_late():
                if not self._holding.held:
                    raise lost("acquire", tenure.key)
                if turn.has_begun():
                    [request] = await self._ask([tenure], self._slice_command, call.wait_until, SLICE)
                    if request.reply is not None and await self._accept(tenure, request, is_confirmed=False):
                        return True
                    if request.reply is None and not tenure.is_pending:  # this was the last slice
                        return False
                elif not await turn.wait(min(pause, call.wait_until - monotonic())):
                    pause = min(1.0, pause * 2)
                    if await self._try([tenure], call.wait_until):
                        return True
            return False

    def _slice_command(self, tenure: Tenure, holds: int, lease: int) -> Command:
        left = max(0.0, self._call.wait_until - monotonic())
        # Only between two slices, the caller notices the loss of a key that it holds. So no slice is longer than the lease.
        most = min(SLICE, self._holding.lease / 1000) if self._holding.deadline < FOREVER else SLICE
        keep = ("KEEP", KEEP) if left > most else ()
        block = ("BLOCK", millis(min(most, left)), *keep)
        return self._holding.acquire_command(tenure, holds, min(lease, SHORT_LEASE), *block)

    async def _accept(self, tenure: Tenure, request: Request, is_confirmed: bool = True) -> bool:
        """Store a grant. Return False if its lease is over. If the grant has a short lease, or came late, first renew it."""
        holding = self._holding
        tenure.token, _, lease = map(int, request.reply)
        holding.lease = holding.lease or lease
        request.leases.append(lease)
        if not is_confirmed or monotonic() >= lease_end(request.sent, lease):
            [request] = await self._ask([tenure], holding.renew_command)
            if request.code:
                return False
        holding.note_lease(tenure, request)
        holding.granted_at = request.sent
        wanted, reached = (self._lock.replicas or (0, 0))[0], request.replies[-1]
        if wanted and reached < wanted:
            what = f"{reached} of {wanted} replicas have confirmed the grant in time, so it was given back"
            raise lock_error(UnreplicatedError, what, tenure.key)
        if monotonic() < tenure.deadline:
            return True
        if self._holds == 1:
            tenure.renew_at = tenure.deadline = FOREVER
        await self._call.runtime.sleep(0.05)
        return False

    async def _ask(
        self, tenures: list[Tenure], make: Callable[..., Command], end: float | None = None, extra: float = 0.0
    ) -> list[Request]:
        """Send a request for each key. Set `is_pending` if the server may keep a grant or a queue position for the key."""
        wait: tuple[Command, ...] = ()
        if self._lock.replicas is not None and not extra:
            count, within = self._lock.replicas
            extra, wait = within * len(tenures), (("WAIT", count, millis(within)),)
        holding, lease = self._holding, self._holding.limited(self._holding.lease)
        is_wait, holds = extra > 0 and not wait, self._holds
        requests = [Request(tenure.key, make, wait, holding, tenure, holds, lease, is_wait) for tenure in tenures]
        try:
            await self._call.ask(requests, end, extra)
        finally:
            for tenure, request in zip(tenures, requests):
                tenure.is_pending = tenure.is_pending or request.may_be_granted
                request.end()
        failure: Exception | None = None
        for tenure, request in zip(tenures, requests):
            error = next((reply for reply in request.replies if isinstance(reply, ResponseError)), None)
            if request.reply is None:
                tenure.is_pending = "KEEP" in request.command
            if request.code in DENIALS and (request.command[0] == "LOCK.RENEW" or self._holds > 1):
                tenure.is_pending = False
                if self._holds > 1:
                    failure = self._call.lost(holding, "acquire once more", tenure.key, error)
            elif error is not None:
                failure = refused(error, tenure.key)
        if failure is not None:
            raise failure
        return requests


async def release(holding: Holding, call: Call, is_owner_named: bool, forget: Callable[[], None]) -> None:
    """Release one hold of each key. The tenures must be held. Before the release of the last hold, call ``forget``."""
    requests = [Request(tenure.key, holding.release_command(tenure)) for tenure in holding.tenures]
    call.until = max(tenure.deadline for tenure in holding.tenures)
    left = holding.holds - 1
    failure: Exception | None = None
    try:
        if not left:  # forget first, so that a renewal after the release does not report a loss
            forget()
        await call.ask(requests)
    except UnreachableError as error:
        failure = error
    except BaseException as interruption:
        # The caller cannot know whether the server has released the locks. The client repeats the release in the
        # background, so that the locks do not stay held until their leases end.
        holding.holds = left
        unanswered = [request for request in requests if not request.is_answered]
        await call.give_up(unanswered, interruption, is_owner_named or left > 0)
        raise
    for request in requests:
        if request.code == "NOTHELD" and request.lost_replies and not left:
            continue  # the server has executed an earlier attempt, and its reply was lost
        if request.code in DENIALS:
            raise call.lost(holding, "release", request.key, request.reply)
        if request.code and request.is_answered:
            failure = refused(request.reply, request.key)
    if failure is not None:
        raise failure
    holding.holds = left


async def renew(holding: Holding, call: Call, verb: str, leases: dict[Tenure, int] | None = None) -> None:
    """Renew tenures with these leases, in milliseconds. By default, renew all tenures with the holding's lease.

    If the server refuses a lease as too long, use the longest lease that the server accepts.
    """
    leases = leases or dict.fromkeys(holding.tenures, holding.lease)
    requests = [holding.renewal(tenure, lease) for tenure, lease in leases.items()]
    try:
        await call.ask(requests)
        for request in requests:
            if request.code in DENIALS or not holding.held:
                raise call.lost(holding, verb, request.key, request.reply if request.code else None)
            if request.code:
                raise refused(request.reply, request.key)
            holding.note_lease(request.tenure, request)
    finally:
        for request in requests:
            request.end()
        call.runtime.watch(holding)


async def guarded(holding: Holding, command: Command, call: Call) -> Any:
    """Run a command if the server has the tenure. LockLostError if the lock is lost.

    After FENCED, renew the tenure once and repeat the command: a server in quarantine may have forgotten the tenure.
    """
    tenure, verb = holding.tenures[0], "guard a command with"
    request = Request(tenure.key, ("LOCK.GUARD", tenure.key, tenure.token, *command), is_repeatable=False)
    await call.ask([request])
    if request.code == "FENCED" and holding.held:
        await renew(holding, call, verb)
        request = Request(tenure.key, request.command, is_repeatable=False)
        await call.ask([request])
    if request.code == "FENCED":
        raise call.lost(holding, verb, tenure.key, request.reply)
    return request.reply
