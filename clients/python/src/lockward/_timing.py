"""Leases, pauses and units. Leases are in milliseconds, everything else in seconds."""

from __future__ import annotations

import random


def millis(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def lease_end(sent: float, lease: int) -> float:
    """When a lease ends whose request was sent at ``sent``.

    The server starts counting later. A thousandth and a millisecond are subtracted, because its clock may be faster.
    """
    return sent + (lease - lease // 1000 - 1) / 1000


def back_off(failures: int) -> float:
    """The pause before the next attempt.

    None after the first failure: the connection may have been cut while it was idle. Then 50 ms, doubling to a second,
    with jitter.
    """
    return min(1.0, 0.025 * float(2 ** min(failures, 6))) * random.uniform(0.5, 1.0) if failures else 0.0
