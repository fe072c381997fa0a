"""The requests of a lock to a server, the same for threads and for asyncio: see clients/README.md.

A request may be sent twice: when its reply is lost, the client does not know whether the server has carried it out. So each
acquisition names the count of holds that it leads to, and each other request the fencing token of its tenure.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, Callable

from redis.exceptions import AuthenticationError, ResponseError

from ._runtime import Runtime
from ._tenure import Holding, Request, Tenure
from ._wire import DENIALS, FOREVER, NETWORK_ERRORS, Address, Command, NotSent, back_off, lease_end, millis
from .errors import UnreachableError, UnreplicatedError, lock_error, lost, refused

#: The length of a slice in seconds. A long wait is a series of requests, and each of them waits for one slice.
SLICE = 10.0
#: The milliseconds for which a waiter keeps its queue position between two slices, or while it reconnects.
KEEP = 5000
#: The longest lease of a grant that is not confirmed yet, in milliseconds.
SHORT_LEASE = 3000
#: How long a caller that leaves waits for the release of a lock that may have been granted, in seconds.
GIVE_UP_LIMIT = 0.2
#: How long after the wait limit a reply may come, in seconds.
_GRACE = 0.06
#: The time for the reply to the last attempt, in seconds.
_SHORTEST = 0.05


class Call:
    """One call of the program: how long it may take, and whether a server has answered.

    `limit` is the wait limit in seconds. With 0 the call does not wait, and with None it waits without limit.
    """

    def __init__(self, runtime: Runtime, patience: float, response_limit: float, limit: float | None = 0) -> None:
        now = monotonic()
        self.runtime, self.patience, self._response_limit = runtime, patience, response_limit
        self.waits = limit != 0
        self.wait_until = FOREVER if limit is None else now + limit
        self.until = FOREVER  # after this time the call cannot succeed
        self.answered = False
        self._heard_at = now  # for a call that waits, each answer starts the patience again

    def is_late(self) -> bool:
        return monotonic() >= self.wait_until

    async def wait_for_turn(self, holding: Holding, turn: Any) -> None:
        """Wait until only this caller may change the count of holds. UnreachableError if the previous caller gets no answer."""
        turn.clear()
        while not self.runtime.has_turn(holding.turns, turn, 1):
            left = self._end(None, 0.0) - monotonic()
            if left <= 0:
                raise UnreachableError("no server answers what another caller asks about this lock")
            await self.runtime.wait_for(turn, left)
            turn.clear()

    async def ask(self, requests: list[Request], end: float | None = None, extra: float = 0.0) -> None:
        """Send requests, one pipeline for each node, until each has an answer. UnreachableError if no server answers.

        A reply may take ``extra`` seconds longer. ``end`` is when to stop asking, instead of at the end of the patience.
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
        except (AuthenticationError, ResponseError) as error:  # the error comes from opening a connection
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
        """When to stop asking if no server answers."""
        end = min(self._heard_at + self.patience + extra, self.until) if end is None else end
        return min(end, max(self.wait_until, monotonic())) if self.waits else end

    def lost(self, holding: Holding, verb: str, key: bytes, reply: Any = None) -> Exception:
        """The error for a loss that this call finds. The program gets the lost signal too."""
        self.runtime.lose(holding)
        return lost(verb, key, reply)

    async def give_up(self, requests: list[Request], error: BaseException | None, patience: float) -> None:
        """Release locks that may have been granted. ``error`` is the reason.

        The caller waits for the replies for at most 200 ms, or not at all if it is a cancelled task. The requests
        are then repeated in the background, until the patience is over. A lock that cannot be given back ends with
        its lease. A patience of at most 200 ms means that the same owner may soon acquire the lock again, and that a
        late release would end the new tenure. Then the requests are not repeated in the background, and a cancelled
        task waits, too.
        """
        if not requests or isinstance(error, GeneratorExit):  # the event loop has ended
            return
        is_awaited = patience <= GIVE_UP_LIMIT
        limit = _SHORTEST if isinstance(error, UnreachableError) else GIVE_UP_LIMIT
        if self.waits:
            limit = max(_SHORTEST, min(limit, self.wait_until + 0.19 - monotonic()))
        patience = limit - _SHORTEST if is_awaited else patience  # the last attempt begins when the patience is over
        giving_up = self.runtime.start(Call(self.runtime, patience, self._response_limit).ask(requests))
        is_interrupted = error is not None and not isinstance(error, Exception)
        if is_awaited:
            await self.runtime.wait(giving_up, 2.0)  # on a busy machine, the last attempt may take longer
        elif not self.runtime.is_asynchronous or not is_interrupted:
            await self.runtime.wait(giving_up, limit)


