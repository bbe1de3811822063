"""What may go wrong in one simulated run. Swarm testing (Groce et al., ISSTA 2012): each seed turns a random subset on, so that no fault hides another."""

from __future__ import annotations

import random
from dataclasses import dataclass

NAMES = (
    "crash",  # our process dies between any two effects, and comes back
    "executor-crash",  # the executor dies before or after the call
    "delay",  # messages come late
    "double",  # messages come twice
    "lost-reply",  # the call happened and nobody says so
    "controller-down",  # slurmctld is not there for a while
    "controller-hung",  # slurmctld stands still and executes later what it was asked
    "slow-reads",  # the answer is old when it comes
    "other-requeuer",  # somebody else restarts jobs
    "cancel",  # users cancel
    "revoke",  # users take their consent back at any moment
    "hold",  # users hold and release
    "suspend",  # an administrator suspends and resumes
    "node-death",  # nodes die, Slurm requeues by itself
    "bad-nodes",  # jobs die on some nodes
    "bugs",  # jobs die at the same step for ever
    "hangs",  # jobs stop moving
    "false-hang",  # the detector is wrong
    "misjudged",  # the class is wrong
    "kill-switch",  # somebody stops us
    "clock",  # the clock jumps
    "epoch",  # an order of an earlier process arrives after a new one has begun
    "storm",  # many jobs die at once
    "blind",  # logs cannot be seen
    "short-delay",  # requeued jobs start soon, which leaves no safe window
    "reuse",  # job ids come back
    "regret",  # people regret and refuse
)


PARTS = "parts"  # some jobs are heterogeneous; by the seed's number, so that what the others draw stays as it is


@dataclass(frozen=True, slots=True)
class Faults:
    """The subset of one seed."""

    on: frozenset[str]

    def __contains__(self, name: str) -> bool:
        return name in self.on


def draw(rng: random.Random, seed: int) -> Faults:
    """Every tenth seed has no fault of ours or of Slurm's: there it has to work."""
    if seed % 10 == 0:
        return Faults(frozenset(["bad-nodes", "hangs", "bugs"]))
    share = rng.choice((0.15, 0.3, 0.5))
    parts = {PARTS} if seed % 3 == 1 else set()
    return Faults(frozenset(n for n in NAMES if rng.random() < share) | parts)
