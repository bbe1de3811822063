"""The public face: a job and a fault in, bytes and truth out; or a whole directory.

In: cases and a seed. Out: `Rendered`, or files and truth.jsonl under a directory.
Always: nothing but the arguments decides a byte; file times are simulated too (taken as UTC).
"""

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from loggen.model import Case, Cause, Fault, Job, Rendered, Truth
from loggen.sheets import Sheets
from loggen.timeline import Act, play


def render(job: Job, fault: Fault, seed: int) -> Rendered:
    """The files of one job by relative path, and one truth per attempt."""
    sheets = Sheets(job, Random(f"{seed}|{job.job_id}|sheets"))
    acts = play(job, fault, seed)
    truth = tuple(inscribe(sheets, job, act, i) for i, act in enumerate(acts))
    files = sheets.files()
    told = tuple(told for act in acts for told in act.told)
    return Rendered(files, truth, sheets.arrivals(), told, acts[-1].ended)


def inscribe(sheets: Sheets, job: Job, act: Act, attempt: int) -> Truth:
    """Write one attempt to its files and say what is true about it."""
    paths: dict[str, None] = {}
    causes: list[Cause] = []
    steps: list[int] = []
    for event in act.events:
        for placed in sheets.write(event):
            paths[placed.path] = None
            if placed.cause:
                causes.append(placed.cause)
            if placed.event.step is not None:
                steps.append(placed.event.step)
    sheets.lose()
    happened = act.happened
    return Truth(
        job_id=job.job_id,
        name=job.name,
        attempt=attempt,
        framework=job.framework,
        fault=act.kind,
        verdict=act.verdict,
        klass=act.klass,
        culprit_rank=act.rank,
        culprit_node=act.node,
        causes=tuple(causes),
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        planned_steps=job.steps,
        started=moment(job, act.started),
        ended=moment(job, act.ended),
        paths=tuple(paths),
        trouble=happened.trouble,
        phase=happened.phase,
        onset_s=happened.onset_s,
        onset_step=happened.onset_step,
        depth=happened.depth,
        passed_s=happened.passed_s,
        passed_step=happened.passed_step,
    )


def moment(job: Job, seconds: float) -> str:
    return (job.start + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def write(out: str | os.PathLike[str], jobs: Iterable[Case], seed: int) -> list[Truth]:
    """Render each case under `out`; truth.jsonl holds one line per attempt."""
    root = Path(out)
    root.mkdir(parents=True, exist_ok=True)
    truth: list[Truth] = []
    for job, fault in jobs:
        rendered = render(job, fault, seed)
        last = rendered.truth[-1].ended
        for path, data in rendered.files.items():
            save(root / path, data, last)
        truth += rendered.truth
    (root / "truth.jsonl").write_text("".join(t.as_json() + "\n" for t in truth), encoding="utf-8")
    return truth


def save(path: Path, data: bytes, ended: str) -> None:
    """Write a file as if its job had written it: the time of its last write is the job's end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    at = datetime.fromisoformat(ended).replace(tzinfo=UTC).timestamp()
    os.utime(path, (at, at))
