"""Locks for threads."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis
from conftest import calls, eventually, holders, waiters

import lockward.asyncio
from lockward import Lock, LockError, LockLostError, LockNotOwnedError, LockRefusedError
from lockward._tenure import Holding


def in_thread(action: Any) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_only_one_caller_holds_the_lock(client: redis.Redis) -> None:
    mine, other = Lock(client, "a"), Lock(client, "a")
    assert mine.acquire() and mine.held and mine.owned() and mine.locked()
    assert not other.acquire(blocking=False)
    assert not other.acquire(blocking_timeout=1)
    assert not other.held and not other.owned() and other.locked()
    mine.release()
    assert not mine.held and not mine.owned() and not mine.locked()
    assert other.acquire(blocking=False)


def test_the_lock_method_of_the_client_works(client: redis.Redis) -> None:
    lock = client.lock("a", timeout=10, lock_class=Lock)
    with lock:
        assert holders(client, "a")


@pytest.mark.parametrize("name", ["straße", b"\x00\xff", memoryview(b"view"), 10**15])
@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 2}, {"protocol": 3}])
def test_names_are_text_or_bytes_or_numbers_with_any_decoding(server: Any, name: Any, options: Any) -> None:
    """redis-py accepts a number as a name, too."""
    with server.client(**options) as client:
        lock = Lock(client, name)
        with lock:
            assert lock.owned() and lock.locked() and "held" in repr(lock)
            resumed = Lock.resume(client, lock.handle())
            assert resumed.owned()


def test_only_the_owner_can_release(client: redis.Redis) -> None:
    mine, other = Lock(client, "a"), Lock(client, "a")
    mine.acquire()
    with pytest.raises(LockError) as refused:
        other.release()
    assert not isinstance(refused.value, LockNotOwnedError) and refused.value.lock_name == "a"
    assert mine.owned()


def test_only_the_thread_that_acquired_can_release(client: redis.Redis) -> None:
    lock, shared = Lock(client, "a"), Lock(client, "b", thread_local=False)
    lock.acquire()
    shared.acquire()
    results: list[Any] = []

    def release() -> None:
        results.append(lock.fencing_token)
        with pytest.raises(LockError):
            lock.release()
        shared.release()
        results.append("done")

    in_thread(release).join(20)
    assert results == [None, "done"]
    assert lock.owned() and not shared.locked()


def test_two_threads_with_one_object_exclude_each_other(client: redis.Redis) -> None:
    lock = Lock(client, "a")
    inside: list[int] = []

    def count() -> None:
        for _ in range(20):
            with lock:
                inside.append(1)
                assert len(inside) == 1
                inside.clear()

    threads = [in_thread(count) for _ in range(4)]
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads) and not lock.locked()


def test_a_waiter_does_not_use_the_clients_connections(server: Any) -> None:
    with redis.Redis(connection_pool=redis.BlockingConnectionPool(port=server.port, max_connections=1)) as client:
        first = Lock(client, "a")
        first.acquire()
        waiting = in_thread(lambda: Lock(client, "a").acquire())
        eventually(lambda: waiters(client, "a") == 1)
        assert client.set("b", "1")
        first.release()
        waiting.join(20)
        assert not waiting.is_alive()


def test_locks_are_not_reentrant_by_default(client: redis.Redis) -> None:
    lock = Lock(client, "a")
    lock.acquire()
    assert not lock.acquire(blocking=False)
    assert not lock.acquire(blocking_timeout=1)
    with pytest.raises(LockError, match="reentrant=True"):
        lock.acquire()
    lock.release()
    assert not lock.locked()


def test_reentries_are_counted(client: redis.Redis) -> None:
    lock = Lock(client, "a", reentrant=True)
    with lock:
        token = lock.fencing_token
        with lock, lock:
            assert lock.holds == 3 and lock.fencing_token == token
        assert lock.holds == 1 and lock.owned()
    assert lock.holds == 0 and not lock.locked()


def test_a_reentry_after_the_loss_raises(client: redis.Redis) -> None:
    lock = Lock(client, "a", reentrant=True)
    lock.acquire()
    client.delete("a")
    with pytest.raises(LockLostError):
        lock.acquire()
    with pytest.raises(LockLostError):
        lock.release()
    assert lock.acquire() and lock.holds == 1


def test_two_locks_with_the_same_token_are_two_owners(client: redis.Redis) -> None:
    mine, other = Lock(client, "a"), Lock(client, "a")
    assert mine.acquire(token="job-7")
    assert mine.local.token == b"job-7" and holders(client, "a")[0].startswith(b"job-7:")
    assert not other.acquire(blocking=False, token="job-7")
    mine.release()
    assert mine.acquire(token=7) and mine.local.token == b"7"  # redis-py accepts a number as a token, too


def test_a_lock_is_lost_after_its_timeout(client: redis.Redis) -> None:
    lock, reported = Lock(client, "a", timeout=0.1), threading.Event()
    lock.on_lost = lambda which: reported.set() if which is lock else None
    lock.acquire()
    lost = lock.lost
    assert lost.wait(20) and reported.wait(20) and not lock.held
    eventually(lambda: not lock.locked())
    with pytest.raises(LockNotOwnedError):
        lock.release()


@pytest.mark.parametrize("theft", [("DEL", "a"), ("SET", "a", "1"), ("FLUSHALL",)])
def test_a_lock_whose_key_is_deleted_or_overwritten_is_lost(client: redis.Redis, theft: Any) -> None:
    lock = Lock(client, "a", lease=0.5)
    lock.acquire()
    lost = lock.lost
    client.execute_command(*theft)
    assert lost.wait(20) and not lock.held
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert lock.local.token is None


@pytest.mark.parametrize("theft", [("DEL", "a"), ("SET", "a", "1")])
def test_release_extend_and_reacquire_raise_after_the_loss(client: redis.Redis, theft: Any) -> None:
    for what in (Lock.release, Lock.reacquire, lambda lock: lock.extend(5)):
        client.delete("a")
        lock = Lock(client, "a", timeout=30)
        lock.acquire()
        client.execute_command(*theft)
        with pytest.raises(LockNotOwnedError):
            what(lock)
        assert not lock.held


def test_the_context_manager_raises_or_logs_a_loss(client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LockNotOwnedError), Lock(client, "a"):
        client.delete("a")
    with caplog.at_level(logging.WARNING), Lock(client, "a", raise_on_release_error=False):
        client.delete("a")
    assert "no longer owned" in caplog.text


def test_extend_and_reacquire(client: redis.Redis) -> None:
    lock = Lock(client, "a", timeout=100)
    lock.acquire()
    assert lock.extend(100) and 190_000 < client.pttl("a") <= 200_000
    assert lock.extend(50, replace_ttl=True) and 40_000 < client.pttl("a") <= 50_000
    assert lock.reacquire() and 90_000 < client.pttl("a") <= 100_000
    endless = Lock(client, "b")
    endless.acquire()
    for what in (lambda: endless.extend(1), endless.reacquire, lambda: Lock(client, "c", timeout=1).extend(1)):
        with pytest.raises(LockError):
            what()


def test_lock_refused_has_the_error_of_the_server(client: redis.Redis) -> None:
    client.set("a", "1")
    with pytest.raises(LockRefusedError, match="WRONGTYPE") as refused:
        Lock(client, "a").acquire()
    assert isinstance(refused.value, LockError) and isinstance(refused.value, redis.ResponseError)


def test_a_refused_login_or_command_fails_at_once(client: redis.Redis, server: Any) -> None:
    client.acl_setuser("few", enabled=True, passwords="+right", keys="*", commands=["+@connection"], reset=True)
    with server.client(username="few", password="wrong") as stranger, pytest.raises(LockRefusedError, match="password"):
        Lock(stranger, "a", patience=1000).acquire()
    with server.client(username="few", password="right") as few, pytest.raises(LockRefusedError, match="NOPERM"):
        Lock(few, "a", patience=1000).acquire()


def test_a_function_of_the_program_may_set_up_the_connections(client: redis.Redis, server: Any) -> None:
    client.acl_setuser("job", enabled=True, passwords="+right", keys="*", commands=["+@all"], reset=True)

    def is_logged_in() -> bool:
        return any(each["user"] == "job" for each in client.client_list())

    def log_in(connection: Any) -> None:
        connection.on_connect()
        connection.send_command("AUTH", "job", "right")
        assert connection.read_response() in (b"OK", "OK")

    async def log_in_from_loop(connection: Any) -> None:
        await connection.on_connect()
        await connection.send_command("AUTH", "job", "right")
        assert await connection.read_response() in (b"OK", "OK")

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port, redis_connect_func=log_in_from_loop)
        async with lockward.asyncio.Lock(own, "a"):
            assert is_logged_in()
        await own.connection_pool.disconnect()

    with server.client(redis_connect_func=log_in) as own, Lock(own, "a"):
        assert is_logged_in()
    client.client_kill_filter(user="job")
    asyncio.run(main())


def test_the_client_finds_the_default_lease_without_permission_for_lock_info(client: redis.Redis, server: Any) -> None:
    commands = ["+@connection", "+lock.acquire", "+lock.release", "+lock.renew"]
    client.acl_setuser("uninformed", enabled=True, passwords="+right", keys="*", commands=commands, reset=True)
    with server.client(username="uninformed", password="right") as uninformed, Lock(uninformed, "a") as lock:
        assert lock.held


def test_a_lock_can_be_read_while_another_thread_acquires_or_releases_it(client: redis.Redis) -> None:
    lock = Lock(client, "a", thread_local=False)
    assert lock.acquire()
    holdings = lock._local.__dict__
    holding = holdings[None]

    def switch(frame: Any, event: str, _: Any) -> Any:
        """After each instruction of the property, let the other thread run."""
        frame.f_trace_opcodes = frame.f_code.co_name == "_holding"
        if event == "opcode":
            holdings.pop(None) if holdings else holdings.update({None: holding})
        return switch

    for _ in range(2):  # the lock is held at first, or not
        sys.settrace(switch)
        try:
            lock.held  # noqa: B018
        finally:
            sys.settrace(None)
        holdings.clear()


def test_another_thread_can_read_the_lost_event(client: redis.Redis) -> None:
    lock, taken = Lock(client, "a"), []
    lock.acquire()
    in_thread(lambda: taken.append(lock.lost)).join(20)
    assert taken == [lock.lost]
    lock.release()
    assert lock.lost is not taken[0]


def test_a_thread_is_told_of_the_loss_when_another_one_acquires_with_the_same_object(client: redis.Redis) -> None:
    told: list[Any] = []
    lock = Lock(client, "a", thread_local=False, on_lost=told.append)
    lock.acquire()
    lost = lock.lost
    client.delete("a")
    in_thread(lock.acquire).join(20)
    assert lock.held and lost.wait(20) and lock.lost is not lost
    eventually(lambda: told == [lock])
    named = Lock(client, "b", thread_local=False, owner="job-7", on_lost=told.append)
    named.acquire()
    lost = named.lost
    in_thread(named.acquire).join(20)
    assert named.held and not lost.is_set()
    named.release()
    lock.release()


def test_a_loss_while_the_lock_object_takes_the_lock_is_reported(client: redis.Redis) -> None:
    """The watcher renews keys before the client has acquired all of them, so the watcher may find a loss before
    `_store` runs."""

    class Losing(threading.Event):
        def is_set(self) -> bool:
            was_set = super().is_set()
            if not was_set:
                lock._runtime.lose(holding)  # as the watcher does
            return was_set

    told: list[Any] = []
    lock = Lock(client, "a", thread_local=False, on_lost=told.append)
    lost, holding = lock.lost, Holding(b"", 0, [], Losing(), None, True)
    lock._store(holding)
    assert lost.is_set() and not lock.held
    eventually(lambda: told == [lock])


def test_an_exception_in_on_lost_does_not_stop_renewals(client: redis.Redis) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("not today")

    lost, kept = Lock(client, "a", lease=0.5, on_lost=fail), Lock(client, "b", lease=2)
    lost.acquire()
    kept.acquire()
    event = lost.lost
    client.delete("a")
    assert event.wait(20)
    renewals = calls(client, "lock.renew")
    eventually(lambda: calls(client, "lock.renew") > renewals + 3)
    assert kept.held and kept.owned()


def test_another_process_resumes_a_lock_by_its_handle(client: redis.Redis, server: Any) -> None:
    lock = Lock(client, "a", reentrant=True)
    lock.acquire()
    lock.acquire()
    script = f"""
