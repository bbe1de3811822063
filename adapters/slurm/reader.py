"""The scheduler as defib sees it: one batched question per interval that never blocks, and fresh answers about single jobs that may.

In: how to run Slurm's tools, and the observer's clock. Out: `ClusterRead`, `ClusterFacts`, nodes, history. Always: one query of all jobs per
interval and never two at once; failures make the interval longer, never shorter; which form of answer works (JSON, else columns of text) is
learnt, said, and learnt again when it stops working; a read that failed says so and proves nothing about anybody.
"""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from defib.adapters.show import cut, safe
from defib.adapters.slurm import answers, settings
from defib.adapters.slurm.answers import Told
from defib.adapters.slurm.calls import DEADLINE_S, Answer, Call, Commands
from defib.engine.jobs import ClusterFacts, ClusterRead, JobFacts, NodeFacts, PastRun

BACK_OFF_MAX = 8  # times the interval, at most
BACK_OFF_US = 300_000_000  # and at most this, unless the interval is longer
JITTER = 0.1
AGAIN = 100  # reads in text before JSON is tried once more
READ_MAX = 64  # jobs asked for one by one at a time
HISTORY_MAX = 1000
LABEL = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,7}|\+[0-9]{1,4})?", re.ASCII)
SLUID = re.compile(r"s[0-9A-Z]{8,20}", re.ASCII)
UNKNOWN_COLUMN = re.compile(rb"Invalid job format specification: ([\w-]+)")
ABSENT = "Invalid job id"
NO_JSON = ("unrecognized option", "invalid option", "plugin", "openapi", "data_parser", "serializer")


def divider() -> str:
    """A word nobody can know before the call, and whose end is not its beginning, so that no text before it can run into it."""
    return f"~{secrets.token_hex(8)}="


