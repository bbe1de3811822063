"""`defib watch` in a process of its own, on logs that a writer appends to while it runs. A site's policy makes the limits seconds."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import COMMAND, environment
from tests.cli.test_hostile import ATTACKS, STEERS, steering

from defib.adapters.cli.watch import Teller, summary
from defib.adapters.wire import Watched
from defib.engine.words import JobKey

PATIENCE_S = 60.0  # of a test, for a busy machine; what is waited for comes within seconds
POLICY = """
policy: detect
hang:
  after_error_s: 1
  after_exit_s: 1
  phases:
    steady: {floor_s: 4, unlearned_s: 4, ceiling_s: 8}
    startup: {floor_s: 20, unlearned_s: 20, ceiling_s: 40}
blind: {after_s: 2, no_log_s: 2}
"""
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (\S+) +(\d+)  (\w+) +(first seen|was \w+) +(.+)")
BANNER = "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1\n"
DEATH = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/train.py", line 12, in <module>
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.62 GiB. GPU 0 has a total capacity of 79.10 GiB
srun: error: gpu011: task 0: Exited with exit code 1
"""
Rules = list[str | Path]


def step(n: int) -> str:
    return (
        f" iteration {n:8}/   10000 | consumed samples: {n * 64:12} | elapsed time per iteration (ms): 400.0 | "
        f"learning rate: 1.000E-04 | global batch size:    64 | lm loss: 2.0{n:05}E+00 | loss scale: 1.0 | grad norm: 1.203 |\n"
    )


def steps(first: int, last: int) -> str:
    return "".join(map(step, range(first, last + 1)))