class Acquisition:
    """One acquisition of all keys of a holding, or one more hold. A caller that leaves releases the keys that it may hold.

    `new_owner` makes another owner. None means that the owner must not change.
    """

    def __init__(self, lock: Any, call: Call, holding: Holding, new_owner: Callable[[], bytes] | None) -> None:
        self._lock, self._call, self._holding, self._new_owner = lock, call, holding, new_owner
        self._holds = holding.holds + 1  # the count of holds if the acquisition succeeds
        for tenure in holding.tenures:
            tenure.is_pending = False

    async def run(self) -> bool:
        """Acquire within the call's wait limit. False if a lock is still busy at the limit.

        LockLostError if a key was lost before all were held. A wait notices the loss at the end of a slice.
        """
        try:
            is_held = await self._run()
        except BaseException as error:
            await self._give_back(error)
            if isinstance(error, UnreachableError) and self._call.answered and self._call.is_late():
                return False
            raise
        if not is_held:
            await self._give_back()
        return is_held

    async def _run(self) -> bool:
        tenures = self._holding.tenures
        has_several = len(tenures) > 1
        are_granted = await self._try(tenures)
        if not are_granted and not self._call.waits:
            return False
        if not are_granted and has_several:
            await self._give_back()
            tenures = self._holding.tenures = [Tenure(tenure.key, tenure.kind) for tenure in tenures]
            if self._new_owner is not None:  # a late release of the old owner must not end a new grant
                self._holding.owner = self._new_owner()
        for tenure in tenures:
            if not (are_granted or (has_several and await self._try([tenure])) or await self._wait(tenure)):
                return False
            self._holding.holds = self._holds
            if has_several:  # renew this key during the wait for the next key
                self._call.runtime.watch(self._holding)
            if not self._holding.held:
                raise lost("acquire", tenure.key)
        return True

    async def _give_back(self, error: BaseException | None = None) -> None:
        requests = []
        for tenure in self._holding.tenures:
            if tenure.is_pending:
                tenure.is_pending = False
                command = ("LOCK.RELEASE", tenure.key, self._holding.owner, "HOLDS", self._holds - 1)
                requests.append(Request(tenure.key, command))
        # A late release must not end the next tenure of the same owner. So it is repeated for long only if the owner
        # is not used again.
        is_safe = self._new_owner is not None and self._holds == 1
        await self._call.give_up(requests, error, self._call.patience if is_safe else GIVE_UP_LIMIT)

    async def _try(self, tenures: list[Tenure], end: float | None = None) -> bool:
        requests = await self._ask(tenures, self._holding.acquire_command, end)
        return all([r.reply is not None and await self._accept(t, r) for t, r in zip(tenures, requests)])

    async def _wait(self, tenure: Tenure) -> bool:
        """Wait in the server's queue. While all waiting connections are in use, try again and again instead."""
        call, runtime, pause = self._call, self._call.runtime, 0.05
        turns, most = runtime.turns, self._lock.waiting_connections
        turn = runtime.enter_turns(turns)
        try:
            while not call.is_late():
                if not self._holding.held:
                    raise lost("acquire", tenure.key)
                turn.clear()
                if runtime.has_turn(turns, turn, most):
                    [request] = await self._ask([tenure], self._slice_command, call.wait_until, SLICE)
                    if request.reply is not None and await self._accept(tenure, request, is_confirmed=False):
                        return True
                    if request.reply is None and not tenure.is_pending:  # this was the last slice
                        return False
                    continue
                await runtime.wait_for(turn, max(0.0, min(pause, call.wait_until - monotonic())))
                if not runtime.has_turn(turns, turn, most):
                    pause = min(1.0, pause * 2)
                    if await self._try([tenure], call.wait_until):
                        return True
            return False
        finally:
            runtime.leave_turns(turns, turn, most)

    def _slice_command(self, tenure: Tenure, holds: int, lease: int) -> Command:
        left = max(0.0, self._call.wait_until - monotonic())
        # Between two slices the caller notices the loss of other keys. So no slice is longer than their lease.
        most = min(SLICE, self._holding.lease / 1000) if self._holding.deadline < FOREVER else SLICE
        keep = ("KEEP", KEEP) if left > most else ()
        block = ("BLOCK", millis(min(most, left)), *keep)
        return self._holding.acquire_command(tenure, holds, min(lease, SHORT_LEASE), *block)

    async def _accept(self, tenure: Tenure, request: Request, is_confirmed: bool = True) -> bool:
        """Take a grant. A grant with a short lease, or a late grant, is confirmed first. False if its lease is over."""
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
        """Ask about keys. Note for each key whether the server may keep a grant or a queue position for the caller."""
        wait: tuple[Command, ...] = ()
        if self._lock.replicas is not None and not extra:
            count, within = self._lock.replicas
            extra, wait = within * len(tenures), (("WAIT", count, millis(within)),)
        holding, lease = self._holding, self._holding.limited(self._holding.lease)
        requests = [Request(tenure.key, make, wait, holding, tenure, self._holds, lease) for tenure in tenures]
        try:
            await self._call.ask(requests, end, extra)
        finally:
            for tenure, request in zip(tenures, requests):
                request.end()
                tenure.is_pending = tenure.is_pending or request.may_be_granted
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


async def release(holding: Holding, call: Call, is_owner_named: bool) -> None:
    """Give one hold of each key back. The tenures were held when the release began."""
    requests = [Request(tenure.key, holding.release_command(tenure)) for tenure in holding.tenures]
    call.until = max(tenure.deadline for tenure in holding.tenures)
    left = holding.holds - 1
    failure: Exception | None = None
    try:
        await call.ask(requests)
    except UnreachableError as error:
        failure = error
    except BaseException as interruption:
        # The caller cannot know whether the server has released the locks. So the release is repeated in the
        # background: otherwise the locks might stay held until their leases end.
        holding.holds = left
        unanswered = [request for request in requests if not request.is_answered]
        await call.give_up(unanswered, interruption, GIVE_UP_LIMIT if left or is_owner_named else call.patience)
        raise
    for request in requests:
        if request.code == "NOTHELD" and request.may_have_run and not left:
            continue  # an earlier attempt was carried out, but its reply was lost
        if request.code in DENIALS:
            raise call.lost(holding, "release", request.key, request.reply)
        if request.code and request.is_answered:
            failure = refused(request.reply, request.key)
    if failure is not None:
        raise failure
    holding.holds = left


async def renew(holding: Holding, call: Call, verb: str, leases: dict[Tenure, int] | None = None) -> None:
    """Give tenures leases in milliseconds, or the longest that the server accepts. The default is the holding's lease."""
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
    """Run a command if the lock is held. The server checks this too. LockLostError if the lock is not held.

    If the server does not know the tenure, renews the tenure and tries again: a server in quarantine restores it.
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
