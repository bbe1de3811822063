"""Following the bytes of one file, as a pure state machine: `step(state, seen, terms) -> Step(state, items, want)`.

In: what the system calls gave (`Look`, `Got`, `Sized`, `Sought`). Out: items for the engine and what to ask next. A poll begins with `Look`
and ends with `Rest` (nothing more now) or `Changed` (the file is no longer what was being read). Always holds:

* bytes are handed over once, in order, and only after the bytes before them have been compared with those read earlier; guard and new bytes
  come from one system call wherever they touch;
* a file that has become shorter goes on from its end only if everything before it is proven the same; in every other case of doubt it is
  another generation, read from its first byte;
* NULs at the very end may be data under way (a network file system shows the size before the bytes): they are waited for, then handed over
  as a hole; NULs with data behind them are passed on;
* a last line without its end is handed over like any other bytes: the engine's cutter holds it until the end comes, so it is counted once.
  `State.partial` is its beginning, to be shown as provisional after a quiet time, never to be scanned.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from defib.adapters.tail.guard import ENOUGH_BYTES, GUARD_BYTES, HEAD_BYTES, Guard, checksum

PARTIAL_BYTES = 4096
CUT = "the end of the file was cut off; what was written behind it and cut before it was read is not known"
FILLED = "bytes that were NUL when they were read hold data now"


@dataclass(frozen=True, slots=True)
class Terms:
    """The poll: the reader's clock, how much may be read, how long NULs at the end are waited for. final: no longer at all; by_path: the
    path was looked up, so the file's beginning is compared even if nothing is new."""

    now_us: int
    quantum: int
    nul_wait_us: int = 30_000_000
    final: bool = False
    by_path: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """[0, to) is being read again to compare it with what was read. then: the state after it, None to go on as before."""

    to: int
    then: State | None = None
    why: str | None = None
    at: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """One generation of a path. offset: the next byte to hand over; record_at, line: where the unfinished line begins."""

    generation: int = 0
    offset: int = 0
    guard: Guard = field(default_factory=Guard)
    record_at: int = 0
    line: int = 1
    partial: bytes = b""
    accept_to: int = 0  # NULs before this offset are taken as they are
    nul_to: int = 0  # the run of NULs at the end has been read up to here
    nul_since_us: int | None = None
    doubt: bool = False  # another file in the same place: prove that it has the same bytes
    proof: Proof | None = None


@dataclass(frozen=True, slots=True)
class Bytes:
    """The next bytes of a generation."""

    generation: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Hole:
    """The next bytes of a generation are this many NULs: nobody wrote them, or they never arrived."""

    generation: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Something of a generation was missed at or before offset, and why it is known."""

    generation: int
    offset: int
    note: str


@dataclass(frozen=True, slots=True)
class Read:
    """Wanted: up to `length` bytes from `at`. why: guard | head | start | data | probe | proof. back: so many of them were read before, as NULs.
    raw: what was read as guard, to be judged after the head."""

    at: int
    length: int
    why: str
    back: int = 0
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Size:
    """Wanted: the size of the file now."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Seek:
    """Wanted: where data begin at or after `at`."""

    at: int
    nuls: int  # read there


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is wanted until the next poll. end: the file was read to its end."""

    end: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """This is not the file that was being read, or no longer. then: how to begin with what is there now. kept: its beginning is proven the
    same, and why it goes on from there as another generation; None: it begins anew."""

    then: State
    kept: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Seen: a poll begins."""


@dataclass(frozen=True, slots=True)
class Got:
    """Seen: what a read gave."""

    read: Read
    raw: bytes


@dataclass(frozen=True, slots=True)
class Sized:
    """Seen: the size of the file, asked for after `raw` was read as guard."""

    size: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class Sought:
    """Seen: data begin at `to` (None: there are none up to the end of the file, at `size`)."""

    seek: Seek
    to: int | None
    size: int


Item = Bytes | Hole | Gap
Want = Read | Size | Seek | Rest | Changed
Seen = Look | Got | Sized | Sought


@dataclass(frozen=True, slots=True)
class Step:
    """What one observation leads to."""

    state: State
    items: tuple[Item, ...]
    want: Want


