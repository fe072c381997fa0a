"""The calls of the program, as requests to the servers. Threads and asyncio share this code. See clients/README.md.

When a reply is lost, the client does not know whether the server has executed the request. Then the client repeats the request.
So that no hold counts twice, each acquisition, and each release after a failed acquisition, names the resulting count of holds.
Each other request names the fencing token of its tenure.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from time import monotonic
from typing import Any, Callable, TypeVar

from redis._parsers import BaseParser
from redis.exceptions import AuthenticationError, LockError, ResponseError

from ._runtime import SHORTEST, Turn
from ._tenure import NOTHING, WRONG_KIND, Holding, Request, Tenure, kind_words
from ._wire import DENIALS, FOREVER, Address, Broken, Command, NotSent, back_off, decoded, lease_end, millis, pack
from .errors import LockLostError, LockRefusedError, UnreachableError, UnreplicatedError, lock_error, lost, refused

L = TypeVar("L", bound=Any)
#: The length of a slice in seconds. A long wait is a series of requests, and each request waits for one slice.
SLICE = 10.0
#: How long the server keeps the queue position between two slices, or while the client reconnects, in milliseconds.
KEEP = 5000
#: The longest lease of a grant that the client has not confirmed, in milliseconds.
SHORT_LEASE = 3000
#: If a caller leaves, and the server may have granted the lock, the caller waits this long for the release, in seconds.
GIVE_UP_LIMIT = 0.2
#: How long after the wait limit a reply may come, in seconds.
_GRACE = 0.06
#: The largest number of slots.
_MOST_SLOTS = 1_000_000
#: The longest time limit in seconds. A socket does not accept an infinite time limit.
_LONGEST = 1_000_000.0


class Call:
    """One call of the program: how long it may take, and whether a server has answered.

    `limit` is the wait limit in seconds. With 0 the call does not wait, and with None it waits without limit.
    """

    def __init__(self, lock: Any, limit: float | None = 0, patience: float | None = None) -> None:
        self.lock, self.runtime = lock, lock._runtime
        self._patience = min(lock.patience if patience is None else patience, _LONGEST)
        self._response_limit = min(lock.response_limit, _LONGEST)
        #: The patience starts again with each answer to a call that may wait. For each call, it starts again with an answer to
        #: another call while all connections are in use.
        self._heard_at = monotonic()
        self.waits = limit != 0
        self.until = self._heard_at + limit if limit else FOREVER
        self.answered = False

    def left(self) -> float:
        """How many seconds are left until the wait limit, or until the lease ends if the call is a release."""
        return self.until - monotonic()

    async def wait_for(self, turn: Turn, patience: float, node: Address | None = None) -> None:
        """Wait for the turn. UnreachableError if no server answers this call, and the node answers no other call."""
        while not turn.has_begun():
            heard_at = self.runtime.heard_at.get(node, 0.0)
            if heard_at > self._heard_at:
                self._heard_at, self.answered = heard_at, True
            left = min(self._heard_at + patience, self.until) - monotonic()
            if left <= 0:
                raise UnreachableError("no server answers the earlier calls of this client")
            await turn.wait(min(left, _LONGEST))

    async def ask(self, requests: list[Request], extra: float = 0.0, patience: float | None = None) -> None:
        """Send requests, in one pipeline for each node, until each request has an answer. UnreachableError if no server answers.

        The client asks all nodes at the same time, so that a silent node delays no other node. A reply may take ``extra``
        seconds longer than the response limit. ``patience`` replaces the patience of the call.
        """
        patience = (self._patience if patience is None else patience) + extra
        groups = [group for _, group in self.runtime.by_node(requests)]
        if len(groups) == 1:
            return await self._ask(requests, extra, patience)
        asked: list[Any] = []
        try:
            asked = [self.runtime.start(self._ask(group, extra, patience)) for group in groups]
            for each in asked:
                await self.runtime.wait(each, _LONGEST)
        except BaseException:
            for request in requests:
                request.is_cancelled = True
            for each in asked:
                each.cancel()
            raise
        for each in asked:
            each.result()

    async def _ask(self, requests: list[Request], extra: float, patience: float) -> None:
        unanswered = requests
        reasons: dict[str, None] = {}  # an earlier reason may say more than a missing reply to the last attempt
        while True:
            for node, group in self.runtime.by_node(unanswered):
                with self.runtime.turn(node, group[0]) as turn:
                    await self.wait_for(turn, patience, node)
                    left = min(self._heard_at + patience, self.until) + (_GRACE if self.waits else 0.0) - monotonic()
                    limit = max(SHORTEST, min(self._response_limit + extra, left))
                    await self._send(node, group, limit, reasons)
            unanswered = [request for request in unanswered if not request.is_answered or request.shorten()]
            if not unanswered:
                return
            left = min(self._heard_at + patience, self.until) - monotonic()
            if left <= 0:
                raise UnreachableError(f"no server answers: {'; '.join(reasons)}")
            pause = min([left, *[back_off(request.failures) for request in unanswered]])
            for request in unanswered:
                request.failures += 1
            if pause:
                await self.runtime.sleep(pause)

    async def _send(
        self, node: Address | None, requests: list[Request], limit: float, reasons: dict[str, None]
    ) -> None:
        """Send requests to a node. If a reply is missing, or another attempt may succeed, add the reason to `reasons`."""
        for request in requests:
            request.replies = ()
        try:
            await self.runtime.send(node, requests, limit)
        except (AuthenticationError, ResponseError) as error:  # the server has refused to open a connection
            raise refused(error, requests[0].key) from error
        except Broken as error:
            if not requests[0].is_repeatable and not isinstance(error, NotSent):
                raise UnreachableError(f"no reply, and the command may have run: {error}") from error
            reasons[str(error)] = None
        for request in requests:
            if request.replies and request.code and not request.is_answered:
                reasons[str(request.reply)] = None
        # These two errors do not show that there is a primary which can serve.
        if any(request.replies and request.code not in ("READONLY", "NOREPLICAS") for request in requests):
            self.answered = True
            self._heard_at = monotonic() if self.waits else self._heard_at

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
        limit = SHORTEST if isinstance(error, UnreachableError) else GIVE_UP_LIMIT
        if self.waits:
            limit = max(SHORTEST, min(limit, self.left() + 0.19))
        # The last attempt may take `SHORTEST` seconds more than the patience.
        patience = limit - SHORTEST if is_owner_used_again else self._patience
        call = Call(self.lock, patience=patience)
        call.until = monotonic() + patience
        giving_up = self.runtime.start(call.ask(requests))
        if is_owner_used_again:
            limit = 2.0  # on a busy machine, the last attempt may take longer
        elif self.runtime.is_asynchronous and not isinstance(error, (Exception, type(None))):
            return
        until, cancelled_again = monotonic() + limit, None
        while not giving_up.done() and monotonic() < until:
            try:
                await self.runtime.wait(giving_up, until - monotonic())
            except asyncio.CancelledError as cancellation:
                cancelled_again = cancellation
                if not is_owner_used_again:
                    raise
        if cancelled_again is not None:
            raise cancelled_again


class Acquisition(Call):
    """A call that acquires all keys of a lock. If the caller already holds the keys, it acquires one more hold of each key.

    If the acquisition fails, it releases what the server may have granted.
    """

    async def run(self, token: str | bytes | None = None) -> bool:
        """Return False if a key is still busy at the wait limit. ``token``: see `Holding.local_token`."""
        lock, own = self.lock, self.lock._own
        if lock.reentrant and own.pid == os.getpid():
            with Turn(self.runtime, own.turns, 1) as turn:
                await self.wait_for(turn, self._patience)
                if not own.is_over:
                    return await self._acquire(lock._current("acquire once more"), self.waits)
        if lock._holds_already(waits=self.waits and self.until == FOREVER):
            raise self._held_already()
        waits = self.waits and len(lock._parts) == 1  # the first round tries several keys without waiting
        while True:
            # If the program names no owner, each round has a new owner: a late release of an earlier round must not end a grant.
            holding = lock._new_holding(token)
            try:
                if await self._acquire(holding, waits):
                    return True
            except LockLostError:  # a key was lost before the program held the lock: begin again
                if not self.waits:
                    raise
                await self.runtime.sleep(0.05)  # a lease shorter than a round trip is lost each time
            else:
                if lock.reentrant and lock._holds_already():  # another caller has acquired this object's lock meanwhile
                    return await self.run(token)
                if waits == self.waits or self.left() <= 0:
                    return False
            waits = self.waits

    def _held_already(self) -> LockError:
        return lock_error(LockError, "The caller holds the lock already (reentrant=True?)", self.lock.name)

    async def _acquire(self, holding: Holding, waits: bool) -> bool:
        """Acquire one key after the other, within the wait limit. Return False if a key is still busy at the limit.

        If ``waits`` is False, try all keys in one pipeline instead. LockLostError if a key was lost before all keys were
        held. A wait for another key notices the loss when a slice ends.
        """
        self._holding, self._holds = holding, holding.holds + 1  # `_holds`: the count if the acquisition succeeds
        for tenure in holding.tenures:
            tenure.is_pending = False
        try:
            is_held = await self._acquire_keys(waits)
            if is_held and self._holds == 1 and not self.lock._keep(holding):
                if not self.lock.reentrant:
                    raise self._held_already()
                is_held = False
            if not is_held:
                await self._give_back()
            return is_held
        except BaseException as error:
            await self._give_back(error)
            if isinstance(error, UnreachableError) and self.waits and self.answered and self.left() <= 0:
                return False
            raise

    async def _acquire_keys(self, waits: bool) -> bool:
        tenures = self._holding.tenures
        for group in [[tenure] for tenure in tenures] if waits else [tenures]:
            if not (await self._try(group) or (waits and await self._wait(group[0]))):
                return False
            self._holding.holds = self._holds
            if len(tenures) > 1:  # renew this key during the wait for the next key
                self.runtime.watch(self._holding)
            if not self._holding.held:
                raise lost("acquire", group[0].key)
        return True

    async def _give_back(self, error: BaseException | None = None) -> None:
        holding, requests = self._holding, []
        holding.holds, holding.is_over = self._holds - 1, self._holds == 1
        is_owner_used_again = self.lock._owner is not None or self._holds > 1
        for tenure in holding.tenures:
            if tenure.is_pending or any(request.may_be_granted for request in tenure.requests):
                command = ("LOCK.RELEASE", tenure.key, holding.owner, "HOLDS", self._holds - 1)
                if tenure.link is not None and tenure.link.is_blocked:
                    # The server replies on this connection only after the wait. So the release uses another connection. But the
                    # server may read this connection later, so send a release here, too.
                    if not is_owner_used_again:
                        with suppress(Broken):
                            tenure.link.send(pack([command]))
                    tenure.link.close()
                    tenure.link = None
                requests.append(Request(tenure.key, command, link=tenure.link))
        await self.give_up(requests, error, is_owner_used_again)

    async def _try(self, tenures: list[Tenure], patience: float | None = None) -> bool:
        requests = await self._request(tenures, self._holding.acquire_command, patience)
        return all([r.reply is not None and await self._accept(t, r) for t, r in zip(tenures, requests)])

    async def _wait(self, tenure: Tenure) -> bool:
        """Wait in the server's queue. While all waiting connections are in use, poll instead."""
        pause, early = 0.05, 0
        with Turn(self.runtime, self.runtime.turns, self.lock.waiting_connections) as turn:
            while self.left() > 0:
                if not self._holding.held:
                    raise lost("acquire", tenure.key)
                if turn.has_begun():
                    [request] = await self._request([tenure], self._slice_command, FOREVER, is_wait=True)
                    if request.reply is not None and await self._accept(tenure, request):
                        return True
                    if request.reply is None and not tenure.is_pending:  # this was the last slice
                        return False
                    # A server does not block in a script, for example of a proxy. Do not send requests without a break.
                    if monotonic() - request.sent < min(1.0, (self._holding.lease or 2000) / 2000):
                        await self.runtime.sleep(min(back_off(early), self.left()))
                        early += 1
                elif not await turn.wait(min(pause, self.left())):
                    pause = min(1.0, pause * 2)
                    if await self._try([tenure], FOREVER):
                        return True
            return False

    def _slice_command(self, tenure: Tenure, holds: int, lease: int) -> Command:
        left = max(0.0, self.left())
        # A caller that holds other keys notices their loss only between two slices. So no slice is longer than the lease.
        most = min(SLICE, self._holding.lease / 1000) if self._holding.deadline < FOREVER else SLICE
        keep = ("KEEP", KEEP) if left > most else ()
        block = millis(min(most, left))
        return self._holding.acquire_command(tenure, holds, min(lease, SHORT_LEASE), "BLOCK", block, *keep)

    async def _accept(self, tenure: Tenure, request: Request) -> bool:
        """Store a grant. Return False if its lease is over. If the grant has a short lease, or came late, first renew it."""
        holding = self._holding
        tenure.token, _, lease = map(int, request.reply)
        holding.lease = holding.lease or lease
        request.leases.append(lease)
        if request.is_wait or monotonic() >= lease_end(request.sent, lease):
            [request] = await self._request([tenure], holding.renew_command)
            if request.code:
                return False
        holding.note_lease(tenure, request)
        holding.granted_at = request.sent
        for (_, wanted, _), reached in zip(request.more, request.replies[1:]):
            if reached < wanted:
                what = f"{reached} of {wanted} replicas have confirmed the grant in time, so it was given back"
                raise lock_error(UnreplicatedError, what, tenure.key)
        if monotonic() < tenure.deadline:
            return True
        if self._holds == 1:
            tenure.renew_at = tenure.deadline = FOREVER
        await self.runtime.sleep(0.05)
        return False

    async def _request(
        self, tenures: list[Tenure], make: Callable[..., Command], patience: float | None = None, is_wait: bool = False
    ) -> list[Request]:
        """Send a request for each key. Set `is_pending` if the server may keep a grant or a queue position for the key."""
        count, within = (not is_wait and self.lock.replicas) or (0, 0.0)
        wait = (("WAIT", count, millis(within)),) if count else ()
        holding, lease = self._holding, self._holding.limited(self._holding.lease)
        requests = [Request(t.key, make, wait, holding, t, self._holds, lease, is_wait) for t in tenures]
        try:
            await self.ask(requests, SLICE if is_wait else within, patience)
        finally:
            for tenure, request in zip(tenures, requests):
                tenure.is_pending, tenure.link = tenure.is_pending or request.may_be_granted, request.link
                request.end()
        failure: Exception | None = None
        for tenure, request in zip(tenures, requests):
            error = next((reply for reply in request.replies if isinstance(reply, ResponseError)), None)
            if request.reply is None:
                tenure.is_pending = "KEEP" in request.command
            if request.code in DENIALS and (request.command[0] == "LOCK.RENEW" or self._holds > 1):
                tenure.is_pending = False
                if self._holds > 1:
                    failure = self.lost(holding, "acquire once more", tenure.key, error)
            elif error is not None:
                failure = refused(error, tenure.key)
        if failure is not None:
            raise failure
        return requests