import lockward, redis, sys
lock = lockward.Lock.resume(redis.Redis(port={server.port}), sys.argv[1])
print(lock.fencing_token, lock.holds, lock.owned())
lock.release(); lock.release()
print(lock.locked())
"""
    handle = lock.handle()
    printed = subprocess.run([sys.executable, "-c", script, handle], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == [str(lock.fencing_token), "2", "True", "False"]
    with pytest.raises(LockNotOwnedError):
        lock.release()
    with pytest.raises(LockNotOwnedError):
        Lock.resume(client, handle)
    with pytest.raises(ValueError, match="not a handle"):
        Lock.resume(client, "nonsense")


def test_a_detached_lock_is_forgotten(client: redis.Redis) -> None:
    lock = Lock(client, "a", timeout=30)
    lock.acquire()
    handle = lock.handle(detach=True)
    assert lock.fencing_token is None and lock.locked()
    with pytest.raises(LockError):
        lock.release()
    resumed = Lock.resume(client, handle)
    assert resumed.timeout == 30 and resumed.held and 20_000 < client.pttl("a") <= 30_000
    resumed.release()
    assert not lock.locked()


def test_a_dropped_lock_is_not_renewed(client: redis.Redis) -> None:
    lock = Lock(client, "a", lease=0.5)
    lock.acquire()
    del lock
    gc.collect()
    eventually(lambda: not holders(client, "a"))


def test_a_dropped_client_leaves_no_thread(server: Any, client: redis.Redis) -> None:
    before = set(threading.enumerate())
    dropped = server.client()
    with Lock(dropped, "a"):
        [thread] = [each for each in threading.enumerate() if each not in before and each.name == "lockward"]
    del dropped
    gc.collect()
    eventually(lambda: not thread.is_alive())


def test_a_program_can_end_while_it_holds_a_lock(server: Any, client: redis.Redis) -> None:
    script = f"""
