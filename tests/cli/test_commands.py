"""The console command as people run it: help, exit codes, streams, schemas, pipes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from defib.adapters.cli import build_parser

Run = Any  # the fixture's type lives in conftest.py
COMMAND = Path(sys.executable).with_name("defib")

PROMISED: dict[str, set[str]] = {
    "": {"attempt", "streams", "framework", "verdict", "cause", "cascades", "progress", "clock", "notes"},
    "attempt": {"cluster", "job_id", "array_task", "submit_time", "restart_count", "index"},
    "cause": {"rule", "class", "domain", "stream", "line", "offset", "rank", "node", "text", "confidence"},
    "progress": {"first_step", "last_step", "total_steps", "points", "median_step_s", "throughput", "throughput_unit"},
}
# Beyond the promise; pinned so that none comes or goes unnoticed.
EXTRA: dict[str, set[str]] = {
    "": {"class", "suspect", "episodes"},
    "attempt": {"id", "job_name"},
    "cause": {"because"},
    "progress": {"format", "kind", "p90_step_s"},
}


def commands() -> list[tuple[str, ...]]:
    """Every command and verb the parser knows."""
    out: list[tuple[str, ...]] = [()]

    def walk(parser: Any, path: tuple[str, ...]) -> None:
        for action in parser._actions:
            if hasattr(action, "choices") and isinstance(action.choices, dict):
                for name, child in action.choices.items():
                    out.append((*path, name))
                    walk(child, (*path, name))

    walk(build_parser(), ())
    return out


def json_lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


# --- help -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_begins_with_usage(command: tuple[str, ...], run: Run) -> None:
    done = run(*command, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: " + " ".join(("defib", *command)).encode())
    assert b"Traceback" not in done.stdout
    assert all(len(line) <= 200 for line in done.stdout.decode().splitlines())


def test_help_and_version_import_nothing_heavy() -> None:
    heavy = {"polars", "pyarrow", "duckdb", "hyperscan", "pydantic", "rich", "numpy", "orjson", "zstandard", "yaml"}
    for argument in ("--help", "--version"):
        script = f"""
import sys
from defib.adapters.cli import main
try: main([{argument!r}])
except SystemExit: pass
print(sorted(set(sys.modules) & {heavy!r}), file=sys.stderr)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stderr.strip() == "[]", f"{argument} imports {done.stderr}"


def test_version(run: Run) -> None:
    from defib import __version__

    assert run("--version").stdout.decode() == f"defib {__version__}\n"
    module = subprocess.run([sys.executable, "-m", "defib", "--version"], capture_output=True, text=True, check=True)
    assert module.stdout == f"defib {__version__}\n"


# --- exit codes --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["nonsense"], 2),
        (["jobs", "--nonsense"], 2),
        (["replay"], 2),
        (["replay", "DEMO", "--db", ":memory:", "--block-bytes", "12"], 2),
        (["replay", "DEMO", "--db", ":memory:", "--fail-on", "sulking"], 2),
        (["jobs", "--json", "--csv", "--db", "DB"], 2),
        (["jobs", "--db", "nowhere.duckdb"], 3),
        (["why", "--db", "DB", "nobody"], 3),
        (["sql", "--db", "DB", "SELECT"], 2),
        (["sql", "--db", "DB", "SELECT 1"], 0),
        (["rules", "show", "no.such-rule"], 2),
        (["rules", "show", "gpu.xid"], 0),
        (["rules", "check", "nowhere"], 3),
        (["policy", "check", "nowhere"], 3),
        (["config", "check", "nowhere"], 3),
        (["config", "show", "nowhere"], 3),
        (["watch", "--config", "nowhere"], 3),
        (["check-log", "BINARY"], 3),
        (["why", "BINARY"], 3),
        (["scan", "BINARY"], 3),
        (["replay", "BINARY", "--db", ":memory:"], 3),
        (["replay", "nowhere.log", "--db", ":memory:"], 3),
        (["check-log", "nowhere.log"], 3),
        (["replay", "ONE", "--db", "no/such/folder.duckdb"], 3),
        (["replay", "ONE", "--db", ":memory:", "--rules", "nowhere"], 3),
        (["replay", "ONE", "--db", ":memory:", "--fail-on", "crashed,stalled"], 1),
        (["replay", "ONE", "--db", ":memory:", "--fail-on", "completed"], 0),
        (["replay", "ONE", "nowhere.log", "--db", ":memory:", "--fail-on", "crashed"], 3),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else str(v),
)  # fmt: skip
def test_exit_codes(arguments: list[str], code: int, say: Run, demo: Path, history: Path, tmp_path: Path) -> None:
    one = str(next(demo.glob("titan-70b*.out")))
    known = {"DEMO": str(demo), "DB": str(history), "ONE": one, "BINARY": sys.executable}
    done = say(*[known.get(a, a) for a in arguments], cwd=tmp_path)
    assert done.returncode == code, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    if code in (2, 3) and arguments:
        assert done.stderr
    assert os.listdir(tmp_path) == []


