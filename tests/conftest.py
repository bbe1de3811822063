"""What the engine's tests share: rulebooks made from YAML text, and a whole run of the engine in memory.

Tests import the plain functions from here (`from tests.conftest import …`) and take the shipped rules as a fixture.
"""

from __future__ import annotations

import os

# Thousands of small frames: on a busy machine waiting for a thread pool costs far more than the work. Before polars is imported.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import hypothesis
import pytest
from tests.needs import root as root  # a fixture

from defib.adapters import rulefiles
from defib.engine import core, identity, proof, rulecheck, scan
from defib.engine.blocks import Batch, LineCutter
from defib.engine.drive import Drive
from defib.engine.observe import Observer
from defib.engine.ports import Closed, Data, JobClosed, Opened, SourceItem
from defib.engine.rulebook import Databases, Rulebook
from defib.engine.words import AttemptVerdict, Problem, RuleError, Signal, StreamFacts, StreamId

hypothesis.settings.register_profile("steady", derandomize=True, deadline=None, database=None, print_blob=False)
hypothesis.settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def rule_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Rules are compiled once a session: no test reads or fills the cache of the person who runs them."""
    before = os.environ.get("DEFIB_CACHE")
    cache = tmp_path_factory.getbasetemp() / "rule-cache"
    os.environ["DEFIB_CACHE"] = str(cache)
    yield cache
    os.environ.pop("DEFIB_CACHE")
    if before is not None:
        os.environ["DEFIB_CACHE"] = before


# ---- rulebooks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)  # a failing example is to be read, not a rulebook
class Kit:
    """A rulebook with its compiled databases."""

    book: Rulebook
    databases: Databases

    def observer(self) -> Observer:
        return Observer(self.book, self.databases)

    def scanner(self) -> scan.Scanner:
        return scan.Scanner(self.book, self.databases)


def text_of(files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Paths with their text, common indentation taken off."""
    return [(path, textwrap.dedent(text).lstrip("\n")) for path, text in files.items()]


POLICY = {"policy/detect.yaml": (rulefiles.built_in() / "policy" / "detect.yaml").read_text()}


def rulebook(files: Mapping[str, str]) -> Rulebook:
    """Path -> YAML text, checked; raises RuleError as the real loader does. The shipped policy of detection stands beside them."""
    return rulecheck.load(text_of({**POLICY, **files}))


def kit(files: Mapping[str, str]) -> Kit:
    """A rulebook ready to scan with."""
    book = rulebook(files)
    return Kit(book, scan.compile_databases(book))


def faults(files: Mapping[str, str]) -> list[Problem]:
    """Every problem the static checks find."""
    try:
        rulebook(files)
    except RuleError as e:
        return e.problems
    return []


def proven(files: Mapping[str, str]) -> list[Problem]:
    """Every problem the examples show."""
    made = kit(files)
    return proof.prove(made.book, made.databases)


CLASSES = """
    classes:
      - {id: user-code, title: U, verdict: crashed, fault: user, retry: 'no', exclude: never, budget: user, why: w}
      - {id: gpu-hardware, title: G, verdict: crashed, fault: gpu, retry: 'yes', exclude: at-once, budget: hw, why: w}
      - {id: host-oom, title: H, verdict: crashed, fault: unknown, retry: once, exclude: never, budget: user, why: w}
      - {id: node-lost, title: N, verdict: crashed, fault: node, retry: 'yes', exclude: at-once, budget: hw, why: w}
      - {id: peer-lost, title: P, verdict: crashed, fault: unknown, retry: 'yes', exclude: never, budget: dist, why: w}
      - {id: collective-timeout, title: T, verdict: stalled, fault: unknown, retry: once, exclude: never, budget: d, why: w}
      - {id: process-failed, title: F, verdict: crashed, fault: unknown, retry: once, exclude: never, budget: d, why: w}
      - {id: cancelled, title: C, verdict: cancelled, fault: scheduler, retry: 'no', exclude: never, budget: s, why: w}
      - {id: preempted, title: R, verdict: preempted, fault: scheduler, retry: 'yes', exclude: never, budget: s, why: w}
      - {id: time-limit, title: L, verdict: time-limit, fault: scheduler, retry: 'yes', exclude: never, budget: s, why: w}
      - {id: requeued, title: Q, verdict: preempted, fault: scheduler, retry: 'yes', exclude: never, budget: s, why: w}
"""

