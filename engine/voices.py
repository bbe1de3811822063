"""Who spoke: the ranks, nodes and peers named by every line, where a trace keeps only the first few lines of a rule.

In: the signals of one stream in order. Out: bounded sets, the same however the lines were grouped.
What was said of trouble (who waited, who accuses whom, how far each rank had come) is forgotten when training moves on; what was said of
the layout (world size, which rank lives where) is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from defib.engine.words import Signal

RANKS_MAX = 4096  # ranks told apart; a larger world is not judged by who is missing
NAMES_MAX = 4096  # nodes, addresses, tasks
MECHANISMS_MAX = 512  # kinds of error whose ranks are told apart
PEERS_MAX = 64
WITNESSES_MAX = 64  # of one accused peer
BREADTH_US = 30_000_000  # the same error within so long on many nodes has one cause outside of them
CLAIMS = ("root", "candidate")
NOTICED = ("collective-timeout", "collective-error", "peer-lost")
PEER_CLASSES = ("peer-lost", "nic-link", "rendezvous")
NUMBER = re.compile(r"\d+")
NODE = re.compile(r"[A-Za-z0-9][\w.-]*")
ADDRESS = re.compile(r"[\d.]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")


@dataclass(slots=True)
class Spread:
    """Where one kind of error was printed. ranks is a bit set; those who came long after the first are left out."""

    ranks: int = 0
    nodes: set[str] = field(default_factory=set)
    tasks: set[str] = field(default_factory=set)  # srun's numbers, of lines that name no rank
    nameless: bool = False  # printed by somebody whose rank the line does not say
    first_us: int | None = None

    def add(self, s: Signal, within_us: int | None = None) -> None:
        """Take a line in, unless it came too long after the first one."""
        time = s.time_us if s.time_us is not None else s.year_us
        if self.first_us is None:
            self.first_us = time
        elif within_us is not None and time is not None and abs(time - self.first_us) > within_us:
            return
        if s.rank is None:
            self.nameless = True
            if "task" in s.fields and len(self.tasks) < NAMES_MAX:
                self.tasks.add(s.fields["task"])
        elif s.rank < RANKS_MAX:
            self.ranks |= 1 << s.rank
        if s.node is not None and len(self.nodes) < NAMES_MAX:
            self.nodes.add(host(s.node))


@dataclass(slots=True)
class Voices:
    """What one stream says of who is who, since progress was last made where it is about trouble."""

    # the layout
    known: int = 0  # every rank that spoke
    large: bool = False  # a rank beyond RANKS_MAX spoke
    world: int | None = None
    homes: dict[int, str] = field(default_factory=dict)  # rank -> node
    comm_homes: dict[int, str] = field(default_factory=dict)  # the same, by ranks of the largest communicator
    task_of: dict[int, int] = field(default_factory=dict)  # rank -> task
    task_homes: dict[int, str | None] = field(default_factory=dict)  # task -> node; None: several
    addresses: dict[str, str] = field(default_factory=dict)  # address -> node
    # trouble
    spreads: dict[str, Spread] = field(default_factory=dict)  # mechanism -> where
    waited: Spread = field(default_factory=Spread)  # whose collective timed out
    noticed: Spread = field(default_factory=Spread)  # who complained of others at all
    accused: dict[str, set[str]] = field(default_factory=dict)  # peer -> witnesses
    missing: dict[int, Signal] = field(default_factory=dict)  # ranks the library itself names as absent -> the line
    far: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)  # group -> rank -> (completed, enqueued)
    exits: dict[int, int] = field(default_factory=dict)  # rank -> exit code
    _before: Signal | None = None  # the locator just read: reports tell one process over several lines

    def forget_trouble(self) -> None:
        """Training moved on: whoever complained got over it."""
        if self.spreads or self.noticed.ranks or self.accused or self.missing or self.far or self.exits:
            self.spreads, self.waited, self.noticed, self.accused = {}, Spread(), Spread(), {}
            self.missing, self.far, self.exits = {}, {}, {}

    def hear(self, s: Signal) -> None:
        fields = s.fields
        if "world" in fields:  # the layout is no word of trouble, and its rank may count inside something smaller
            self._layout(s)
            return
        if s.rank is not None:
            self._rank(s, s.rank)
        if "task" in fields and s.node is not None and fields["task"].isdigit():
            task, node = int(fields["task"]), host(s.node)
            if task in self.task_homes or len(self.task_homes) < NAMES_MAX:
                self.task_homes[task] = node if self.task_homes.get(task, node) == node else None
        if "address" in fields and s.node is not None and len(self.addresses) < NAMES_MAX:
            self.addresses.setdefault(fields["address"], host(s.node))
        if s.role == "locator":
            self._report(s)
        elif s.role in CLAIMS:
            key = mechanism(s)
            if key in self.spreads or len(self.spreads) < MECHANISMS_MAX:
                self.spreads.setdefault(key, Spread()).add(s, BREADTH_US)
        elif s.role in ("cascade", "confirm") and s.klass in NOTICED and not s.generic:
            self.noticed.add(s)
            if (
                s.role == "cascade"
                and s.klass == "collective-timeout"
                and "timeout_ms" in fields
                and "missing" not in fields
            ):
                self.waited.add(s)
        if fields:
            self._told(s)

    def _rank(self, s: Signal, rank: int) -> None:
        if rank >= RANKS_MAX:
            self.large = True
            return
        self.known |= 1 << rank
        if s.node is not None and s.role != "lifecycle":
            self.homes.setdefault(rank, host(s.node))
        task = s.fields.get("task")
        if task is not None and task.isdigit():
            self.task_of.setdefault(rank, int(task))

    def _layout(self, s: Signal) -> None:
        """A line about the world or a communicator. Of several the largest counts; ranks of a smaller one mean something else."""
        said = s.fields["world"]
        size = int(said) if said.isdigit() and len(said) < 8 else 0
        if size < (self.world or 1):
            return
        if size > (self.world or 0):
            self.world, self.comm_homes = size, {}
        if s.rank is not None and s.rank < min(size, RANKS_MAX) and s.node is not None:
            self.comm_homes.setdefault(s.rank, host(s.node))

    def _report(self, s: Signal) -> None:
        """Launchers tell of one process line by line: its host, its rank, its exit code."""
        before, self._before = self._before, s
        code = s.fields.get("exit_code")
        if s.rank is not None and code is not None:
            self._exit(s.rank, code)
        if before is None or before.rule != s.rule or s.line != before.line + 1:
            return
        if s.rank is not None and before.rank is None and before.node is not None and s.rank < RANKS_MAX:
            self.homes.setdefault(s.rank, host(before.node))
        if s.rank is None and before.rank is not None and code is not None:
            self._exit(before.rank, code)

    def _exit(self, rank: int, code: str) -> None:
        if rank < RANKS_MAX and code.lstrip("-").isdigit() and len(code) < 5:
            self.exits.setdefault(rank, int(code))

    def _told(self, s: Signal) -> None:
        """Captures that speak of other ranks: peers, absent ranks, how far a rank had come."""
        fields = s.fields
        if "missing" in fields:
            for n in NUMBER.findall(fields["missing"])[:PEERS_MAX]:
                if len(n) < 8 and len(self.missing) < PEERS_MAX:
                    self.missing.setdefault(int(n), s)
        elif s.klass in PEER_CLASSES and s.role not in ("benign", "lifecycle"):
            peer = fields.get("peer")
            name = host(peer) if peer is not None else f"rank {fields['peer_rank']}" if "peer_rank" in fields else ""
            if name and (name in self.accused or len(self.accused) < PEERS_MAX):
                witnesses = self.accused.setdefault(name, set())
                if len(witnesses) < WITNESSES_MAX:
                    witnesses.add(witness(s))
        if "completed" in fields and s.rank is not None and s.rank < RANKS_MAX and fields["completed"].isdigit():
            group = fields.get("group", "")
            ahead = fields.get("enqueued", "")
            done = int(fields["completed"][-15:])
            if s.rank in self.far.get(group, ()) or sum(map(len, self.far.values())) < RANKS_MAX:
                self.far.setdefault(group, {})[s.rank] = (done, int(ahead[-15:]) if ahead.isdigit() else done)


def mechanism(s: Signal) -> str:
    """What went wrong, numbers taken out, so that the same error of many ranks counts as one."""
    if not s.generic:
        return s.rule
    said = s.fields.get("exception", "") + " " + s.fields.get("message", "")[:60]
    return f"{s.rule} {NUMBER.sub('#', said)}"


def witness(s: Signal) -> str:
    """Who printed a line, as well as it tells. Lines without any name of one log count as one witness."""
    if s.rank is not None:
        return f"rank {s.rank}"
    if s.node is not None:
        return f"{host(s.node)}/{s.local_rank if s.local_rank is not None else '-'}"
    return f"task {s.fields['task']}" if "task" in s.fields else f"log {s.stream}"


def host(name: str) -> str:
    """A node's short name; addresses stay whole."""
    name = name.strip("[]")
    return name if ADDRESS.fullmatch(name) else name.partition(".")[0]


def bits(mask: int) -> list[int]:
    """The ranks of a bit set, ascending."""
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return out
