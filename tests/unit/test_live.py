"""live: a running job's health, told by a script of what arrives when. The observer polls every thirty seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from tests.conftest import Collected, Kit

from defib.engine import core
from defib.engine.core import HealthChanged, State
from defib.engine.drive import Drive
from defib.engine.ports import Closed, Data, JobClosed, JobTold, Looked, Opened, SourceItem, Ticked
from defib.engine.words import Episode, JobKey, JobState, StreamFacts, StreamId

JOB = JobKey(job_id="7")
POLL = 30.0
RUNNING = JobState("RUNNING", restart_count=0)

Thing = str | JobState | tuple[str, str | None]  # a line of the log, the scheduler's word, or (stream, trouble)


@dataclass
class Script:
    """(second, thing) in order. Lines go to `job.log` unless they begin with `path> `."""

    things: list[tuple[float, Thing]] = field(default_factory=list)
    at: float = 0.0

    def say(self, *things: Thing, every: float = 0.0) -> Script:
        """Each thing now, or one every so many seconds, the clock going on after each."""
        for thing in things:
            self.things.append((self.at, thing))
            self.at += every
        return self

    def steps(self, first: int, last: int, every: float = 60.0, more: str = "") -> Script:
        return self.say(*(f"step={n}{more}" for n in range(first, last + 1)), every=every)

    def quiet(self, seconds: float) -> Script:
        self.at += seconds
        return self


@dataclass
class Live:
    """A live source of one job that follows a script."""

    script: Script
    facts: StreamFacts
    poll_s: float = POLL
    sleeps: tuple[tuple[float, float], ...] = ()  # (from, to): no poll in between
    blocks: Random | None = None
    start_s: float = 0.0

    def items(self) -> Iterable[list[SourceItem]]:
        now, done, streams = 0.0, 0, dict[str, int]()
        things = self.script.things
        end = self.script.at
        while now <= end + self.poll_s:
            out: list[SourceItem] = []
            while done < len(things) and things[done][0] <= now:
                out += self.item(things[done][1], streams)
                done += 1
            out.append(Ticked(round((now + self.start_s) * 1e6)))
            yield out
            now += self.poll_s
            now = next((to for begin, to in self.sleeps if begin <= now < to), now)
        yield [*(Closed(n) for n in streams.values()), JobClosed(self.facts.job)]

    def item(self, thing: Thing, streams: dict[str, int]) -> list[SourceItem]:
        if isinstance(thing, JobState):
            return [JobTold(self.facts.job, thing, self.facts.job_name)]
        path, text = ("job.log", thing) if isinstance(thing, str) else thing
        if isinstance(thing, str) and "> " in thing:
            path, text = thing.split("> ", 1)
        out: list[SourceItem] = []
        if path not in streams:
            streams[path] = len(streams)
            out.append(Opened(streams[path], StreamId(path), self.facts, 0))
        n = streams[path]
        if isinstance(thing, tuple):
            return [*out, Looked(n, thing[1])]
        data = f"{text}\n".encode()
        while data:
            size = self.blocks.randint(1, len(data)) if self.blocks else len(data)
            out.append(Data(n, data[:size], size))
            data = data[size:]
        return out


@dataclass
class Feed:
    polls: Any

    def poll(self) -> list[SourceItem] | None:
        return next(self.polls, None)

    def close(self) -> None:
        pass


@dataclass
class Seen:
    """What a script made the engine say."""

    sink: Collected
    state: State

    @property
    def story(self) -> list[tuple[float, str]]:
        """(second, health) of every change."""
        return [(c.at_us / 1e6, c.health) for c in self.changes]

    @property
    def changes(self) -> list[HealthChanged]:
        return self.sink.of(HealthChanged)

    @property
    def healths(self) -> list[str]:
        return [c.health for c in self.changes]

    def when(self, health: str) -> float:
        return next(at for at, h in self.story if h == health)

    @property
    def episodes(self) -> list[Episode]:
        return [e for a in self.sink.attempts for e in a.episodes]


def follow(made: Kit, script: Script, *, name: str | None = None, state: State | None = None, **how: Any) -> Seen:
    state = state or core.State(made.book)
    sink = Collected()
    live = Live(script, StreamFacts(JOB, name), **how)
    Drive(made.observer(), state, sink, verify=True).run(Feed(iter(live.items())))
    return Seen(sink, state)


def training(steps: int = 60) -> Script:
    return Script().say(RUNNING, "LAUNCH").quiet(30).steps(1, steps)


def test_a_run_that_moves_is_healthy_and_nothing_else(language: Kit) -> None:
    seen = follow(language, training(100))
    assert seen.healths == ["healthy"]
    assert seen.when("healthy") == 30.0
    assert seen.episodes == []


def test_silence_is_a_hang_after_the_limit_and_at_most_one_poll(language: Kit) -> None:
    script = training(60)
    last = script.things[-1][0]
    seen = follow(language, script.quiet(3000))
    assert seen.healths == ["healthy", "hung"]
    limit = language.book.detect.hang.phases.steady.floor_s
    assert last + limit <= seen.when("hung") <= last + limit + 2 * POLL
    (e,) = seen.episodes
    assert (e.kind, e.phase, e.clock, e.onset_step, e.limit_s, e.ended_us) == (
        "hung",
        "steady",
        "arrival",
        60,
        limit,
        None,
    )
    assert seen.sink.only.verdict == "stalled"
    assert seen.sink.only.klass == "hang"


def test_progress_ends_a_hang_and_teaches_nothing(language: Kit) -> None:
    script = training(60).quiet(4000).steps(61, 70).quiet(2500)
    seen = follow(language, script)
    assert seen.healths == ["healthy", "hung", "healthy", "hung"]
    first, second = seen.episodes
    assert (first.onset_step, first.end_step) == (60, 61)
    assert first.limit_s == second.limit_s, "a hang is no habit"
    assert seen.sink.only.verdict == "stalled"


@pytest.mark.parametrize(
    ("announced", "phase"), [("SAVING", "checkpoint"), ("EVALUATING", "evaluation")], ids=["checkpoint", "evaluation"]
)
def test_each_phase_has_its_own_limit(language: Kit, announced: str, phase: str) -> None:
    limit = language.book.detect.hang.phases.of(phase).unlearned_s
    assert follow(language, training(60).say(announced).quiet(limit - 180)).healths == ["healthy"]
    seen = follow(language, training(60).say(announced).quiet(limit + 60))
    assert seen.healths == ["healthy", "hung"]
    assert seen.changes[-1].episode is not None
    assert seen.changes[-1].episode.phase == phase


def test_an_end_line_that_never_comes_does_not_leave_a_phase_open(language: Kit) -> None:
    seen = follow(language, training(60).say("SAVING").quiet(60).steps(61, 90).quiet(2000))
    assert seen.changes[-1].health == "hung"
    assert seen.changes[-1].episode is not None
    assert seen.changes[-1].episode.phase == "steady"


def test_start_up_has_a_long_limit_of_its_own(language: Kit) -> None:
    limit = language.book.detect.hang.phases.startup.unlearned_s
    assert follow(language, Script().say(RUNNING, "LAUNCH").quiet(limit - 60).steps(1, 5)).healths == ["healthy"]
    seen = follow(language, Script().say(RUNNING, "LAUNCH").quiet(limit + 60))
    assert seen.healths == ["hung"]


def paused(cycles: int, pause: float) -> Script:
    """A run with an unannounced pause every 20 steps."""
    script = Script().say(RUNNING, "LAUNCH").quiet(30)
    for k in range(cycles):
        script.steps(20 * k + 1, 20 * (k + 1)).quiet(pause)
    return script


def test_a_pause_that_comes_every_so_many_steps_is_no_hang(language: Kit) -> None:
    """The pauses teach their own limit; a silence at any other step keeps the short one."""
    assert follow(language, paused(6, 1500.0)).healths == ["healthy"]
    due = follow(language, paused(6, 1500.0).steps(121, 140).quiet(4000))
    assert due.healths == ["healthy"]
    assert follow(language, paused(6, 1500.0).steps(121, 140).quiet(5000)).healths == ["healthy", "hung"]
    between = follow(language, paused(6, 1500.0).steps(121, 130).quiet(2000))
    assert between.healths == ["healthy", "hung"]
    (e,) = [e for e in between.episodes if e.kind == "hung"]
    assert (e.phase, e.onset_step) == ("steady", 130)


def test_an_error_line_shortens_the_wait(language: Kit) -> None:
    policy = language.book.detect.hang
    cases = (
        ("ROOT", policy.after_error_s, "dead"),
        ("EXIT", policy.after_exit_s, "dead"),
        ("MAYBE", policy.after_error_s, "hung"),
    )
    for (
        line,
        wait,
        health,
    ) in cases:  # one rank's last words while the scheduler still runs it: it hangs, whatever they were
        script = training(60)
        script.say(line)
        said = script.at
        seen = follow(language, script.quiet(900))
        assert seen.healths == ["healthy", health], line
        assert said + wait <= seen.when(health) <= said + wait + 2 * POLL, line


def test_an_exception_that_was_caught_changes_nothing(language: Kit) -> None:
    script = training(60).say("MAYBE").quiet(100).steps(61, 120)
    assert follow(language, script).healths == ["healthy"]


def test_a_candidate_during_start_up_leaves_the_phase_its_time(language: Kit) -> None:
    script = Script().say(RUNNING, "LAUNCH", "MAYBE").quiet(3000).steps(1, 20)
    assert follow(language, script).healths == ["healthy"]


def test_those_who_waited_tell_of_a_hang(language: Kit) -> None:
    seen = follow(language, training(60).quiet(600).say("WAITED").quiet(600))
    assert seen.healths == ["healthy", "hung"]
    assert seen.sink.only.verdict == "stalled"


@pytest.mark.parametrize("state", [JobState("SUSPENDED"), JobState("PENDING", reason="JobHeldUser", held=True)])
def test_what_is_not_meant_to_run_never_hangs(language: Kit, state: JobState) -> None:
    script = training(60).say(state).quiet(20_000).say(RUNNING).quiet(1500).steps(61, 80)
    assert follow(language, script).healths == ["healthy", "waiting", "healthy"]


def test_a_log_nobody_can_read_is_blind_not_hung(language: Kit) -> None:
    script = training(60).say(("job.log", "Stale file handle")).quiet(9000).say(("job.log", None)).quiet(1000)
    seen = follow(language, script.steps(61, 70))
    assert seen.healths == ["healthy", "blind", "healthy"]
    assert "Stale file handle" in seen.changes[1].because
    assert [e.kind for e in seen.episodes] == ["blind"]


def test_a_running_job_without_a_log_is_blind(language: Kit) -> None:
    seen = follow(language, Script().say(RUNNING).quiet(2000))
    assert seen.healths == ["blind"]
    assert seen.when("blind") == language.book.detect.blind.no_log_s


def test_a_log_of_which_nothing_is_known_is_blind_not_hung(language: Kit) -> None:
    script = Script().say(RUNNING).say(*(f"x{n}" for n in range(80)), every=200.0)
    assert follow(language, script).healths == ["blind"]


def test_the_observers_own_sleep_is_nobodys_silence(language: Kit) -> None:
    script = training(60).quiet(12_000).steps(61, 70)
    begin = 60 * 60.0
    assert follow(language, script, sleeps=((begin + 60, begin + 11_900),)).healths == ["healthy"]


def test_output_in_whole_buffers_is_believed_less(language: Kit) -> None:
    """Four buffers' worth of lines every 40 minutes: the silence between is the buffer's, not the run's."""
    script = Script().say(RUNNING, ("job.log", None))
    n = 0
    for _ in range(6):
        script.quiet(2400)
        lines = [f"step={n + k}".ljust(63, ".") for k in range(64)]
        n += 64
        script.say(*lines)
    seen = follow(language, script.quiet(2400))
    assert seen.healths == ["healthy"]
    dead = follow(language, script.quiet(9000))
    assert dead.healths == ["healthy", "hung"]
    assert "buffers" in dead.changes[-1].because


