"""The requests of a lock to a server, the same for threads and for asyncio: see clients/README.md.

A request may be sent twice: when its reply is lost, the client does not know whether the server has carried it out. So each
acquisition names the count of holds that it leads to, and each other request the fencing token of its tenure.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any, Callable

from redis.exceptions import AuthenticationError, ResponseError

from ._runtime import Request, Runtime
from ._tenure import Holding, Tenure
from ._wire import (
    DENIALS,
    FOREVER,
    NETWORK_ERRORS,
    Command,
    NotSent,
    back_off,
    error_code,
    lease_end,
    longest_lease,
    millis,
)
from .errors import UnreachableError, UnreplicatedError, lock_error, lost, refused

#: The server is asked to wait for so many seconds at a time.
SLICE = 10.0
#: Between two slices, and while it reconnects, a waiter keeps its place for so many milliseconds.
KEEP = 5000
#: The longest lease of a grant that is not confirmed yet, in milliseconds.
SHORT_LEASE = 3000
#: How long a caller that leaves waits until what may have been granted is given back, in seconds.
GIVE_UP_LIMIT = 0.2
#: How long after the wait limit a reply may come, in seconds.
_GRACE = 0.06


class Call:
    """One call of the program: how long it may take, and whether a server has answered.

    `limit` is the wait limit in seconds. 0 means that it does not wait, and None that it waits without limit.
    """

    def __init__(self, runtime: Runtime, patience: float, response_limit: float, limit: float | None = 0) -> None:
        now = monotonic()
        self.runtime, self.patience, self._response_limit = runtime, patience, response_limit
        self.waits = limit != 0
        self.wait_until = FOREVER if limit is None else now + limit
        self.until = FOREVER  # the call cannot succeed any more
        self.answered = False
        self._heard_at = now  # for a call that waits, each answer starts the patience again

    def is_late(self) -> bool:
        return monotonic() >= self.wait_until

    async def ask(
        self, requests: list[Request], end: float | None = None, extra: float = 0.0, is_repeatable: bool = True
    ) -> None:
        """Send requests until each has an answer: those for one node in one pipeline. UnreachableError if no server answers.

        A reply may take ``extra`` seconds longer. ``end`` is when to stop asking, instead of at the end of the patience.
        """
        failures = 0
        while True:
            began = monotonic()
            cause: Any = None
            for node, group in self.runtime.by_node(requests, failures):
                left = (self._end(extra) if end is None else end) + (_GRACE if self.waits else 0.0) - monotonic()
                try:
                    await self.runtime.send(node, group, max(0.05, min(self._response_limit + extra, left)))
                except (AuthenticationError, ResponseError) as error:  # the error comes from opening a connection
                    raise refused(error, group[0].key) from error
                except NETWORK_ERRORS as error:
                    cause = error
                    if not is_repeatable and not isinstance(error, NotSent):
                        raise UnreachableError(f"no reply, and the command may have run: {error}") from error
                else:
                    self.answered = True
                    if self.waits:
                        self._heard_at = monotonic()
            requests = [request for request in requests if not request.is_answered]
            if not requests:
                return
            if monotonic() - began > 1:
                failures = min(failures, 1)
            left = (self._end(extra) if end is None else end) - monotonic()
            if left <= 0:
                cause = cause or requests[0].reply
                raise UnreachableError(f"no server answers: {cause}") from cause
            pause = min(left, back_off(failures))
            failures += 1
            if pause:
                await self.runtime.sleep(pause)

    def _end(self, extra: float) -> float:
        """When to stop asking if no server answers."""
        end = min(self._heard_at + self.patience + extra, self.until)
        return min(end, max(self.wait_until, monotonic())) if self.waits else end

    def lost(self, holding: Holding, verb: str, key: bytes, reply: Any = None) -> Exception:
        """The error for a loss that this call finds. The program gets the lost signal too."""
        self.runtime.lose(holding)
        return lost(verb, key, reply)

    async def give_up(self, requests: list[Request], error: BaseException | None, patience: float) -> None:
        """Give back what may have been granted. ``error`` is the reason.

        The caller waits for that for at most 200 ms. A cancelled task does not wait. It goes on in the
        background for the patience. What cannot be given back ends with its lease. If the patience is not
        longer than 200 ms, the owner may acquire again what is given back now. Then a cancelled task waits, too.
        """
        if not requests or isinstance(error, GeneratorExit):  # the event loop has ended
            return
        limit = 0.05 if isinstance(error, UnreachableError) else GIVE_UP_LIMIT
        if self.waits:
            limit = max(0.05, min(limit, self.wait_until + 0.19 - monotonic()))
        giving_up = self.runtime.start(Call(self.runtime, patience, self._response_limit).ask(requests))
        is_interrupted = error is not None and not isinstance(error, Exception)
        if self.runtime.waits_when_interrupted or not is_interrupted or patience <= GIVE_UP_LIMIT:
            await self.runtime.wait(giving_up, limit)


class Acquisition:
    """One acquisition of one key, or of several as one lock. If the caller leaves, what may have been granted is given back.

    `new_owner` makes another owner. None means that the owner must not change.
    """

    def __init__(
        self, lock: Any, call: Call, holding: Holding, tenures: list[Tenure], new_owner: Callable[[], bytes] | None
    ) -> None:
        self._lock, self._call, self._holding = lock, call, holding
        self._tenures, self._new_owner = tenures, new_owner
        self._holds = tenures[0].holds + 1  # true if this request succeeds
        self._is_last_slice = False

    async def run(self) -> bool:
        """Acquire within the call's wait limit. False if a lock is still busy at the limit.

        LockLostError if a key was lost before all were held. A wait notices it at the end of a slice.
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
        has_several = len(self._tenures) > 1
        are_granted = has_several and await self._try(self._tenures)
        if has_several and not are_granted:
            if not self._call.waits:
                return False
            await self._give_back()
            for tenure in self._tenures:
                if self._new_owner is not None:  # a release that arrives late must not end what is granted from now on
                    tenure.owner = self._new_owner()
        for tenure in self._tenures:
            if not (are_granted or await self._try([tenure]) or await self._wait(tenure)):
                return False
            tenure.holds = self._holds
            if tenure.holds == 1:
                self._holding.tenures.append(tenure)
                self._holding.schedule(tenure)
            if has_several:  # it is renewed while the next key is waited for
                self._call.runtime.watch(self._holding)
            if not self._holding.held:
                raise lost("acquire", tenure.key)
        return True

    async def _give_back(self, error: BaseException | None = None) -> None:
        requests = []
        for tenure in self._tenures:
            if tenure.is_pending:
                tenure.is_pending = False
                requests.append(Request(tenure.key, tenure.give_up_command(self._holds - 1)))
        # A release that arrives late must not end what the same owner acquires next.
        is_safe = self._new_owner is not None and self._holds == 1
        await self._call.give_up(requests, error, self._call.patience if is_safe else GIVE_UP_LIMIT)

    async def _try(self, tenures: list[Tenure], end: float | None = None) -> bool:
        requests = await self._ask(tenures, lambda tenure, _: tenure.acquire_command(tenure.lease, self._holds), end)
        return all([r.reply is not None and await self._accept(t, r) for t, r in zip(tenures, requests)])

    async def _wait(self, tenure: Tenure) -> bool:
        """Wait in the server's queue. While all waiting connections are in use, try again and again instead."""
        runtime = self._call.runtime
        turn, most = runtime.enter_turns(), self._lock.waiting_connections
        try:
            return await self._wait_for_turn(tenure, turn, most)
        finally:
            runtime.leave_turns(turn, most)

    async def _wait_for_turn(self, tenure: Tenure, turn: Any, most: int) -> bool:
        call, runtime, pause = self._call, self._call.runtime, 0.05
        while call.waits and not call.is_late():
            if self._holding.tenures and not self._holding.held:
                raise lost("acquire", tenure.key)
            turn.clear()
            if runtime.has_turn(turn, most):
                [request] = await self._ask([tenure], self._slice_command, call.wait_until, SLICE)
                if request.reply is None:
                    tenure.is_pending = not self._is_last_slice
                    if self._is_last_slice:
                        return False
                elif await self._accept(tenure, request, is_confirmed=False):
                    return True
                continue
            await runtime.wait_for(turn, max(0.0, min(pause, call.wait_until - monotonic())))
            if not runtime.has_turn(turn, most):
                pause = min(1.0, pause * 2)
                if await self._try([tenure], call.wait_until):
                    return True
        return False

    def _slice_command(self, tenure: Tenure, now: float) -> Command:
        left = max(0.0, self._call.wait_until - now)
        # A loss of the keys that are granted is noticed between two slices.
        most = min([SLICE, *[granted.lease / 1000 for granted in self._holding.tenures]])
        self._is_last_slice = left <= most
        keep = () if self._is_last_slice else ("KEEP", KEEP)
        lease = min(tenure.lease, SHORT_LEASE)
        return tenure.acquire_command(lease, self._holds, "BLOCK", millis(min(most, left)), *keep)

    def _confirm_command(self, tenure: Tenure, _: float) -> Command:
        return tenure.renew_command(tenure.lease, self._holds)

    async def _accept(self, tenure: Tenure, request: Request, is_confirmed: bool = True) -> bool:
        """Take a grant. A grant with a short lease, or one that came late, is confirmed. False if it is over."""
        tenure.token, _, lease = map(int, request.reply)
        tenure.lease = tenure.lease or lease
        if not is_confirmed or monotonic() >= lease_end(request.sent, tenure.lease):
            [request] = await self._ask([tenure], self._confirm_command)
            if request.code:
                return False
        tenure.granted_at, tenure.deadline = request.sent, lease_end(request.sent, tenure.lease)
        wanted, reached = (self._lock.replicas or (0, 0))[0], request.replies[-1]
        if wanted and reached < wanted:
            what = f"{reached} of {wanted} replicas have confirmed the grant in time, so it was given back"
            raise lock_error(UnreplicatedError, what, tenure.key)
        if monotonic() < tenure.deadline:
            return True
        await self._call.runtime.sleep(0.05)
        return False

    async def _ask(
        self,
        tenures: list[Tenure],
        command: Callable[[Tenure, float], Command],
        end: float | None = None,
        extra: float = 0.0,
    ) -> list[Request]:
        """Ask about keys. If the server refuses their lease, use the longest one that it accepts."""
        wait: tuple[Command, ...] = ()
        if self._lock.replicas is not None and not extra:
            count, within = self._lock.replicas
            extra, wait = within * len(tenures), (("WAIT", count, millis(within)),)

        def made(tenure: Tenure, now: float) -> tuple[Command, ...]:
            return (command(tenure, now), *wait)

        were_pending = [tenure.is_pending for tenure in tenures]
        for _ in range(2):
            requests = [Request(tenure.key, make=partial(made, tenure)) for tenure in tenures]
            try:
                await self._call.ask(requests, end, extra)
            finally:
                for tenure, request in zip(tenures, requests):
                    tenure.is_pending = tenure.is_pending or request.may_be_granted
            are_shorter = [shorten(tenure, request.reply) for tenure, request in zip(tenures, requests)]
            if not any(are_shorter):
                break
        failure: Exception | None = None
        for tenure, request, was_pending in zip(tenures, requests, were_pending):
            error = next((reply for reply in request.replies if isinstance(reply, ResponseError)), None)
            if request.reply is None:
                tenure.is_pending = was_pending
            if error_code(error) in DENIALS and (command == self._confirm_command or self._holds > 1):
                tenure.is_pending = False
                if self._holds > 1:
                    failure = self._call.lost(self._holding, "acquire once more", tenure.key, error)
            elif error is not None:
                failure = refused(error, tenure.key)
        if failure is not None:
            raise failure
        return requests


