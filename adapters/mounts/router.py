"""Who reads what: named things and assigned logs -> the readers of the mounts they lie on, and what each reader is to be told.

In: paths as text, the table of mounts, what readers find out about links. Out: readers with their commands. Always holds: nothing here touches
a watched file system; a reader that is started, or could not be told for a while, can be told everything it needs from here; there are
at most 64 readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from defib.adapters.mounts.frames import facts_row, job_row, latin, raw
from defib.adapters.mounts.process import Process
from defib.adapters.mounts.resolve import PSEUDO, below
from defib.adapters.mounts.streams import Lane, Streams
from defib.adapters.show import printable, safe
from defib.adapters.tail.limits import Limits
from defib.adapters.tail.mountinfo import Mount, inside, mount_of, mounts
from defib.adapters.tail.pace import SECOND, Pace
from defib.engine.rulebook import Template
from defib.engine.words import JobKey, StreamFacts

READERS_MAX = 64
HOPS_MAX = 16
NO_READER = "on no file system that holds logs, or on one mount too many"
PENDING = "its folder is being looked up"
OUTSIDE = "outside the allowed folders"


@dataclass(frozen=True, slots=True)
class Setup:
    """What every reader is told at its start. silent_us: without a word for so long it has hung."""

    templates: tuple[Template, ...]
    cluster: str | None = None
    pace: Pace = field(default_factory=Pace)
    limits: Limits = field(default_factory=Limits)
    silent_us: int = 20 * SECOND


@dataclass(frozen=True, slots=True)
class Assignment:
    """A log or a glob of a job, as the scheduler named it."""

    facts: StreamFacts
    owner: int | None


@dataclass(slots=True, eq=False)
class Reader:
    """One mount: its process, its streams, what it was asked for. told: the trouble that all its streams were told of; polls: since its
    start; behind: there was more to read."""

    mount: Mount
    process: Process
    lane: Lane = field(default_factory=Lane)
    named: dict[tuple[bytes, str], None] = field(default_factory=dict)
    watches: dict[bytes, None] = field(default_factory=dict)
    marks: dict[bytes, bytes] = field(default_factory=dict)
    told: str = ""
    polls: int = 0
    behind: bool = True
    over: bool = False
    followed: int = 0
    lag: int = 0

    @property
    def name(self) -> str:
        return safe(shown(self.mount.point))


@dataclass(slots=True)
class Router:
    """kept: marks of an earlier run, by path, whose reader is not there yet; states, over: what the scheduler says of jobs."""

    streams: Streams
    text: bytes
    now_us: int
    setup: Setup | None = None
    stopping: bool = False
    kept: dict[bytes, bytes] = field(default_factory=dict)
    unread: dict[bytes, str] = field(default_factory=dict)
    readers: dict[tuple[str, str, str], Reader] = field(default_factory=dict)
    states: dict[JobKey, bool] = field(default_factory=dict)
    over: dict[JobKey, int] = field(default_factory=dict)
    _known: list[Mount] = field(default_factory=list)
    _roots: dict[bytes, bytes | None] = field(default_factory=dict)  # None: where it leads is not known yet
    _named: dict[bytes, bytes] = field(default_factory=dict)  # where a root's links have led so far -> its name
    _assigned: dict[bytes, Assignment] = field(default_factory=dict)
    _placed: dict[bytes, tuple[Reader, bytes]] = field(default_factory=dict)  # who follows it, and where it really is
    _hops: dict[tuple[bytes, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known = mounts(self.text)

    def tell_all(self, command: list[Any]) -> None:
        for reader in self.readers.values():
            reader.process.tell(command)

    def name(self, at: bytes, kind: str, named: bytes) -> None:
        """Ask the reader of the mount that a path lies on by its text where it leads. kind: watch | root."""
        reader = self._reader(mount_of(at.partition(b"/..")[0] or b"/", self._known))
        if reader is None:
            self.unread[named] = NO_READER
            return
        reader.named[at, kind] = None
        reader.process.tell(["name", latin(at), kind])

    def noted(self, reader: Reader, note: list[Any]) -> None:
        """What a reader found out about something named."""
        match note:
            case ["elsewhere", named, kind, path]:
                key = (raw(named), kind)
                self._hops[key] = self._hops.get(key, 0) + 1
                reader.named.pop(key, None)
                if kind == "root":
                    self._named[raw(path)] = self._named.get(raw(named), raw(named))
                if self._hops[key] <= HOPS_MAX:
                    self.name(raw(path), kind, raw(named))
            case ["unnamed", named, _, why]:
                self.unread[raw(named)] = why
            case ["here", named, "watch", found]:
                self._reach(raw(found))
            case ["here", named, "root", found]:
                self._found_root(raw(named), raw(found))

    def assign(self, path: bytes, wanted: Assignment) -> None:
        if self._assigned.get(path) != wanted:
            self._assigned[path] = wanted
            self._placed.pop(path, None)
            self._place(path)

    def closed(self, job: JobKey) -> None:
        """Of a closed job nothing is asked any more; when it runs again it is assigned again."""
        for path in [p for p, a in self._assigned.items() if a.facts.job == job]:
            del self._assigned[path]
            self._placed.pop(path, None)
        self.over.pop(job, None)
        self.states.pop(job, None)

    def table(self, text: bytes) -> None:
        """Mounts come and go."""
        if text == self.text:
            return
        self.text, self._known = text, mounts(text)
        for reader in list(self.readers.values()):
            reader.process.tell(["mounts", self._mounts()])
            for name, kind in reader.named:
                reader.process.tell(["name", latin(name), kind])
        for path in list(self._assigned):
            self._place(path)

    # one reader

    def messages(self, reader: Reader) -> list[Any]:
        """What it is told at its start."""
        setup, mount = self.setup, reader.mount
        assert setup is not None
        self.streams.restarted(reader.lane)
        reader.polls, reader.behind = 0, True
        mine = [k for k in self.kept if mount_of(k, self._known).identity == mount.identity]
        reader.marks |= {k: self.kept.pop(k) for k in mine}
        marks = [[latin(k), latin(m)] for k, m in reader.marks.items()]
        first = {
            "point": latin(mount.point),
            "kind": mount.kind,
            "device": mount.device,
            "source": mount.source,
            "mounts": self._mounts(),
            "templates": [[t.id, t.title, t.pattern] for t in setup.templates],
            "cluster": setup.cluster,
            "pace": {f: getattr(setup.pace, f) for f in setup.pace.__slots__},
            "limits": {f: getattr(setup.limits, f) for f in setup.limits.__slots__},
        }
        some = [["marks", marks[n : n + 1000]] for n in range(0, len(marks), 1000)]
        return [first, *some, ["go"], *self.state(reader)]

    def state(self, reader: Reader) -> list[list[Any]]:
        """Everything asked of a reader so far, as commands."""
        out: list[list[Any]] = [["mounts", self._mounts()]]
        out += [["name", latin(name), kind] for name, kind in reader.named]
        out += [["watch", latin(w)] for w in reader.watches]
        for path, (who, where) in self._placed.items():
            if who is reader:
                a = self._assigned[path]
                out.append(["assign", latin(where), facts_row(a.facts), a.owner])
        out += [["running", job_row(job), yes] for job, yes in self.states.items()]
        out += [["over", job_row(job)] for job in {**self.over, **dict.fromkeys(reader.lane.buried, 0)}]
        return out + ([["stop"]] if self.stopping else [])

    def mark(self, reader: Reader, key: bytes, mark: bytes) -> None:
        """How far it has read something."""
        if mark:
            reader.marks[key] = mark
        else:
            reader.marks.pop(key, None)

    def _mounts(self) -> list[list[str]]:
        return [[latin(m.point), m.kind, m.device, m.source] for m in self._known]

    def _reader(self, mount: Mount) -> Reader | None:
        known = self.readers.get(mount.identity)
        if known is not None or len(self.readers) >= READERS_MAX or mount.kind in PSEUDO:
            return known
        messages: list[Callable[[], list[Any]]] = []
        reader = Reader(mount, Process(lambda: messages[0](), heard_us=self.now_us))
        messages.append(lambda: self.messages(reader))
        self.readers[mount.identity] = reader
        return reader

    # where things are

    def _reach(self, watch: bytes) -> None:
        """A watch goes on in what is mounted below it."""
        for mount, part in below(watch, self._known):
            reader = self._reader(mount)
            if reader is not None and part not in reader.watches:
                reader.watches[part] = None
                reader.process.tell(["watch", latin(part)])

    def _found_root(self, named: bytes, found: bytes) -> None:
        self._roots[self._named.get(named, named)] = found
        for path in self._assigned:
            self._place(path)

    def add_root(self, root: bytes) -> None:
        """A folder beneath which a scheduler may name logs."""
        self._roots[root] = None
        self.name(root, "root", root)

    def _place(self, path: bytes) -> None:
        """Find the reader of an assigned path: beneath an allowed root, on the mount its text tells."""
        root = max((r for r in self._roots if inside(path, r)), key=len, default=None)
        if root is None or b"/../" in path + b"/":
            self.unread[path] = OUTSIDE
            return
        real = self._roots[root]
        if real is None:
            self.unread[path] = PENDING
            return
        where = real.rstrip(b"/") + path[len(root.rstrip(b"/")) :]
        reader, before = self._reader(mount_of(where, self._known)), self._placed.get(path)
        if reader is None:
            self.unread[path] = NO_READER
            return
        self.unread.pop(path, None)
        if before == (reader, where):
            return
        if before is not None:
            before[0].process.tell(["release", latin(before[1])])
        self._placed[path] = (reader, where)
        allowed = real if inside(real, reader.mount.point) else reader.mount.point
        reader.named[allowed, "root"] = None
        reader.process.tell(["name", latin(allowed), "root"])
        a = self._assigned[path]
        reader.process.tell(["assign", latin(where), facts_row(a.facts), a.owner])


def shown(path: bytes) -> str:
    """A path as streams are named by it."""
    return printable(path.decode("utf-8", "surrogateescape"))
