"""A job while it runs: what is its health now, and why.

In: the traces of its current attempt, what the scheduler and the reader of its logs say, and the observer's clock. Out: a health with one
plain sentence, and the stretches in which it was not well. Silence is measured on the observer's clock: from the moment progress arrived to
now, against the limit of the phase the run is in. Nothing here decides to act.

The order of questions is the order of certainty: is it meant to run; is it over; can we see it; did it fail; is it silent; is it slow.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from defib.engine import causes, episodes, schedule
from defib.engine.episodes import Voice
from defib.engine.policies import Detect
from defib.engine.rhythm import Habits, Limit, Rhythm
from defib.engine.rulebook import Rulebook
from defib.engine.standing import Growth, finished, in_trouble, phase_before
from defib.engine.trace import ENDING_MARKS, Trace
from defib.engine.words import Episode, JobKey, JobState, Signal, StreamNo

EPISODES_MAX = 64
SETTLED_US = 60_000_000  # lines this much older than a sign of progress did not end the run (buffers of one death empty within seconds)
REACHED_MAX = 8
ALIGNED_MIN = 1  # bursts that end on a buffer's boundary before output counts as block-buffered
OVER = {
    "completed": "ended", "cancelled": "ended", "preempted": "ended", "time-limit": "ended", "crashed": "dead", "stalled": "hung",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at a job finds. limit_us: when silence alone would change it."""

    health: str
    because: str
    episode: Episode | None = None
    limit_us: int | None = None


