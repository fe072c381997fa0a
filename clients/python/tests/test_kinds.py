"""Kinds of locks, and features that only this client has. Most tests run with threads and with asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from functools import partial
from time import monotonic
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import InLoop, calls, eventually, eventually_in_loop, held_for, holders, waiters

import lockward
import lockward.asyncio
from lockward import LockError, LockLostError, LockRefusedError, UnreachableError, _tenure
from lockward._runtime import Turn
from lockward._wire import LinkBase


def test_readers_hold_together_and_exclude_a_writer(module: Any, own: Any, client: redis.Redis) -> None:
    lock = module.ReadWriteLock(own, "a")
    with lock.read(), lock.read():
        assert len(holders(client, "a")) == 2
        assert not lock.write().acquire(blocking=False)
    with lock.write():
        assert not lock.read().acquire(blocking=False)


def test_a_writer_becomes_a_reader_by_a_downgrade(module: Any, own: Any) -> None:
    with module.Lock(own, "a") as writer:
        token = writer.fencing_token
        assert not module.Lock(own, "a", shared=True).acquire(blocking=False)
        writer.downgrade(shared=True)
        assert writer.fencing_token == token and writer.owned()
        with module.Lock(own, "a", shared=True):
            pass


def test_of_two_downgrades_at_once_the_larger_one_counts(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server first executes the downgrade to the larger limit, and refuses the other. The renewals name the larger limit."""
    lock, converse = lockward.Lock(client, "a", slots=2, thread_local=False), LinkBase.converse
    assert lock.acquire()

    async def send_the_larger_one_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        lock.downgrade(slots=8)
        return await converse(*arguments)

    monkeypatch.setattr(LinkBase, "converse", send_the_larger_one_first)
    with pytest.raises(LockRefusedError, match="LIMIT"):
        lock.downgrade(slots=4)
    lock.renew()
    lock.release()


class Downgrades:
    """A server with one lock, which executes downgrades. It takes the replies to renewals that name SHARED from `replies`."""

    def __init__(self) -> None:
        self.kind: list[bytes] = []
        self.replies: list[bytes] = []
        self.named: list[list[bytes]] = []  # the kinds in the renewals
        self.executes = True

    def __call__(self, words: list[bytes]) -> bytes:
        if words[0] == b"LOCK.ACQUIRE":
            return b"*3\r\n:7\r\n:1\r\n:1500\r\n"
        if words[0] != b"LOCK.RENEW":
            return b":0\r\n"
        kind = words[9:]
        self.named.append(kind)
        if kind == [b"SHARED"] and self.replies:
            self.kind = kind if self.executes else self.kind
            return self.replies.pop(0)
        return b":7\r\n" if kind == self.kind else b"-LIMIT the owner has another limit\r\n"


def test_after_two_downgrades_without_clear_replies_the_renewals_name_the_kind_that_the_server_has(
    module: Any, scripted: Any
) -> None:
    server = Downgrades()
    lock = module.Lock(module.connect(scripted(server).port), "a")
    assert lock.acquire()
    server.replies = [b"", b"-NOPERM no permission\r\n"]  # the first request is executed, but its connection is cut
    with pytest.raises(LockRefusedError, match="NOPERM"):
        lock.downgrade(shared=True)
    with pytest.raises(LockRefusedError, match="LIMIT"):
        lock.downgrade(slots=4)
    lock.renew()  # also a renewal by the program finds the kind
    assert server.named[-1] == [b"SHARED"]
    named = len(server.named)
    if module is lockward:
        eventually(lambda: len(server.named) > named + 1)
    else:
        module.run(eventually_in_loop(lambda: len(server.named) > named + 1))
    assert lock.held and server.named[named:] == [[b"SHARED"]] * len(server.named[named:])


def test_no_renewal_names_the_kind_of_a_refused_downgrade(module: Any, scripted: Any) -> None:
    """The server would execute it as a downgrade, although the program does not expect readers."""
    server = Downgrades()
    server.executes = False
    lock = module.Lock(module.connect(scripted(server).port), "a")
    assert lock.acquire()
    server.replies = [b"-NOPERM no permission\r\n"]
    with pytest.raises(LockRefusedError, match="NOPERM"):
        lock.downgrade(shared=True)
    named, server.kind = len(server.named), [b"SLOTS", b"2"]  # now the server refuses each renewal
    with pytest.raises(LockRefusedError, match="LIMIT"):
        lock.renew()
    if module is lockward:
        eventually(lambda: not lock.held)
    else:
        module.run(eventually_in_loop(lambda: not lock.held))
    assert server.named[named:] == [[]] * len(server.named[named:])