class Watch:
    """A running `defib watch` and what it has printed so far."""

    def __init__(self, *words: str | bytes | Path, cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "watch", "--every", "200ms", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment(),
        )
        self.lines: list[str] = []
        self.raw = b""
        self._arrived: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arrived.put(line)
        self._arrived.put(b"")

    def next(self) -> str:
        got = self._arrived.get(timeout=PATIENCE_S)
        if not got:
            raise AssertionError(f"ended with {self.process.wait()}; printed {self.lines}")
        self.raw += got
        self.lines.append(got.decode())
        return self.lines[-1]

    def until(self, wanted: Callable[[str], bool]) -> str:
        """The next line that is wanted."""
        while not wanted(line := self.next()):
            pass
        return line

    def health(self, health: str) -> tuple[str, ...]:
        """(job, attempt, health, was, because) of the next line with this health."""
        line = self.until(lambda text: (found := LINE.fullmatch(text.strip())) is not None and found[3] == health)
        found = LINE.fullmatch(line.strip())
        assert found is not None
        return found.groups()

    def end(self, number: int) -> tuple[int, str]:
        """Exit code and standard error after a signal."""
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        assert time.monotonic() - began < 20
        assert self.process.stderr is not None
        while rest := self._arrived.get(timeout=PATIENCE_S):
            self.raw += rest
            self.lines.append(rest.decode())
        return code, self.process.stderr.read().decode()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    """Rules of a site that waits for seconds."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "detect.yaml").write_text(POLICY)
    return ["--rules", folder]


@pytest.fixture
def start(site: Rules) -> Iterator[Callable[..., Watch]]:
    """`start(paths…)`: a watch that does not outlive its test."""
    running: list[Watch] = []

    def go(*words: str | bytes | Path, cwd: Path | None = None) -> Watch:
        running.append(Watch(*site, *words, cwd=cwd))
        return running[-1]

    yield go
    for w in running:
        w.process.kill()
        w.process.communicate()


def write(path: Path, text: str, mode: str = "a") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as f:
        f.write(text)


def test_a_run_moves_hangs_moves_and_dies(start: Callable[..., Watch], tmp_path: Path) -> None:
    log = tmp_path / "logs" / "slurm-4711.out"
    write(log, BANNER + steps(1, 30))
    w = start(tmp_path / "logs")
    assert w.health("healthy") == ("4711", "1", "healthy", "first seen", "step 30")
    hung = w.health("hung")
    assert hung[3] == "was healthy"
    assert hung[4].startswith("no progress for ")
    assert "phase steady" in hung[4]
    write(log, steps(31, 40))
    assert w.health("healthy")[3:] == ("was hung", "step 40")
    write(log, DEATH)
    dead = w.health("dead")
    assert dead[3] == "was healthy"
    assert "cuda.out-of-memory, line 44" in dead[4]
    code, said = w.end(signal.SIGTERM)
    assert (code, said) == (0, "1 job watched; now 1 dead\n")
    assert len(w.lines) == 4, "nothing is told twice"


def test_ctrl_c_ends_with_what_was_seen_of_every_attempt(start: Callable[..., Watch], tmp_path: Path) -> None:
    write(tmp_path / "slurm-1.out", BANNER + steps(1, 30))
    write(tmp_path / "slurm-2.out", BANNER + steps(1, 30) + DEATH)
    w = start(tmp_path, "--jsonl")
    w.until(lambda text: json.loads(text)["health"] == "hung")
    if not any(json.loads(t)["health"] == "dead" for t in w.lines):
        w.until(lambda text: json.loads(text)["health"] == "dead")
    code, said = w.end(signal.SIGINT)
    assert (code, said) == (130, "2 jobs watched; now 1 hung, 1 dead\n")
    objects: list[dict[str, Any]] = [json.loads(line) for line in w.lines]
    assert {o["schema"] for o in objects} == {"defib/watch/1"}
    changes = [o for o in objects if o["kind"] == "health"]
    hung = next(o for o in changes if o["health"] == "hung")
    assert set(hung) == {"schema", "kind", "time", "job", "attempt", "health", "was", "because", "episode"}
    assert hung["job"] == {"cluster": None, "job_id": "1", "array_task": None, "place": None}
    assert (hung["was"], hung["attempt"], hung["episode"]["onset_step"]) == ("healthy", 1, 30)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", hung["time"])
    judged = {o["judged"]["attempt"]["job_id"]: o["judged"] for o in objects if o["kind"] == "attempt"}
    assert (judged["1"]["verdict"], judged["1"]["class"]) == ("stalled", "hang")
    assert [e["kind"] for e in judged["1"]["episodes"]] == ["hung"]
    assert (judged["2"]["verdict"], judged["2"]["class"]) == ("crashed", "cuda-oom")


def test_an_interrupt_that_comes_twice_at_once_is_one(start: Callable[..., Watch], tmp_path: Path) -> None:
    """`timeout -s INT` signals a process and then its group; the summary must come all the same. The column of jobs is as wide as they are."""
    name = "a-very-long-name-of-a-job/train"
    log = tmp_path / f"{name}.log"
    write(log, BANNER + steps(1, 30))
    w = start(log)
    w.until(lambda text: f"  {name}    1  healthy " in text)
    log.unlink()
    w.until(lambda text: f"  {name}    1  log       unreadable    {log}: " in text)
    w.process.send_signal(signal.SIGINT)
    code, said = w.end(signal.SIGINT)
    assert (code, said) == (130, "1 job watched; now 1 healthy; 1 log unreadable\n")
    assert f"closed        {log}: the file was removed and all of it was read; one that came" in w.lines[-1]


def test_a_log_is_truncated_under_the_watch(start: Callable[..., Watch], tmp_path: Path) -> None:
    """What is written behind the truncation speaks for another attempt; nothing read before is told again."""
    log = tmp_path / "slurm-5.out"
    write(log, BANNER + steps(1, 30))
    w = start(log, "--jsonl")
    first = json.loads(w.until(lambda text: json.loads(text)["because"] == "step 30"))
    write(log, BANNER + steps(20, 24), "w")
    hung = json.loads(w.until(lambda text: json.loads(text).get("health") == "hung"))
    befell = [o for line in w.lines if (o := json.loads(line))["kind"] == "log"]
    told = {o["what"]: o["note"] for o in befell}
    assert {(o["what"], o["path"], o["attempt"]) for o in befell} == {
        ("closed", str(log), None),
        ("replaced", str(log), 1),
    }
    assert told["closed"].startswith("the file that stood there before: the file was truncated or rewritten after byte")
    assert (first["attempt"], hung["attempt"], hung["episode"]["onset_step"]) == (1, 2, 24)
    code, said = w.end(signal.SIGTERM)
    assert (code, said) == (0, "1 job watched; now 1 hung\n")
    last = json.loads(w.lines[-1])["judged"]
    assert (last["verdict"], set(last["streams"])) == ("stalled", {str(log)})


def test_a_reader_that_goes_away_ends_it_at_once(start: Callable[..., Watch], tmp_path: Path) -> None:
    """No change has to come first: the next one may be hours away."""
    write(tmp_path / "slurm-6.out", BANNER)
    with subprocess.Popen(
        [COMMAND, "watch", tmp_path, "--every", "200ms"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as p:
        assert p.stdout is not None
        assert p.stderr is not None
        assert b"starting" in p.stdout.readline()
        p.stdout.close()
        assert p.wait(PATIENCE_S) == 0
        assert p.stderr.read() == b""


def test_a_folder_a_glob_and_a_file_that_appear_later(start: Callable[..., Watch], tmp_path: Path) -> None:
    w = start(tmp_path / "later", "runs*/deep/*.log", "odd[1].log", cwd=tmp_path)
    time.sleep(1)
    write(tmp_path / "later" / "slurm-1.out", BANNER + steps(1, 30))
    write(tmp_path / "runs-a" / "deep" / "train.log", BANNER + steps(1, 20))
    seen = {w.health("healthy")[0], w.health("healthy")[0]}
    assert seen == {"1", "deep/train"}
    code, said = w.end(signal.SIGTERM)
    assert code == 0
    *missing, ended = said.splitlines()
    assert ended.startswith("2 jobs watched; now ")
    told = {
        f"not followed: {tmp_path}/{what}"
        for what in (
            "later: not there yet; followed as soon as it is",
            "odd[1].log: no log in it; followed as soon as there is one",
            "runs*/deep/*.log: no log in it; followed as soon as there is one",
        )
    }
    assert f"not followed: {tmp_path}/odd[1].log: no log in it; followed as soon as there is one" in missing
    assert set(missing) <= told, "the others may have come before the first look"


def test_what_befalls_a_log_is_told(start: Callable[..., Watch], tmp_path: Path) -> None:
    """A deleted log, one that is back, and another file in its place: nothing in a log tells of it, and its run looks healthy meanwhile."""
    log, other = tmp_path / "slurm-5.out", tmp_path / "slurm-6.out"
    write(log, BANNER + steps(1, 30))
    write(other, BANNER + steps(1, 30))
    w = start(log, other)
    w.until(lambda text: "  5 " in text and "step 30" in text)
    os.rename(log, tmp_path / "away")
    lost = w.until(lambda text: f"log       unreadable    {log}: " in text)
    assert lost.rstrip().endswith(f"{log}: No such file or directory")
    os.rename(tmp_path / "away", log)
    w.until(lambda text: f"log       readable      {log}\n" in text)
    other.rename(tmp_path / "slurm-6.out.1")
    write(other, BANNER + steps(1, 3))
    w.until(lambda text: f"log       replaced      {other}: another file stands at its path" in text)


def test_a_storm_of_lost_logs_is_counted(start: Callable[..., Watch], tmp_path: Path) -> None:
    for n in range(40):
        write(tmp_path / f"job-{n:02}" / "train.log", BANNER + steps(1, 3))
    w = start(tmp_path)
    for _ in range(40):
        w.health("healthy")
    tmp_path.rename(tmp_path.with_name("moved"))
    told, shown = 0, 0
    while told < 40:
        line = w.next()
        shown += "log       unreadable" in line
        more = re.match(r"… and (\d+) more such lines about logs: \d+ unreadable in all", line)
        told += "log       unreadable" in line
        told += int(more[1]) if more else 0
    assert (told, shown < 40) == (40, True)
    tmp_path.with_name("moved").rename(tmp_path)


def test_what_cannot_be_followed_is_told_whenever_it_comes(start: Callable[..., Watch], tmp_path: Path) -> None:
    write(tmp_path / "old" / "a.log.gz", "packed")
    write(tmp_path / "logs" / "slurm-1.out", BANNER)
    w = start("old", "logs", "nosuch.log", cwd=tmp_path)
    assert w.next()
    write(tmp_path / "logs" / "late.bin.out", "\x7fELF" + "\0\1" * 600)
    time.sleep(3)
    code, said = w.end(signal.SIGTERM)
    *left, ended = said.splitlines()
    assert (code, ended) == (0, "1 job watched; now 1 starting; 3 not followed")
    assert sorted(left) == [
        f"not followed: {tmp_path}/logs/late.bin.out: looks binary, not a log",
        f"not followed: {tmp_path}/nosuch.log: not there yet; followed as soon as it is",
        f"not followed: {tmp_path}/old: only packed files in it (1), which do not grow: 'defib replay' reads them",
    ]


def test_hostile_names_and_lines_steer_nothing(start: Callable[..., Watch], tmp_path: Path) -> None:
    """One line a change whatever stands in names, and nothing a terminal obeys; the names are told apart all the same."""
    names = [f"{i}-{attack.replace('/', '_')}\n'\"; DROP" for i, attack in enumerate(ATTACKS)]
    for name in names:
        text = BANNER + steps(1, 20) + "".join(f"Error {a}\n" for a in ATTACKS)
        write(tmp_path / name / "train.log", text)
    with open(os.path.join(os.fsencode(tmp_path), b"raw \xff\x9b.log"), "wb") as f:
        f.write(b"\xff\xc0\x80 \x9b31m\n" + steps(1, 20).encode())
    w = start(tmp_path)
    jobs = [w.next() for _ in range(len(names) + 1)]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", text) for text in jobs)
    assert len({text[21:] for text in jobs}) == len(jobs)
    code, said = w.end(signal.SIGTERM)
    assert code == 0
    assert not steering(w.raw)
    assert not STEERS.search(said.removesuffix("\n"))


def test_idleness_ends_it_and_nothing_was_written(start: Callable[..., Watch], tmp_path: Path) -> None:
    write(tmp_path / "logs" / "slurm-8.out", BANNER + steps(1, 30))
    write(tmp_path / "logs" / "x.out", "\x7fELF" + "\0\1" * 600)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    w = start("logs", "--once-idle", "1s", cwd=tmp_path)
    assert w.process.wait(PATIENCE_S) == 0
    assert w.health("healthy")[0] == "8"
    assert w.process.stderr is not None
    said = w.process.stderr.read().decode()
    assert "x.out: " in said
    assert said.endswith("1 job watched; now 1 healthy; 1 not followed\n")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("text", ["0", "10ms", "-5s", "2d", "1e9", "٣s", "25h", ""])
def test_a_time_that_is_none_is_refused(say: Any, tmp_path: Path, text: str) -> None:
    done = say("watch", tmp_path, f"--every={text}")
    assert done.returncode == 2
    assert b"give a time such as 10s" in done.stderr


@pytest.mark.parametrize("idle", [True, False])
def test_the_end_tells_how_logs_ended(start: Callable[..., Watch], tmp_path: Path, idle: bool) -> None:
    """Also when it is stopped before silence had made the dead run `dead`: "2 healthy" would hide it."""
    write(tmp_path / "logs" / "slurm-8.out", BANNER + steps(1, 30))
    write(tmp_path / "logs" / "slurm-9.out", BANNER + steps(1, 30) + DEATH)
    w = start(tmp_path / "logs", *(["--once-idle", "1s"] if idle else []))
    if not idle:
        w.until(lambda text: "  9 " in text and "step 30" in text)
        w.process.send_signal(signal.SIGINT)
    line = w.until(lambda text: "its verdict" in text)
    assert re.search(r"  9 +1  crashed +its verdict +cuda\.out-of-memory", line), line
    assert w.process.wait(PATIENCE_S) == (0 if idle else 130)
    assert w.process.stderr is not None
    assert w.process.stderr.read().decode().endswith("2 jobs watched; by their logs 1 crashed; now 1 healthy\n")


def test_a_verdict_counts_where_the_health_hides_it() -> None:
    """A crash that was written after the run had been called hung, and one of a job that only the last look saw."""
    hung, blind, silent, late, dead = (JobKey(job_id=name) for name in ("1", "2", "3", "4", "5"))
    t = Teller(jsonl=False)
    t.healths = {hung: "hung", blind: "blind", silent: "hung", dead: "dead"}
    t.verdicts = {hung: "crashed", blind: "crashed", silent: "stalled", late: "crashed", dead: "crashed"}
    ended = t.ended(idle=False)
    assert ended == {hung: "crashed", blind: "crashed", late: "crashed"}
    assert summary(Watched(dict(t.healths)), ended, 0) == "5 jobs watched; by their logs 3 crashed; now 1 hung, 1 dead"