def test_unknown_lines_are_life_for_a_while(language: Kit) -> None:
    chatter = training(60)
    for _ in range(100):
        chatter.say("spinner").quiet(200)
    limit = language.book.detect.hang.phases.unknown.unlearned_s
    seen = follow(language, chatter)
    assert seen.healths == ["healthy", "hung"]
    assert seen.when("hung") >= 59 * 60 + limit
    assert follow(language, training(60).say("x", "y").quiet(2400)).healths == ["healthy", "hung"]


def test_a_restart_begins_anew(language: Kit) -> None:
    """Nothing of the first attempt speaks for the second: not its phase, not its error, not its rhythm's moment."""
    script = training(60).say("SAVING", "ROOT", "EXIT").quiet(200).say("AGAIN").quiet(1500).steps(40, 60)
    seen = follow(language, script)
    assert [(c.attempt, c.health) for c in seen.changes] == [
        (0, "healthy"),
        (0, "dead"),
        (1, "starting"),
        (1, "healthy"),
    ]


def test_the_schedulers_restart_is_believed_before_the_log_shows_it(language: Kit) -> None:
    script = (
        training(60)
        .say("EXIT")
        .quiet(300)
        .say(JobState("RUNNING", restart_count=1))
        .quiet(600)
        .say("LAUNCH")
        .steps(40, 60)
    )
    seen = follow(language, script)
    assert [(c.attempt, c.health) for c in seen.changes] == [
        (0, "healthy"),
        (0, "dead"),
        (1, "starting"),
        (1, "healthy"),
    ]