def shorten(tenure: Tenure, reply: Any) -> bool:
    """If the server refuses the lease, use the longest one that it accepts. False if it names none."""
    longest = longest_lease(reply)
    if longest is None or longest >= tenure.lease:
        return False
    tenure.lease = longest
    return True


async def release(holding: Holding, call: Call, is_owner_named: bool) -> None:
    """Give one hold of each key back. The tenures were held when the release began."""
    requests = [Request(tenure.key, tenure.release_command()) for tenure in holding.tenures]
    call.until = max(tenure.deadline for tenure in holding.tenures)
    left = holding.tenures[0].holds - 1
    failure: Exception | None = None
    try:
        await call.ask(requests)
    except UnreachableError as error:
        failure = error
    except BaseException as interruption:
        # The caller cannot know whether the release was carried out. So it goes on in the background, and
        # the locks do not wait for the end of their leases.
        for tenure in holding.tenures:
            tenure.holds = left
        unanswered = [request for request in requests if not request.is_answered]
        await call.give_up(unanswered, interruption, GIVE_UP_LIMIT if left or is_owner_named else call.patience)
        raise
    for tenure, request in zip(holding.tenures, requests):
        if not request.is_answered:
            continue
        if not request.code or (request.code == "NOTHELD" and request.may_have_run and not left):
            tenure.holds = left  # after NOTHELD: an earlier attempt was carried out, but its reply was lost
        elif request.code in DENIALS:
            raise call.lost(holding, "release", tenure.key, request.reply)
        else:
            failure = refused(request.reply, tenure.key)
    if failure is not None:
        raise failure


