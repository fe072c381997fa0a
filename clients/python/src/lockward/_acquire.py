"""Acquiring locks: try, wait in the server's queue, confirm, or give up. See clients/README.md."""

from __future__ import annotations

import os
from time import monotonic
from typing import Callable

from redis.exceptions import LockError, ResponseError

from ._call import Call
from ._runtime import Turn
from ._tenure import Holding, Request, Tenure
from ._wire import DENIALS, FOREVER, Command, lease_end, millis
from .errors import LockLostError, UnreachableError, UnreplicatedError, lock_error, lost, refused

#: The length of a slice in seconds. A long wait is a series of requests, and each request waits for one slice.
SLICE = 10.0
#: How long the server keeps the queue position between two slices, or while the client reconnects, in milliseconds.
KEEP = 5000
#: The longest lease of a grant that the client has not confirmed, in milliseconds.
SHORT_LEASE = 3000


class Acquisition(Call):
    """A call that acquires all keys of a lock. If the caller already holds the keys, it acquires one more hold of each key.

    If the acquisition fails, it releases what the server may have granted.
    """

    async def run(self, token: str | bytes | None = None) -> bool:
        """Return False if a key is still busy at the wait limit. ``token``: see `Holding.local_token`."""
        lock, own = self.lock, self.lock._own
        if lock.reentrant and own.pid == os.getpid():
            with Turn(self.runtime, own.turns, 1) as turn:
                await self.wait_for(turn)
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
                await self.runtime.sleep(0.05)  # a pause, because the lease may be shorter than a round trip
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
        except BaseException as error:
            await self._give_back(error)
            if isinstance(error, UnreachableError) and self.waits and self.answered and self.left() <= 0:
                return False
            raise
        if not is_held:
            await self._give_back()
        return is_held

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
        for tenure in holding.tenures:
            if tenure.is_pending or any(request.may_be_granted for request in tenure.requests):
                tenure.is_pending = False
                command = ("LOCK.RELEASE", tenure.key, holding.owner, "HOLDS", self._holds - 1)
                requests.append(Request(tenure.key, command))
        await self.give_up(requests, error, self.lock._owner is not None or self._holds > 1)

    async def _try(self, tenures: list[Tenure], patience: float | None = None) -> bool:
        requests = await self._request(tenures, self._holding.acquire_command, patience)
        return all([r.reply is not None and await self._accept(t, r) for t, r in zip(tenures, requests)])

    async def _wait(self, tenure: Tenure) -> bool:
        """Wait in the server's queue. While all waiting connections are in use, poll instead."""
        pause = 0.05
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
                elif not await turn.wait(min(pause, self.left())):
                    pause = min(1.0, pause * 2)
                    if await self._try([tenure], FOREVER):
                        return True
            return False

    def _slice_command(self, tenure: Tenure, holds: int, lease: int) -> Command:
        left = max(0.0, self.left())
        # Only between two slices, the caller notices the loss of a key that it holds. So no slice is longer than the lease.
        most = min(SLICE, self._holding.lease / 1000) if self._holding.deadline < FOREVER else SLICE
        keep = ("KEEP", KEEP) if left > most else ()
        block = ("BLOCK", millis(min(most, left)), *keep)
        return self._holding.acquire_command(tenure, holds, min(lease, SHORT_LEASE), *block)

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
        wanted, reached = (self.lock.replicas or (0, 0))[0], request.replies[-1]
        if wanted and reached < wanted:
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
        wait: tuple[Command, ...] = ()
        extra = SLICE if is_wait else 0.0
        if self.lock.replicas is not None and not is_wait:
            count, extra = self.lock.replicas
            wait = (("WAIT", count, millis(extra)),)
        holding, lease = self._holding, self._holding.limited(self._holding.lease)
        requests = [Request(t.key, make, wait, holding, t, self._holds, lease, is_wait) for t in tenures]
        try:
            await self.ask(requests, extra, patience)
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
                    failure = self.lost(holding, "acquire once more", tenure.key, error)
            elif error is not None:
                failure = refused(error, tenure.key)
        if failure is not None:
            raise failure
        return requests