def step(s: State, seen: Seen, t: Terms) -> Step:
    """Take one observation in."""
    match seen:
        case Look():
            return _begin(s, t)
        case Got(Read(why="guard"), raw):
            return _guarded(s, t, raw)
        case Got(Read(why="head") as read, raw):
            if not s.guard.begins(raw):
                return Step(s, (), Changed(fresh(s)))
            return _trusted(s, t, read.raw) if len(raw) == read.length else Step(s, (), Rest(False))
        case Got(Read(why="start") as read, raw):
            return _started(s, t, raw, read.length)
        case Got(Read(why="proof"), raw):
            return _proven(s, t, raw)
        case Got(Read(why="probe") as read, raw):
            return _probed(s, t, read, raw)
        case Got(read, raw):
            return _behind(s, t, read, raw) if read.back else _data(s, t, raw, read.length)
        case Sized(size, raw):
            return _sized(s, t, size, raw)
        case Sought():
            return _sought(s, t, seen)


def fresh(s: State) -> State:
    """The generation after this one, from its first byte."""
    return State(s.generation + 1)


def _begin(s: State, t: Terms) -> Step:
    if s.proof is not None:
        return Step(s, (), Read(s.proof.at, min(t.quantum, s.proof.to - s.proof.at), "proof"))
    g = s.guard
    if g.length == 0 and s.offset == 0:
        return Step(s, (), Read(0, t.quantum, "data"))
    return Step(s, (), Read(g.start, g.length + (t.quantum if g.end == s.offset else 0), "guard"))


def _guarded(s: State, t: Terms, raw: bytes) -> Step:
    g = s.guard
    seen = raw[: g.length]
    if len(seen) < g.length:
        return Step(s, (), Size(seen))  # a short read is no proof that the file is short
    if not g.matches(seen):
        return _back(s, t, g.common(seen), FILLED) if g.filled(seen) else Step(s, (), Changed(fresh(s)))
    if not g.whole:
        s = replace(s, guard=g.held(seen))
    if s.doubt:
        if g.length < ENOUGH_BYTES:
            return Step(s, (), Changed(fresh(s)))
        return _prove(s, t, None, None)
    # The guard may not reach back to the beginning, and only there long headers may differ.
    if g.start and (t.by_path or g.end != s.offset or len(raw) > g.length):
        return Step(s, (), Read(0, len(g.head), "head", raw=raw))
    return _trusted(s, t, raw)


def _trusted(s: State, t: Terms, raw: bytes) -> Step:
    """What was read before is still there."""
    g = s.guard
    if g.end != s.offset:
        return Step(s, (), Size(raw[: g.length]))
    return _data(s, t, raw[g.length :], t.quantum)


def _sized(s: State, t: Terms, size: int, raw: bytes) -> Step:
    g = s.guard
    if size >= max(s.offset, g.end):
        if len(raw) < g.length:
            return Step(s, (), Rest(False))
        if g.length < ENOUGH_BYTES:  # hardly anything but NULs so far: look at the beginning too
            return Step(s, (), Read(0, min(HEAD_BYTES, s.offset), "start"))
        return Step(s, (), _ahead(s, t))
    left = min(size, g.end) - g.start
    # Shorter by more than half is a new beginning with the same header, not an old log that lost its last lines.
    if not g.whole or left < ENOUGH_BYTES or raw[:left] != g.last[:left] or 2 * (g.start + left) < g.end:
        return Step(s, (), Changed(fresh(s)))
    return _back(s, t, left, CUT)


def _ahead(s: State, t: Terms) -> Read:
    """New bytes, and with them what was handed over as NULs just before."""
    back = min(GUARD_BYTES, max(0, s.offset - s.guard.end))
    return Read(s.offset - back, back + t.quantum, "data", back)


def _started(s: State, t: Terms, raw: bytes, asked: int) -> Step:
    if raw != s.guard.head[: len(raw)].ljust(len(raw), b"\0"):
        return Step(s, (), Changed(fresh(s)))
    return Step(s, (), _ahead(s, t) if len(raw) == asked else Rest(False))


def _back(s: State, t: Terms, left: int, why: str) -> Step:
    """Go on as another generation from the last line that ends within the first `left` bytes of the guard, if all before is the same."""
    g = s.guard
    cut = max(g.last.rfind(b"\n", 0, left), g.last.rfind(b"\r", 0, left)) + 1
    if cut < ENOUGH_BYTES or s.doubt:
        return Step(s, (), Changed(fresh(s)))
    at = g.start + cut
    line = s.line - g.last.count(b"\n", cut, max(cut, s.record_at - g.start))
    return _prove(s, t, State(s.generation + 1, at, g.cut(cut), at, line), why)


def _prove(s: State, t: Terms, then: State | None, why: str | None) -> Step:
    proof = Proof(s.guard.start, then, why)
    if proof.to == 0:
        return _decided(s, t, proof)
    return Step(replace(s, proof=proof), (), Read(0, min(t.quantum, proof.to), "proof"))