@dataclass(slots=True)
class JobWatch:
    """What is remembered of a job between looks. Everything but the job's own facts dies with the attempt."""

    job: JobKey
    elder: Habits
    seen_us: int  # since when the attempt is watched
    policy: Detect
    attempt: int = 0
    state: JobState | None = None
    health: str = "starting"
    because: str = "nothing seen yet"
    moved_us: int | None = None  # when progress last arrived
    step: int | None = None
    forward: int = -1  # steps forward of the attempt at the last look
    phase: str = "startup"
    trouble_us: int | None = None  # when a failure was first spoken of, unless progress followed
    rhythm: Rhythm = field(init=False)
    growth: dict[int, Growth] = field(default_factory=dict)
    troubles: dict[int, tuple[int, str]] = field(default_factory=dict)  # streams we cannot vouch for: since when, why
    # (when, how far each stream was)
    reached: deque[tuple[int, dict[int, int]]] = field(default_factory=lambda: deque(maxlen=REACHED_MAX))
    # how far each stream's lines arrived well before progress did
    outlived: dict[int, int] = field(default_factory=dict)
    extents: dict[int, tuple[int, int]] = field(default_factory=dict)  # (bytes, lines) of each stream at the last look
    phased: dict[int, int] = field(default_factory=dict)  # how far each stream was when progress last arrived
    windows: int = 0  # of ranks, at the last question for stragglers
    straggler: Episode | None = None
    unwell: Episode | None = None
    past: list[tuple[int, Episode]] = field(default_factory=list)  # (attempt, stretch that is over)
    due_us: int = 0  # the next look that could find something new without new lines
    looked_us: int = 0
    alert: bool = False  # a failure or an end was spoken of: look at every tick
    # (number in paths, generation of the log, attempts in it) of the logs' last attempt
    place: tuple[int, int, int] = (0, 0, 0)
    restarts: int | None = None  # the scheduler's count

    def __post_init__(self) -> None:
        self.rhythm = Rhythm(self.policy.hang, self.elder)

    def restart_clocks(self, by_us: int) -> None:
        """Time passed that says nothing about the job: it was suspended, unseen, or the observer itself slept."""
        self.seen_us += by_us
        self.moved_us = None if self.moved_us is None else self.moved_us + by_us
        self.trouble_us = None if self.trouble_us is None else self.trouble_us + by_us
        for g in self.growth.values():
            g.at_us = None if g.at_us is None else g.at_us + by_us
            g.lined_us = None if g.lined_us is None else g.lined_us + by_us
        if self.rhythm.last is not None:
            self.rhythm.last.us += by_us

    def restarted(self, state: JobState | None) -> bool:
        """Take over what the scheduler says; True if it has started the job again."""
        self.state = state
        count = state.restart_count if state is not None else None
        again = count is not None and self.restarts is not None and count > self.restarts
        self.restarts = count if count is not None else self.restarts
        return again

    def follow(self, place: tuple[int, int, int], *, again: bool) -> bool:
        """Take over where the logs stand; True if another attempt has begun. What the logs show of an attempt that has neither moved nor failed
        yet is that attempt: the scheduler may have told of it first."""
        further, self.place = place > self.place, max(place, self.place)
        return again or (further and (self.moved_us is not None or self.trouble_us is not None))

    def begin(self, now_us: int, elder: Habits, traces: Sequence[Trace]) -> None:
        """Another attempt: nothing of the one before it may speak for it, though its traces may still be the last of some logs."""
        if self.unwell is not None:
            self._close(now_us)
        self.attempt += 1
        self.seen_us, self.elder = now_us, elder
        self.moved_us = self.step = self.trouble_us = None
        self.phase, self.alert = "startup", False
        self.windows, self.straggler = 0, None
        self.phased = {}
        self.reached.clear()
        old = [t for t in traces if self.extents.get(t.stream, (0, 0))[0] > t.begin_offset]
        self.forward = sum(t.forward for t in old)
        self.outlived = {t.stream: self.extents[t.stream][0] for t in old}
        self.rhythm = Rhythm(self.policy.hang, elder)

    def grew(self, stream: int, read: int, lines: int, now_us: int) -> None:
        """Bytes arrived; a line that is only drawn again is no new line."""
        g = self.growth.setdefault(stream, Growth())
        if read <= g.read:
            return
        since = now_us - (g.at_us if g.at_us is not None else self.seen_us)
        g.bursts += 1
        g.longest_us = max(g.longest_us, since)
        g.aligned &= read % self.policy.hang.buffer_bytes == 0
        if lines > g.lines or g.lined_us is None:
            g.lines, g.lined_us = lines, now_us
        g.read, g.at_us = read, now_us

    def buffered_us(self) -> int | None:
        """The longest time between two arrivals, where everything arrives in whole buffers; else None."""
        told = [g for g in self.growth.values() if g.bursts >= ALIGNED_MIN]
        if not told or not all(g.aligned for g in told):
            return None
        return max(g.longest_us for g in told)

    def note(self, traces: Sequence[Trace], speaking: Sequence[Voice], now_us: int) -> None:
        """New lines were folded: did it move, is there trouble, what is it doing? speaking: the voices of the traces."""
        forward = sum(t.forward for t in traces)
        if forward > self.forward and forward > 0:
            if speaking:
                self.step = speaking[0].counter.last_step
                self._expect(speaking[0].counter.rhythm, forward - max(0, self.forward))
            phases: tuple[str, ...] = () if self.phase in ("steady", "startup", "compile") else (self.phase,)
            self._beat(now_us, phases)
            self.moved_us, self.trouble_us = now_us, None
            self.phased = {t.stream: t.end_offset for t in traces}
            self.outlived = next(
                (far for at, far in reversed(self.reached) if at <= now_us - SETTLED_US), self.outlived
            )
        if not self.reached or now_us - self.reached[-1][0] >= SETTLED_US // 4:
            self.reached.append((now_us, {t.stream: t.end_offset for t in traces}))
        self.forward = forward
        if any(in_trouble(t, self.outlived) for t in traces):
            self.trouble_us = self.trouble_us if self.trouble_us is not None else now_us
        else:
            self.trouble_us = None
        self.alert = self.trouble_us is not None or finished(traces)
        moving = speaking and self.moved_us is not None
        self.phase = episodes.phase_of(speaking[0].trace, speaking[0].counter) if moving else phase_before(traces)

    def _expect(self, printed: Rhythm, lines: int) -> None:
        """When more is due, by the pace the run prints: as many lines as came at once were waiting in a buffer and will again."""
        apart = printed.expected_s if printed.expected_s is not None else printed.gaps.quantile(0.5)
        self.rhythm.expected_s = None if apart is None else apart * lines

    def _beat(self, now_us: int, phases: tuple[str, ...]) -> None:
        if self.moved_us is None:
            self.rhythm.lasted("startup", max(0.0, (now_us - self.seen_us) / 1e6))
        self.rhythm.one(now_us, self.step or 0, 0, 0, phases, math.nan)

    # ---- the look ----

    def look(
        self,
        traces: Sequence[Trace],
        speaking: Sequence[Voice],
        book: Rulebook,
        errors: frozenset[int],
        now_us: int,
        *,
        known: bool = False,
    ) -> Found:
        """Health at this moment. speaking: the voices of the traces; known: some line of its logs was recognised as a program's own (its
        framework is known)."""
        if schedule.waiting(self.state):
            assert self.state is not None
            return Found("waiting", f"the scheduler says {'held, ' if self.state.held else ''}{self.state.state}")
        if schedule.ended(self.state):
            assert self.state is not None
            judged = schedule.told(causes.judge(traces, book, errors, self.outlived), self.state) if traces else None
            verdict = judged.verdict if judged else schedule.ENDS[self.state.state][0]
            return Found(
                "dead" if verdict in ("crashed", "stalled") else "ended", f"the scheduler says {self.state.state}"
            )
        return (
            self._blind(traces, speaking, now_us)
            or self._over(traces, speaking, book, errors, now_us)
            or self._silent(traces, speaking, now_us, known=known)
        )

    def _blind(self, traces: Sequence[Trace], speaking: Sequence[Voice], now_us: int) -> Found | None:
        after = self.policy.blind.after_s * 1e6
        if not traces:
            wait = round(self.policy.blind.no_log_s * 1e6)
            if now_us - self.seen_us < wait:
                return Found("starting", "no log yet", limit_us=self.seen_us + wait)
            return Found("blind", f"no log seen for {(now_us - self.seen_us) / 1e6:.0f} s")
        if not self.troubles:
            return None
        told = [v.trace.stream for v in speaking] or [t.stream for t in traces]
        bad = [self.troubles[n] for n in told if n in self.troubles and now_us - self.troubles[n][0] >= after]
        if not bad or len(bad) < len(told):
            return None
        since, why = min(bad)
        return Found("blind", f"cannot read its log for {(now_us - since) / 1e6:.0f} s: {why}")

    def _over(
        self,
        traces: Sequence[Trace],
        speaking: Sequence[Voice],
        book: Rulebook,
        errors: frozenset[int],
        now_us: int,
    ) -> Found | None:
        """Failed or finished, by its own lines and a moment of quiet after them."""
        done = finished(traces)
        if self.trouble_us is None and not done:
            return None
        quiet_since = max(self.trouble_us or 0, max((g.at_us or 0 for g in self.growth.values()), default=0))
        wait = round(self._patience(traces, done) * 1e6)
        if now_us - quiet_since < wait:
            return None
        judged = causes.judge(traces, book, errors, self.outlived)
        if judged.verdict == "completed" and self._scheduled:
            return None  # the scheduler still says that it runs: it has the time of its last phase to end
        health = OVER.get(judged.verdict) or ("ended" if done else None)
        if health is None:
            return None
        cause = (
            f": {judged.cause.signal.title} ({judged.cause.signal.rule}, line {judged.cause.signal.line})"
            if judged.cause
            else ""
        )
        because = f"its log says {judged.verdict}{cause}, and nothing came for {(now_us - quiet_since) / 1e6:.0f} s"
        if health == "dead" and self._scheduled and not self._ending(traces) and not self._broken(traces):
            health, because = (
                "hung",
                f"{because}, though the scheduler still runs it",
            )  # one rank's last words, perhaps caught
        return Found(health, because, self._hung_episode(speaking, now_us, because) if health == "hung" else None)

    def _patience(self, traces: Sequence[Trace], done: bool) -> float:
        """Seconds of quiet that make a failure's lines believed: less the clearer they are."""
        policy = self.policy.hang
        if done or self._ending(traces):
            return policy.after_exit_s
        if self._broken(traces):
            return max(policy.after_error_s, self._usual())
        # A lone candidate may be an exception that was caught: the run gets its phase's time, or a few of its own gaps once known.
        steady = self.phase == "steady" and self.rhythm.gaps.count >= policy.learn_gaps
        return max(policy.after_error_s, self._usual(), 0.0 if steady else self._limit(traces).seconds)

    @property
    def _scheduled(self) -> bool:
        """The scheduler is known to run it still."""
        return self.state is not None and self.state.state in schedule.RUNNING

    def _ending(self, traces: Sequence[Trace]) -> bool:
        return any(s.mark in ENDING_MARKS for s in self._lately(traces))

    def _broken(self, traces: Sequence[Trace]) -> bool:
        return any(s.role in ("root", "cascade") for s in self._lately(traces))

    def _lately(self, traces: Sequence[Trace]) -> list[Signal]:
        """What was said since progress last came."""
        return [s for t in traces for s in t.live if s.offset >= self.outlived.get(t.stream, 0)]

    def _usual(self) -> float:
        """A few times the longest gap the run has shown, whatever it was doing."""
        h = self.rhythm.habits()
        shown = [
            x
            for x in (h.gap_s, h.pause_s, *(s for p, s in h.phases.items() if p not in ("startup", "compile")))
            if x is not None
        ]
        return self.policy.hang.factor * max(shown, default=0.0)

    def _limit(self, traces: Sequence[Trace]) -> Limit:
        """How long the run may be silent now."""
        limit = self.rhythm.limit(self.phase, self.step)
        for t in traces:
            for name, at in t.phases.touched.items():
                if at < self.phased.get(t.stream, 0):
                    continue  # spoken of before progress arrived, in a log that has no steps of its own
                other = self.rhythm.limit(name, self.step)
                limit = other if other.seconds > limit.seconds else limit
        buffered = self.buffered_us()
        if buffered is not None and self.policy.hang.factor * buffered / 1e6 > limit.seconds:
            seconds = self.policy.hang.factor * buffered / 1e6
            limit = Limit(
                limit.phase,
                seconds,
                f"its output arrives in whole buffers, up to {buffered / 1e6:.0f} s apart (unbuffered output would show more)",
            )
        return limit

    def _silent(self, traces: Sequence[Trace], speaking: Sequence[Voice], now_us: int, *, known: bool) -> Found:
        grew_us = max((g.at_us or 0 for g in self.growth.values()), default=0)
        limit = self._limit(traces)
        since = self.moved_us if self.moved_us is not None else self.seen_us
        until = since + round(limit.seconds * 1e6)
        quiet = grew_us + round(self.policy.hang.after_error_s * 1e6)
        if grew_us > since and now_us < quiet:
            # It still writes, only nothing we know as progress: an evaluation or a save whose lines no rule knows.
            unknown = self.rhythm.limit("unknown")
            if unknown.seconds > limit.seconds:
                limit, until = unknown, since + round(unknown.seconds * 1e6)
            if now_us < until:
                return self._moving(speaking, min(until, quiet))
        if now_us < until:
            return self._moving(speaking, until)
        lined_us = max((g.lined_us or 0 for g in self.growth.values()), default=0)
        silent = now_us - lined_us > self.policy.hang.after_error_s * 1e6
        if self.moved_us is None and grew_us and not (silent and (known or any(t.spoke for t in traces))):
            return Found(
                "blind", f"its log grows, but no line of it is known as progress for {(now_us - since) / 1e6:.0f} s"
            )
        because = f"no progress for {(now_us - since) / 1e6:.0f} s in phase {limit.phase}; limit {limit.seconds:.0f} s: {limit.because}"
        return Found("hung", because, self._hung_episode(speaking, now_us, because, limit))

    def _moving(self, speaking: Sequence[Voice], until: int) -> Found:
        if self.moved_us is None:
            return Found("starting", f"no step yet; phase {self.phase}", limit_us=until)
        for v in map(episodes.paced, speaking):
            slow = v.counter.slowdown.now
            if slow is not None:
                e = episodes.episode(v, slow)
                return Found("slow", e.because, e, until)
        behind = self._behind(speaking)
        if behind is not None:
            return Found("slow", behind.because, behind, until)
        return Found("healthy", f"step {self.step:,}" if self.step is not None else "moving", limit_us=until)

    def _behind(self, speaking: Sequence[Voice]) -> Episode | None:
        """A rank that lags behind its peers now; asked again only when another window has begun."""
        windows = sum(
            len(v.counter.windows) for v in speaking if len(v.counter.windows.rank_numbers) >= episodes.FEW_RANKS
        )
        if windows != self.windows:
            self.windows = windows
            found = [e for v in speaking for e in episodes.stragglers(v, self.policy.slow) if e.ended_us is None]
            self.straggler = found[0] if found else None
        return self.straggler

    def _hung_episode(
        self, speaking: Sequence[Voice], now_us: int, because: str, limit: Limit | None = None
    ) -> Episode:
        last = speaking[0].trace.progress if speaking else None
        since = self.moved_us if self.moved_us is not None else self.seen_us
        return Episode(
            "hung", limit.phase if limit else self.phase, "arrival", since, now_us, None, self.step, None,
            StreamNo(speaking[0].trace.stream) if speaking else None, last.offset if last else None, last.line if last else None,
            limit.seconds if limit else None, because=because,
        )  # fmt: skip

    def settle(self, found: Found, now_us: int) -> bool:
        """Take over what a look found; True if the health changed. Stretches open and close with it."""
        blind = (since + round(self.policy.blind.after_s * 1e6) for since, _ in self.troubles.values())
        until = min((found.limit_us or now_us, *(at for at in blind if at > now_us)))
        self.due_us = now_us if self.alert else until
        changed = found.health != self.health
        if changed and self.unwell is not None:
            self._close(now_us)
        if changed and found.episode is not None:
            self.unwell = found.episode
        elif changed and found.health == "blind":
            self.unwell = Episode(
                "blind",
                self.phase,
                "arrival",
                self.moved_us or self.seen_us,
                now_us,
                None,
                self.step,
                because=found.because,
            )
        self.health, self.because = found.health, found.because
        return changed

    def _close(self, now_us: int) -> None:
        e = self.unwell
        assert e is not None
        if e.kind != "slow" and len(self.past) < EPISODES_MAX:  # slow stretches are told by the log's own clock
            self.past.append((self.attempt, replace(e, ended_us=now_us, end_step=self.step)))
        self.unwell = None

    def lasting(self) -> list[tuple[int, Episode]]:
        """Hung and blind stretches seen live, those that last included."""
        now = [(self.attempt, self.unwell)] if self.unwell is not None and self.unwell.kind != "slow" else []
        return [*self.past, *now]
