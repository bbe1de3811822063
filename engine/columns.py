"""Small column kernels shared by extraction: lossy text, numbers as people print them, clock-like durations."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
CLOCK = r"^(?:(?P<d>\d+) days?, )?(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)"
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}


def texts(raw: pa.Array) -> pl.Series:
    """Binary -> String; bytes that are not UTF-8 become U+FFFD. A line end at the end of a value is cut."""
    try:
        decoded = raw.cast(pa.large_string())
    except pa.ArrowInvalid:
        decoded = pa.array([v.decode("utf-8", "replace") for v in raw.to_pylist()], pa.large_string())
    return pl.Series(pl.from_arrow(decoded)).str.strip_suffix("\n")


def nothing(length: int, dtype: type[pl.DataType]) -> pl.Series:
    """A column of nulls."""
    return pl.Series(dtype=dtype).extend_constant(None, length)


def numbers(text: pl.Series) -> pl.Series:
    """`1,234`, `1.2e4`, `12.3M`, `nan` -> Float64; anything else null."""
    plain = text.cast(pl.Float64, strict=False)
    if plain.null_count() == text.null_count():
        return plain
    bare = text.str.replace_all(",", "", literal=True).str.strip_chars(" _")
    out = bare.cast(pl.Float64, strict=False)
    if out.null_count() > text.null_count():
        scaled = bare.str.extract_groups(r"^(?P<n>[-+]?[\d.]+(?:[eE][-+]?\d+)?)(?P<s>[kKMGBT])$").struct.unnest()
        factor = scaled["s"].replace_strict(SCALES, default=None, return_dtype=pl.Float64)
        out = (
            pl.DataFrame({"a": out, "b": scaled["n"].cast(pl.Float64, strict=False) * factor})
            .select(pl.coalesce("a", "b"))
            .to_series()
        )
    return out


def clock_seconds(text: pl.Series) -> pl.Series:
    """`MM:SS`, `H:MM:SS`, `2 days, 3:04:05` -> seconds; `?` and anything else null."""
    parts = text.str.extract_groups(CLOCK).struct.unnest()
    value = {k: pl.col(k).cast(pl.Float64, strict=False) for k in ("d", "h", "m", "s")}
    return parts.select(
        (value["d"].fill_null(0) * 86400 + value["h"].fill_null(0) * 3600 + value["m"] * 60 + value["s"]).alias(
            "seconds"
        )
    ).to_series()