NOT_TEXT = os.fsdecode(b"\xff")


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "--db", ":memory:"],
        ["jobs", "--db", "EMPTY"],
        ["why", "--db", "EMPTY", "1"],
        ["jobs", "--db", "DB", "-j", NOT_TEXT],
        ["why", "--db", "DB", NOT_TEXT],
        ["replay", "ONE", "--db", f"{NOT_TEXT}.duckdb"],
        ["replay", "ONE", "--db", ":memory:", "--cluster", NOT_TEXT],
        ["sql", "--db", "DB", "SELECT now(), DATE '2026-01-01', INTERVAL 1 DAY, 1.5::DECIMAL(4, 2), uuid()", "--json"],
        ["sql", "--db", "DB", "SELECT MAP {1: 2} AS m", "--json"],
        ["sql", "--db", "DB", "SELECT 170141183460469231731687303715884105727 AS n", "--jsonl"],
        ["sql", "--db", "DB", "SELECT 'NaN'::DOUBLE AS n, '\\xAA'::BLOB AS b, {'a': [1, NULL]} AS s", "--json"],
        ["sql", "--db", "DB", ""],
        ["sql", "--db", "DB", "SELECT 1; SELECT 2"],
        ["sql", "--db", "DB", "SELECT * FROM args"],
        ["sql", "--db", "DB", f"SELECT {NOT_TEXT}"],
        ["check-log", "DEMO/nothing"],
    ],
    ids=lambda a: " ".join(a).replace(NOT_TEXT, "BYTE"),
)  # fmt: skip
def test_nothing_a_person_types_is_a_bug_of_ours(
    arguments: list[str], say: Run, demo: Path, history: Path, tmp_path: Path
) -> None:
    """70 is for bugs; odd values are answered, or refused with 2 or 3 and a sentence."""
    duckdb.connect(str(tmp_path / "empty.duckdb")).close()
    one = str(next(demo.glob("titan-70b*.out")))
    known = {"DB": str(history), "ONE": one, "EMPTY": str(tmp_path / "empty.duckdb")}
    done = say(*[known.get(a, a) for a in arguments], cwd=tmp_path)
    assert done.returncode in (0, 2, 3), done.stderr.decode()[-400:]
    assert b"Traceback" not in done.stderr


