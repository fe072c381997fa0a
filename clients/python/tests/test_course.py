"""What is decided, without any server: a course of action is driven step by step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from lockward import LockLost, LockRefused, Unreachable, _course
from lockward._course import Ask, Claim, Pause, Redirect, acquiring

MINE = b"me"


def claim(holds: int = 1, lease: int | None = 30_000) -> Claim:
    return Claim("a", MINE, lease, holds, None)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(_course, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def result(course: Any, reply: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        course.send(reply)
    return end.value.value


def test_a_free_lock_takes_one_request(clock: Clock) -> None:
    course = acquiring(claim(), None, 5)
    assert next(course).commands == (("LOCK.ACQUIRE", "a", MINE, "PX", 30_000, "HOLDS", 1),)
    clock.now += 1
    assert result(course, [[7, 1]]) == (7, 1, 30_000, 129.969)


def test_a_try_that_is_refused_waits_for_nothing(clock: Clock) -> None:
    course = acquiring(claim(), 0, 5)
    next(course)
    assert result(course, [None]) is None


def test_a_wait_blocks_for_what_is_left_of_the_limit(clock: Clock) -> None:
    course = acquiring(claim(), 10, 5)
    next(course)
    clock.now += 4
    step = course.send([None])
    assert step.commands[0][5:7] == ("BLOCK", 6000) and step.limit == 6 + _course.GRACE
    clock.now += 6
    assert result(course, [None]) is None


def test_a_wait_without_limit_has_none(clock: Clock) -> None:
    course = acquiring(claim(), None, 5)
    next(course)
    step = course.send([None])
    assert step.commands[0][5:7] == ("BLOCK", 0) and step.limit is None


def test_the_servers_default_lease_is_asked_for(clock: Clock) -> None:
    course = acquiring(claim(lease=None), None, 5)
    assert next(course).commands == (("LOCK.ACQUIRE", "a", MINE, "HOLDS", 1), ("LOCK.INFO", "a"))
    holder = [b"owner", MINE, b"holds", 1, b"token", 7, b"lease-left", 9_000]
    assert result(course, [[7, 1], [b"holders", [holder]]]) == (7, 1, 9_000, 108.99)


def test_a_grant_long_in_coming_is_renewed_before_it_is_believed(clock: Clock) -> None:
    course = acquiring(claim(), None, 5)
    next(course)
    course.send([None])
    clock.now += 10.1
    assert course.send([[7, 1]]).commands == (("LOCK.RENEW", "a", MINE, "PX", 30_000, "TOKEN", 7, "HOLDS", 1),)
    assert result(course, [7]).deadline == pytest.approx(140.069)


def test_a_grant_that_is_over_waits_on(clock: Clock) -> None:
    course = acquiring(claim(), None, 5)
    next(course)
    course.send([None])
    clock.now += 31
    course.send([[7, 1]])
    assert course.send([redis.ResponseError("NOTHELD the lock is free")]).commands[0][0] == "LOCK.ACQUIRE"


@pytest.mark.parametrize("interruption", [asyncio.CancelledError(), KeyboardInterrupt()])
@pytest.mark.parametrize("holds", [1, 3])
def test_who_leaves_gives_back_what_may_have_been_granted(
    clock: Clock, interruption: BaseException, holds: int
) -> None:
    course = acquiring(claim(holds), None, 5)
    next(course)
    course.send([None])
    assert course.throw(interruption).commands == (("LOCK.RELEASE", "a", MINE, "HOLDS", holds - 1),)
    with pytest.raises(type(interruption)):
        course.send([0])


@pytest.mark.parametrize(
    "passing",
    [
        redis.ConnectionError("cut"),
        redis.TimeoutError("slow"),
        redis.exceptions.BusyLoadingError("loading"),
    ],
)
def test_a_broken_wait_is_taken_up_again(clock: Clock, passing: Exception) -> None:
    course = acquiring(claim(), None, 5)
    next(course)
    waiting = course.send([None])
    pauses = []
    step = course.throw(passing)
    for _ in range(9):
        assert isinstance(step, Pause)
        pauses.append(step.seconds)
        assert course.send(None) == waiting
        step = course.throw(passing)
    assert pauses[0] == 0 and all(0.02 < pause <= 1 for pause in pauses[1:]) and max(pauses) > 0.5


@pytest.mark.parametrize("words", ["UNBLOCKED", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "LOADING"])
def test_what_passes_is_waited_for(clock: Clock, words: str) -> None:
    course = acquiring(claim(), None, 5)
    next(course)
    waiting = course.send([None])
    assert isinstance(course.send([redis.ResponseError(f"{words} for now")]), Pause)
    assert course.send(None) == waiting


@pytest.mark.parametrize(
    "words", ["SUPERSEDED by another", "MAXWAITERS", "OOM", "NOPERM", "WRONGTYPE", "ERR syntax error"]
)
def test_a_refusal_is_an_error_at_once(clock: Clock, words: str) -> None:
    course = acquiring(claim(), None, 5)
    next(course)
    with pytest.raises(LockRefused, match=words):
        course.send([redis.ResponseError(words)])


def test_a_grant_whose_reply_is_lost_is_given_back_where_the_next_request_is_refused(clock: Clock) -> None:
    course = acquiring(claim(), None, 5)
    next(course)
    assert isinstance(course.throw(redis.ConnectionError("cut")), Pause)
    course.send(None)
    refusal = [redis.ResponseError("OOM command not allowed")]
    assert course.send(refusal).commands == (("LOCK.RELEASE", "a", MINE, "HOLDS", 0),)
    with pytest.raises(LockRefused, match="OOM"):
        course.send([0])


def test_a_reentry_into_a_lost_tenure_tells(clock: Clock) -> None:
    course = acquiring(claim(2), None, 5)
    next(course)
    with pytest.raises(LockLost, match="HOLDS"):
        course.send([redis.ResponseError("HOLDS the owner has 0 holds")])


def test_a_reentry_asks_for_half_the_lease_that_the_server_takes_no_longer(clock: Clock) -> None:
    course = acquiring(claim(2, 3), None, 5)
    next(course)
    too_long = redis.ResponseError("invalid expire time in 'lock.acquire' command")
    assert course.send([too_long]).commands == (("LOCK.ACQUIRE", "a", MINE, "PX", 1, "HOLDS", 2),)
    with pytest.raises(LockRefused, match="invalid expire time"):
        course.send([too_long])


@pytest.mark.parametrize(("words", "asking"), [("MOVED 7 host:1", False), ("ASK 7 host:1", True)])
def test_redirections_are_followed(clock: Clock, words: str, asking: bool) -> None:
    course = acquiring(claim(), None, 5)
    asked = next(course)
    followed = course.send([redis.ResponseError(words)])
    assert followed == Ask(asked.key, asked.commands, asked.limit, Redirect("host", 1, asking))


def test_patience_ends(clock: Clock) -> None:
    course = acquiring(claim(), 0, 5)
    step = next(course)
    with pytest.raises(Unreachable, match="cut"):
        while True:
            clock.now += step.seconds if isinstance(step, Pause) else 0.5
            if isinstance(step, Pause):
                step = course.send(None)
            elif step.commands[0][0] == "LOCK.RELEASE":
                assert clock.now <= 106
                step = course.throw(redis.ConnectionError("cut"))
            else:
                assert clock.now <= 105.5
                step = course.throw(redis.ConnectionError("cut"))
