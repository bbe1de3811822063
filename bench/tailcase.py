"""One random life of a log, followed and judged: what a reader made of it against the writer's own record.

In: a seed and a world (memory or disk). Out: nothing, or an AssertionError that names seed and acts. Each seed turns a random subset of acts
on. Judged, byte by byte:

* every generation holds the beginning of one epoch, nothing else, and its lines are counted right;
* a generation that ends without a loss was read to its end; what is at the path at last is read exactly;
* every epoch that was not read whole is behind a told gap, or could not be known (all that had been read of it is the beginning of a later one);
* nothing is read twice; no descriptor leaks; errors change nothing but the time.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field

from defib.adapters.tail.body import REMOVED, REPLACED, Begin, End, Patience, Told, Trouble
from defib.adapters.tail.follower import Follower
from defib.adapters.tail.reading import CUT, FILLED, Bytes, Gap, Hole
from tailmodel import FOLDER, Epoch, Memory

PATH = FOLDER + b"/log"
HEADER = b"".join(b"setting %02d of the run is always the same\n" % n for n in range(12))
ERRNOS = (
    errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOENT, errno.EMFILE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EINTR, errno.EAGAIN,
    errno.ENOMEM, errno.ELOOP, errno.EPERM,
)  # fmt: skip
CALLS = ("open", "stat", "read", "data_after", "names", "close")
ACTS = (
    "append", "append", "append", "unfinished", "big", "truncate", "rewrite", "regrow", "same-size", "cut", "rotate", "rotate-slowly",
    "copytruncate", "replace", "hole", "nul-tail", "fill", "vanish", "return", "late-writer", "fault", "short", "restart", "relax",
)  # fmt: skip
SECOND = 1_000_000


@dataclass
class Case:
    """A world, a follower and what was handed over so far."""

    seed: int
    world: Memory
    acts: list[str] = field(default_factory=list)
    got: dict[int, bytearray] = field(default_factory=dict)
    ended: dict[int, End] = field(default_factory=dict)
    told_gaps: list[int] = field(default_factory=list)  # when
    told_begins: list[int] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    now: int = SECOND
    number: int = 0
    last_end: int | None = None
    away: bool = False
    returned: bool = False
    nul_from: int | None = None
    nul_end: int = 0
    nul_at: int = 0
    nul_read: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.world.delivered = self.delivered
        self.quantum = self.rng.choice((40, 300, 5000, 65536))
        self.long_header = self.rng.random() < 0.3
        self.enabled = [a for a in ACTS if self.rng.random() < 0.6] or ["append"]
        self.follower = Follower(self.world, PATH)
        self.faults: list[tuple[str, int]] = []
        self.shortening = 0
        self.world.fault, self.world.shorten = self.fail, self.shorten

    def delivered(self, epoch: Epoch) -> int:
        have = epoch.content
        return max((len(g) for n, g in self.got.items() if n not in self.ended and have.startswith(g)), default=0)

    def surely_read(self, epoch: Epoch) -> int:
        """The same without generations that may be of another file: NULs alone may be any file's beginning."""
        others = [e for e in self.world.epochs if e is not epoch]
        return max(
            (
                len(g)
                for n, g in self.got.items()
                if n not in self.ended
                and epoch.content.startswith(g)
                and not any(e.begins_with(bytes(g)) for e in others)
            ),
            default=0,
        )

    # faults

    def fail(self, call: str) -> None:
        for n, (name, code) in enumerate(self.faults):
            if name == call:
                del self.faults[n]
                raise OSError(code, errno.errorcode[code])

    def shorten(self, length: int) -> int:
        if self.shortening and length > 1:
            self.shortening -= 1
            return self.rng.randrange(1, length)
        return length

    # the writer

    def line(self) -> bytes:
        self.number += 1
        end = self.rng.choice((b"\n", b"\n", b"\n", b"\r", b"\r\n"))
        return b"%06d %x" % (self.number, self.rng.getrandbits(8 * self.rng.choice((1, 9, 40)))) + end

    def header(self) -> bytes:
        """What every attempt prints first; a long one differs in its first line only."""
        if not self.long_header:
            return HEADER
        self.attempt += 1
        return b"attempt %d of this run\n" % self.attempt + HEADER * 12

    def lines(self, most: int = 4) -> bytes:
        return b"".join(self.line() for _ in range(self.rng.randint(1, most)))

    def do(self, act: str) -> None:
        w, rng = self.world, self.rng
        if act in ("fault", "short", "restart", "relax"):
            return self.disturb(act)
        if act == "late-writer":
            if b"log.1" in w.entries and not w.entries[b"log.1"].copy and self.alive(b"log.1"):
                self.append(b"log.1", self.lines())
            return None
        if act == "return":
            if self.away and b"aside" in w.entries:
                w.rename(b"aside", b"log")
                self.away = False
            return None
        if b"log" not in w.entries:
            if act in ("append", "rotate", "replace") and not (self.away and rng.random() < 0.7):
                w.create(b"log")
                self.returned |= self.away
            return None
        return self.act_on_path(act)

    def act_on_path(self, act: str) -> None:
        w, size = self.world, len(self.world.entries[b"log"].data)
        if act in ("truncate", "rewrite", "regrow", "same-size", "cut", "copytruncate"):
            return self.shorten_log(act, size)
        match act:
            case "append":
                self.append(b"log", self.lines())
            case "unfinished":
                self.append(b"log", b"%06d and no end" % self.rng.getrandbits(16))
            case "big":
                self.append(b"log", b"".join(self.lines(60) for _ in range(3)))
            case "rotate" | "rotate-slowly":
                for old, new in ((b"log.2", b"log.3"), (b"log.1", b"log.2"), (b"log", b"log.1")):
                    if old in w.entries:
                        w.rename(old, new)
                if act == "rotate":
                    w.create(b"log")
            case "replace":
                w.create(b"log")
                self.append(b"log", self.rng.choice((b"", self.header())))
            case "hole":
                self.append(b"log", self.lines(), gap=self.rng.choice((1, 50, 5000, 30000)))
            case "nul-tail":
                grows = size > 0 and not w.entries[b"log"].data[-1]  # one run of NULs, waited for since it began
                self.nul_from = size
                w.truncate(b"log", size + self.rng.choice((1, 40, 9000)))
                self.nul_end, self.nul_at = len(w.entries[b"log"].data), self.nul_at if grows else self.now
                epoch = w.entries[b"log"].epoch
                self.nul_read = max(
                    size, self.delivered(epoch) if epoch else 0
                )  # an earlier tail may have been as long
            case "fill":
                self.fill(size)
            case "vanish" if not self.away:
                w.rename(b"log", b"aside")
                self.away = True
        return None

    def shorten_log(self, act: str, size: int) -> None:
        """Truncations, and what is written after them."""
        w, rng = self.world, self.rng
        if act == "cut":
            return w.truncate(b"log", max(0, size - rng.choice((1, 7, 30, 200))))
        if act == "copytruncate":
            w.copy(b"log", b"log.1")
            if rng.random() < 0.3:
                self.append(b"log", self.lines())
        w.truncate(b"log", 0)
        match act:
            case "rewrite":
                self.append(b"log", self.header()[: rng.choice((30, 200, 5000, 9000))])
            case "regrow":
                self.append(b"log", self.header() + self.lines(8))
                while len(w.entries[b"log"].data) < size:
                    self.append(b"log", self.lines(30))
            case "same-size" if size:
                self.append(b"log", bytes(rng.choices(b"abcdefgh\n", k=size)))
        return None

    def fill(self, size: int) -> None:
        """Data arrive where NULs stood."""
        data = self.world.entries[b"log"].data
        if self.nul_from is not None and self.nul_from < size and not data[self.nul_from]:
            rest = data[self.nul_from :]
            run = len(rest) - len(rest.lstrip(b"\0"))
            epoch = self.world.entries[b"log"].epoch
            assert epoch is not None
            waited = size != self.nul_end or run != size - self.nul_from or self.now - self.nul_at >= Patience().nul_us
            assert waited or self.surely_read(epoch) <= self.nul_read, "NULs at the end were not waited for"
            self.world.write(b"log", self.nul_from, (self.lines() * run)[:run])

    def append(self, name: bytes, data: bytes, gap: int = 0) -> None:
        self.world.write(name, len(self.world.entries[name].data) + gap, data)

    def alive(self, name: bytes) -> bool:
        """The reader still holds on to the file; what is written after it let go is beyond any reader."""
        epoch = self.world.entries[name].epoch
        assert epoch is not None
        return self.delivered(epoch) > 0

    # the reader

    def disturb(self, act: str) -> None:
        if act == "fault":
            code = self.rng.choice(ERRNOS)
            self.faults = [(self.rng.choice(CALLS), code) for _ in range(self.rng.choice((1, 1, 2, 6)))]
        elif act == "short":
            self.shortening = self.rng.choice((1, 3, 10))
        elif act == "relax":
            self.follower.relax()
        else:
            positions = self.follower.positions
            for body in self.follower.bodies:
                if body.handle is not None:
                    self.faults = []
                    self.world.close(body.handle)
            self.follower = Follower(self.world, PATH, positions)

    def poll(self, final: bool = False, full: bool = True) -> int:
        polled = self.follower.poll(self.now, self.quantum, full, final)
        for item in polled.items:
            self.take(item)
        assert polled.fresh <= 3 * (self.quantum + 40000) or self.quantum < 5000
        return polled.fresh

    def take(self, item: Told) -> None:
        match item:
            case Begin(g, offset, line):
                self.told_begins.append(self.world.at)
                if g not in self.got:
                    assert offset == 0 or (
                        self.last_end is not None and self.ended[self.last_end].note in (CUT, FILLED)
                    )
                    self.got[g] = bytearray(
                        self.got[self.last_end][:offset] if offset and self.last_end is not None else b""
                    )
                    self.starts[g] = offset
                assert g not in self.ended
                assert offset <= len(self.got[g])
                del self.got[g][offset:]
                assert line == self.got[g].count(b"\n") + 1, "lines"
            case Bytes(g, data):
                assert data
                self.got[g] += data
            case Hole(g, offset, length):
                assert offset == len(self.got[g])
                assert length > 0
                self.got[g] += bytes(length)
            case Gap():
                self.told_gaps.append(self.world.at)
            case End(g, note, lost):
                assert g not in self.ended
                if lost or note in (REPLACED, REMOVED):
                    self.told_gaps.append(self.world.at)
                if not lost:
                    assert any(self.whole(e, g) for e in self.world.epochs), f"generation {g} ended whole but is not"
                self.ended[g], self.last_end = item, g
            case Trouble(g, _):
                assert g not in self.ended

    def whole(self, e: Epoch, g: int) -> bool:
        return len(e.content) == len(self.got[g]) and e.begins_with(bytes(self.got[g]))

    # the judgement

    def sound(self) -> None:
        for g, data in self.got.items():
            if data and g not in self.ended:
                assert any(e.begins_with(bytes(data)) for e in self.world.epochs), (
                    f"generation {g} is no epoch's beginning"
                )
        held = self.follower.handles
        assert self.world.open_handles == held, f"{self.world.open_handles} descriptors, {held} known"

    def settle(self) -> None:
        """The world comes to rest; the reader gets time."""
        self.faults, self.shortening = [], 0
        for _ in range(4):
            self.now += 61 * SECOND
            before = None
            while before != (before := [(b.state, b.role, b.handle is None) for b in self.follower.bodies]):
                self.poll()
            self.sound()

    def judge(self) -> None:
        w = self.world
        current = self.follower.current
        node = w.entries.get(b"log")
        if node is not None:
            assert current is not None
            g = current.state.generation
            assert node.epoch is not None
            assert self.whole(node.epoch, g), f"generation {g} is not what is there"
            assert self.follower.trouble is None
        for item in self.follower.end():
            self.take(item)
        assert w.open_handles == 0
        for n, e in enumerate(w.epochs):
            if not e.content or not e.at_path or e.node.copy or any(self.whole(e, g) for g in self.got):
                continue
            if any(at >= e.begun for at in self.told_gaps):
                continue
            unseen = e.read == 0 and min(self.told_begins, default=w.at) >= e.begun  # before anything was ever seen
            unseen |= self.returned and not e.looked  # between two looks at the same file
            # NULs alone leave nothing to know a file by after a restart.
            unseen |= "restart" in self.acts and not e.content[: e.read].strip(b"\0")
            unknowable = unseen or any(later.content[: e.read] == e.content[: e.read] for later in w.epochs[n + 1 :])
            assert unknowable, f"epoch {n} of {len(e.content)} bytes was lost in silence, {e.read} read"
        self.twice()

    def twice(self) -> None:
        late = {"restart", "fill"} <= set(self.acts)  # after a restart late data cannot be told from another file
        if self.returned or late or any(e.filled for e in self.world.epochs):
            return
        enough = len(HEADER) * (13 if self.long_header else 1) + 100
        for e in self.world.epochs:
            if e.cut or len(e.content) < enough:
                continue
            full = [
                g for g, data in self.got.items()
                if len(data.replace(b"\0", b"")) > enough and self.starts[g] == 0 and e.begins_with(bytes(data))
            ]  # fmt: skip
            assert len(full) < 2, f"epoch {e.number} was read as generations {full}"


def run(seed: int, world: Memory | None = None, acts: int = 30) -> Case:
    """One life. Raises AssertionError with the acts that led to it."""
    rng = random.Random(~seed)
    case = Case(seed, world or Memory(rng.random() < 0.7, rng.random() < 0.7, rng.random() < 0.7))
    try:
        for _ in range(acts):
            case.world.at += 1
            act = case.rng.choice(case.enabled)
            case.acts.append(act)
            case.do(act)
            if case.rng.random() < 0.6:
                case.world.at += 1
                case.now += case.rng.choice(
                    (SECOND // 10, SECOND, SECOND, 5 * SECOND, 5 * SECOND, 40 * SECOND, 700 * SECOND)
                )
                full = case.rng.random() < 0.6
                case.acts.append("look" if full else "glance")
                case.poll(full=full)
                case.sound()
        case.world.at += 1
        case.settle()
        case.judge()
    except Exception as e:
        raise AssertionError(f"seed {seed}, quantum {case.quantum}: {e!r}\n{' '.join(case.acts)}") from e
    return case
