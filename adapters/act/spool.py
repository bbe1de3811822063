"""A folder into which people and programs put small JSON files: the way in for approvals and for evidence from outside.

In: a folder. Out: letters, each with who wrote it, as the kernel says. Always: only regular files with one name, of a known owner, small, whole
(a name that begins with a dot is still being written); each is taken once and moved to `done/` or, with the reason beside it, to `bad/`; a
letter that cannot be moved is not taken, as it would be taken again.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import secrets
import stat
from dataclasses import dataclass
from typing import Any

import orjson

from defib.adapters.journal import place
from defib.engine.words import StoreError

LETTER_MAX = 64 * 1024
AT_ONCE = 100
KEPT = 1000  # of those dealt with, in each of the two folders
DONE, BAD = "done", "bad"


@dataclass(frozen=True, slots=True)
class Letter:
    """One file. who: login name of its owner; fault: why nothing can be made of it, "" where said holds its object."""

    name: str
    uid: int
    who: str
    said: dict[str, Any]
    fault: str = ""


class Spool:
    """A folder below the state folder. group: whose members may write into it; root and our own user always may. Raises StoreError."""

    def __init__(self, folder: str, group: int | None = None) -> None:
        self.folder, self._group = folder, group
        place.make_folder(folder)
        try:
            if group is not None:  # its members may add files, not list or remove those of others
                os.chown(folder, -1, group)
                os.chmod(folder, 0o1730)  # noqa: S103 - that group, and only to add
            for sub in (DONE, BAD):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(os.path.join(folder, sub), 0o700)
        except OSError as e:
            raise StoreError(f"{folder}: cannot be made ready: {e.strerror}") from e

    def take(self) -> list[Letter]:
        """Those that have come, by name, at most so many. Call `settle` for each."""
        try:
            with os.scandir(self.folder) as entries:
                names = sorted(e.name for e in entries if not e.name.startswith(".") and e.name not in (DONE, BAD))
        except OSError:
            return []
        letters = (self._read(name) for name in names[:AT_ONCE])
        return [letter for letter in letters if letter is not None]

    def settle(self, letter: Letter, why: str = "") -> bool:
        """Move it away; with why it was bad. False where it cannot be moved: then nothing may be made of it."""
        sub = BAD if why else DONE
        base = f"{secrets.token_hex(4)}-{letter.name}"[:200]
        try:
            os.rename(os.path.join(self.folder, letter.name), os.path.join(self.folder, sub, base))
            if why:
                place.save(os.path.join(self.folder, sub, base + ".why"), why.encode()[:4096] + b"\n")
        except OSError:
            return False
        self._tidy(os.path.join(self.folder, sub))
        return True

    def _read(self, name: str) -> Letter | None:
        path = os.path.join(self.folder, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as e:
            return Letter(name, -1, "", {}, f"cannot be opened: {e.strerror}")
        try:  # by its number: a folder cannot become a Python file
            found = os.fstat(fd)
            who = _name(found.st_uid)
            fault = self._fault(found, who)
            raw = b"" if fault else _whole(fd)
        except OSError as e:
            return Letter(name, -1, "", {}, f"cannot be read: {e.strerror}")
        finally:
            os.close(fd)
        if not fault and len(raw) > LETTER_MAX:
            fault = f"larger than {LETTER_MAX} bytes"
        said: Any = {}
        if not fault:
            try:
                said = orjson.loads(raw)
            except orjson.JSONDecodeError as e:
                fault = f"no JSON: {e}"
        if not isinstance(said, dict):
            said, fault = {}, "no JSON object"
        return Letter(name, found.st_uid, who, said, fault)

    def _fault(self, found: os.stat_result, who: str) -> str:
        if not stat.S_ISREG(found.st_mode):
            return "no regular file"
        if found.st_nlink != 1:
            return "it has more than one name, so its owner need not have put it here"
        if found.st_mode & 0o022:
            return "others may write to it"
        if found.st_uid in (0, os.geteuid()):
            return ""
        if self._group is not None and self._group in _groups(who):
            return ""
        return f"{who} may not write here"

    @staticmethod
    def _tidy(folder: str) -> None:
        with contextlib.suppress(OSError):
            names = os.listdir(folder)
            if len(names) <= 2 * KEPT:
                return
            aged = sorted(names, key=lambda n: os.lstat(os.path.join(folder, n)).st_mtime_ns)
            for n in aged[: len(names) - KEPT]:
                os.unlink(os.path.join(folder, n))


def post(folder: str, said: dict[str, Any], group: int | None = None) -> str:
    """Put a letter into a spool, whole or not at all; its name. Raises OSError."""
    name = f"{secrets.token_hex(8)}.json"
    part, path = os.path.join(folder, f".{name}"), os.path.join(folder, name)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        place.write_all(fd, orjson.dumps(said))
        if group is not None and os.geteuid() != 0:
            os.fchown(fd, -1, group)
            os.fchmod(fd, 0o640)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(part, path)
    return name


def _whole(fd: int) -> bytes:
    """What a file holds, up to one byte more than a letter may have. Raises OSError."""
    raw = b""
    while len(raw) <= LETTER_MAX and (more := os.read(fd, LETTER_MAX + 1 - len(raw))):
        raw += more
    return raw


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _groups(who: str) -> set[int]:
    try:
        return set(os.getgrouplist(who, pwd.getpwnam(who).pw_gid))
    except (KeyError, OSError):
        return {g.gr_gid for g in grp.getgrall() if who in g.gr_mem}
