"""Which rank lives on which node, as far as lines and paths tell.

In: the voices of an attempt. Out: `Layout`. A tie is printed, or follows from one: ranks with the same (rank - local rank) share a node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from defib.engine.voices import Voices, bits

TIES_MIN = 3  # so many lines that carry task and rank, all equal, and the two are the same


@dataclass(frozen=True, slots=True)
class Layout:
    """world is None where nothing says how many ranks there are; nodes counts those that were named."""

    world: int | None
    known: tuple[int, ...]  # ranks that spoke or have a log
    homes: dict[int, str] = field(default_factory=dict)
    blocks: dict[int, str] = field(default_factory=dict)  # rank // size -> node, where every node has as many ranks
    size: int = 0
    nodes: int = 0
    tasks: dict[int, str] = field(default_factory=dict)  # task -> node
    task_is_rank: bool = False  # one task per rank: srun's numbers are the global ranks

    def node_of(self, rank: int | None) -> str | None:
        if rank is None:
            return None
        return self.homes.get(rank) or (self.blocks.get(rank // self.size) if self.size else None)

    def common_node(self, ranks: Iterable[int]) -> str | None:
        """The node all of these live on; None if they do not or it is not told."""
        found = {self.node_of(r) for r in ranks}
        return found.pop() if len(found) == 1 else None


def layout_of(voices: Voices) -> Layout:
    """Ties from lines that name rank and node, from communicators, and through the task number of `srun -l`."""
    homes = dict(voices.homes)
    for rank, task in voices.task_of.items():
        node = voices.task_homes.get(task)
        if node is not None:
            homes.setdefault(rank, node)
    size = _per_node(homes)
    blocks = {rank // size: node for rank, node in homes.items()} if size else {}
    named = set(homes.values()) | {n for n in voices.task_homes.values() if n is not None}
    known = tuple(bits(voices.known))
    tasks = {task: node for task, node in voices.task_homes.items() if node is not None}
    same = len(voices.task_of) >= TIES_MIN and all(rank == task for rank, task in voices.task_of.items())
    return Layout(voices.world, known, homes, blocks, size, len(named), tasks, same)


def _per_node(homes: dict[int, str]) -> int:
    """Ranks per node, where the known ties show it: a node's ranks stand side by side and the next node's follow. 0 where they do not."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for rank, node in homes.items():
        first[node] = min(rank, first.get(node, rank))
        last[node] = max(rank, last.get(node, rank))
    if len(first) < 2:
        return 0
    width = max(last[n] - first[n] + 1 for n in first)
    for size in range(width, 17):  # no machine of today holds more GPUs
        owners: dict[int, str] = {}
        if all(owners.setdefault(rank // size, node) == node for rank, node in homes.items()) and len(
            {rank // size for rank in homes}
        ) == len(first):
            return size if any(last[n] % size == size - 1 and first[n] % size == 0 for n in first) else 0
    return 0
