"""The plans, step by step, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from lockward import LockLost, LockRefused, Unreachable, _protocol
from lockward._plan import RESPONSE_LIMIT, Exchange, Pause, Redirect
from lockward._protocol import AcquireRequest, acquire

MINE = b"me"


def request(holds: int = 1, lease: int | None = 30_000) -> AcquireRequest:
    return AcquireRequest("a", MINE, lease, holds, None)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(_protocol, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def result(plan: Any, reply: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        plan.send(reply)
    return end.value.value


def test_a_free_lock_takes_one_request(clock: Clock) -> None:
    plan = acquire(request(), None, 5)
    assert next(plan).commands == (("LOCK.ACQUIRE", "a", MINE, "PX", 30_000, "HOLDS", 1),)
    clock.now += 1
    assert result(plan, [[7, 1, 30_000]]) == (7, 1, 30_000, 129.969)


def test_a_limit_of_0_does_not_wait(clock: Clock) -> None:
    plan = acquire(request(), 0, 5)
    next(plan)
    assert result(plan, [None]) is None


def test_a_wait_blocks_for_what_is_left_of_the_limit(clock: Clock) -> None:
    plan = acquire(request(), 10, 5)
    next(plan)
    clock.now += 4
    step = plan.send([None])
    assert step.commands[0][5:7] == ("BLOCK", 6000) and step.limit == 6 + RESPONSE_LIMIT
    clock.now += 6
    assert result(plan, [None]) is None


def test_a_wait_without_limit_blocks_without_limit(clock: Clock) -> None:
    plan = acquire(request(), None, 5)
    next(plan)
    step = plan.send([None])
    assert step.commands[0][5:7] == ("BLOCK", 0) and step.limit is None


def test_without_a_lease_the_servers_default_is_used(clock: Clock) -> None:
    plan = acquire(request(lease=None), None, 5)
    assert next(plan).commands == (("LOCK.ACQUIRE", "a", MINE, "HOLDS", 1),)
    assert result(plan, [[7, 1, 9_000]]) == (7, 1, 9_000, 108.99)


def test_a_grant_after_a_long_wait_is_renewed_first(clock: Clock) -> None:
    plan = acquire(request(), None, 5)
    next(plan)
    plan.send([None])
    clock.now += 10.1
    assert plan.send([[7, 1, 30_000]]).commands == (("LOCK.RENEW", "a", MINE, "PX", 30_000, "TOKEN", 7, "HOLDS", 1),)
    assert result(plan, [7]).deadline == pytest.approx(140.069)


def test_a_grant_whose_lease_is_over_waits_again(clock: Clock) -> None:
    plan = acquire(request(), None, 5)
    next(plan)
    plan.send([None])
    clock.now += 31
    plan.send([[7, 1, 30_000]])
    assert plan.send([redis.ResponseError("NOTHELD the lock is free")]).commands[0][0] == "LOCK.ACQUIRE"


@pytest.mark.parametrize("interruption", [asyncio.CancelledError(), KeyboardInterrupt()])
@pytest.mark.parametrize("holds", [1, 3])
def test_an_interrupted_acquisition_is_withdrawn(clock: Clock, interruption: BaseException, holds: int) -> None:
    plan = acquire(request(holds), None, 5)
    next(plan)
    plan.send([None])
    assert plan.throw(interruption).commands == (("LOCK.RELEASE", "a", MINE, "HOLDS", holds - 1),)
    with pytest.raises(type(interruption)):
        plan.send([0])


@pytest.mark.parametrize(
    "failure",
    [
        redis.ConnectionError("cut"),
        redis.TimeoutError("slow"),
        redis.exceptions.BusyLoadingError("loading"),
    ],
)
def test_a_broken_wait_is_repeated_with_pauses(clock: Clock, failure: Exception) -> None:
    plan = acquire(request(), None, 5)
    next(plan)
    waiting = plan.send([None])
    pauses = []
    step = plan.throw(failure)
    for _ in range(9):
        assert isinstance(step, Pause)
        pauses.append(step.seconds)
        assert plan.send(None) == waiting
        step = plan.throw(failure)
    assert pauses[0] == 0 and all(0.02 < pause <= 1 for pause in pauses[1:]) and max(pauses) > 0.5


@pytest.mark.parametrize("text", ["UNBLOCKED", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "LOADING"])
def test_a_transient_error_is_repeated(clock: Clock, text: str) -> None:
    plan = acquire(request(), None, 5)
    next(plan)
    waiting = plan.send([None])
    assert isinstance(plan.send([redis.ResponseError(f"{text} for now")]), Pause)
    assert plan.send(None) == waiting


@pytest.mark.parametrize(
    "text", ["SUPERSEDED by another", "MAXWAITERS", "OOM", "NOPERM", "WRONGTYPE", "ERR syntax error"]
)
def test_another_server_error_is_raised_at_once(clock: Clock, text: str) -> None:
    plan = acquire(request(), None, 5)
    next(plan)
    with pytest.raises(LockRefused, match=text):
        plan.send([redis.ResponseError(text)])


def test_a_grant_whose_reply_is_lost_is_withdrawn_when_the_repetition_is_refused(clock: Clock) -> None:
    plan = acquire(request(), None, 5)
    next(plan)
    assert isinstance(plan.throw(redis.ConnectionError("cut")), Pause)
    plan.send(None)
    refusal = [redis.ResponseError("OOM command not allowed")]
    assert plan.send(refusal).commands == (("LOCK.RELEASE", "a", MINE, "HOLDS", 0),)
    with pytest.raises(LockRefused, match="OOM"):
        plan.send([0])


def test_a_reentry_into_a_lost_tenure_raises(clock: Clock) -> None:
    plan = acquire(request(2), None, 5)
    next(plan)
    with pytest.raises(LockLost, match="HOLDS"):
        plan.send([redis.ResponseError("HOLDS the owner has 0 holds")])


def test_a_reentry_asks_for_the_longest_lease_if_its_own_is_too_long(clock: Clock) -> None:
    plan = acquire(request(2), None, 5)
    next(plan)
    too_long = redis.ResponseError("invalid expire time in 'lock.acquire' command: at most 9000 (lock.max-lease)")
    assert plan.send([too_long]).commands == (("LOCK.ACQUIRE", "a", MINE, "PX", 9_000, "HOLDS", 2),)
    with pytest.raises(LockRefused, match="invalid expire time"):
        plan.send([too_long])


@pytest.mark.parametrize(("text", "is_ask"), [("MOVED 7 host:1", False), ("ASK 7 host:1", True)])
def test_redirections_are_followed(clock: Clock, text: str, is_ask: bool) -> None:
    plan = acquire(request(), None, 5)
    asked = next(plan)
    followed = plan.send([redis.ResponseError(text)])
    assert followed == Exchange(asked.key, asked.commands, asked.limit, Redirect("host", 1, is_ask))


def test_unreachable_is_raised_after_the_patience(clock: Clock) -> None:
    plan = acquire(request(), 0, 5)
    step = next(plan)
    with pytest.raises(Unreachable, match="cut"):
        while True:
            clock.now += step.seconds if isinstance(step, Pause) else 0.5
            if isinstance(step, Pause):
                step = plan.send(None)
            elif step.commands[0][0] == "LOCK.RELEASE":
                assert clock.now <= 106
                step = plan.throw(redis.ConnectionError("cut"))
            else:
                assert clock.now <= 105.5
                step = plan.throw(redis.ConnectionError("cut"))