# One word per rule, so that a test's log reads like the story it tells.
STORY = r"""
    family: t
    about: A made-up language of logs.
    signatures:
      - {id: t.hard, title: hard, pattern: HARD, role: root, class: gpu-hardware, domain: gpu, hits: [HARD], misses: [x]}
      - {id: t.oom, title: oom, pattern: HOSTOOM, role: root, class: host-oom, hits: [HOSTOOM], misses: [x]}
      - {id: t.root, title: root, pattern: ROOT, role: root, class: user-code, domain: user, hits: [ROOT], misses: [x]}
      - {id: t.maybe, title: maybe, pattern: MAYBE, role: candidate, class: user-code, hits: [MAYBE], misses: [x]}
      - {id: t.vague, title: vague, pattern: VAGUE, role: root, class: user-code, generic: 'true', hits: [VAGUE], misses: [x]}
      - {id: t.peer, title: peer, pattern: PEER, role: cascade, class: peer-lost, hits: [PEER], misses: [x]}
      - {id: t.waited, title: waited, pattern: WAITED, role: cascade, class: collective-timeout, hits: [WAITED], misses: [x]}
      - {id: t.wrap, title: wrap, pattern: WRAP, role: wrapper, class: user-code, hits: [WRAP], misses: [x]}
      - {id: t.exit, title: exit, pattern: EXIT, role: confirm, mark: exit, hits: [EXIT], misses: [x]}
      - {id: t.okexit, title: ok, pattern: FINE, role: confirm, mark: ok-exit, hits: [FINE], misses: [x]}
      - {id: t.down, title: down, pattern: TEARDOWN, role: confirm, mark: teardown, hits: [TEARDOWN], misses: [x]}
      - {id: t.start, title: start, pattern: LAUNCH, role: lifecycle, mark: start, hits: [LAUNCH], misses: [x]}
      - {id: t.restart, title: restart, pattern: AGAIN, role: lifecycle, mark: restart, hits: [AGAIN], misses: [x]}
      - {id: t.trained, title: trained, pattern: TRAINED, role: lifecycle, mark: trained, hits: [TRAINED], misses: [x]}
      - {id: t.done, title: done, pattern: COMPLETED, role: lifecycle, mark: completed, hits: [COMPLETED], misses: [x]}
      - id: t.cancelled
        title: cancelled
        pattern: CANCELLED
        extract: 'CANCELLED job=(?P<job_id>\d+)'
        role: lifecycle
        mark: cancelled
        hits: [CANCELLED]
        misses: [x]
      - {id: t.preempted, title: pre, pattern: PREEMPTED, role: lifecycle, mark: preempted, hits: [PREEMPTED], misses: [x]}
      - {id: t.limit, title: limit, pattern: TIMELIMIT, role: lifecycle, mark: time-limit, hits: [TIMELIMIT], misses: [x]}
      - {id: t.nodefail, title: nf, pattern: NODEFAIL, role: lifecycle, mark: node-failure, hits: [NODEFAIL], misses: [x]}
      - {id: t.harmless, title: harmless, pattern: HARMLESS, role: benign, hits: [HARMLESS], misses: [x]}
"""

STEPS = r"""
    framework: t
    about: A made-up trainer.
    formats:
      - id: t.step
        title: a step
        anchor: ['step=']
        pattern: 'step=(?P<step>\d+)(?:/(?P<total>\d+))?'
        more: ['time=(?P<step_time>[\d.]+)', 'tput=(?P<throughput>[\d.]+)', 'loss=(?P<loss>\S+)']
        units: {throughput: tokens/s}
        hits: ['step=1/9']
        misses: ['x']
      - id: t.value
        title: what belongs to the step before
        anchor: ['value ']
        pattern: 'value (?P<throughput>[\d.]+)'
        units: {throughput: tokens/s}
        of: t.step
        hits: ['value 4']
        misses: ['x']
      - id: t.inepoch
        title: a counter that begins anew every epoch
        anchor: ['batch=']
        pattern: 'batch=(?P<step>\d+)/(?P<total>\d+)'
        counts: epoch
        hits: ['batch=1/9']
        misses: ['x']
      - id: t.eval
        title: evaluation
        anchor: ['eval=']
        pattern: 'eval=(?P<step>\d+)'
        kind: eval
        unless: ' dry'
        hits: ['eval=3']
        misses: ['x']
      - id: t.bar
        title: a bar of preparation
        anchor: ['map=']
        pattern: 'map=(?P<step>\d+)/(?P<total>\d+)'
        kind: other
        priority: '20'
        hits: ['map=3/4']
        misses: ['x']
    phases:
      - {id: t.saving, title: a save begins, phase: checkpoint, edge: begin, pattern: SAVING, hits: [SAVING], misses: [x]}
      - {id: t.saved, title: a save ends, phase: checkpoint, edge: end, pattern: SAVED, hits: [SAVED], misses: [x]}
      - {id: t.evaluating, title: an evaluation begins, phase: evaluation, edge: begin, pattern: EVALUATING, hits: [EVALUATING], misses: [x]}
"""

PREFIXES = r"""
    prefixes:
      - id: prefix.rank
        title: rank
        pattern: '^\[rank(?P<rank>\d+)\]: ?'
        hits: [{line: '[rank3]: x', fields: {rank: '3'}}]
        misses: ['x']
      - id: prefix.task
        title: task
        pattern: '^ *(?P<task>\d{1,5}): '
        hits: ['3: x']
        misses: ['x']
"""

LANGUAGE = {
    "classes.yaml": CLASSES,
    "signatures/t.yaml": STORY,
    "progress/t.yaml": STEPS,
    "prefixes.yaml": PREFIXES,
}


