"""Where a path lies and leads, by text and by links, without a step onto another mount."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from defib.adapters.mounts.resolve import ElsewhereError, below, resolve, root_of
from defib.adapters.tail.mountinfo import Mount, mount_of

ROOT = Mount(b"/", "ext4", "8:0")


class Tree:
    """`a` and `net` are mounts beneath `home`; touching what lies on `net` is a failure."""

    def __init__(self, home: Path) -> None:
        self.home = os.fsencode(home)
        self.a, self.net = (Mount(os.path.join(self.home, n), "nfs4", n.decode()) for n in (b"a", b"net"))
        self.known = [ROOT, self.a, self.net]

    def at(self, *parts: bytes) -> bytes:
        return os.path.join(self.home, *parts)

    def resolve(self, path: bytes, mine: Mount, literal: bool = False) -> bytes:
        return resolve(path, mine, self.known, literal)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    home = tmp_path.resolve()
    for name in ("a/runs", "net/deep"):
        (home / name).mkdir(parents=True)
    (home / "a" / "odd[1]").mkdir()
    (home / "a" / "near").symlink_to("runs")
    (home / "a" / "far").symlink_to("../net/deep")
    (home / "a" / "absolute").symlink_to(home / "net")
    (home / "a" / "round").symlink_to("round")
    made = Tree(home)
    for name in ("lexists", "islink"):
        real = getattr(os.path, name)

        def guarded(path: bytes, real: object = real) -> bool:
            assert mount_of(path, made.known) != made.net, "touched the other mount"
            return bool(real(path))  # type: ignore[operator]

        monkeypatch.setattr(os.path, name, guarded)
    return made


def test_links_on_ones_own_mount_are_followed(tree: Tree) -> None:
    assert tree.resolve(tree.at(b"a", b"near"), tree.a) == tree.at(b"a", b"runs")
    assert tree.resolve(tree.at(b"a", b".", b"near", b"..", b"near", b"x.log"), tree.a) == tree.at(
        b"a", b"runs", b"x.log"
    )
    assert tree.resolve(tree.at(b"a", b"near", b"*.log"), tree.a) == tree.at(b"a", b"runs", b"*.log")


def test_names_that_exist_are_no_patterns(tree: Tree) -> None:
    assert tree.resolve(tree.at(b"a", b"odd[1]", b"x*"), tree.a) == tree.at(b"a", b"odd[[]1]", b"x*")
    assert tree.resolve(tree.at(b"a", b"odd[1]"), tree.a, literal=True) == tree.at(b"a", b"odd[1]")
    assert tree.resolve(tree.at(b"a", b"no*"), tree.a, literal=True) == tree.at(b"a", b"no*")


@pytest.mark.parametrize(
    ("parts", "leads"),
    [
        ((b"a", b"far"), (b"net", b"deep")),
        ((b"a", b"far", b"x*.log"), (b"net", b"deep", b"x*.log")),
        ((b"a", b"absolute", b"y"), (b"net", b"y")),
        ((b"a", b"..", b"net", b"z"), ()),
    ],
)
def test_what_leads_away_is_handed_on(tree: Tree, parts: tuple[bytes, ...], leads: tuple[bytes, ...]) -> None:
    mine, path = tree.a, tree.at(*parts)
    for _ in range(5):
        try:
            mine = mount_of(path.partition(b"/..")[0], tree.known)
            if mine == tree.net:
                break
            tree.resolve(path, mine)
        except ElsewhereError as e:
            path = e.path
    assert mount_of(path.partition(b"/..")[0], tree.known) == tree.net
    assert not leads or os.path.normpath(path) == tree.at(*leads)


def test_a_circle_of_links_ends(tree: Tree) -> None:
    with pytest.raises(OSError, match="symbolic links"):
        tree.resolve(tree.at(b"a", b"round"), tree.a)


def test_what_is_mounted_below_a_watch() -> None:
    known = [
        ROOT,
        Mount(b"/d", "nfs4", "1"),
        Mount(b"/d/x", "nfs4", "2"),
        Mount(b"/d/y/z", "ext4", "3"),
        Mount(b"/proc", "proc", "4"),
    ]

    def parts(watch: bytes) -> set[tuple[bytes, bytes]]:
        return {(m.point, w) for m, w in below(watch, known)}

    assert parts(b"/d") == {(b"/d/x", b"/d/x"), (b"/d/y/z", b"/d/y/z")}
    assert parts(b"/d/*/logs/*.out") == {(b"/d/x", b"/d/x/logs/*.out")}
    assert parts(b"/d/x/logs") == set()
    assert parts(b"/*") >= {(b"/d/x", b"/d/x"), (b"/d/y/z", b"/d/y/z")}
    assert not any(p == b"/proc" for p, _ in parts(b"/"))


def test_the_later_of_two_mounts_at_a_point_counts() -> None:
    known = [ROOT, Mount(b"/d", "nfs4", "1"), Mount(b"/d", "ext4", "2")]
    assert mount_of(b"/d/x", known).kind == "ext4"
    assert mount_of(b"/dx", known) == ROOT


def test_roots_of_watches(tmp_path: Path) -> None:
    home = os.fsencode(tmp_path.resolve())
    (tmp_path / "odd[1]").mkdir()
    assert root_of(home + b"/x/y/z.log") == home
    assert root_of(home + b"/odd[[]1]/*.log") == home + b"/odd[1]"
    assert root_of(home + b"/*/z.log") == home