def _proven(s: State, t: Terms, raw: bytes) -> Step:
    p = s.proof
    assert p is not None
    p = replace(p, at=p.at + len(raw), crc=checksum(raw, p.crc))
    if p.at < p.to:
        if raw:
            return Step(replace(s, proof=p), (), Rest(False))
        return Step(replace(s, proof=None), (), Changed(fresh(s)))
    return _decided(s, t, p)


def _decided(s: State, t: Terms, p: Proof) -> Step:
    s = replace(s, proof=None)
    if p.crc != s.guard.before:
        return Step(s, (), Changed(fresh(s)))
    return _begin(replace(s, doubt=False), t) if p.then is None else Step(s, (), Changed(p.then, p.why))


def _behind(s: State, t: Terms, read: Read, raw: bytes) -> Step:
    """What was handed over as NULs just before the offset must still be NULs."""
    if len(raw) < read.back:
        return Step(s, (), Rest(False))
    if raw[: read.back].strip(b"\0"):
        return _back(s, t, s.guard.length, FILLED)
    return _data(s, t, raw[read.back :], t.quantum)


def _data(s: State, t: Terms, data: bytes, asked: int) -> Step:
    if not data:  # NULs that come behind this end are others than those that were waited for
        s = replace(s, nul_since_us=None, nul_to=0, accept_to=min(s.accept_to, s.offset))
        return Step(s, (), Rest(True))
    n, text = len(data), len(data.rstrip(b"\0"))
    take = min(n, max(text, s.accept_to - s.offset))
    if text == 0 and n == asked:
        return Step(s, (), Seek(s.offset + n, n))
    if take <= 0:
        return _wait(s, t, s.offset + n)
    after, item = _taken(s, data[:take]) if text else _skipped(s, take)
    if n == asked:
        return Step(after, (item,), Rest(False))
    return Step(after, (item,), Read(after.offset, asked - take, "data"))


def _taken(s: State, data: bytes) -> tuple[State, Item]:
    end = s.offset + len(data)
    guard = s.guard.extended(s.offset, data)
    cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if cut:
        line, record_at, partial = s.line + data.count(b"\n", 0, cut), s.offset + cut, data[cut : cut + PARTIAL_BYTES]
    else:
        line, record_at, partial = s.line, s.record_at, (s.partial + data[:PARTIAL_BYTES])[:PARTIAL_BYTES]
    return State(s.generation, end, guard, record_at, line, partial, s.accept_to), Bytes(s.generation, data)


def _skipped(s: State, length: int) -> tuple[State, Item]:
    after = replace(s, offset=s.offset + length, nul_since_us=None, nul_to=0)
    return after, Hole(s.generation, s.offset, length)


def _wait(s: State, t: Terms, end: int) -> Step:
    """NULs reach from the offset to the end of the file."""
    since = t.now_us if s.nul_since_us is None else s.nul_since_us
    if t.final or t.now_us - since >= t.nul_wait_us:
        s = replace(s, accept_to=end, nul_since_us=None, nul_to=0)
        return Step(s, (), Read(s.offset, t.quantum, "data"))
    return Step(replace(s, nul_since_us=since), (), Rest(True))


def _sought(s: State, t: Terms, seen: Sought) -> Step:
    """A whole quantum of NULs stands at the offset, up to `seek.at`."""
    if seen.to is None:
        end = max(seen.size, seen.seek.at)
        if s.offset >= s.accept_to:
            return _wait(s, t, end)
        after, item = _skipped(s, min(s.accept_to, end) - s.offset)
        return Step(after, (item,), Rest(False))
    if seen.to > seen.seek.at:
        after, item = _skipped(replace(s, accept_to=max(s.accept_to, seen.to)), seen.to - s.offset)
        return Step(after, (item,), Read(after.offset, t.quantum, "data"))
    if s.offset < s.accept_to:
        after, item = _skipped(s, min(seen.seek.nuls, s.accept_to - s.offset))
        return Step(after, (item,), Rest(False))
    return Step(s, (), Read(max(s.nul_to, seen.seek.at), t.quantum, "probe"))


def _probed(s: State, t: Terms, read: Read, raw: bytes) -> Step:
    """How far a long run of NULs goes that the file system does not know as a hole."""
    nuls = len(raw) - len(raw.lstrip(b"\0"))
    if nuls < len(raw):
        return Step(replace(s, accept_to=read.at + nuls, nul_to=0, nul_since_us=None), (), Rest(False))
    if len(raw) == read.length:
        return Step(replace(s, nul_to=read.at + len(raw)), (), Rest(False))
    return _wait(replace(s, nul_to=read.at + len(raw)), t, read.at + len(raw))