async def renew(holding: Holding, tenure: Tenure, lease: int, call: Call, verb: str) -> None:
    """Give a tenure a lease in milliseconds, from now, or the longest that the server accepts."""
    while True:
        lease = holding.limited(lease, monotonic())
        tenure.expect_lease(lease)
        request = Request(tenure.key, tenure.renew_command(lease, tenure.holds))
        call.runtime.begin_renewal(tenure, request, lease)
        try:
            await call.ask([request])
        finally:
            tenure.renewals.remove(request)
            call.runtime.watch(holding)
        longest = longest_lease(request.reply)
        if longest is None or longest >= lease:
            break
        lease = longest
        tenure.lease = min(tenure.lease, longest)
    if request.code in DENIALS:
        raise call.lost(holding, verb, tenure.key, request.reply)
    if request.code:
        raise refused(request.reply, tenure.key)
    holding.note_lease(tenure, request)
    call.runtime.watch(holding)


async def guarded(holding: Holding, command: Command, call: Call) -> Any:
    """Run a command if the lock is held, which the server checks too. LockLostError if it is not.

    If the server denies the tenure, it is renewed first: a server in quarantine restores it.
    """
    tenure, verb = holding.tenures[0], "guard a command with"

    def make(_: float) -> tuple[Command, ...]:
        if not holding.held:
            raise call.lost(holding, verb, tenure.key)
        return (("LOCK.GUARD", tenure.key, tenure.token, *command),)

    request = Request(tenure.key, make=make)
    await call.ask([request], is_repeatable=False)
    if request.code == "FENCED":
        await renew(holding, tenure, tenure.lease, call, verb)
        await call.ask([request], is_repeatable=False)
    if request.code == "FENCED":
        raise call.lost(holding, verb, tenure.key, request.reply)
    return request.reply