@pytest.mark.parametrize(
    ("state", "health", "verdict"),
    [
        ("FAILED", "dead", "crashed"),
        ("NODE_FAIL", "dead", "crashed"),
        ("COMPLETED", "ended", "completed"),
        ("TIMEOUT", "ended", "time-limit"),
    ],
)
def test_the_schedulers_end_is_the_end(language: Kit, state: str, health: str, verdict: str) -> None:
    seen = follow(language, training(60).say(JobState(state, exit_code=1)).quiet(60))
    assert seen.healths == ["healthy", health]
    assert seen.sink.only.verdict == verdict


def test_the_log_keeps_its_cause_where_the_scheduler_only_knows_that_it_failed(language: Kit) -> None:
    seen = follow(language, training(60).say("HARD", "EXIT", JobState("FAILED")).quiet(60))
    assert seen.sink.only.klass == "gpu-hardware"


def test_later_jobs_of_a_name_inherit_its_habits(language: Kit) -> None:
    """The first one took an hour to its first step; nobody calls the second one hung after two."""
    first = follow(language, Script().say(RUNNING, "LAUNCH").quiet(3600).steps(1, 40), name="llama")
    second = Script().say(RUNNING, "LAUNCH").quiet(9000).steps(1, 5)
    assert follow(language, second, name="llama", state=first.state, start_s=1e5).healths == ["healthy"]
    assert follow(language, second, name="other").healths == ["hung", "healthy"]


