"""Orders as commands of Slurm, and what Slurm's answers to them mean.

In: an `Order`, a finished command. Out: an argument list, a word of `Returned`. Always: five fixed commands and no other, never a cancel; the
target is made of numbers that the order's own checks let through; whatever is not known to mean "refused" is `unclear`.
"""

from __future__ import annotations

import dataclasses

from defib.adapters.slurm.calls import Answer as Finished
from defib.adapters.slurm.calls import Commands
from defib.engine.recover.events import Answer
from defib.engine.recover.words import Order

# What scontrol prints where slurmctld refused, and did nothing (Slurm 22.05 to 26.05, src/common/slurm_errno.c; each seen on a real one).
REFUSED = {
    "requested operation is presently disabled": "disabled",
    "job is pending execution": "pending",
    "job is no longer pending execution": "not-pending",
    "only batch jobs are accepted or processed": "batch-only",
    "access/permission denied": "access",
    "invalid user id": "access",
    "invalid job id specified": "invalid-id",
    "job has already finished": "finished",
    "invalid node name specified": "bad-node",
    "job not heterogeneous job leader": "not-leader",
}
# The request may lie in a queue: seen with a controller that was stopped, and carried out when it went on.
UNREACHABLE = (
    "unexpected message received",
    "unable to contact",
    "timed out",
    "connection",
    "partial success",
    ": no error",
)
KILLED = (137, -9)  # of timeout(1) that had to kill, and may have gone with its group


def target(order: Order) -> str:
    """The name Slurm takes for exactly the run the order is about."""
    if order.by == "sluid":
        assert order.sluid is not None, "checked by Order"
        return order.sluid
    return f"{order.job_id}_{order.array_task}" if order.by == "task" else str(order.job_id)


def words(order: Order) -> tuple[str, ...]:
    """The arguments of scontrol for an order."""
    name = target(order)
    if order.verb == "exclude":
        return "update", f"JobId={name}", f"ExcNodeList={','.join(order.nodes)}"
    if order.verb == "release":
        return "release", name
    if order.verb not in ("requeue", "requeuehold"):
        raise ValueError(f"no command for {order.verb}")
    # `Incomplete` makes it do nothing to a run that has ended meanwhile; without it a finished job is run again.
    return (order.verb, "Incomplete", name) if order.incomplete else (order.verb, name)


def bounded(commands: Commands, seconds: float) -> Commands:
    """The same way to Slurm, with a deadline that also holds when the process that waits is gone: timeout(1) on the side where the client runs."""
    return dataclasses.replace(commands, prefix=(*commands.prefix, "timeout", "-s", "KILL", f"{seconds:g}"))


def meaning(done: Finished) -> tuple[Answer, str]:
    """(answer, code). Exit code 0 says that the call was taken, no more."""
    if done.failed:
        return "not-run", "cannot-run"
    if done.timed_out or done.cut or done.rc is None or done.rc in KILLED:
        return "unclear", "killed"
    if done.rc == 0:
        return "done", ""
    said = done.stderr.decode("utf-8", "replace").lower()
    if any(u in said for u in UNREACHABLE):
        return "unclear", "unreachable"
    codes = {code for text, code in REFUSED.items() if text in said}
    if len(codes) == 1:
        return "rejected", codes.pop()
    return "unclear", f"exit-{done.rc}"
