"""One attempt's traces -> the stretches in which it was not well, as its logs tell them afterwards.

hung: no stream of the attempt moved for longer than the limit of the phase it was in (or a line says that somebody waited too long).
slow: the pace dropped and stayed down; which ranks, where they print their own times. All from event time or the step clock: a log
without stamps that merely ends says nothing about silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from defib.engine.counters import Counter
from defib.engine.policies import SlowPolicy
from defib.engine.slowdown import Mark, Slow
from defib.engine.trace import Trace, main_counter
from defib.engine.windows import Windows
from defib.engine.words import Episode, StreamNo

EPISODES_MAX = 512
MOST = 0.8  # of the ranks slow: all of them are
WORTH = 10  # lines of a bar for each line that also tells the work
FEW_RANKS = 3  # with fewer nobody stands out
STRAGGLE_CELLS = 2  # windows in a row


@dataclass(frozen=True, slots=True)
class Voice:
    """A stream that speaks for the attempt: its trace and the counter of the main format in it."""

    trace: Trace
    counter: Counter


def voices(traces: Sequence[Trace]) -> list[Voice]:
    """One per trace that counts steps as the attempt's main counter does."""
    main = main_counter(list(traces))
    if main is None or main.format.kind != "train":
        return []
    out: list[Voice] = []
    for t in traces:
        same = [c for c in t.counters.values() if c.format.id == main.format.id and c.advances]
        if same:
            out.append(Voice(t, max(same, key=lambda c: (c.advances, c.last_at))))
    return sorted(out, key=lambda v: (v.counter is not main, v.trace.stream))


def paced(v: Voice) -> Voice:
    """The same stream by the counter that knows how much work its steps hold, where the main one does not."""
    if v.counter.work.known:
        return v
    better = [
        c
        for c in v.trace.counters.values()
        if c.work.known
        and c.format.kind == "train"
        and c.format.counts == "step"
        and c.forward * WORTH >= v.counter.forward
    ]
    return Voice(v.trace, max(better, key=lambda c: (c.forward, c.last_at))) if better else v


def told(
    traces: Sequence[Trace],
    ranks: Mapping[int, int | None],
    slow: SlowPolicy,
    stalled_us: int | None,
    *,
    finished: bool = False,
) -> tuple[Episode, ...]:
    """Episodes in order of onset. ranks: rank of each stream, where its path tells; stalled_us: when a line first said that somebody waited too
    long, if that ended the attempt; finished: it reached its planned end, so that the quiet after its last step is no silence."""
    speaking = voices(traces)
    if not speaking:
        return ()
    found = [*silences(traces, speaking, stalled_us, finished=finished), *slowdowns(speaking, ranks, slow)]
    return tuple(sorted(found, key=lambda e: (e.onset_us, e.kind))[:EPISODES_MAX])


# ---- silence ----------------------------------------------------------------------------------------------------------


def silences(
    traces: Sequence[Trace], speaking: Sequence[Voice], stalled_us: int | None, *, finished: bool
) -> list[Episode]:
    """Stretches without progress in any stream, longer than the limit."""
    lead = speaking[0]
    out: list[Episode] = []
    for s in lead.counter.rhythm.silences:
        if all(_silent(v, s.from_us, s.to_us) for v in speaking[1:]):
            out.append(
                Episode(
                    "hung", s.limit.phase, "event", s.from_us, s.from_us + round(s.limit.seconds * 1e6), s.to_us, s.from_step, s.to_step,
                    StreamNo(lead.trace.stream), s.offset, s.line, s.limit.seconds,
                    because=f"no progress for {(s.to_us - s.from_us) / 1e6:.0f} s; {s.limit.because}",
                )
            )  # fmt: skip
    last = _last_silence(traces, speaking, stalled_us) if not finished else None
    return [*out, last] if last is not None else out


