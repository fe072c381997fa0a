"""Two clerks sell from ten pairs of shoes. Alice is stopped while she holds the lock. Meanwhile her lease ends, and Bob sells.

The clerks use stores that accept every write, and then stores that check the fencing token. With the argument `redis`, the clerks
do not use PostgreSQL.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from stores import open_store

CLERK = [sys.executable, str(Path(__file__).with_name("clerk.py"))]


def play(title, store):
    print(title, flush=True)
    shelf = open_store(store)
    shelf.reset(10)
    alice = subprocess.Popen([*CLERK, "alice", "1", store, "stopped"])
    # Wait until Alice's process has stopped itself.
    _, status = os.waitpid(alice.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        sys.exit("alice ended before she was stopped")
    try:
        # Bob waits. When Alice's lease ends, the server hands the lock to him.
        subprocess.run([*CLERK, "bob", "3", store], check=True)
    finally:
        os.kill(alice.pid, signal.SIGCONT)
    if alice.wait() != 0:
        sys.exit("alice has failed")
    left = shelf.read(2**53 - 1)
    right = "as it should be" if left == 6 else "but 4 of 10 were sold: Bob's sale is lost"
    print(f"  In stock: {left} pairs, {right}.\n", flush=True)
    return left


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["redis"]):
        sys.exit("fenced_writes.py [redis]")
    stock = [
        play("Redis, no check", "redis-unchecked"),
        play("Redis, the token is checked", "redis"),
    ]
    if not sys.argv[1:]:
        stock += [
            play("PostgreSQL, no check", "postgres-unchecked"),
            play("PostgreSQL, the token is checked", "postgres"),
        ]
    sys.exit(0 if stock in ([9, 6], [9, 6, 9, 6]) else f"unexpected stock: {stock}")
