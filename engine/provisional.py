"""What a running job would be judged as if its logs ended here: for those who must know the cause before the end.

In: the engine's state, a job. Out: the verdict of its last attempt, or None. Always: the state is left as it was; the same state gives the same
verdict; it costs a copy of the job's folds, so it is asked for when a job is not well, not at every tick.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

from defib.engine.core import State
from defib.engine.incidents import JobStory, assemble
from defib.engine.words import AttemptVerdict, JobKey


def judge(state: State, job: JobKey, streams: Collection[int] | None = None) -> AttemptVerdict | None:
    """The last attempt of the job as its logs tell of it now. streams: only these logs (those of the present run), None: all."""
    members = [n for n in state.jobs.get(job, ()) if streams is None or n in streams]
    if not members:
        return None
    book = state.book
    # What belongs to the rulebook is shared, not copied; assembling gives kept lines their place in time, so the folds are copied.
    shared = (book, book.detect, book.format_by_id, *book.format_by_id.values())
    memo = {id(thing): thing for thing in shared}
    story = JobStory(
        job,
        [(n, state.streams[n].facts, copy.deepcopy(state.streams[n].fold, memo), ((), ())) for n in members],
        state.live.state_of(job),
        state.live.outlived(job),
        {n: state.streams[n].id for n in members},
    )
    attempts, _ = assemble(story, book)
    return attempts[-1] if attempts else None