async def release(lock: Any, interrupted: Holding | None = None) -> None:
    """Release one hold of each key. ``interrupted``: the holding of an earlier release that was interrupted."""
    holding = interrupted or lock._holding
    if holding is NOTHING:
        raise lock_error(LockError, "Cannot release a lock that's not owned or is already unlocked.", lock.name)
    if holding.pid != os.getpid():
        raise lost("release", lock.name)
    call = Call(lock)
    with Turn(call.runtime, holding.turns, 1) as turn:
        try:
            await call.wait_for(turn, call._patience)
        except BaseException as error:
            if not isinstance(error, (UnreachableError, GeneratorExit)):  # interrupted: release in the background
                call.runtime.start(release(lock, holding))
            raise
        if holding.is_over:
            raise lock_error(LockError, "Cannot release a lock that's already unlocked.", lock.name)
        if not holding.held:
            call.runtime.lose(holding)
            lock._forget(holding)
            await _release_others(holding, call)
            raise lost("release", lock.name)
        await _release_held(call, holding)


async def _release_held(call: Call, holding: Holding) -> None:
    call.until = max(tenure.deadline for tenure in holding.tenures)
    left, requests = holding.holds - 1, holding.releases()
    failure: Exception | None = None
    try:
        if not left:  # forget first, so that a renewal after the release does not report a loss
            call.lock._forget(holding)
        await call.ask(requests)
    except UnreachableError as error:
        failure = error
    except BaseException as interruption:
        # The caller cannot know whether the server has released the locks. The client repeats the release in the
        # background, so that the locks do not stay held until their leases end.
        unanswered = [Request(request.key, request.make) for request in requests if not request.is_answered]
        holding.holds, holding.is_over = left, not left
        await call.give_up(unanswered, interruption, call.lock._owner is not None or left > 0)
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