def test_no_renewal_names_the_kind_of_a_downgrade_that_was_not_sent(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Downgrades()
    lock = lockward.Lock(redis.Redis(port=scripted(server).port), "a")
    assert lock.acquire()

    async def refuse(*_: Any) -> Any:
        raise redis.AuthenticationError("wrong password")

    with monkeypatch.context() as patch, pytest.raises(LockRefusedError, match="password"):
        patch.setattr(lock._runtime, "_link_to", refuse)
        lock.downgrade(shared=True)
    lock.renew()
    assert server.named == [[]]


def test_a_handle_names_the_kind_that_the_server_has(module: Any, scripted: Any) -> None:
    server = Downgrades()
    own = module.connect(scripted(server).port)
    lock = module.Lock(own, "a")
    assert lock.acquire()
    server.replies = [b"", b"-NOPERM no permission\r\n"]
    with pytest.raises(LockRefusedError, match="NOPERM"):
        lock.downgrade(shared=True)
    resumed = module.Lock.resume(own, lock.handle(detach=True))
    assert resumed.held and server.named[-1] == [b"SHARED"]


def test_a_with_block_acquires_a_resumed_lock_only_if_it_is_not_held(
    module: Any, own: Any, client: redis.Redis
) -> None:
    lock = module.Lock(own, "a")
    assert lock.acquire()
    with module.Lock.resume(own, lock.handle(detach=True)) as resumed:
        assert resumed.held
    permit = module.Semaphore(own, "a", 1).acquire()
    permit.release()
    for released in (resumed, permit):
        with released:
            assert released.held
    assert not holders(client, "a")


def test_a_handle_after_a_partly_refused_downgrade_of_several_keys_names_the_kind_of_each_key(
    module: Any, own: Any, client: redis.Redis
) -> None:
    both = module.MultiLock([module.Lock(own, "a", slots=2), module.Lock(own, "b", slots=8)], timeout=100)
    assert both.acquire()
    with pytest.raises(LockRefusedError, match="LIMIT"):
        both.downgrade(slots=4)
    for name in "ab":
        others = [lockward.Lock(client, name, slots=slots, timeout=100) for slots in (4, 8)]
        assert [other.acquire(blocking=False) for other in others] == [True, True]
    resumed = module.Lock.resume(own, both.handle(detach=True))
    assert resumed.held
    resumed.release()


@pytest.mark.parametrize("names", ["bad,busy,free", "free,busy,bad", "busy,bad,free"])
@pytest.mark.parametrize("blocking", [True, False])
def test_several_keys_of_which_one_is_no_lock_are_refused_and_given_back(
    module: Any, own: Any, client: redis.Redis, names: str, blocking: bool
) -> None:
    keys = [f"{number}{name}" for number, name in enumerate(names.split(","))]
    for key in keys:
        if "bad" in key:
            client.set(key, "text")
        elif "busy" in key:
            assert lockward.Lock(client, key).acquire()
    with pytest.raises(LockRefusedError, match=r"WRONGTYPE.*bad"):
        module.MultiLock([module.Lock(own, key) for key in keys], blocking=blocking, blocking_timeout=20).acquire()
    assert not [key for key in keys if "free" in key and holders(client, key)]
    assert not [key for key in keys if "busy" in key and waiters(client, key)]


def test_a_semaphore_has_permits(module: Any, own: Any) -> None:
    semaphore = module.Semaphore(own, "a", 3)
    two, one = semaphore.acquire(permits=2), semaphore.acquire()
    assert two.held and one.held and semaphore.acquire(timeout=1) is None
    with two:
        pass
    assert not two.held
    with semaphore.permits(2):
        assert semaphore.acquire(blocking=False) is None
    one.release()


def test_a_permit_that_was_released_is_acquired_again(module: Any, own: Any, client: redis.Redis) -> None:
    permit = module.Semaphore(own, "a", 1).acquire()
    for _ in range(2):
        with permit:
            assert permit.held and len(holders(client, "a")) == 1


def test_a_permit_that_is_held_is_not_entered_by_another_caller(module: Any, own: Any, client: redis.Redis) -> None:
    permit = module.Semaphore(own, "a", 3).acquire()
    with permit, pytest.raises(LockError, match="holds the lock already"), permit:
        pytest.fail("two callers share one permit")
    assert not holders(client, "a")


def test_a_semaphore_takes_over_options_for_the_wait(module: Any, own: Any, client: redis.Redis) -> None:
    with lockward.Semaphore(client, "a", 1).permits():
        assert module.Semaphore(own, "a", 1, blocking_timeout=0.1).acquire() is None
        assert module.Semaphore(own, "a", 1, blocking=False).acquire() is None
        with (
            pytest.raises(LockError, match="within the time"),
            module.Semaphore(own, "a", 1, blocking_timeout=0.1).permits(),
        ):
            pass


def test_several_locks_form_one_lock(module: Any, own: Any, client: redis.Redis) -> None:
    def locks() -> list[Any]:
        return [module.Lock(own, "b"), module.Lock(own, "a", shared=True)]

    with module.MultiLock(locks()) as both:
        assert len(both.fencing_tokens) == 2 and both.owned()
        assert not module.MultiLock(locks()).acquire(blocking=False)
        assert len(holders(client, "a")) == 1
        resumed = module.Lock.resume(own, both.handle(detach=True))
        assert resumed.fencing_tokens == both.fencing_tokens or not both.fencing_tokens
        resumed.release()
        assert both.acquire()
    assert not holders(client, "a") and not holders(client, "b")
    with module.MultiLock([module.Lock(own, "a"), module.Lock(own, "b"), module.Lock(own, b"a")]) as both:
        assert len(both.fencing_tokens) == 2
    with pytest.raises(ValueError, match="a name has two kinds"):
        module.MultiLock([module.Lock(own, "a"), module.Lock(own, "a", shared=True)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", 2),
        ("blocking", False),
        ("blocking_timeout", 1),
        ("thread_local", False),
        ("raise_on_release_error", False),
        ("auto_renewal", True),
        ("lease", 2),
        ("hold_limit", 2),
        ("owner", "job-7"),
        ("on_lost", print),
        ("replicas", (1, 1)),
        ("patience", 1),
        ("response_limit", 1),
        ("waiting_connections", 1),
    ],
)
def test_several_locks_refuse_options_of_one_lock(module: Any, own: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} .*'a'.* to MultiLock"):
        module.MultiLock([module.Lock(own, "b"), module.Lock(own, "a", **{name: value})])
    module.MultiLock([module.Lock(own, "b"), module.Lock(own, "a")], **{name: value})


@pytest.mark.parametrize(
    ("make", "option", "right_way"),
    [
        ("MultiLock", {"shared": True}, "locks"),
        ("MultiLock", {"slots": 3}, "locks"),
        ("MultiLock", {"weight": 2}, "locks"),
        ("MultiLock", {"name": "k"}, "locks"),
        ("ReadWriteLock", {"shared": True}, "read"),
        ("ReadWriteLock", {"slots": 3}, "Semaphore"),
        ("ReadWriteLock", {"weight": 2}, "Semaphore"),
        ("Semaphore", {"weight": 2}, "permits"),
        ("Semaphore", {"shared": True}, "ReadWriteLock"),
        ("Semaphore", {"thread_local": True}, "any thread"),
        ("lead", {"thread_local": True}, "any thread"),
        ("lead", {"blocking": False}, "without limit"),
        ("lead", {"blocking_timeout": 0.01}, "without limit"),
        ("lead", {"raise_on_release_error": True}, "again"),
        ("lead", {"shared": True}, "exclusive"),
        ("lead", {"slots": 3}, "exclusive"),
        ("lead", {"weight": 2}, "exclusive"),
        ("Lock", {"timeout": 5, "lease": 5}, "the timeout is the lease"),
        ("Lock.resume", {"shared": True}, "handle"),
        ("Lock.resume", {"slots": 3}, "handle"),
        ("Lock.resume", {"weight": 2}, "handle"),
        ("Lock.resume", {"timeout": 5}, "handle"),
        ("Lock.resume", {"lease": 5}, "handle"),
        ("Lock.resume", {"hold_limit": 5}, "handle"),
        ("Lock.resume", {"auto_renewal": True}, "handle"),
        ("Lock.resume", {"owner": "job-7"}, "handle"),
        *((each, {"lesae": 5}, "lesae") for each in ("Lock", "MultiLock", "ReadWriteLock", "Semaphore", "lead")),
        ("Lock.resume", {"lesae": 5}, "lesae"),
    ],
)
def test_an_option_without_effect_is_refused(
    module: Any, own: Any, client: redis.Redis, make: str, option: Any, right_way: str
) -> None:
    lock = lockward.Lock(client, "held")
    assert lock.acquire()
    arguments = {
        "MultiLock": [[module.Lock(own, "a"), module.Lock(own, "b")]],
        "Semaphore": [own, "a", 3],
        "lead": [own, "held", lambda _: pytest.fail("leads")],
        "Lock.resume": [own, lock.handle()],
    }.get(make, [own, "a"])
    made = module
    for name in make.split("."):
        made = getattr(made, name)
    with pytest.raises(TypeError, match=f"{list(option)[-1]}.*{right_way}|lesae"):
        made(*arguments, **option)
    assert lock.owned()
    lock.release()


def test_several_locks_may_have_different_kinds(module: Any, own: Any, client: redis.Redis) -> None:
    kinds = [module.ReadWriteLock(own, "a").read(), module.Semaphore(own, "b", 3).permits(2), module.Lock(own, "c")]
    with module.MultiLock(kinds, blocking_timeout=20):
        assert lockward.Lock(client, "a", shared=True).acquire(blocking=False)
        assert lockward.Semaphore(client, "b", 3).acquire(blocking=False)
        assert not lockward.Semaphore(client, "b", 3).acquire(blocking=False)
    with pytest.raises(ValueError, match="re-entrant"):
        module.MultiLock([module.Lock(own, "a", reentrant=True), module.Lock(own, "b")])


@pytest.mark.parametrize("owner", ["", b"", "*", b"*"])
def test_an_owner_that_could_not_release_the_lock_is_refused(module: Any, own: Any, owner: Any) -> None:
    with pytest.raises(ValueError, match=r"^owner must be 1 to 1024 bytes"):
        module.Lock(own, "a", owner=owner)


@pytest.mark.parametrize("name", ["timeout", "lease", "hold_limit"])
@pytest.mark.parametrize("seconds", [-1, 0, 0.001, float("nan")])
def test_a_lease_that_ends_at_once_is_refused(module: Any, own: Any, name: str, seconds: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} "):
        module.Lock(own, "a", **{name: seconds})
    with pytest.raises(ValueError, match=f"^{name} "):
        module.MultiLock([module.Lock(own, "a")], **{name: seconds})


def test_several_locks_are_lost_when_one_of_them_is_lost(module: Any, own: Any, client: redis.Redis) -> None:
    told: list[Any] = []
    both = module.MultiLock([module.Lock(own, "a"), module.Lock(own, "b")], on_lost=told.append)
    assert both.acquire()
    lost = both.lost
    client.delete("b")
    with pytest.raises(LockLostError):
        both.renew()
    assert lost.is_set() and not both.held
    with pytest.raises(LockLostError):
        both.release()
    eventually(lambda: not holders(client, "a") and len(told) == 1)


def test_the_lost_event_can_be_taken_before_the_lock_is_acquired(module: Any, own: Any, client: redis.Redis) -> None:
    lock = module.Lock(own, "a")
    lost = lock.lost
    lock.acquire()
    client.delete("a")
    with pytest.raises(LockLostError):
        lock.renew()
    assert lost.is_set()


def test_a_release_after_the_loss_raises(module: Any, own: Any) -> None:
    lock = module.Lock(own, "a")
    lock.acquire()
    lock.lost.set()  # as if the lease had ended in this process, but not at the server
    with pytest.raises(LockLostError):
        lock.release()


def test_the_repr_of_a_lock_shows_whether_it_is_held(module: Any, own: Any) -> None:
    lock = module.Lock(own, "a")
    lock = lock._found if isinstance(lock, InLoop) else lock
    assert repr(lock).endswith("Lock 'a': not held>")
    wrapped = module.Lock(own, "a")
    wrapped.acquire()
    inner = wrapped._found if isinstance(wrapped, InLoop) else wrapped
    assert f"held, token {wrapped.fencing_token}" in repr(inner)
    wrapped.release()


def test_a_lock_is_lost_at_its_hold_limit(module: Any, own: Any) -> None:
    told = threading.Event()
    lock = module.Lock(own, "a", hold_limit=0.3, on_lost=lambda _: told.set())
    assert lock.acquire()
    if isinstance(lock, InLoop):
        lock._loop.run_until_complete(asyncio.wait_for(lock.lost.wait(), 20))
    assert told.wait(20) and not lock.held


def test_the_server_keeps_a_lock_without_renewal_no_longer_than_its_hold_limit(
    module: Any, own: Any, client: redis.Redis
) -> None:
    lock = module.Lock(own, "a", hold_limit=5, auto_renewal=False)
    assert lock.acquire() and client.pttl("a") <= 5000
    lock.release()


def test_a_handle_keeps_the_hold_limit_while_it_travels(module: Any, own: Any) -> None:
    lock, granted = module.Lock(own, "a", hold_limit=1.5), monotonic()
    assert lock.acquire()
    handle = lock.handle(detach=True)
    eventually(lambda: monotonic() > granted + 0.8)
    resumed = module.Lock.resume(own, handle)
    if module is lockward:
        eventually(lambda: not resumed.held)
    else:
        module.run(eventually_in_loop(lambda: not resumed.held))
    assert granted + 1.3 < monotonic() < granted + 1.8


def test_a_handle_never_lengthens_the_hold_limit(module: Any, own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the other computer may be slow."""
    lock = module.Lock(own, "a", hold_limit=0.5)
    assert lock.acquire()
    handle = lock.handle(detach=True)
    slow = time.time() - 3600
    monkeypatch.setattr(_tenure, "time", lambda: slow)
    resumed, begun = module.Lock.resume(own, handle), monotonic()
    if module is lockward:
        eventually(lambda: not resumed.held)
    else:
        module.run(eventually_in_loop(lambda: not resumed.held))
    assert monotonic() < begun + 0.7


def test_a_reentry_lasts_no_longer_than_the_hold_limit(module: Any, own: Any, client: redis.Redis) -> None:
    lock = module.Lock(own, "a", timeout=100, hold_limit=100, reentrant=True, thread_local=False)
    assert lock.acquire()
    eventually(lambda: client.pttl("a") < 99_500)
    assert lock.acquire() and client.pttl("a") < 99_750 and lock.held
    lock.release()
    lock.release()


def test_one_owner_holds_a_lock_twice(module: Any, own: Any, client: redis.Redis) -> None:
    locks = [module.Lock(own, "a", owner="job-7") for _ in range(2)]
    assert all(lock.acquire(blocking=False) for lock in locks)
    assert holders(client, "a") == [b"job-7"] and locks[0].fencing_token == locks[1].fencing_token


def test_guarded_commands(module: Any, own: Any, server: Any, client: redis.Redis) -> None:
    decoding = module.connect(server.port, decode_responses=True)
    with module.Lock(decoding, "a") as lock:
        assert lock.guarded("SET", "data", 1) == "OK" and lock.guarded("INCR", b"data") == 2
        lock.guarded("RPUSH", "list", "one", "zwei", "x" * 100_000)
        assert lock.guarded("LRANGE", "list", 0, 1) == ["one", "zwei"]
        assert len(lock.guarded("LINDEX", "list", 2)) == 100_000
        with pytest.raises(redis.ResponseError, match="WRONGTYPE") as raised:
            lock.guarded("LPUSH", "a", "x")
        assert not isinstance(raised.value, LockError) and lock.held
        assert lock.guarded() == "OK"
        sent = calls(client, "lock.guard")
        client.delete("a")
        for _ in range(2):
            with pytest.raises(LockLostError):
                lock.guarded("SET", "data", 7)
        assert calls(client, "lock.guard") == sent + 1  # the second command was not sent
        assert client.get("data") == b"2" and lock.acquire()


async def wait_for_cancellation(noted: list[bool]) -> None:
    """Wait until this task is cancelled, and note the cancellation."""
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 20)
    except asyncio.CancelledError:
        noted.append(True)
        raise


def test_a_leader_in_a_thread_leads_again_after_a_loss(client: redis.Redis, server: Any) -> None:
    terms: list[int] = []

    def run(lock: Any) -> str:
        terms.append(lock.fencing_token)
        if len(terms) == 1:
            client.delete("a")
            assert lock.lost.wait(20)
        return "done"

    with server.client() as own:
        assert lockward.lead(own, "a", run, lease=2) == "done"
    assert len(terms) == 2 and terms[0] < terms[1] and not holders(client, "a")


def test_the_task_of_a_leader_is_cancelled_when_the_leadership_is_lost(client: redis.Redis, server: Any) -> None:
    terms: list[int] = []
    cancelled: list[bool] = []

    async def run(lock: Any) -> str:
        terms.append(lock.fencing_token)
        if len(terms) == 1:
            client.delete("a")
            await wait_for_cancellation(cancelled)
        return "done"

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        assert await lockward.asyncio.lead(own, "a", run, lease=2) == "done"
        await own.connection_pool.disconnect()

    asyncio.run(main())
    assert cancelled and len(terms) == 2 and terms[0] < terms[1] and not holders(client, "a")


def test_a_leader_that_loses_another_lock_fails(client: redis.Redis, server: Any) -> None:
    terms: list[int] = []

    def fail(lock: Any) -> None:
        terms.append(lock.fencing_token)
        assert len(terms) < 3, "the leader leads again"
        raise LockLostError("another lock")

    async def run(lock: Any) -> None:
        fail(lock)

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        try:
            with pytest.raises(LockLostError, match="another lock"):
                await lockward.asyncio.lead(own, "a", run)
        finally:
            await own.connection_pool.disconnect()

    with pytest.raises(LockLostError, match="another lock"):
        lockward.lead(client, "a", fail)
    asyncio.run(main())
    assert len(terms) == 2 and not holders(client, "a")


def test_a_scope_is_cancelled_only_by_a_loss(client: redis.Redis, server: Any) -> None:
    cancelled: list[bool] = []

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        with pytest.raises(LockLostError):
            async with lockward.asyncio.Lock(own, "a", lease=0.3).scope():
                client.delete("a")
                await wait_for_cancellation(cancelled)
        await asyncio.sleep(0)  # the task itself is not cancelled
        entered = asyncio.Event()

        async def work() -> None:
            async with lockward.asyncio.Lock(own, "a").scope() as lock:
                assert lock.held
                entered.set()
                await wait_for_cancellation(cancelled)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not holders(client, "a")
        async with lockward.asyncio.Lock(own, "a").scope():
            pass
        await own.connection_pool.disconnect()

    asyncio.run(main())
    assert len(cancelled) == 2


def test_a_leader_that_handles_its_cancellation_leads_again_and_again(client: redis.Redis, server: Any) -> None:
    """If the leader's task still counted as cancelled after the first loss, the second loss would end the task."""
    terms: list[int] = []

    async def run(lock: Any) -> int:
        terms.append(lock.fencing_token)
        if len(terms) < 3:
            client.delete("a")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if len(terms) > 1:
                    raise
        task = asyncio.current_task()
        return task.cancelling() if task is not None and hasattr(task, "cancelling") else 0

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        assert await asyncio.create_task(lockward.asyncio.lead(own, "a", run, lease=0.3)) == 0
        await own.connection_pool.disconnect()

    asyncio.run(main())
    assert len(terms) == 3


def test_a_coroutine_function_as_on_lost_runs_in_the_event_loop(client: redis.Redis, server: Any) -> None:
    async def main() -> None:
        own, told = redis.asyncio.Redis(port=server.port), asyncio.Event()

        async def on_lost(_: Any) -> None:
            told.set()

        lock = lockward.asyncio.Lock(own, "a", lease=0.3, on_lost=on_lost)
        await lock.acquire()
        client.delete("a")
        await asyncio.wait_for(told.wait(), 20)
        await own.connection_pool.disconnect()

    asyncio.run(main())


def test_options_that_change_during_a_call_do_not_break_it(client: redis.Redis, scripted: Any) -> None:
    lock: Any = None

    def answer(words: list[bytes]) -> bytes:
        lock.replicas = (1, 0.1)
        return b"*3\r\n:7\r\n:1\r\n:30000\r\n"

    lock = lockward.Lock(redis.Redis(port=scripted(answer).port), "a", auto_renewal=False)
    assert lock.acquire()
    locks = [lockward.Lock(client, "b"), lockward.Lock(client, "c")]
    both, outcomes = lockward.MultiLock(locks, thread_local=False), []
    with lockward.Lock(client, "c"):
        threading.Thread(target=lambda: outcomes.append(both.acquire()), daemon=True).start()
        eventually(lambda: waiters(client, "c"))
        both.timeout, both.lease, both.owner, both.slots, both.name = 1, None, "job-7", 3, "d"
        locks.clear()
    eventually(lambda: outcomes == [True])
    both.release()
    assert not holders(client, "b") and not holders(client, "c")


def test_a_slow_on_lost_callback_does_not_delay_other_callbacks(client: redis.Redis, server: Any) -> None:
    blocked, told = threading.Event(), threading.Event()
    with server.client() as own:
        slow = lockward.Lock(own, "a", timeout=0.2, on_lost=lambda _: blocked.wait())
        other = lockward.Lock(own, "b", timeout=0.3, on_lost=lambda _: told.set())
        slow.acquire()
        other.acquire()
        is_told = told.wait(20)
        blocked.set()
    assert is_told


def test_a_cut_connection_is_not_used_for_a_guarded_command(own_server: Any) -> None:
    server = own_server("appendonly yes")
    lock = lockward.Lock(server.client(), "a", auto_renewal=False)
    lock.acquire()
    server.restart()
    eventually(lambda: server.client().ping())
    assert lock.guarded("SET", "data", 1) == b"OK"
    server.kill()
    lock.patience = 0.3
    with pytest.raises(UnreachableError):
        lock.guarded("SET", "data", 1)


def test_a_guarded_command_needs_a_lock_of_one_key(module: Any, own: Any, client: redis.Redis) -> None:
    """LOCK.GUARD checks one key: the other keys may be lost."""
    with module.MultiLock([module.Lock(own, "a"), module.Lock(own, "b")]) as both:
        for command in (["SET", "data", 1], []):
            with pytest.raises(TypeError, match="one key"):
                both.guarded(*command)
    assert not client.exists("data")
    with module.MultiLock([module.Lock(own, "a")]) as one:
        assert one.guarded("SET", "data", 1)


@pytest.mark.parametrize("owner", [None, "job-7"])
def test_a_handle_of_several_keys_that_is_lost_releases_the_other_keys(
    module: Any, own: Any, client: redis.Redis, owner: Any
) -> None:
    both = module.MultiLock([module.Lock(own, "a"), module.Lock(own, "b")], owner=owner, timeout=1000)
    assert both.acquire()
    handle = both.handle(detach=True)
    client.delete("b")
    with pytest.raises(LockLostError):
        module.Lock.resume(own, handle)
    eventually(lambda: not holders(client, "a"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_the_child_of_a_fork_cannot_run_guarded_commands(server: Any, client: redis.Redis) -> None:
    lock = lockward.Lock(client, "a")
    lock.acquire()
    child = os.fork()
    if child == 0:
        try:
            lock.guarded("SET", "data", 1)
        except LockError as error:
            os._exit(7 if type(error) is LockError else 1)  # the error is not LockLostError: the parent has the lock
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7 and lock.held
    lock.release()


def test_a_caller_without_a_waiting_connection_polls(module: Any, own: Any, client: redis.Redis) -> None:
    def hold() -> None:
        with lockward.Lock(client, "a", waiting_connections=1):
            pass

    with lockward.Lock(client, "a"):
        waiting, polling = (threading.Thread(target=hold, daemon=True) for _ in range(2))
        waiting.start()
        eventually(lambda: waiters(client, "a") == 1)
        tries = calls(client, "lock.acquire")
        polling.start()
        eventually(lambda: calls(client, "lock.acquire") > tries + 5)
        assert waiters(client, "a") == 1
    for thread in (waiting, polling):
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("module_name", ["threads", "asyncio"])
def test_many_calls_at_once_share_a_few_connections(client: redis.Redis, server: Any, module_name: str) -> None:
    names, opened = [f"k{number}" for number in range(300)], "total_connections_received"

    def hold(own: Any, name: str, all_begin: threading.Barrier) -> None:
        all_begin.wait(20)
        with lockward.Lock(own, name):
            pass

    async def hold_in_loop(own: Any, name: str) -> None:
        async with lockward.asyncio.Lock(own, name):
            pass

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        await asyncio.gather(*(hold_in_loop(own, name) for name in names))
        await own.connection_pool.disconnect()

    before = client.info("stats")[opened]
    if module_name == "asyncio":
        asyncio.run(main())
    else:
        with server.client() as own:
            all_begin = threading.Barrier(len(names))
            threads = [threading.Thread(target=hold, args=(own, name, all_begin), daemon=True) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive()
    assert client.info("stats")[opened] - before <= 2 * 16  # for acquisitions, and for held locks


def test_callers_that_want_a_lock_do_not_delay_a_release(client: redis.Redis) -> None:
    lock = lockward.Lock(client, "a", patience=0.3)
    assert lock.acquire()
    runtime = lock._runtime
    others = [Turn(runtime, runtime._turns[None, False], 16) for _ in range(16)]
    assert all(turn.has_begun() for turn in others)
    lock.release()
    with pytest.raises(UnreachableError, match="no server answers"):
        lock.acquire()
    others[0].__exit__()
    assert lock.acquire()


@pytest.mark.parametrize("call", ["acquire", "release"])
def test_a_call_that_waits_for_a_connection_goes_on_while_the_server_answers_other_calls(
    client: redis.Redis, call: str
) -> None:
    lock, done = lockward.Lock(client, "a", patience=0.3, response_limit=0.1, thread_local=False), []
    timer, other = lockward.Lock(client, "timer", timeout=1), lockward.Lock(client, "b")
    assert other.acquire() and (call == "acquire" or lock.acquire())
    runtime = lock._runtime
    runtime._turns.setdefault((None, True), {})
    others = [Turn(runtime, runtime._turns[None, call == "release"], 16) for _ in range(16)]
    assert timer.acquire() and all(turn.has_begun() for turn in others)

    def run() -> None:
        getattr(lock, call)()
        done.append(call)

    threading.Thread(target=run, daemon=True).start()
    # These calls are in the other queue.
    ask = other.owned if call == "acquire" else partial(lockward.Lock(client, "b").acquire, blocking=False)
    eventually(lambda: (ask(), not timer.held)[1])
    others[0].__exit__()
    eventually(lambda: done)


def test_all_callers_poll_if_there_is_no_waiting_connection(module: Any, own: Any, client: redis.Redis) -> None:
    assert lockward.Lock(client, "a", timeout=0.3).acquire()
    assert module.Lock(own, "a", waiting_connections=0).acquire()


def test_an_interrupted_release_releases_the_lock(
    server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    lock = lockward.Lock(client, "a", reentrant=True)
    both = lockward.MultiLock([lockward.Lock(client, "b"), lockward.Lock(client, "c")])
    assert lock.acquire() and lock.acquire() and both.acquire()
    for each, left in ((lock, 1), (lock, 0), (both, 0)):
        monkeypatch.setattr(each._runtime, "send", interrupt)
        with pytest.raises(KeyboardInterrupt):
            each.release()
        assert each.holds == left
        assert bool(holders(client, "a")) == bool(lock.holds)
    assert not holders(client, "b") and not holders(client, "c")


def test_a_cancelled_release_releases_the_lock(server: Any, client: redis.Redis) -> None:
    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        lock = lockward.asyncio.Lock(own, "a", timeout=1000, reentrant=True, thread_local=False)
        assert await lock.acquire() and await lock.acquire()
        for left in (1, 0):
            lock._runtime.close_idle()  # so the task is cancelled before it sends the request
            releasing = asyncio.create_task(lock.release())
            await asyncio.sleep(0)
            releasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await releasing
            assert lock.holds == left
        async with lockward.asyncio.Lock(own, "a", blocking_timeout=20):
            pass
        await own.connection_pool.disconnect()

    asyncio.run(main())


def test_an_interrupted_acquisition_of_several_keys_releases_them(
    server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = lockward.MultiLock([lockward.Lock(client, "a"), lockward.Lock(client, "b")])

    def interrupt(*_: Any) -> Any:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with lockward.Lock(client, "b"):
        monkeypatch.setattr(both._runtime, "wait", interrupt)  # this interrupts the release after the first attempt
        with pytest.raises(KeyboardInterrupt):
            both.acquire()
        eventually(lambda: not holders(client, "a"))


@pytest.mark.parametrize("options", [{"timeout": 1.2}, {"hold_limit": 1.2}])
def test_the_wait_for_several_keys_may_last_longer_than_the_lease(client: redis.Redis, options: Any) -> None:
    granted: list[Any] = []
    both = lockward.MultiLock([lockward.Lock(client, "a"), lockward.Lock(client, "b")], thread_local=False, **options)
    with lockward.Lock(client, "b", auto_renewal=False):
        waiting = threading.Thread(target=lambda: granted.append(both.acquire()), daemon=True)
        waiting.start()
        eventually(lambda: waiters(client, "b") == 1)
        before = calls(client, "lock.renew")
        eventually(lambda: calls(client, "lock.renew") >= before + 4)  # one renewal for each third of the lease
    waiting.join(20)
    assert granted == [True] and both.lost.wait(
        20
    )  # after the grant the client renews no lease, and the hold limit starts


def test_several_keys_share_one_patience(own_server: Any) -> None:
    server = own_server()
    own = server.client()
    keys, failed = [lockward.Lock(own, f"k{number}") for number in range(100)], []
    many = lockward.MultiLock(keys, patience=1, timeout=1000, thread_local=False)
    assert many.acquire()
    server.stop()

    def fail() -> None:
        for what in (many.renew, many.release):
            with pytest.raises(UnreachableError):
                what()
            failed.append(what)

    threading.Thread(target=fail, daemon=True).start()
    eventually(lambda: len(failed) == 2, within=30)  # with one patience for each key, the calls would take 200 s
    server.resume()


def test_all_locks_are_renewed_when_a_request_finds_its_connection_cut(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lockward.Lock(client, "a")
    assert lock.acquire()
    runtime, told = lock._runtime, threading.Event()
    monkeypatch.setattr(type(runtime), "connection_lost", lambda *_: told.set())
    [link] = runtime._idle[None]
    monkeypatch.setattr(link, "is_cut", lambda: True)
    assert runtime._take_idle(None) is None and told.is_set()


def watcher_sleeps(lock: lockward.Lock) -> None:
    """Wait until the watcher stops checking idle connections, as after a time without requests."""
    lock._runtime.close_idle()
    lock._runtime._used_at = 0.0
    eventually(lambda: lock._runtime._next > monotonic() + 1)


def test_a_lease_that_the_program_has_shortened_is_renewed_in_time(client: redis.Redis) -> None:
    lock = lockward.Lock(client, "a", timeout=30, auto_renewal=True)
    assert lock.acquire()
    watcher_sleeps(lock)
    renewals = calls(client, "lock.renew")
    assert lock.extend(2, replace_ttl=True)
    eventually(lambda: calls(client, "lock.renew") > renewals + 1)
    assert lock.held and lock.owned()
    lock.release()


def test_the_loss_of_a_lease_that_a_request_without_a_reply_may_have_shortened_is_reported_in_time(
    own_server: Any,
) -> None:
    server = own_server()
    lock = lockward.Lock(server.client(), "a", timeout=60, patience=60, response_limit=60, thread_local=False)
    assert lock.acquire()
    watcher_sleeps(lock)
    lost = lock.lost
    server.stop()

    def shorten() -> None:
        with pytest.raises(LockLostError):
            lock.extend(0.5, replace_ttl=True)

    shortening = threading.Thread(target=shorten, daemon=True)
    shortening.start()
    try:
        assert lost.wait(20)
    finally:
        server.resume()
    shortening.join(20)
    assert not shortening.is_alive()


def test_all_locks_are_renewed_after_a_cut_that_follows_an_idle_time(client: redis.Redis) -> None:
    lock = lockward.Lock(client, "a", timeout=1000, auto_renewal=True)
    assert lock.acquire()
    watcher_sleeps(lock)
    assert lock.owned()
    renewals = calls(client, "lock.renew")
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    eventually(lambda: calls(client, "lock.renew") > renewals)
    lock.release()


def test_a_lock_whose_renewals_were_refused_for_half_its_lease_is_kept(
    server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause between two renewals must not grow beyond a sixth of the lease."""

    def refusals() -> int:
        return int(client.info("commandstats").get("cmdstat_lock.renew", {}).get("rejected_calls", 0))

    monkeypatch.setattr("lockward._wire.random.uniform", lambda _, most: most)
    rights = ["+@all", "-lock.renew"]
    client.acl_setuser("few", enabled=True, passwords="+right", keys="*", commands=rights, reset=True)
    with server.client(username="few", password="right") as few, lockward.Lock(few, "a", lease=2) as lock:
        before = refusals()
        eventually(lambda: refusals() >= before + 6)
        client.acl_setuser("few", commands=["+lock.renew"])
        eventually(lambda: held_for(client, "a") > 2.5)
        assert lock.held


def test_a_watcher_that_fails_is_reported_and_replaced(client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    lock = lockward.Lock(client, "a", lease=1)
    assert lock.acquire()
    runtime, tick = lock._runtime, lock._runtime._tick

    def fail(_: float) -> float:
        runtime._tick = tick
        raise RuntimeError("not today")

    runtime._tick = fail
    eventually(lambda: "the watcher has failed" in caplog.text)
    with lockward.Lock(client, "b"):  # this acquisition starts a new watcher
        eventually(lambda: held_for(client, "a") > 1.5)
    lock.release()


def test_a_connection_that_is_returned_while_the_watcher_ends_is_closed(server: Any) -> None:
    lock = lockward.Lock(server.client(), "a")
    assert lock.acquire()
    lock.release()
    runtime = lock._runtime
    link = runtime._take_idle(None)
    assert link is not None
    tick, come_back = runtime._tick, [link]

    def tick_and_come_back(now: float) -> float:
        then = tick(now)
        if come_back:
            runtime._client = lambda: None  # the program drops its client
            runtime._keep_idle(come_back.pop())
        return then

    runtime._tick = tick_and_come_back
    eventually(lambda: not come_back and link._theirs._sock is None)


def test_a_lock_can_be_used_while_the_program_ends(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Python 3.12, functions registered with atexit cannot start a thread."""

    def fail(_: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    lock, dropped = lockward.Lock(client, "a"), lockward.Lock(client, "b", timeout=1000)
    assert dropped.acquire()
    handle, runtime = dropped.handle(detach=True), lock._runtime
    runtime.close_idle()
    runtime._used_at = 0.0
    eventually(lambda: not runtime._is_watched)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        resumed = lockward.Lock.resume(client, handle)
        resumed.release()
        assert lock.acquire() and lock.held
        lock.release()
    assert not holders(client, "a") and not holders(client, "b")
    assert lock.acquire() and runtime._is_watched
    lock.release()


@pytest.mark.parametrize("first", ["longer", "shorter"])
@pytest.mark.parametrize("order", ["as sent", "reversed"])
def test_of_two_leases_that_are_set_at_the_same_time_the_shorter_one_counts(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, first: str, order: str
) -> None:
    """The client cannot know which of the two requests the server has executed last."""
    lock = lockward.Lock(client, "a", timeout=20, thread_local=False)
    assert lock.acquire()
    runtime, sent, go_on = lock._runtime, [], [threading.Event(), threading.Event()]
    send = runtime.send

    async def send_and_wait(*arguments: Any) -> None:
        await send(*arguments)
        sent.append(go_on[len(sent)])
        assert sent[-1].wait(20)

    with monkeypatch.context() as patch:
        patch.setattr(runtime, "send", send_and_wait)
        leases = [100, 10] if first == "longer" else [10, 100]
        threads = [threading.Thread(target=lock.extend, args=(lease, True), daemon=True) for lease in leases]
        for number, thread in enumerate(threads):
            thread.start()
            eventually(lambda number=number: len(sent) > number)
        for event, thread in list(zip(go_on, threads))[:: 1 if order == "as sent" else -1]:
            event.set()
            thread.join(20)
    [holding] = lock._local.__dict__.values()
    assert holding.deadline < monotonic() + 10
    assert lock.extend(50, replace_ttl=True) and holding.deadline > monotonic() + 40
    lock.release()


def test_a_key_that_was_released_is_not_renewed(client: redis.Redis) -> None:
    """The first request for all keys gets the third key. The client releases the third key, because the second key is
    busy."""
    keys, granted = [lockward.Lock(client, name) for name in "abc"], []
    many = lockward.MultiLock(keys, timeout=2, thread_local=False)
    with lockward.Lock(client, "b", auto_renewal=False):
        waiting = threading.Thread(target=lambda: granted.append(many.acquire()), daemon=True)
        waiting.start()
        eventually(lambda: waiters(client, "b") == 1)
        owners = holders(client, "a")
        many._runtime.connection_lost(None)  # this call renews all held keys
        eventually(lambda: held_for(client, "a") > 3)  # the wait notices the loss of a key when its slice ends
        assert owners and holders(client, "a") == owners and not holders(client, "c")
    waiting.join(20)
    assert granted == [True] and many.held
    many.release()


def test_after_a_late_reentry_the_client_does_not_overestimate_the_lease(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to the re-entry arrives after the end of the lease that the re-entry asks for. So the client
    renews the lock."""
    lock = lockward.Lock(client, "a", timeout=0.5, reentrant=True)
    assert lock.acquire() and lock.extend(100, replace_ttl=True)
    send = lock._runtime.send

    async def send_and_wait(*arguments: Any) -> None:
        monkeypatch.undo()
        await send(*arguments)
        brief = lockward.Lock(client, "b", timeout=0.6)
        assert brief.acquire() and brief.lost.wait(20)

    monkeypatch.setattr(lock._runtime, "send", send_and_wait)
    assert lock.acquire() and lock.holds == 2
    [holding] = lock._local.__dict__.values()
    assert holding.deadline < client.pttl("a") / 1000 + monotonic() + 0.001


def test_a_late_confirmation_does_not_stop_the_renewals(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second key is granted, but its lease is over when the confirmation comes. The watcher must not renew this key."""
    lock = lockward.Lock(client, "other", lease=4)
    both = lockward.MultiLock([lockward.Lock(client, "a"), lockward.Lock(client, "b")], lease=2, thread_local=False)
    send, late, granted, crashed = lock._runtime.send, [], [], []

    async def send_and_wait(node: Any, requests: Any, *others: Any) -> None:
        await send(node, requests, *others)
        if not late and [(each.key, each.command[0]) for each in requests] == [(b"b", "LOCK.RENEW")]:
            late.append(True)
            eventually(lambda: client.execute_command("LOCK.ACQUIRE", "b", "rival", "PX", 300))

    monkeypatch.setattr(lock._runtime, "send", send_and_wait)
    monkeypatch.setattr(threading, "excepthook", crashed.append)
    with lock:
        with lockward.Lock(client, "b"):
            waiting = threading.Thread(target=lambda: granted.append(both.acquire()), daemon=True)
            waiting.start()
            eventually(lambda: waiters(client, "b") == 1)
        waiting.join(20)
        assert late and granted == [True] and both.held and lock.held and not crashed
        both.release()


@pytest.mark.parametrize("what", ["the client's renewal", "the program's renewal"])
def test_a_lease_that_is_shortened_before_a_renewal_is_noted_counts(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    lock = lockward.Lock(client, "a", timeout=30, auto_renewal=True, thread_local=False)
    assert lock.acquire()
    [holding] = lock._local.__dict__.values()
    [tenure] = holding.tenures
    noted, note_lease = threading.Event(), holding.note_lease

    def shorten_and_note(*arguments: Any) -> None:
        monkeypatch.undo()
        holding.renewal(tenure, 5000).begin()  # as if another thread had sent this renewal and received no reply
        note_lease(*arguments)
        noted.set()

    monkeypatch.setattr(holding, "note_lease", shorten_and_note)
    if what == "the program's renewal":
        lock.renew()
    else:
        lock._runtime.connection_lost(None)  # this call renews all held keys
    assert noted.wait(20) and holding.deadline < monotonic() + 5
    lock.release()


def test_threads_count_the_holds_of_one_object_together(client: redis.Redis) -> None:
    lock = lockward.Lock(client, "a", reentrant=True, thread_local=False)
    assert lock.acquire()

    def at_once(action: Any) -> None:
        threads = [threading.Thread(target=action, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

    for _ in range(20):
        at_once(lock.acquire)
        assert lock.holds == 5
        at_once(lock.release)
        assert lock.holds == 1 and lock.owned()
    lock.release()
    assert not lock.locked()


def test_tasks_count_the_holds_of_one_object_together(client: redis.Redis, server: Any) -> None:
    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        lock = lockward.asyncio.Lock(own, "a", reentrant=True, thread_local=False)
        assert await lock.acquire()
        assert await asyncio.gather(*[lock.acquire() for _ in range(4)]) == [True] * 4
        assert lock.holds == 5
        await asyncio.gather(*[lock.release() for _ in range(4)])
        assert lock.holds == 1 and await lock.owned()
        # A release that is cancelled while it waits for another release goes on in the background.
        assert await lock.acquire() and await lock.acquire()
        first, second = asyncio.create_task(lock.release()), asyncio.create_task(lock.release())
        await asyncio.sleep(0)
        second.cancel()
        await first
        with pytest.raises(asyncio.CancelledError):
            await second
        await eventually_in_loop(lambda: lock.holds == 1)
        assert await lock.owned()
        # A re-entry that waits for the last release is a new acquisition.
        token = lock.fencing_token
        _, is_held = await asyncio.gather(lock.release(), lock.acquire())
        assert is_held and lock.holds == 1 and lock.fencing_token > token
        await lock.release()
        assert not await lock.locked()
        await own.connection_pool.disconnect()

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize("owner", [None, "job-7"])
def test_two_tasks_cannot_acquire_one_permit_at_once(client: redis.Redis, server: Any, owner: Any) -> None:
    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        permit = lockward.asyncio.Semaphore(own, "a", 3, owner=owner).permits()
        outcomes = await asyncio.gather(permit.acquire(), permit.acquire(), return_exceptions=True)
        assert sorted(type(each).__name__ for each in outcomes) == ["LockError", "bool"]
        assert permit.held and await permit.owned()
        assert len(holders(client, "a")) == 1
        await permit.release()
        assert not holders(client, "a")
        await own.connection_pool.disconnect()

    asyncio.run(main())


@pytest.mark.parametrize("owner", [None, "job-7"])
def test_two_tasks_acquire_a_reentrant_reader_at_once(client: redis.Redis, server: Any, owner: Any) -> None:
    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        lock = lockward.asyncio.Lock(own, "a", shared=True, reentrant=True, thread_local=False, owner=owner)
        assert await asyncio.gather(lock.acquire(), lock.acquire()) == [True, True]
        assert lock.holds == 2 and await lock.owned() and len(holders(client, "a")) == 1
        await asyncio.gather(lock.release(), lock.release())
        assert not holders(client, "a")
        await own.connection_pool.disconnect()

    asyncio.run(main())
