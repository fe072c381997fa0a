"""clerk.py NAME PAIRS STORE [stopped]: a clerk who sells pairs of shoes. Each clerk is a process.

While the clerk holds the lock, it reads the stock and writes the number of pairs that are left. With `stopped`, the process stops
itself between the read and the write, until it gets SIGCONT. A long garbage collection, a suspended virtual machine or an overloaded
host has the same effect.
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
    """Sells under the lock. Returns False if the store refused the write, because the lock was lost."""
    say("asks for the lock")
    # redis-py sends a command again if its reply is lost. HOLDS 1 makes this safe.
    lease = 1_000 if is_stopped else 30_000
    reply = lock.execute_command("LOCK.ACQUIRE", LOCK, name, "PX", lease, "BLOCK", 20_000, "HOLDS", 1)
    if reply is None:
        sys.exit(f"{name} did not get the lock within 20 seconds")
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
        # The lease ended after the write. The write is valid, because the store accepted the token.
        say(f"releases the lock: {error}")
    return True


name, pairs, which = sys.argv[1:4]
lock = connect_redis()
store = open_store(which)
if not sell(int(pairs), is_stopped="stopped" in sys.argv):
    say("begins again")
    sell(int(pairs), is_stopped=False)