def test_an_output_that_cannot_hold_every_character(run: Run, history: Path) -> None:
    done = run("why", "--db", history, "481214", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr.decode()[-300:]


# --- replay --json and --jsonl --------------------------------------------------------------------------------------------------------------


def test_an_attempts_keys_are_those_promised(run: Run, demo: Path, tmp_path: Path) -> None:
    done = run("replay", demo, "--db", ":memory:", "--jsonl", "-q", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    rows = json_lines(done.stdout)
    assert len(rows) == 4
    for row in rows:
        for place, promised in PROMISED.items():
            part = row[place] if place else row
            assert part is None or set(part) == promised | EXTRA[place], place or "top"
        assert row["clock"] in ("event", "step", "none")
        assert isinstance(row["notes"], list)
        assert row["streams"]
        assert all(os.path.isfile(s) for s in row["streams"])
        if row["cause"]:
            with open(row["cause"]["stream"], "rb") as f:
                data = f.read()
            line = data.split(b"\n")[row["cause"]["line"] - 1]
            assert data[row["cause"]["offset"] :].startswith(line[:60])
            assert row["cause"]["text"][:40].encode() in line
    assert sum(r["cause"] is None for r in rows) == 1
    assert os.listdir(tmp_path) == [], "':memory:' leaves no file"
    document = json.loads(run("replay", demo, "--db", ":memory:", "--json", "-q").stdout)
    assert document == {"schema": "defib/attempts/1", "rows": rows}


def test_stdout_holds_data_only(run: Run, demo: Path, tmp_path: Path) -> None:
    put = tmp_path / "binary.log"
    put.write_bytes(b"\x7fELF" + bytes(100))
    done = run("replay", demo, put, tmp_path / "nowhere", "--db", ":memory:", "--jsonl")
    assert done.returncode == 3
    assert len(json_lines(done.stdout)) == 4
    assert b"4 attempts" in done.stderr
    assert b"looks binary" in done.stderr
    assert b"No such file" in done.stderr
    quiet = run("replay", put, "--db", ":memory:", "-q", "--jsonl")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (3, b"", b"")


def test_two_runs_print_the_same_bytes(say: Run, demo: Path) -> None:
    first, second = (
        say("replay", demo, "--db", ":memory:", "--jsonl", "--block-bytes", size, "-q").stdout for size in ("1K", "64M")
    )
    assert first == second


# --- listings ----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listing", ["jobs", "attempts", "incidents"])
def test_every_form_of_a_listing_says_the_same(listing: str, say: Run, history: Path) -> None:
    document = json.loads(say(listing, "--db", history, "--json").stdout)
    rows = document["rows"]
    assert document["schema"].startswith("defib/")
    assert json_lines(say(listing, "--db", history, "--jsonl").stdout) == rows
    table = list(csv.DictReader(io.StringIO(say(listing, "--db", history, "--csv").stdout.decode())))
    assert [list(r) for r in table] == [list(r) for r in rows]
    assert [r["job"] for r in table] == [r["job"] for r in rows]
    parsable = say(listing, "--db", history, "-P").stdout.decode().splitlines()
    assert [len(line.split("|")) for line in parsable] == [len(rows[0])] * (len(rows) + 1)
    shown = say(listing, "--db", history).stdout.decode().splitlines()
    assert len(shown) == len(rows) + 1
    assert say(listing, "--db", history, "-P", "--noheader").stdout.decode().splitlines() == parsable[1:]
    one = say(listing, "--db", history, "-j", "481214", "--jsonl").stdout
    assert [r["job"] for r in json_lines(one)] == ["481214"]
    assert say(listing, "--db", history, "-j", "nobody", "--jsonl").stdout == b""


def test_the_history_may_be_named_in_the_environment(run: Run, history: Path) -> None:
    assert len(json_lines(run("jobs", "--jsonl", DEFIB_DB=str(history)).stdout)) == 4


def test_sql_comes_from_the_pipe(run: Run, history: Path) -> None:
    done = run("sql", "--db", history, "--csv", stdin=b"SELECT count(*) AS n\nFROM attempts")
    assert (done.returncode, done.stdout) == (0, b"n\n4\n")


def test_two_columns_of_one_name_are_both_there(say: Run, history: Path) -> None:
    (row,) = json_lines(say("sql", "--db", history, "SELECT 1 AS a, 2 AS a", "--jsonl").stdout)
    assert sorted(row.values()) == [1, 2]


def test_csv_runs_no_formula(say: Run, history: Path) -> None:
    values = ["=1+1", "+1", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "plain"]
    query = "SELECT v, [v, 'x'] AS l, -1 AS n FROM (VALUES " + ", ".join(f"('{v}')" for v in values) + ") t(v)"
    rows = list(
        csv.reader(io.StringIO(say("sql", "--db", history, query, "--csv", "--noheader").stdout.decode(), newline=""))
    )
    assert [r[0] for r in rows] == ["'=1+1", "'+1", "'-1+cmd", "'@SUM(A1)", "\\x09=1", "\\x0d=1", "plain"]
    assert {r[2] for r in rows} == {"-1"}, "numbers stay numbers"
    assert not [r[1] for r in rows if r[1][:1] in "=+-@"], "text in a list runs too"
    names = say("sql", "--db", history, 'SELECT 1 AS "=1+1"', "--csv").stdout
    assert not names.startswith(b"="), "a column's name runs too"


def test_parsable_columns_do_not_shift(say: Run, history: Path) -> None:
    done = say("sql", "--db", history, "SELECT 'a|b' AS x, ['c|d'] AS y, e'f\\ng|' AS \"p|q\", 1234.5 AS z", "-P")
    header, row = done.stdout.decode().splitlines()
    assert row.split("|") == ["a\\x7cb", "c\\x7cd", "f\\x0ag\\x7c", "1234.5"]
    assert len(header.split("|")) == 4, header


# --- pipes and terminals ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "--db", "DB"],
        ["jobs", "--db", "DB", "--jsonl"],
        ["sql", "--db", "DB", "SELECT * FROM range(100000)"],
        ["sql", "--db", "DB", "SELECT * FROM range(100000)", "--csv"],
        ["why", "--db", "DB", "481214"],
        ["replay", "DEMO", "--db", ":memory:", "-q"],
        ["replay", "DEMO", "--db", ":memory:", "-q", "--jsonl"],
        ["rules", "list"],
        ["rules", "list", "--jsonl"],
        ["check-log", "DEMO"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_reader_that_left_is_no_error(arguments: list[str], demo: Path, history: Path) -> None:
    words = [{"DEMO": str(demo), "DB": str(history)}.get(a, a) for a in arguments]
    with subprocess.Popen([COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        assert p.stdout is not None
        assert p.stderr is not None
        p.stdout.close()
        said = p.stderr.read()
    assert (p.returncode, said) == (0, b"")


def test_a_pipe_and_no_color_get_no_escape(run: Run, history: Path) -> None:
    pty = pytest.importorskip("pty")
    assert b"\x1b" not in run("jobs", "--db", history).stdout
    main, far = pty.openpty()
    subprocess.run(
        [COMMAND, "jobs", "--db", history], stdout=far, env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"}, check=True
    )
    os.close(far)
    said = os.read(main, 100_000)
    os.close(main)
    assert b"crashed" in said
    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]", said), "a colour in spite of NO_COLOR"


@pytest.mark.timeout(100)
def test_an_interrupt_keeps_whole_jobs_and_says_130(run: Run, tmp_path: Path) -> None:
    """All jobs are the same log under other names, so each must have the same number of rows of every kind."""
    logs = tmp_path / "logs"
    logs.mkdir()
    steps = "".join(
        f" iteration {i:>8}/    1000 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.5E+00 |\n"
        for i in range(1, 300)
    )
    text = steps + "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.62 GiB.\n"
    for i in range(600):
        (logs / f"slurm-{1000 + i}.out").write_text(text)
    db = tmp_path / "history.duckdb"
    with subprocess.Popen(
        [COMMAND, "replay", logs, "--db", db, "--jsonl"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as p:
        assert p.stdout is not None
        p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        _, said = p.communicate()
    assert p.returncode == 130, said.decode()[-400:]
    assert b"interrupted" in said
    assert b"Traceback" not in said
    con = duckdb.connect(str(db), read_only=True)
    jobs = {r[0] for r in con.execute("SELECT job FROM attempts").fetchall()}
    assert 0 < len(jobs) < 600
    assert {r[0] for r in con.execute("SELECT job FROM streams").fetchall()} == jobs
    for table, rows in (("progress", 299), ("signals", 1), ("attempt_streams", 1)):
        counts = con.execute(f"SELECT count(*) FROM {table} GROUP BY stream_id").fetchall()
        assert counts == [(rows,)] * len(jobs), table
    assert len(con.execute("SELECT * FROM incidents").fetchall()) == len(jobs)
    con.close()


def test_a_history_in_use_is_refused(run: Run, demo: Path, history: Path, tmp_path: Path) -> None:
    db = tmp_path / "held.duckdb"
    db.write_bytes(history.read_bytes())
    con = duckdb.connect(str(db))
    for arguments in (["jobs", "--db", db], ["replay", demo, "--db", db]):
        done = run(*arguments)
        assert done.returncode == 3
        assert b"mend: another process holds it" in done.stderr
        assert done.stdout == b""
    con.close()


def test_what_holds_nothing_is_told_and_no_fault(say: Run, tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    done = say("replay", "a.log", "--db", ":memory:", cwd=tmp_path)
    assert (done.returncode, f"nothing in it: {tmp_path}/a.log" in done.stderr.decode()) == (0, True)
    (tmp_path / "empty").mkdir()
    done = say("why", "a.log", cwd=tmp_path)
    assert (done.returncode, done.stderr.decode()) == (0, f"nothing in it: {tmp_path}/a.log\n")


@pytest.mark.parametrize(
    "arguments", [["attempts", "--db", "DB"], ["--help"], ["--version"], ["rules", "--help"]], ids=" ".join
)
def test_an_output_that_takes_no_byte_is_told(arguments: list[str], history: Path, tmp_path: Path) -> None:
    # Not /dev/full: where a sandbox lacks it, opening it makes an ordinary file. A limit of no bytes at all refuses everywhere.
    with (tmp_path / "out").open("wb") as full:
        done = subprocess.run(
            [COMMAND, *(str(history) if a == "DB" else a for a in arguments)], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )  # fmt: skip
    assert (tmp_path / "out").stat().st_size == 0
    assert done.returncode == 3
    assert b"output cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr


def test_ctrl_c_ends_a_long_question(history: Path) -> None:
    question = "SELECT 'begun'; SELECT count(*) FROM range(100000000000) t(i), range(1000) u"
    with subprocess.Popen(
        [COMMAND, "sql", "--db", history, question], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as p:
        assert p.stdout is not None
        assert p.stdout.readline()  # the first statement is answered; the second would run for hours
        time.sleep(0.5)
        assert p.poll() is None
        p.send_signal(signal.SIGINT)
        _, said = p.communicate(timeout=60)
    assert p.returncode == 130
    assert b"Traceback" not in said
