"""Is this a log? By its name's ending and its first bytes."""

from __future__ import annotations

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZSTD_SKIP = tuple(bytes([n]) + b"\x2a\x4d\x18" for n in range(0x50, 0x60))  # frames that hold no data
NOT_LOGS = frozenset(
    ".py .pyc .ipynb .json .jsonl .yaml .yml .toml .cfg .ini .sh .md .rst .html .css .js .csv .tsv .parquet .arrow .feather .pt .pth "
    ".bin .ckpt .safetensors .npy .npz .h5 .hdf5 .pkl .pickle .onnx .idx .tar .zip .whl .so .o .a .duckdb .db .sqlite .png .jpg .jpeg "
    ".gif .svg .pdf .lock".split()
)  # fmt: skip
MAGIC = (
    b"\x7fELF",
    b"PK\x03\x04",
    b"\x89PNG",
    b"\x89HDF",
    b"%PDF",
    b"\x93NUMPY",
    b"PAR1",
    b"SQLite format",
    b"\x80\x02",
    b"\x80\x03",
    b"\x80\x04",
    b"BZh",
    b"\xfd7zXZ",
)
CONTROL = bytes(set(range(1, 32)) - {8, 9, 10, 11, 12, 13, 27})


def is_packed(head: bytes) -> bool:
    """gzip or zstd."""
    return head.startswith((GZIP, ZSTD, *ZSTD_SKIP))


def is_binary(head: bytes) -> bool:
    """Known magic numbers, or many control bytes among those that are not NUL."""
    if head.startswith(MAGIC):
        return True
    rest = head.translate(None, b"\0")
    return bool(rest) and len(rest) - len(rest.translate(None, CONTROL)) > len(rest) // 20
