"""clerk.py NAME PAIRS STORE [stopped]: a clerk who sells pairs of shoes, as a process of its own.

It reads the stock and writes what is left. A lock excludes other clerks meanwhile. With `stopped` the process stops itself between
reading and writing, until it gets SIGCONT: like a long garbage collection, a suspended virtual machine or an overloaded host.
"""

import os
import signal
import sys

import redis
from stores import Refused, connect_redis, open_store

LOCK = "lock:shoes"


def say(text):
    print(f"  {name:5}  {text}", flush=True)


def sell(pairs, is_stopped):
    """False when the lock was lost and nothing was written."""
    say("asks for the lock")
    # redis-py repeats a command whose reply is lost. HOLDS 1 makes that safe.
    lease = 1_000 if is_stopped else 30_000
    reply = lock.execute_command("LOCK.ACQUIRE", LOCK, name, "PX", lease, "BLOCK", 20_000, "HOLDS", 1)
    if reply is None:
        sys.exit(f"{name} has not got the lock in 20 seconds")
    token, _holds, _lease = reply
    say(f"has the lock, token {token}")
    stock = store.read(token)
    say(f"reads: {stock} pairs")
    if is_stopped:
        say("is stopped, for longer than the lease")
        os.kill(os.getpid(), signal.SIGSTOP)
        say("goes on, as if nothing had happened")
    try:
        store.write(token, stock - pairs)
    except Refused as refused:
        say(f"sells {pairs}, and is refused: {refused}")
        return False
    say(f"sells {pairs}, and writes: {stock - pairs} pairs")
    try:
        lock.execute_command("LOCK.RELEASE", LOCK, name, "TOKEN", token)
        say("releases the lock")
    except redis.ResponseError as error:
        # Too late: the write is done.
        say(f"releases the lock: {error}")
    return True


name, pairs, which = sys.argv[1:4]
lock = connect_redis()
store = open_store(which)
if not sell(int(pairs), is_stopped="stopped" in sys.argv):
    say("begins again")
    sell(int(pairs), is_stopped=False)
