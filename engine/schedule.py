"""What the scheduler says of a job, beside what its logs say.

The scheduler knows that a job ended and how; it rarely knows why. Where the logs found a cause they keep it; where they are silent (a kill
that took the last buffer along, a node that died) the scheduler's word decides. Anything it says that is not listed here decides nothing.
"""

from __future__ import annotations

import dataclasses

from defib.engine.causes import Judgement
from defib.engine.words import JobState

# Slurm's base states (squeue and sacct manual pages). (verdict, class) of those that end an attempt.
ENDS: dict[str, tuple[str, str | None]] = {
    "COMPLETED": ("completed", None), "FAILED": ("crashed", "process-failed"), "OUT_OF_MEMORY": ("crashed", "host-oom"),
    "NODE_FAIL": ("crashed", "node-lost"), "BOOT_FAIL": ("crashed", "scheduler-fault"), "LAUNCH_FAILED": ("crashed", "scheduler-fault"),
    "TIMEOUT": ("time-limit", "time-limit"), "DEADLINE": ("time-limit", "time-limit"), "PREEMPTED": ("preempted", "preempted"),
    "CANCELLED": ("cancelled", "cancelled"), "REVOKED": ("cancelled", "cancelled"),
}  # fmt: skip
WAITING = frozenset(
    [
        "PENDING",
        "CONFIGURING",
        "SUSPENDED",
        "STOPPED",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
        "SIGNALING",
    ]
)
RUNNING = frozenset(["RUNNING", "COMPLETING", "STAGE_OUT", "RESIZING"])
SILENT_VERDICTS = ("running-at-end", "unknown")


def waiting(state: JobState | None) -> bool:
    """The job is not meant to make progress now."""
    return state is not None and (state.held or state.state in WAITING)


def ended(state: JobState | None) -> bool:
    """The attempt is over."""
    return state is not None and state.state in ENDS


def told(judged: Judgement, state: JobState) -> Judgement:
    """The logs' judgement with the scheduler's end of the attempt."""
    end = ENDS.get(state.state)
    if end is None:
        return judged
    verdict, klass = end
    if judged.verdict in SILENT_VERDICTS:
        return dataclasses.replace(
            judged,
            verdict=verdict,
            klass=klass,
            notes=(*judged.notes, f"the scheduler says {state.state}{_how(state)}; no log line tells more"),
        )
    if verdict != judged.verdict:
        return dataclasses.replace(judged, notes=(*judged.notes, f"the scheduler says {state.state}{_how(state)}"))
    return judged


def _how(state: JobState) -> str:
    if state.exit_signal:
        return f" (signal {state.exit_signal})"
    return f" (exit code {state.exit_code})" if state.exit_code else ""