def _silent(v: Voice, from_us: int, to_us: int) -> bool:
    """Whether this stream was silent too: it has a silence over most of that time, or had stopped before."""
    r = v.counter.rhythm
    if r.last is None or r.first_us is None or r.last.us <= from_us or r.first_us >= to_us:
        return True
    half = (to_us - from_us) // 2
    return any(min(s.to_us, to_us) - max(s.from_us, from_us) >= half for s in r.silences)


def _last_silence(traces: Sequence[Trace], speaking: Sequence[Voice], stalled_us: int | None) -> Episode | None:
    """From the last progress of any stream to the last thing any program of the attempt said."""
    stopped = [v for v in speaking if v.counter.rhythm.last is not None]
    if not stopped:
        return None
    v = max(stopped, key=lambda v: v.counter.rhythm.last.us if v.counter.rhythm.last else 0)
    last = v.counter.rhythm.last
    assert last is not None
    # The scheduler's stamps are of its own clock and zone; only what the run itself printed is comparable.
    said = [s.time_us for t in traces for s in t.kept if s.time_us is not None and s.role != "lifecycle"]
    end = max(said, default=last.us)
    limit = v.counter.rhythm.limit(phase_of(v.trace, v.counter), last.step)
    declared = last.us + round(limit.seconds * 1e6)
    because = limit.because
    if stalled_us is not None and last.us < stalled_us < declared:
        declared, because = stalled_us, "a line says that somebody waited too long"
    elif end <= declared:
        return None
    return Episode(
        "hung", limit.phase, "event", last.us, declared, None, last.step, None, StreamNo(v.trace.stream), last.offset, last.line,
        limit.seconds, because=f"no progress from here on; {because}",
    )  # fmt: skip


def phase_of(t: Trace, c: Counter) -> str:
    """The phase a trace is in now."""
    through = any(s.mark in ("trained", "completed") for s in t.last_by_rule.values())
    through |= c.format.counts == "step" and c.total is not None and c.last_step >= c.total
    advances = c.advances if c.format.kind == "train" else 0
    return t.phases.now(advances, through=through)


# ---- pace -------------------------------------------------------------------------------------------------------------


def slowdowns(speaking: Sequence[Voice], ranks: Mapping[int, int | None], policy: SlowPolicy) -> list[Episode]:
    """Slow stretches of all streams, those at the same time as one."""
    found = [(v, s) for v in map(paced, speaking) for s in v.counter.slowdown.found]
    if not found:
        return [e for v in speaking for e in stragglers(v, policy)]
    found.sort(key=lambda f: (f[1].onset.clock_s, f[0].trace.stream))
    out: list[Episode] = []
    while found:
        v, s = found[0]
        together = [f for f in found if f[1].onset.clock_s <= _until(s) and s.onset.clock_s <= _until(f[1])]
        found = [f for f in found if f not in together]
        out.append(_merged(v, s, [f[0] for f in together], speaking, ranks))
    return out


def _until(s: Slow) -> float:
    return s.passed.clock_s if s.passed is not None else float("inf")


def _merged(
    v: Voice, s: Slow, slow: list[Voice], speaking: Sequence[Voice], ranks: Mapping[int, int | None]
) -> Episode:
    """One stretch, with the ranks it concerns: by their own logs, else by the times they print into one log."""
    e = episode(v, s)
    streams = {x.trace.stream for x in slow}
    if len(speaking) >= FEW_RANKS:
        if len(streams) >= MOST * len(speaking):
            return replace(e, scope="all")
        named = sorted(r for n in streams if (r := ranks.get(n)) is not None)
        return replace(e, scope="some", ranks=tuple(named))
    scope, named_in = _by_windows(v.counter.windows, v.counter, s)
    return replace(e, scope=scope, ranks=named_in)


