"""What a running watch says of itself when asked: one JSON document on a Unix socket, and how it reads at 3 a.m.

In: a document that the main loop publishes; connections. Out: the last document with its age, then the end of the connection. Always holds: only
our own user, root and members of a named group are answered; the answer comes from a thread of its own, so a loop that is stuck is seen
as one that has not turned for so long; a document has a bound.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Any

import orjson

from defib.adapters import sqlwire
from defib.adapters.show import cell, duration, safe, size
from defib.engine.words import StoreError

SCHEMA = "defib/status/1"
NAME = "status.sock"
DOCUMENT_MAX = 8 * 1024 * 1024
PATIENCE_S = 5.0


class StatusServer:
    """Answers until `close`. Raises StoreError where the socket cannot be made."""

    def __init__(self, path: str, group: int | None = None) -> None:
        self.path = path
        self._group, self._document = group, b"{}"
        self._published_s = time.monotonic()
        self._stop = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            before = os.umask(0o177)
            try:
                with sqlwire.address(path) as address:
                    self._listener.bind(address)
            finally:
                os.umask(before)
            if group is not None:
                os.chown(path, -1, group, follow_symlinks=False)
                os.chmod(path, 0o660)
        except OSError as e:
            self._listener.close()
            raise StoreError(f"{path}: the socket cannot be made: {e.strerror or e}") from e
        self._listener.listen(8)
        self._listener.settimeout(0.2)
        self._thread = threading.Thread(target=self._serve, name="status", daemon=True)
        self._thread.start()

    def publish(self, document: dict[str, Any]) -> None:
        """What is answered from now on."""
        told = orjson.dumps(document)
        if len(told) <= DOCUMENT_MAX:
            self._document, self._published_s = told, time.monotonic()

    def close(self) -> None:
        self._stop.set()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self._thread.join(2)
        self._listener.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                self._stop.wait(0.2)
                continue
            with contextlib.suppress(OSError), peer:
                peer.settimeout(PATIENCE_S)
                self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        _, uid, gid = sqlwire.credentials(peer)
        if uid not in (0, os.geteuid()) and (self._group is None or gid != self._group):
            peer.sendall(orjson.dumps({"schema": SCHEMA, "refused": "this watch answers its own user only"}))
            return
        age = round(time.monotonic() - self._published_s, 1)
        peer.sendall(orjson.dumps({"schema": SCHEMA, "loop_turned_s_ago": age}) + b"\n" + self._document)


def ask(folder: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """The status of the watch that holds a state folder. Raises StoreError with a mend."""
    path = os.path.join(folder, NAME)
    mend = "\n    mend: name the folder the watch was given with --state; systemctl status defib says whether it runs"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s, sqlwire.address(path) as address:
            s.settimeout(patience_s)
            s.connect(address)
            raw = b""
            while data := s.recv(1 << 16):
                raw += data
                if len(raw) > 2 * DOCUMENT_MAX:
                    break
    except OSError as e:
        raise StoreError(f"{path}: no watch answers there: {e.strerror or e}{mend}") from e
    first, _, rest = raw.partition(b"\n")
    try:
        told = {**orjson.loads(rest or b"{}"), **orjson.loads(first)}
    except (ValueError, TypeError) as e:
        raise StoreError(f"{path}: what answers there is no watch of this version{mend}") from e
    if "refused" in told:
        raise StoreError(f"{path}: {told['refused']}\n    mend: ask as root, as its user, or set [state] group")
    return told


def rendered(s: dict[str, Any]) -> list[str]:
    """The document for people: what is wrong first, then what is."""
    out = [
        *_alarms(s),
        f"defib {cell(s.get('version'))}, process {cell(s.get('pid'))}, running for {duration(s.get('running_s'))}",
    ]
    jobs, streams = s.get("jobs", {}), s.get("streams", {})
    told = ", ".join(f"{n} {safe(str(h))}" for h, n in jobs.items() if n) or "none"
    out.append(f"jobs      {told}")
    out.append(
        f"logs      {streams.get('open', 0)} followed, {streams.get('troubled', 0)} not vouched for, "
        f"{size(streams.get('lag_bytes', 0))} known and not read, {s.get('unread_count', 0)} paths not followed"
    )
    rates, memory, loop = s.get("rates", {}), s.get("memory", {}), s.get("loop", {})
    out.append(
        f"rates     {size(rates.get('bytes_per_s', 0))}/s, {rates.get('lines_per_s', 0):.0f} lines/s over the last minute; "
        f"the loop turned {cell(s.get('loop_turned_s_ago'))} s ago, slowest turn {duration(loop.get('slowest_s'))}"
    )
    out.append(f"memory    {size(memory.get('daemon', 0))} here, {size(memory.get('readers', 0))} in the readers")
    for m in s.get("mounts", ()):
        state = safe(str(m.get("trouble") or m.get("state", "")))
        out.append(
            f"mount     {safe(str(m.get('point')))} ({safe(str(m.get('kind')))}): {state}; {m.get('followed', 0)} logs, "
            f"{size(m.get('lag_bytes', 0))} behind, reader {cell(m.get('pid'))}"
        )
    for name in ("scheduler", "journal", "limits", "rules", "breakers"):
        part = s.get(name)
        if part:
            out.append(f"{name:<9} {_part(part)}")
    for b in s.get("blind", ()):
        out.append(
            f"blind     {safe(str(b.get('job')))} since {safe(str(b.get('since')))}: {safe(str(b.get('because')))}"
        )
    for u in s.get("unread", ()):
        out.append(f"unread    {safe(str(u.get('path')))}: {safe(str(u.get('why')))}")
    return out


def _alarms(s: dict[str, Any]) -> list[str]:
    """What a person must see first."""
    out = []
    if s.get("loop_turned_s_ago", 0) > 30:
        out.append(f"ATTENTION the main loop has not turned for {s['loop_turned_s_ago']} s: nothing is judged now")
    out += [f"ATTENTION {safe(str(m['trouble']))}" for m in s.get("mounts", ()) if m.get("trouble")]
    out += [f"ATTENTION {safe(str(a))}" for a in s.get("alarms", ())]
    return out


def _part(part: Any) -> str:
    if isinstance(part, dict):
        return ", ".join(f"{safe(str(k)).replace('_', ' ')} {cell(v)}" for k, v in part.items() if v is not None)
    if isinstance(part, list):
        return "; ".join(_part(p) for p in part)
    return cell(part)
