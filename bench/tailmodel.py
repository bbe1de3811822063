"""A file system in memory that lies on demand, and a writer that does to a log whatever happens to logs.

In: a seed's choices. Out: `Memory`, a `Files` port with errors, short reads, inode reuse and holes; `Epoch`s, the writer's own record of
every byte: what stood in a file from its creation or truncation to its next truncation. Always holds: the record is exact, so a reader's
items can be judged byte by byte. `OnDisk` does the same to real files and keeps the same record.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from defib.adapters.tail.files import Files, Name, Stat, SystemFiles

PAGE = 4096
FOLDER = b"/logs"


@dataclass(eq=False)
class Epoch:
    """What one file held between two truncations. at_path, looked: it stood at the followed path, and was opened there; cut: its file lost
    an end, not everything; filled: NULs became data after being read."""

    number: int
    node: Node
    begun: int
    final: bytes | None = None
    ended: int | None = None
    at_path: bool = False
    looked: bool = False
    cut: bool = False
    filled: bool = False
    read: int = 0  # of it had been handed over when it ended

    @property
    def content(self) -> bytes:
        return bytes(self.node.data) if self.final is None else self.final

    def begins_with(self, got: bytes) -> bool:
        have = self.content
        if have.startswith(got):
            return True
        return self.filled and len(got) <= len(have) and all(g in (h, 0) for g, h in zip(got, have, strict=False))


@dataclass(eq=False)
class Node:
    """A file, whatever its names."""

    ino: int
    born: int
    data: bytearray = field(default_factory=bytearray)
    copy: bool = False
    epoch: Epoch | None = None


class Memory:
    """The file system and the writer's hands on it."""

    def __init__(self, births: bool = True, reuse: bool = True, holes: bool = True) -> None:
        self.births, self.reuse, self.holes = births, reuse, holes
        self.entries: dict[bytes, Node] = {}
        self.epochs: list[Epoch] = []
        self.at = 0  # the number of the writer's or reader's act
        self.path = b"log"
        self.delivered: Callable[[Epoch], int] = lambda epoch: 0
        self.fault: Callable[[str], None] = lambda call: None
        self.shorten: Callable[[int], int] = lambda length: length
        self._handles: dict[int, Node] = {}
        self._next_handle, self._next_ino, self._births, self._free = 3, 100, 0, list[int]()

    # the writer

    def create(self, name: bytes, copy: bool = False) -> None:
        self.remove(name)
        ino = self._free.pop() if self.reuse and self._free else self._next_ino
        self._next_ino += ino == self._next_ino
        self._births += 1
        self.entries[name] = Node(ino, self._births, copy=copy)
        self._begin(self.entries[name])
        self._note()

    def write(self, name: bytes, at: int, data: bytes) -> None:
        node = self.entries[name]
        epoch = node.epoch
        assert epoch is not None
        if at < len(node.data) and any(e.node is node and self.delivered(e) > at for e in self.epochs):
            epoch.filled = True
        node.data.extend(bytes(max(0, at - len(node.data))))
        node.data[at : at + len(data)] = data

    def truncate(self, name: bytes, size: int) -> None:
        node = self.entries[name]
        if size < len(node.data):
            self._close(node)
            if size and node.epoch is not None:
                node.epoch.cut = True
            del node.data[size:]
            before = node.epoch
            self._begin(node)
            assert node.epoch is not None
            assert before is not None
            node.epoch.cut, node.epoch.filled = before.cut, before.filled and size > 0
            self._note()
        else:
            node.data.extend(bytes(size - len(node.data)))

    def rename(self, old: bytes, new: bytes) -> None:
        self.remove(new)
        self.entries[new] = self.entries.pop(old)
        self._note()

    def remove(self, name: bytes) -> None:
        node = self.entries.pop(name, None)
        if node is not None:
            self._close(node)
            if node not in self._handles.values():
                self._free.append(node.ino)

    def copy(self, old: bytes, new: bytes) -> None:
        data, of = bytes(self.entries[old].data), self.entries[old].epoch
        self.create(new, copy=True)
        self.entries[new].data[:] = data
        made = self.entries[new].epoch
        if of is not None and made is not None:  # what holds for those bytes holds for them here
            made.cut, made.filled = of.cut, of.filled

    def _begin(self, node: Node) -> None:
        node.epoch = Epoch(len(self.epochs), node, self.at)
        self.epochs.append(node.epoch)

    def _close(self, node: Node) -> None:
        epoch = node.epoch
        if epoch is not None and epoch.final is None:
            epoch.read = self.delivered(epoch)
            epoch.final, epoch.ended = bytes(node.data), self.at

    def _note(self) -> None:
        node = self.entries.get(self.path)
        if node is not None and node.epoch is not None:
            node.epoch.at_path = True

    # the port

    def open(self, path: bytes) -> int:
        self.fault("open")
        node = self.entries.get(path.removeprefix(FOLDER + b"/"))
        if node is None:
            raise FileNotFoundError(2, "No such file or directory")
        self._next_handle += 1
        self._handles[self._next_handle] = node
        return self._next_handle

    def stat(self, handle: int) -> Stat:
        self.fault("stat")
        node = self._handles[handle]
        if node.epoch is not None:
            node.epoch.looked = True
        links = sum(n is node for n in self.entries.values())
        return Stat(node.ino, len(node.data), 1000, links, node.born if self.births else None)

    def read(self, handle: int, at: int, length: int) -> bytes:
        self.fault("read")
        data = bytes(self._handles[handle].data[at : at + length])
        return data[: self.shorten(len(data))]

    def data_after(self, handle: int, at: int) -> int | None:
        self.fault("data_after")
        data = bytes(self._handles[handle].data)
        if not self.holes:
            return at
        rest = data[at:].lstrip(b"\0")
        return max(at, (len(data) - len(rest)) // PAGE * PAGE) if rest else None

    def names(self, folder: bytes) -> list[Name]:
        self.fault("names")
        return [Name(n, node.ino) for n, node in self.entries.items()]

    def close(self, handle: int) -> None:
        node = self._handles.pop(handle)
        if node not in self._handles.values() and node not in self.entries.values():
            self._free.append(node.ino)
        self.fault("close")

    @property
    def open_handles(self) -> int:
        return len(self._handles)


class OnDisk(Memory):
    """Real files under `folder`, with the record kept beside them. Faults and short reads are put between."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.real: Files = SystemFiles((os.fsencode(folder),))
        self._open: set[int] = set()

    def _at(self, name: bytes) -> bytes:
        return os.path.join(os.fsencode(self.folder), name)

    def create(self, name: bytes, copy: bool = False) -> None:
        super().create(name, copy)
        with open(self._at(name), "xb"):
            pass

    def write(self, name: bytes, at: int, data: bytes) -> None:
        super().write(name, at, data)
        with open(self._at(name), "r+b") as f:
            f.seek(at)
            f.write(data)

    def truncate(self, name: bytes, size: int) -> None:
        super().truncate(name, size)
        os.truncate(self._at(name), size)

    def rename(self, old: bytes, new: bytes) -> None:
        super().rename(old, new)
        os.rename(self._at(old), self._at(new))

    def remove(self, name: bytes) -> None:
        if name in self.entries:
            os.unlink(self._at(name))
        super().remove(name)

    def copy(self, old: bytes, new: bytes) -> None:
        super().copy(old, new)
        with open(self._at(new), "r+b") as f:
            f.write(self.entries[new].data)

    def open(self, path: bytes) -> int:
        self.fault("open")
        handle = self.real.open(self._at(path.removeprefix(FOLDER + b"/")))
        self._open.add(handle)
        return handle

    def stat(self, handle: int) -> Stat:
        self.fault("stat")
        seen = self.real.stat(handle)
        for name, node in self.entries.items():
            if node.epoch is not None and os.stat(self._at(name)).st_ino == seen.ino:
                node.epoch.looked = True
        return seen

    def read(self, handle: int, at: int, length: int) -> bytes:
        self.fault("read")
        data = self.real.read(handle, at, length)
        return data[: self.shorten(len(data))]

    def data_after(self, handle: int, at: int) -> int | None:
        self.fault("data_after")
        return self.real.data_after(handle, at)

    def names(self, folder: bytes) -> list[Name]:
        self.fault("names")
        return self.real.names(os.fsencode(self.folder))

    def close(self, handle: int) -> None:
        self._open.discard(handle)
        self.real.close(handle)
        self.fault("close")

    @property
    def open_handles(self) -> int:
        return len(self._open)
