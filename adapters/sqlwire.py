"""Questions and answers on the socket beside a history: framing only.

In: a connected socket. Out: messages. A message is its length (4 bytes, little-endian), a letter and the rest: `Q` a question (JSON: sql, params),
`H` the head of an answer (JSON: columns with their DuckDB types), `A` a piece of an Arrow IPC stream, `D` its end, `E` an error (JSON:
kind, text). Always holds: a message has a bound; a peer that is neither root, nor of our user, nor of the group that may ask is not heard.

The socket of `X` is `X.sock`. A path longer than an address may be is reached through its folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

HEAD = struct.Struct("<Ic")
MESSAGE_MAX = 64 * 1024 * 1024
QUESTION_MAX = 1024 * 1024
PEER = struct.Struct("iII")


def socket_of(db: str) -> str:
    """Where the process that holds a history answers questions."""
    return db + ".sock"


@contextlib.contextmanager
def address(path: str) -> Iterator[str]:
    """An address that leads to a path of any length, for as long as it is needed. Raises OSError."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def send(peer: socket.socket, kind: bytes, body: bytes) -> None:
    """One message. Raises OSError."""
    peer.sendall(HEAD.pack(len(body), kind) + body)


def receive(peer: socket.socket, most: int = MESSAGE_MAX) -> tuple[bytes, bytes] | None:
    """The next message as (kind, body); None where the peer has ended in order. Raises OSError, ConnectionError."""
    head = _exactly(peer, HEAD.size)
    if not head:
        return None
    length, kind = HEAD.unpack(head)
    if length > most:
        raise ConnectionError("a message beyond its bound")
    body = _exactly(peer, length)
    if len(body) < length:
        raise ConnectionError("the connection ended within a message")
    return kind, body


def _exactly(peer: socket.socket, length: int) -> bytes:
    """So many bytes; fewer only if there are none at all."""
    out = bytearray()
    while len(out) < length:
        got = peer.recv(min(length - len(out), 1 << 20))
        if not got:
            if out:
                raise ConnectionError("the connection ended within a message")
            return b""
        out += got
    return bytes(out)


def credentials(peer: socket.socket) -> tuple[int, int, int]:
    """(process, user, group) at the other end, as the kernel knows them. Raises OSError."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    pid, uid, gid = PEER.unpack(raw)
    return pid, uid, gid