@pytest.fixture(scope="session")
def shipped() -> Kit:
    """The rules defib ships, proven."""
    loaded = rulefiles.load()
    return Kit(loaded.book, loaded.databases)


@pytest.fixture(scope="session")
def language() -> Kit:
    """The made-up language of logs: `ROOT`, `EXIT`, `step=3/9 time=1.5` …"""
    return kit(LANGUAGE)


# ---- batches --------------------------------------------------------------------------------------------------------


def batch_of(*data: bytes, blocks: int | None = None) -> Batch:
    """One batch of whole streams, numbered from 0; each cut into blocks of that many bytes."""
    batch = Batch()
    for n, d in enumerate(data):
        cutter = LineCutter(n)
        size = blocks or max(1, len(d))
        for k in range(0, len(d), size):
            for piece in cutter.feed(d[k : k + size]):
                batch.add(piece)
        for piece in cutter.finish():
            batch.add(piece)
    return batch


def fired(made: Kit, *lines: str) -> list[set[str]]:
    """Ids of the rules that hit each line."""
    batch = batch_of("".join(f"{line}\n" for line in lines).encode())
    hits = made.scanner().scan(batch)
    out: list[set[str]] = [set() for _ in lines]
    for rule, record in zip(hits.rule, hits.record, strict=True):
        out[int(record)].add(made.book.rules[int(rule)].id)
    return out


# ---- whole runs -----------------------------------------------------------------------------------------------------


@dataclass
class ListSource:
    """Items in order, a few a poll."""

    items: Iterator[SourceItem]
    at_once: int = 3

    def poll(self) -> list[SourceItem] | None:
        taken = [item for _, item in zip(range(self.at_once), self.items, strict=False)]
        return taken or None

    def close(self) -> None:
        pass


@dataclass
class Collected:
    """A sink that keeps every effect, and asks them the questions of tests."""

    effects: list[Any] = field(default_factory=list)

    def apply(self, effects: list[object]) -> None:
        self.effects += effects

    def of(self, kind: type[Any]) -> list[Any]:
        return [e for e in self.effects if isinstance(e, kind)]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table by stream and offset; within one line as the engine gave them."""
        rows = [r for e in self.of(core.Append) if e.table == table for r in e.rows.to_pylist()]
        return sorted(rows, key=lambda r: (r["stream"], r["offset"]))

    @property
    def attempts(self) -> list[AttemptVerdict]:
        return [a for e in self.of(core.JobJudged) for a in e.attempts]

    @property
    def only(self) -> AttemptVerdict:
        (attempt,) = self.attempts
        return attempt

    @property
    def windows(self) -> list[tuple[int, list[dict[str, object]]]]:
        return [w for e in self.of(core.JobJudged) for w in e.windows]


def place_facts(book: Rulebook, paths: Sequence[str]) -> list[StreamFacts]:
    return identity.facts(list(paths), book.paths, identity.Known())


def items_of(
    streams: Mapping[str, bytes],
    facts: Sequence[StreamFacts],
    block: int | None = None,
    mixed: Random | None = None,
) -> Iterator[SourceItem]:
    """The items a source would give: blocks of a size (drawn up to `block` when mixed), streams after each other or mixed."""
    left: dict[int, bytes] = {}
    for n, (path, data) in enumerate(streams.items()):
        yield Opened(n, StreamId(path), facts[n], len(data))
        left[n] = data
    while left:
        n = mixed.choice(sorted(left)) if mixed else min(left)
        size = block or max(1, len(left[n]))
        size = mixed.randint(1, size) if mixed else size
        head, left[n] = left[n][:size], left[n][size:]
        if head:
            yield Data(n, head, len(head))
        if not left[n]:
            del left[n]
            yield Closed(n)
    for job in dict.fromkeys(f.job for f in facts):
        yield JobClosed(job)


def replay(
    made: Kit,
    streams: Mapping[str, bytes] | bytes | Iterable[str],
    block: int | None = None,
    batch_bytes: int = 1 << 22,
    mixed: Random | None = None,
    facts: Sequence[StreamFacts] | None = None,
) -> Collected:
    """The whole engine over logs in memory, invariants checked after every event. Lines may be given for one log."""
    if isinstance(streams, bytes):
        streams = {"job.log": streams}
    elif not isinstance(streams, Mapping):
        streams = {"job.log": "".join(f"{line}\n" for line in streams).encode()}
    facts = facts or place_facts(made.book, list(streams))
    sink = Collected()
    drive = Drive(made.observer(), core.State(made.book), sink, batch_bytes=batch_bytes, verify=True)
    drive.run(ListSource(items_of(streams, facts, block, mixed)))
    return sink


def signal(made: Kit, rule: str, offset: int, **more: Any) -> Signal:
    """A claim as the engine would make it from a SIGNALS row."""
    row: dict[str, object] = {
        "stream": 0, "offset": offset, "line": more.pop("line", offset), "rule": rule, "time_us": None, "year_us": None, "rank": None,
        "local_rank": None, "node": None, "fields": "{}", "text": rule, **more,
    }  # fmt: skip
    return core.signal(made.book, row)