async def _release_others(holding: Holding, call: Call) -> None:
    """Release the keys of a lock of several keys. The lock is lost, but some of its keys may still be held."""
    if len(holding.tenures) > 1:
        await call.give_up(holding.releases(), None, call.lock._owner is not None)


async def renew(lock: Any, verb: str, lease_of: Callable[..., float], needs_timeout: bool = True) -> bool:
    """Set the leases to the numbers of seconds that `lease_of` returns for the tenures."""
    holding = lock._current(verb)
    if needs_timeout and lock.timeout is None:
        raise lock_error(LockError, f"Cannot {verb} a lock with no timeout", lock.name)
    requests = [holding.renewal(tenure, millis(lease_of(holding, tenure))) for tenure in holding.tenures]
    await _renew(holding, Call(lock), verb, requests)
    return True


async def _renew(holding: Holding, call: Call, verb: str, requests: list[Request] | None = None) -> None:
    """Send renewals. By default, renew all tenures with the holding's lease."""
    requests = requests or [holding.renewal(tenure, holding.lease) for tenure in holding.tenures]
    try:
        await call.ask(requests)
        for request in requests:
            if request.code in DENIALS or not holding.held:
                raise call.lost(holding, verb, request.key, request.reply if request.code else None)
            if request.code in WRONG_KIND and verb != "downgrade" and request.tenure.reject(request.kind, request):
                return await _renew(holding, call, verb, [holding.renewal(r.tenure, r.lease) for r in requests])
            if request.code:
                raise refused(request.reply, request.key)
            holding.note_lease(request.tenure, request)
    finally:
        for request in requests:
            request.end()
        call.runtime.watch(holding)