import lockward, redis
lock = lockward.Lock(redis.Redis(port={server.port}), "a", lease=1)
lock.acquire()
"""
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=20, check=True
    )
    assert not ended.stderr
    eventually(lambda: not holders(client, "a"))


def test_the_children_of_a_fork_are_other_owners(client: redis.Redis) -> None:
    lock, shared = Lock(client, "a", lease=2), Lock(client, "b", thread_local=False)
    lock.acquire()
    shared.acquire()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def child() -> None:
        outcomes = [lock.held, lock.owned(), lock.acquire(blocking=False), shared.acquire(blocking=False)]
        for each in (lock, shared):
            try:
                each.release()
            except LockNotOwnedError:
                outcomes.append("not owned")
        mine = Lock(client, "c", lease=2)
        mine.acquire()
        renewals = calls(client, "lock.renew")
        eventually(lambda: calls(client, "lock.renew") > renewals + 5)
        outcomes += [mine.held, mine.owned()]
        mine.release()
        results.put(outcomes)

    process = context.Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert results.get() == [False, False, False, False, "not owned", "not owned", True, True]
    assert lock.held and lock.owned() and shared.owned()
    lock.release()
    shared.release()


@pytest.mark.parametrize("thread_local", [True, False])
def test_the_child_of_a_fork_waits_for_an_inherited_reentrant_lock(client: redis.Redis, thread_local: bool) -> None:
    lock = Lock(client, "a", reentrant=True, thread_local=thread_local)
    lock.acquire()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def child() -> None:
        with lock, lock:
            results.put((lock.holds, lock.fencing_token))

    process = context.Process(target=child)
    process.start()
    eventually(lambda: waiters(client, "a") == 1)
    token = lock.fencing_token
    assert lock.owned()
    lock.release()
    process.join(30)
    assert process.exitcode == 0 and not holders(client, "a")
    holds, later = results.get()
    assert holds == 2 and later > token


def test_forked_processes_have_different_owners(client: redis.Redis) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=lambda: Lock(client, "a", timeout=30).acquire()) for _ in range(3)]
    Lock(client, "b").acquire()
    for process in processes:
        process.start()
    eventually(lambda: waiters(client, "a") == 2)
    for process in processes:
        process.kill()
        process.join()


def test_the_child_of_a_fork_can_connect_although_another_thread_was_connecting(server: Any) -> None:
    """To find an address, Python imports a module when it does so first. In the child nobody unlocks this import."""
    script = f"""