def episode(v: Voice, s: Slow) -> Episode:
    """A slow stretch of one counter in the words of the house."""
    event = s.onset.time_us is not None and s.called.time_us is not None
    clock = "event" if event else "step"

    def at(m: Mark | None) -> int | None:
        if m is None:
            return None
        return m.time_us if event else round(m.clock_s * 1e6)

    until = f"until step {s.passed.step:,}" if s.passed is not None else "to the end"
    return Episode(
        "slow", "steady", clock, at(s.onset) or 0, at(s.called), at(s.passed), s.onset.step, s.passed.step if s.passed else None,
        StreamNo(v.trace.stream), s.onset.offset, s.onset.line, None, round(s.baseline_s, 6), round(s.pace_s, 6), round(s.depth, 4),
        because=f"{s.pace_s:.3g} s a step against {s.baseline_s:.3g} s before, from step {s.onset.step:,} {until}",
    )  # fmt: skip


def _by_windows(w: Windows, c: Counter, s: Slow) -> tuple[str, tuple[int, ...]]:
    """all | some | unknown ranks, by what they printed before and during."""
    begin, end = _cells(w, c, s)
    before = _means(w, None, begin)
    during = _means(w, begin + 1, end)
    both = sorted(set(before) & set(during))
    if len(both) < FEW_RANKS:
        return "unknown", ()
    slower = tuple(r for r in both if during[r] >= before[r] / (1 - s.depth / 2))
    return ("all", ()) if len(slower) >= MOST * len(both) else ("some" if slower else "unknown", slower)


def _cells(w: Windows, c: Counter, s: Slow) -> tuple[int, int | None]:
    def index(m: Mark) -> int:
        seconds = m.time_us / 1e6 if c.clock == "event" and m.time_us is not None else m.clock_s
        return int(seconds // w.width_s)

    return index(s.onset), index(s.passed) if s.passed is not None else None


def _means(w: Windows, first: int | None, last: int | None) -> dict[int, float]:
    """Mean seconds per step of every rank over windows [first, last)."""
    sums: dict[int, tuple[int, int]] = {}
    for i, cell in w.each():
        if (first is None or i >= first) and (last is None or i < last):
            for rank, (micros, rows) in cell.by_rank.items():
                have = sums.get(rank, (0, 0))
                sums[rank] = (have[0] + micros, have[1] + rows)
    return {rank: micros / 1e6 / rows for rank, (micros, rows) in sums.items()}


def stragglers(v: Voice, policy: SlowPolicy) -> list[Episode]:
    """Ranks that print longer steps than the median of their peers, several windows in a row."""
    w, clock = v.counter.windows, v.counter.clock
    runs: dict[int, tuple[int, int]] = {}  # rank -> first window of its run, and the step it began with
    lasting: dict[int, Episode] = {}
    over: list[Episode] = []
    for i, cell in w.each():
        means = cell.rank_means()
        if len(means) < FEW_RANKS:
            continue
        middle = sorted(means.values())[len(means) // 2]
        behind = {r for r, m in means.items() if m >= middle / (1 - policy.depth)}
        if len(behind) > len(means) // 2:
            continue  # where most are slower nobody stands out
        for r in sorted(set(runs) - behind):
            del runs[r]
            if r in lasting:
                over.append(replace(lasting.pop(r), ended_us=round(i * w.width_s * 1e6), end_step=cell.first_step))
        for r in sorted(behind):
            first, step = runs.setdefault(r, (i, cell.first_step))
            if i - first + 1 >= STRAGGLE_CELLS and r not in lasting and len(lasting) + len(over) < EPISODES_MAX:
                lasting[r] = Episode(
                    "slow", "steady", clock, round(first * w.width_s * 1e6), round((i + 1) * w.width_s * 1e6), None,
                    step, None, StreamNo(v.trace.stream), None, None, None, round(middle, 6), round(means[r], 6),
                    round(1 - middle / means[r], 4), "some", (r,), f"rank {r} takes {means[r]:.3g} s a step, its peers {middle:.3g} s",
                )  # fmt: skip
    return [*over, *lasting.values()]