async def downgrade(lock: Any, shared: bool, slots: int | None) -> None:
    holding, call = lock._current("downgrade"), Call(lock)
    for tenure in holding.tenures:
        weight = tenure.kind[-1] if "WEIGHT" in tenure.kind else None
        # The server refuses SHARED with a weight, but a renewal in quarantine must name the weight.
        asked = kind_words(False, _MOST_SLOTS, weight) if shared and weight else kind_words(shared, slots, weight)
        # Later renewals name the new kind, even if no reply arrives.
        tenure.kind, tenure.other_kinds = asked, [tenure.kind, *tenure.other_kinds]
        request = holding.renewal(tenure, holding.lease)
        try:
            await _renew(holding, call, "downgrade", [request])
        except LockRefusedError:
            tenure.reject(asked, request)
            raise


async def guarded(lock: Any, command: Command) -> Any:
    """Run a command if the server has the tenure. LockLostError if the lock is lost.

    After FENCED, renew the tenure once and repeat the command: a server in quarantine may have forgotten the tenure.
    """
    verb = "guard a command with"
    holding, call = lock._current(verb), Call(lock)
    if len(holding.tenures) > 1:
        raise TypeError("a guarded command needs a lock of one key, because the server checks only one key")
    [tenure] = holding.tenures
    words = ("LOCK.GUARD", tenure.key, tenure.token, *(bytes(lock._encode(word)) for word in command))
    for is_last in (False, True):
        request = Request(tenure.key, words, is_repeatable=False)
        await call.ask([request])
        if request.code != "FENCED":
            break
        if is_last or not holding.held:
            raise call.lost(holding, verb, tenure.key, request.reply)
        await _renew(holding, call, verb)
    if isinstance(request.reply, ResponseError):
        raise BaseParser.parse_error(str(request.reply))  # type: ignore[no-untyped-call]
    return decoded(request.reply, lock.redis.get_encoder().decode)


async def query(lock: Any, commands: list[Command], *expected: str) -> list[Any]:
    """Send commands that change nothing. Return the replies, which may be errors with an `expected` code."""
    requests = [Request(command[1], command) for command in commands]
    await Call(lock).ask(requests)
    for request in requests:
        if request.code and request.code not in expected:
            raise refused(request.reply, lock.name)
    return [request.reply for request in requests]


async def is_locked(lock: Any) -> bool:
    replies = await query(lock, [("LOCK.INFO", key) for key, _ in lock._parts])
    return any(reply is not None for reply in replies)


async def is_owned(lock: Any) -> bool:
    holding = lock._holding
    if holding.pid != os.getpid():
        return False
    commands = [("LOCK.GUARD", tenure.key, tenure.token) for tenure in holding.tenures]
    replies = await query(lock, commands, "FENCED", "WRONGTYPE")
    return not any(isinstance(reply, ResponseError) for reply in replies)


async def resume(lock: L, holding: Holding) -> L:
    """Continue the tenures in a handle, the string from which another process takes over a lock."""
    call = Call(lock)
    try:
        await _renew(holding, call, "resume")
    except LockLostError:
        await _release_others(holding, call)
        raise
    lock._store(holding)
    return lock