import importlib._bootstrap as imports, lockward, os, redis, threading
is_locked = threading.Event()
def connect():
    with imports._ModuleLockManager("encodings.idna"):
        is_locked.set()
        threading.Event().wait()
threading.Thread(target=connect, daemon=True).start()
is_locked.wait()
if child := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for _ in range(3):  # these threads get the numbers of the parent's threads, so that the next thread does not unlock the import
    threading.Thread(target=threading.Event().wait, daemon=True).start()
with lockward.Lock(redis.Redis(port={server.port}), "a", patience=1) as lock:
    assert lock.owned()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_clients_of_other_libraries_are_refused(client: redis.Redis, server: Any) -> None:
    with pytest.raises(TypeError, match="must be used with lockward"):
        Lock(redis.asyncio.Redis(port=server.port), "a")
    with pytest.raises(TypeError, match="redis-py"):
        Lock("localhost", "a")
    assert lockward.__version__


def test_the_program_in_the_readme_runs(client: redis.Redis, server: Any) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    program = readme.split("```python\n")[1].split("```")[0].replace("6379", str(server.port))
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout.startswith("held with token ") and client.get("state:42") == b"paid"


def test_locks_can_be_added_while_the_watcher_reads_them(client: redis.Redis) -> None:
    runtime, failures, added = Lock(client, "a")._runtime, [], []

    def look() -> None:
        try:
            while not added:
                runtime._tick(monotonic())
        except RuntimeError as error:
            failures.append(error)

    kept = [Holding(b"", 0, [], threading.Event(), None, True) for _ in range(5000)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        looking = in_thread(look)
        for holding in kept:
            runtime.watch(holding)
        added.append(True)
        looking.join(20)
    finally:
        sys.setswitchinterval(interval)
    assert not failures and not looking.is_alive()


def test_a_warning_is_logged_if_no_thread_can_run_on_lost(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    lock = Lock(client, "a", on_lost=print)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        lock._runtime.call_on_lost(lock)
    assert "on_lost" in caplog.text
