"""Event time of records: a column of text -> microseconds UTC.

Only records something hit are asked, so this may be thorough. Stamps without a zone are read as UTC (they order lines of one
stream; they decide nothing on their own). Forms without a year (glog's `I0102 03:04:05`, syslog's `Jan  2 03:04:05`) give only
the time since the year began (`yearless`): a guessed year would be an invented value. Known forms,
first one in the line wins: MLPerf `"time_ms": N`; ISO 8601 and its relatives with `T`, space or comma
between date and time; `MM/DD/YYYY HH:MM:SS`.
"""

from __future__ import annotations

import polars as pl

MLLOG = r'"time_ms":\s*(\d{13})\b'
ISO = (
    r"(?P<y>(?:19|20)\d\d)[-/.](?P<mo>[01]\d)[-/.](?P<d>[0-3]\d)[T _,|-]{1,3}(?P<h>[0-2]\d):(?P<mi>[0-5]\d):(?P<s>[0-6]\d)"
    r"(?:[.,](?P<f>\d{1,9}))?\s?(?P<z>Z|[+-]\d\d:?\d\d)?"
)
US = (
    r"\b(?P<mo>[01]\d)/(?P<d>[0-3]\d)/(?P<y>(?:19|20)\d\d)[ ,]{1,2}(?P<h>[0-2]\d):(?P<mi>[0-5]\d):(?P<s>[0-6]\d)"
    r"(?:[.,](?P<f>\d{1,9}))?"
)


def stamps(text: pl.Series) -> pl.Series:
    """Int64 microseconds UTC, null where the line carries no full stamp."""
    milliseconds = text.str.extract(MLLOG).cast(pl.Int64) * 1000
    if milliseconds.null_count() == 0:
        return milliseconds
    iso = _from_groups(text.str.extract_groups(ISO), zoned=True)
    out = milliseconds.to_frame("a").select(pl.coalesce("a", iso)).to_series()
    if out.null_count():
        us = _from_groups(text.str.extract_groups(US), zoned=False)
        out = out.to_frame("a").select(pl.coalesce("a", us)).to_series()
    return out


GLOG = r"\b[IWEF](?P<mo>[01]\d)(?P<d>[0-3]\d) (?P<h>[0-2]\d):(?P<mi>[0-5]\d):(?P<s>[0-6]\d)(?:\.(?P<f>\d{1,9}))?"
SYSLOG = (
    r"^(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<d>\d{1,2}) "
    r"(?P<h>[0-2]\d):(?P<mi>[0-5]\d):(?P<s>[0-6]\d)(?:\.(?P<f>\d{1,9}))?"
)
MONTHS = {m: str(i) for i, m in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
LEAP_YEAR = 1972  # any leap year: so that 29 February has a place


def yearless(text: pl.Series) -> pl.Series:
    """Int64 microseconds since the first moment of the (unnamed, leap) year, for stamps without one; null elsewhere."""
    glog = text.str.extract_groups(GLOG).struct.unnest()
    syslog = text.str.extract_groups(SYSLOG).struct.unnest()
    syslog = syslog.with_columns(mo=syslog["name"].replace_strict(MONTHS, default=None, return_dtype=pl.String))
    begin = 730 * 86400 * 1_000_000  # 1972-01-01
    parts = []
    for groups in (glog, syslog):
        dated = groups.with_columns(y=pl.when(pl.col("d").is_not_null()).then(pl.lit(str(LEAP_YEAR)))).to_struct("g")
        parts.append(_from_groups(dated, zoned=False) - begin)
    return pl.DataFrame({"a": parts[0], "b": parts[1]}).select(pl.coalesce("a", "b").alias("year_us")).to_series()


def _from_groups(groups: pl.Series, zoned: bool) -> pl.Series:
    df = groups.struct.unnest()
    number = {k: pl.col(k).cast(pl.Int64, strict=False) for k in ("y", "mo", "d", "h", "mi", "s")}
    fraction = (pl.col("f").fill_null("0") + "000000").str.slice(0, 6).cast(pl.Int64)
    seconds = number["h"] * 3600 + number["mi"] * 60 + number["s"]
    if zoned:
        digits = pl.col("z").str.replace_all(":", "")
        minutes = digits.str.slice(1, 2).cast(pl.Int64, strict=False) * 60 + digits.str.slice(3, 2).cast(
            pl.Int64, strict=False
        )
        shift = pl.when(digits.str.starts_with("-")).then(-minutes).otherwise(minutes).fill_null(0)
        seconds = seconds - shift * 60
    valid = number["mo"].is_between(1, 12) & number["d"].is_between(1, 31)
    us = (_days(number["y"], number["mo"], number["d"]) * 86400 + seconds) * 1_000_000 + fraction
    return df.select(pl.when(valid).then(us).otherwise(None).alias("us")).to_series()


def _days(year: pl.Expr, month: pl.Expr, day: pl.Expr) -> pl.Expr:
    """Days since 1970-01-01 of a proleptic Gregorian date (Fliegel and Van Flandern's counting from March).

    Plain arithmetic, because the library's date type raises for a whole column when one line says 31 February.
    """
    y = year - (month <= 2).cast(pl.Int64)
    m = (month + 9) % 12
    return 365 * y + y // 4 - y // 100 + y // 400 + (153 * m + 2) // 5 + day - 719469