def test_a_slower_pace_shows_and_passes(language: Kit) -> None:
    script = (
        Script()
        .say(RUNNING)
        .quiet(30)
        .steps(1, 300, 5.0, " time=5.0")
        .steps(301, 500, 6.5, " time=6.5")
        .steps(501, 700, 5.0, " time=5.0")
    )
    seen = follow(language, script)
    assert seen.healths == ["healthy", "slow", "healthy"]
    (e,) = seen.episodes
    assert e.kind == "slow"
    assert e.depth == pytest.approx(1 - 5.0 / 6.5, abs=0.01)
    assert abs((e.onset_step or 0) - 300) <= 4
    assert abs((e.end_step or 0) - 500) <= 6


def test_more_work_in_a_step_is_no_slowdown(language: Kit) -> None:
    """The step takes longer because it holds more tokens; tokens per second stay."""
    script = Script().steps(1, 300, 5.0, " time=5.0 tput=1000").steps(301, 600, 6.5, " time=6.5 tput=1000")
    assert follow(language, script).healths == ["healthy"]


@pytest.mark.parametrize("trouble", [None, "Stale file handle"])
def test_a_job_may_close_between_a_look_and_the_tick(language: Kit, trouble: str | None) -> None:
    """Its last lines and its last look arrive with its end; another job's wait for the tick."""
    other = JobKey(None, "8", None, None)
    opened = [Opened(0, StreamId("a.log"), StreamFacts(JOB), 0), Opened(1, StreamId("b.log"), StreamFacts(other), 0)]
    polls = [
        [*opened, Ticked(1_000_000)],
        [
            *(Data(n, b"step=1\n", 7) for n in (0, 1)),
            *(Looked(n, trouble) for n in (0, 1)),
            *(Closed(0), JobClosed(JOB), Ticked(2_000_000)),
        ],
        [Ticked(200_000_000), Closed(1), JobClosed(other)],
    ]
    sink, state = Collected(), core.State(language.book)
    Drive(language.observer(), state, sink, verify=True).run(Feed(iter(polls)))
    assert [a.job for a in sink.attempts] == [JOB, other]
    told = [(c.job, c.health) for c in sink.of(HealthChanged)]
    assert told == [(other, "healthy"), *([(other, "blind")] if trouble else [])]
    assert not state.live.watches


def scenes() -> Mapping[str, Script]:
    return {
        "hang": training(60).quiet(3000).steps(61, 65),
        "death": training(60).say("HARD", "EXIT").quiet(900),
        "slow": Script().steps(1, 200, 5.0, " time=5.0").steps(201, 400, 7.5, " time=7.5"),
        "restart": training(20).say("ROOT", "EXIT").quiet(400).say("AGAIN").steps(10, 30),
    }


@pytest.mark.parametrize("name", sorted(scenes()))
def test_how_the_bytes_are_cut_changes_nothing(language: Kit, name: str) -> None:
    whole = follow(language, scenes()[name])
    for seed in range(2):
        cut = follow(language, scenes()[name], blocks=Random(seed))
        assert cut.changes == whole.changes
        assert cut.sink.attempts == whole.sink.attempts
