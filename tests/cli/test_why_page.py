"""`defib why`: what a person who was woken reads first."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Run

STEP = (
    " iteration {n:8d}/     100 | consumed samples: {n} | elapsed time per iteration (ms): 1400.0 | lm loss: 2.3E+00 |"
)
STEPS = [STEP.format(n=n) for n in range(1, 41)]
WAIT = (
    "[rank{r}]:[E1201 10:10:00.120 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)


def page(say: Run, folder: Path, *lines: str) -> dict[str, list[str]]:
    """Heading -> its lines, of the page about a log."""
    log = folder / "train.log"
    log.write_text("\n".join([*STEPS, *lines, ""]))
    done = say("why", log)
    assert done.returncode == 0, done.stderr
    out: dict[str, list[str]] = {}
    heading = ""
    for line in done.stdout.decode().splitlines():
        if line and not line.startswith(" "):
            heading = line.split(" (")[0].split(":")[0]
        out.setdefault(heading, []).append(line)
    return out


def told(lines: list[str]) -> str:
    return " ".join(x.strip() for x in lines[1:]).strip()


def test_a_death_its_reach_and_the_suspect(say: Run, tmp_path: Path) -> None:
    p = page(
        say, tmp_path, "using world size: 4, data-parallel size: 4",
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        *[f"[rank{r}]: torch.distributed.DistBackendError: remote process exited or there was a network error" for r in (0, 1, 3)],
    )  # fmt: skip
    assert told(p["What happened"]) == (
        "The run died at step 40 of 100: GPU memory ran out. Then 3 of 4 ranks complained that others were gone. "
        "Most likely behind it is rank 2."
    )
    assert told(p["Suspect"]) == "rank 2; likely (cause): rank 2 printed the cause"


def test_a_hang_names_the_rank_that_kept_silent_and_shows_the_witnesses(say: Run, tmp_path: Path) -> None:
    p = page(
        say, tmp_path, "using world size: 8, data-parallel size: 8", *[WAIT.format(r=r) for r in range(8) if r != 5]
    )
    assert "stopped moving at step 40 of 100" in told(p["What happened"])
    assert "7 of 8 ranks waited in a collective" in told(p["What happened"])
    assert p["Suspect"][1].startswith("  rank 5; likely (silent-rank): 7 of 8 ranks")
    assert sum("Watchdog caught" in x for x in p["Suspect"]) == 3
    assert p["Suspect"][5] == "    … and 3 more such lines", "the first of them is shown as the cause"


def test_where_the_lines_do_not_tell_the_page_says_why(say: Run, tmp_path: Path) -> None:
    p = page(say, tmp_path, *[f"[rank{r}]: ValueError: bad batch" for r in range(8)])
    assert "Nobody is named as the one behind it: 8 processes show the same error at once" in told(p["What happened"])
    assert "Suspect" not in p
    assert "Notes" not in p, "said once is enough"


@pytest.mark.parametrize(
    ("line", "opening"),
    [
        (
            "*** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***",
            "The run was ended at step 40 of 100",
        ),
        ("x", "The log stops at step 40 of 100; no line says why."),
        (
            "[after training is done] datetime: 2026-01-02 03:04:05 ",
            "Training reached its planned end at step 40 of 100.",
        ),
    ],
)
def test_every_kind_of_end_has_its_sentence(say: Run, tmp_path: Path, line: str, opening: str) -> None:
    assert told(
        page(say, tmp_path, f"slurmstepd: error: {line}" if "JOB" in line else line)["What happened"]
    ).startswith(opening)


def test_a_hostile_name_stays_harmless(say: Run, tmp_path: Path) -> None:
    p = page(
        say,
        tmp_path,
        "n1:1:2 [0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer \x1b[31mn9<1>",
    )
    assert not any("\x1b" in line for lines in p.values() for line in lines)


def test_a_file_and_a_job_in_one_question(say: Run, tmp_path: Path) -> None:
    """What is wrong with one name is said of that name."""
    (tmp_path / "train.log").write_text("\n".join([*STEPS, ""]))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "slurm-7.out").write_text("\n".join([*STEPS, ""]))
    lacking = say("why", "train.log", "gone.log", cwd=tmp_path)
    assert (lacking.returncode, lacking.stdout) == (3, b"")
    assert lacking.stderr.startswith(b"defib: no file 'gone.log'; and as a job: defib.duckdb: no history here; ")
    say("replay", "job", "-q", cwd=tmp_path)
    both = say("why", "train.log", "7", cwd=tmp_path)
    assert [line.split(":")[0] for line in both.stdout.decode().splitlines() if ": RUNNING" in line] == ["train", "7"]
    unknown = say("why", "train.log", "8", cwd=tmp_path)
    assert b"no job, attempt or file '8'" in unknown.stderr