@dataclass(slots=True)
class Scheduler:
    """Asks one cluster. name: our name for it; without it the name it gives itself. draw: a number from 0 to 1, for the jitter.

    form: `json`, `text`, or None while nothing has worked yet.
    """

    commands: Commands
    name: str | None = None
    interval_us: int = 10_000_000
    deadline_s: float = DEADLINE_S
    draw: Callable[[], float] = random.random
    form: str | None = None
    version: tuple[int, ...] = ()
    _call: Call | None = None
    _asked: str = "json"  # the form of the running call
    _divider: str = ""
    _at_us: int = 0
    _began_us: int = 0
    _due_us: int | None = None
    _failures: int = 0
    _since_json: int = 0
    _without: frozenset[str] = frozenset()  # columns this release does not know
    _notes: list[str] = field(default_factory=list)  # to be told with the next read
    _sluid: tuple[str, int] | None = None  # of a job seen, for a probe
    _one_json: bool | None = None  # whether `scontrol show job --json` works

    # the batched question

    def poll(self, now_us: int) -> ClusterRead | None:
        """Ask when it is time, take the answer when it is there. Never waits; None means nothing new."""
        if self._call is None:
            if self._due_us is not None and now_us < self._due_us:
                return None
            self._began_us = now_us
            again = self.form == "text" and self._since_json >= AGAIN
            self._ask("text" if self.form == "text" and not again else "json", now_us)
            return None
        answer = self._call.poll()
        if answer is None:
            return None
        self._call = None
        told = self._understand(answer)
        if told is None or (told.fault and self._asked == "json" and self._worth_text(answer, told)):
            self._ask("text", now_us)  # at once, within the same read
            return None
        return self._read(told, answer, now_us)

    def close(self) -> None:
        """End a call that still runs."""
        if self._call is not None:
            self._call.stop()
            self._call = None

    def _ask(self, form: str, now_us: int) -> None:
        self._asked, self._at_us = form, now_us
        self._since_json = 0 if form == "json" else self._since_json + 1
        self._divider = divider()
        args = ["-a", "-t", "all", "--json"] if form == "json" else self._columns()
        self._call = self.commands.call("squeue", *args, deadline_s=self.deadline_s)
        self._call.start()

    def _columns(self, *only: str) -> list[str]:
        return ["-h", "-a", "-t", "all", *only, "-O", answers.columns(self._divider, self._without)]

    def _understand(self, answer: Answer) -> Told | None:
        """The answer's jobs; None where the same has to be asked again without columns this release does not know."""
        if not answer.good:
            return Told(whole=False, fault=answer.said)
        if self._asked == "json":
            return answers.jobs_of_json(answer.stdout, self.name)
        if self._lacking(answer):
            return None
        return answers.jobs_of_columns(answer.stdout, self._divider, self.name, self._without, self.version)

    def _lacking(self, answer: Answer) -> bool:
        """Columns this release complained of are left out from now on."""
        unknown = {name.decode() for name in UNKNOWN_COLUMN.findall(answer.stderr)} & answers.COLUMNS.keys()
        more = unknown - self._without
        self._without |= more
        return bool(more)

    def _worth_text(self, answer: Answer, told: Told) -> bool:
        """JSON failed: would text do better? Not where the controller did not answer."""
        if answer.timed_out or answer.failed:
            return False
        return self.form is None or told.broken or any(w in answer.said for w in NO_JSON)

    def _read(self, told: Told, answer: Answer, now_us: int) -> ClusterRead:
        good = not told.fault
        self._failures = 0 if good else self._failures + 1
        self._due_us = self._next(now_us)
        troubles = [f"the scheduler could not be read: {told.fault}"] if told.fault else []
        if good:
            self.version = told.version or self.version
            for j in told.jobs:
                if j.sluid:
                    self._sluid = (j.sluid, j.job_id)
                    break
            if self.form != self._asked:
                self._notes.append(f"jobs are read from squeue as {self._said(self._asked)}")
                self.form = self._asked
        notes, self._notes = self._notes, []
        took = (now_us - self._began_us) / 1e6
        return ClusterRead(
            self._at_us, good and told.whole, told.jobs, (*troubles, *notes, *told.troubles), took, told.unread
        )

    def _said(self, form: str) -> str:
        lacking = f"; this release has no column {', '.join(sorted(self._without))}" if self._without else ""
        return "JSON" if form == "json" else f"text{lacking}"

    def _next(self, now_us: int) -> int:
        """When to ask next: every interval, later after failures, never in step with others who ask."""
        wait = self.interval_us
        if self._failures > 1:
            longer = wait * min(2 ** (self._failures - 1), BACK_OFF_MAX)
            wait = max(wait, min(longer, BACK_OFF_US))
        spread = int(wait * JITTER * (2 * self.draw() - 1))
        return max(self._began_us + wait + spread, now_us)

    # fresh answers, which may take until the deadline

    def read(self, labels: Iterable[str], now_us: int, deadline_s: float = DEADLINE_S) -> ClusterRead:
        """Single jobs, fresh from the controller. labels: `123`, `123_4` or `123+1`, at most 64.

        ok: every one was answered; a job that is not in `jobs` then is not known to the controller (any more).
        """
        wanted = list(dict.fromkeys(labels))
        odd = [w for w in wanted if not LABEL.fullmatch(w)]
        if odd or not 0 < len(wanted) <= READ_MAX:
            raise ValueError("one to 64 job ids, each digits, digits_digits or digits+digits")
        jobs: dict[int, JobFacts] = {}
        troubles: list[str] = []
        unread: frozenset[int] = frozenset()
        ok, took = True, 0.0
        for label in wanted:
            told, seconds = self._one(label, deadline_s)
            took += seconds
            if told.fault:
                troubles.append(f"job {label} could not be read: {told.fault}")
            ok = ok and not told.fault and told.whole and not told.unread
            jobs |= {j.job_id: j for j in told.jobs}
            troubles += told.troubles
            unread |= told.unread
        return ClusterRead(now_us, ok, tuple(jobs.values()), tuple(troubles), took, unread)

    def _one(self, label: str, deadline_s: float) -> tuple[Told, float]:
        took = 0.0
        if self._one_json is not False:
            answer = self.commands.run("scontrol", "show", "job", label, "--json", deadline_s=deadline_s)
            took += answer.took_s
            if ABSENT in answer.said and not answer.good:
                return Told(), took
            if answer.good:
                told = answers.jobs_of_json(answer.stdout, self.name)
                self._one_json = True if not told.fault else self._one_json
                return (Told() if ABSENT in told.fault else told), took
            if self._one_json or not any(w in answer.said for w in NO_JSON):
                return Told(whole=False, fault=answer.said), took
            self._one_json = False
        told, seconds = self._one_text(label, deadline_s)
        return told, took + seconds

    def _one_text(self, label: str, deadline_s: float) -> tuple[Told, float]:
        """Without JSON: columns first, which tell ids and names beyond doubt, then the record of each, which has what columns lack."""
        raw, took = label.split("_")[0].split("+")[0], 0.0
        while True:
            self._divider = divider()
            answer = self.commands.run(
                "squeue", *self._columns("-j", label if "_" in label else raw), deadline_s=deadline_s
            )
            took += answer.took_s
            if not answer.good:
                return (Told() if ABSENT in answer.said else Told(whole=False, fault=answer.said)), took
            if not self._lacking(answer):
                break
        told = answers.jobs_of_columns(answer.stdout, self._divider, self.name, self._without, self.version)
        if "+" in label:
            told = replace(told, jobs=tuple(j for j in told.jobs if f"{j.het_job_id}+{j.het_offset}" == label))
        if told.fault or told.unread or "ExcNodes" not in self._without:
            return told, took
        return self._records(told, took, deadline_s)

    def _records(self, told: Told, took: float, deadline_s: float) -> tuple[Told, float]:
        """Each job's own record; what users wrote freely stays as the columns told it."""
        jobs: list[JobFacts] = []
        troubles: list[str] = []
        unread: set[int] = set()
        for j in told.jobs:
            if j.array_pending:  # nobody's target; its own record would be those of all tasks
                jobs.append(j)
                continue
            answer = self.commands.run("scontrol", "-d", "-o", "show", "job", j.label, deadline_s=deadline_s)
            took += answer.took_s
            if not answer.good:
                if ABSENT in answer.said:
                    continue
                return Told(whole=False, fault=answer.said), took
            one = answers.job_of_text(answer.stdout, j.job_id, told.names[j.job_id], j.cluster, self.version)
            jobs += [
                replace(
                    r, comment=j.comment, admin_comment=j.admin_comment, reservation=j.reservation, gpus=r.gpus or j.gpus,
                    stdout=j.stdout or r.stdout, stderr=j.stderr, work_dir=j.work_dir,
                )
                for r in one.jobs
            ]  # fmt: skip
            troubles += one.troubles
            unread |= one.unread
        return Told(tuple(jobs), tuple(troubles), frozenset(unread)), took

    def cluster(self, deadline_s: float = DEADLINE_S) -> tuple[ClusterFacts | None, tuple[str, ...]]:
        """The cluster's settings and whether its controller answers. (None, why) where it did not."""
        answer = self.commands.run("scontrol", "show", "config", deadline_s=deadline_s)
        if not answer.good:
            return None, (f"the cluster's settings could not be read: {answer.said}",)
        ping = self.commands.run("scontrol", "ping", deadline_s=deadline_s)
        up = b" is UP" in ping.stdout
        facts = settings.facts(
            settings.settings(answer.stdout), self.name, sluids=self._sluids(deadline_s), up=up, ping_s=ping.took_s
        )
        self.version = facts.version or self.version
        if up:
            return facts, ()
        said = cut(safe(ping.stdout.decode("utf-8", "replace").strip()), 200) or ping.said
        return facts, (f"no controller says that it is up: {said}",)

    def _sluids(self, deadline_s: float) -> bool:
        """Whether one very run can be named by its own id: tried on one that was seen, by a command that only reads."""
        if self._sluid is None or not SLUID.fullmatch(self._sluid[0]):
            return False
        answer = self.commands.run("scontrol", "-o", "show", "job", self._sluid[0], deadline_s=deadline_s)
        return answer.good and answer.stdout.startswith(b"JobId=%d " % self._sluid[1])

    def nodes(self, deadline_s: float = DEADLINE_S) -> tuple[tuple[NodeFacts, ...] | None, tuple[str, ...]]:
        """Every node. (None, why) where the controller did not answer."""
        if self._one_json is not False:
            answer = self.commands.run("scontrol", "show", "nodes", "--json", deadline_s=deadline_s)
            if answer.good:
                return answers.nodes_of_json(answer.stdout)
            if not any(w in answer.said for w in NO_JSON):
                return None, (f"nodes could not be read: {answer.said}",)
        answer = self.commands.run("scontrol", "-o", "show", "node", deadline_s=deadline_s)
        return (
            answers.nodes_of_text(answer.stdout)
            if answer.good
            else (None, (f"nodes could not be read: {answer.said}",))
        )

    def history(
        self, job_ids: Iterable[int], since_us: int, deadline_s: float = DEADLINE_S
    ) -> tuple[tuple[PastRun, ...], tuple[str, ...]]:
        """Every run the accounting keeps of these jobs since then. Late, sometimes half written; ids may have belonged to others before, so
        compare users and submit times. Never for decisions."""
        ids = sorted({int(i) for i in job_ids})
        if not ids:
            return (), ()
        if len(ids) > HISTORY_MAX:
            raise ValueError(f"at most {HISTORY_MAX} jobs at a time")
        mark = divider()
        answer = self.commands.run(
            "sacct", "-X", "-D", "-n", "-P", f"--delimiter={mark}", "-S", settings.utc(since_us), "-j", ",".join(map(str, ids)),
            "-o", settings.PAST, deadline_s=deadline_s,
        )  # fmt: skip
        return settings.past(answer.stdout, mark) if answer.good else ((), (f"no history: {answer.said}",))
