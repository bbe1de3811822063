"""loggen's promise: the same request gives the same bytes, and the truth points at them."""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import loggen  # noqa: E402  (bench/ is not installed)
from loggen.cli import main  # noqa: E402

HOSTS = ("n001", "n002")
BASE = loggen.Job("job", "4711", "megatron-lm", HOSTS, gpus_per_node=2, steps=60, log_every=4, checkpoint_every=15)

# What the line of a cause must hold, written down apart from the generator.
TOKENS: dict[str, str] = {
    "cuda-oom": r"CUDA out of memory\. Tried to allocate",
    "python-error": r"ValueError: ",
    "gpu-xid79": r"n00\d kernel: NVRM: Xid \(PCI:0000:\w\w:00\): 79, .*fallen off the bus",
    "ecc": r"NVRM: Xid \(PCI:0000:\w\w:00\): 48, ",
    "nccl-timeout": r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=",
    "host-oom": r"Detected 1 oom_kill event in StepId=4711\.0",
    "no-space": r"OSError: \[Errno 28\] No space left on device",
    "nan-loss": r"(?i)\bnan\b|loss scale",
    "segfault": r"Fatal Python error: Segmentation fault",
    "preempted": r"CANCELLED AT .* DUE TO PREEMPTION \*\*\*",
    "time-limit": r"CANCELLED AT .* DUE TO TIME LIMIT \*\*\*",
    "cancelled": r"CANCELLED AT [-0-9T:]+ \*\*\*",
    "node-failure": r"srun: error: Node failure on n00\d",
    "slowdown": r"\d",
    "restart-in-job": r"Fatal Python error: Segmentation fault",
    "lost-peer": r"closed by remote peer n00\d|remote process exited|DistBackendError|got 0 bytes",
}
STEPS: dict[str, str] = {
    "megatron-lm": r"iteration +(\d+)/ +\d+ \|",
    "deepspeed": r"\| (\d+)/60 \[",
    "torchtitan": r"INFO - step: +(\d+)  loss",
    "nanogpt": r"iter (\d+): loss",
    "fairseq": r"num_updates=(\d+),",
    "lightning": r"Epoch \d+: +\d+%\|[^|]*\| (\d+)/60 ",
    "nemo": r"Training epoch \d+, iteration (\d+)/",
}


def place_is_right(files: dict[str, bytes], cause: loggen.Cause) -> str:
    """The record the truth names, after checking its line number, offset and start."""
    data = files[cause.path]
    line = data.split(b"\n")[cause.line - 1]
    assert cause.line == data[: cause.offset].count(b"\n") + 1
    assert data[cause.offset : cause.offset + len(line)] == line
    assert cause.offset <= cause.at < cause.offset + max(1, len(line))
    record = data[cause.at :].split(b"\n", 1)[0]
    assert cause.text.encode() in record
    return record.decode()


def digest(root: Path) -> str:
    names = sorted(path for path in root.rglob("*") if path.is_file())
    whole = b"".join(str(p.relative_to(root)).encode() + b"\0" + p.read_bytes() for p in names)
    return hashlib.sha256(whole).hexdigest()


@pytest.mark.parametrize("layout", loggen.LAYOUTS)
@pytest.mark.parametrize("kind", loggen.FAULT_KINDS)
def test_truth_points_at_the_cause(kind: loggen.FaultKind, layout: loggen.Layout) -> None:
    for framework in loggen.FRAMEWORKS:
        job = replace(BASE, framework=framework, layout=layout, traps=True, chatter=6, interleave=0.5, labels=True)
        files, truth = loggen.render(job, loggen.Fault(kind), seed=3)
        assert bool(truth[0].causes) == (kind not in ("none", "hang-silent"))
        for cause in truth[0].causes:
            assert re.search(TOKENS[kind], place_is_right(files, cause)), cause
        assert all(not t.causes and t.verdict == "completed" for t in truth[1:])
        assert {path for t in truth for path in t.paths} == set(files)


@pytest.mark.parametrize("framework", loggen.FRAMEWORKS)
@pytest.mark.parametrize("kind", loggen.FAULT_KINDS)
def test_steps_of_the_truth_are_the_printed_ones(framework: loggen.Framework, kind: loggen.FaultKind) -> None:
    job = replace(BASE, framework=framework, traps=True, eval_every=30)
    files, truth = loggen.render(job, loggen.Fault(kind), seed=5)
    text = files["job-4711.out"].decode()
    parts = re.split(r"=== job 4711 \(job\) starts |restart_count=1\n  .*\n  group_rank=0\n", text)[1:]
    assert len(parts) == len(truth)
    for part, t in zip(parts, truth, strict=True):
        printed = [int(step) for step in re.findall(STEPS[framework], part)]
        assert (t.first_step, t.last_step) == (min(printed), max(printed))


def test_the_same_request_gives_the_same_bytes() -> None:
    for job, fault in loggen.cases("small"):
        once, again = loggen.render(job, fault, 7), loggen.render(job, fault, 7)
        assert once == again
        assert once.files != loggen.render(job, fault, 8).files


def test_neither_hash_seed_nor_time_zone_nor_way_of_starting_matters(tmp_path: Path) -> None:
    ways = {"path": [str(ROOT / "bench/loggen")], "module": ["-m", "loggen"]}
    for i, (name, how) in enumerate(ways.items()):
        env = {**os.environ, "PYTHONHASHSEED": str(i), "TZ": ("UTC", "Asia/Tokyo")[i]}
        env["PYTHONPATH"] = str(ROOT / "bench")
        arguments = [str(tmp_path / name), "--preset", "small", "--seed", "11", "--jobs", "20"]
        subprocess.run([sys.executable, *how, *arguments], check=True, env=env, capture_output=True)
    assert digest(tmp_path / "path") == digest(tmp_path / "module")


def test_nothing_reads_the_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("read the clock")

    class NoClock(datetime):
        now = utcnow = today = classmethod(refuse)  # type: ignore[assignment, var-annotated]

    asked = loggen.cases("small")
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "localtime", "gmtime", "ctime"):
        monkeypatch.setattr(time, name, refuse)
    monkeypatch.setattr(os, "urandom", refuse)
    for module in [m for name, m in sys.modules.items() if name.startswith("loggen.")]:
        if hasattr(module, "datetime"):
            monkeypatch.setattr(module, "datetime", NoClock)
    with pytest.raises(AssertionError, match="read the clock"):
        NoClock.now()
    loggen.write(tmp_path / "small", asked, 7)
    loggen.bulk(tmp_path / "big", 1 << 20, 7)


@pytest.mark.parametrize("preset", ["demo", "small", "storm"])
def test_presets_hold_what_they_say(preset: str, tmp_path: Path) -> None:
    assert main([str(tmp_path), "--preset", preset]) == 0
    rows = [json.loads(row) for row in (tmp_path / "truth.jsonl").read_text().splitlines()]
    assert len({row["job_id"] for row in rows}) == len(loggen.cases(preset))
    files = {path: (tmp_path / path).read_bytes() for row in rows for path in row["paths"]}
    assert all(files.values())
    for row in rows:
        for cause in row["causes"][:20]:
            place_is_right(files, loggen.Cause(**cause))


def test_the_demo_shows_what_it_should(tmp_path: Path) -> None:
    truth = loggen.write(tmp_path, loggen.cases("demo"), 7)
    seen = [t.fault for t in truth if t.attempt == 0]
    assert seen[:4] == ["none", "cuda-oom", "gpu-xid79", "nccl-timeout"]
    assert seen[4:] == ["no-space", "preempted", "host-oom", "cancelled"]
    cascade = (tmp_path / truth[2].paths[0]).read_text()
    assert len(set(re.findall(r"(\w+:\d+):\d+ \[\d\] misc/socket.cc:71 NCCL WARN", cascade))) > 30
    assert len(set(re.findall(r"\[rank(\d+)\]:", cascade))) > 50
    assert 1 << 20 < sum(p.stat().st_size for p in tmp_path.rglob("*.*")) < 8 << 20


def test_start_time_is_an_argument(tmp_path: Path) -> None:
    main([str(tmp_path), "--jobs", "1", "--start", "2031-05-06T07:08:09"])
    (log,) = tmp_path.glob("*.out")
    assert "[2031-05-06 07:1" in log.read_text()
    assert datetime.fromtimestamp(log.stat().st_mtime, UTC).year == 2031


def test_classes_are_those_of_the_rules() -> None:
    known = set(re.findall(r"- id: (\S+)", (ROOT / "rules/classes.yaml").read_text()))
    for job, fault in loggen.cases("small"):
        assert {t.klass for t in loggen.render(job, fault, 7).truth} <= known | {None}


def test_a_silent_rank_stays_silent() -> None:
    job = replace(BASE, layout="per-rank", chatter=3)
    files, (truth,) = loggen.render(job, loggen.Fault("nccl-timeout", rank=2), 1)
    assert (truth.culprit_rank, truth.culprit_node, truth.verdict) == (2, "n002", "stalled")
    speaking = {path for path, data in files.items() if b"Watchdog caught" in data}
    assert speaking == {f"4711/rank_{rank}.log" for rank in (0, 1, 3)}


@pytest.mark.parametrize("kind", ["preempted", "node-failure", "restart-in-job"])
def test_a_job_goes_on_after_its_last_checkpoint_in_the_same_file(kind: loggen.FaultKind) -> None:
    files, truth = loggen.render(replace(BASE, log_every=1), loggen.Fault(kind, step=40), 1)
    assert [t.verdict for t in truth] == ["preempted" if kind == "preempted" else "crashed", "completed"]
    assert [(t.first_step, t.last_step) for t in truth] == [(1, 40), (31, 60)]
    assert list(files) == ["job-4711.out"]


def test_each_process_keeps_its_own_order() -> None:
    job = replace(BASE, interleave=1.0, traps=True, framework="torchtitan")
    error = r"[\w.]*(?:Value|Connection|OutOfMemory|DistBackend)Error:"
    for seed in range(20):
        text = loggen.render(job, loggen.Fault("cuda-oom", rank=3), seed).files["job-4711.out"].decode()
        for own in (re.findall(rf"\[rank{rank}\]: (Traceback|{error})", text) for rank in range(4)):
            assert own[0::2] == ["Traceback"] * (len(own) // 2)


def test_a_slow_node_shows_from_its_step_on() -> None:
    fault = loggen.Fault("slowdown", step=30, depth=4.0)
    files, (truth,) = loggen.render(replace(BASE, log_every=1), fault, 1)
    times = [float(ms) for ms in re.findall(r"\(ms\): ([\d.]+) \|", files["job-4711.out"].decode())]
    assert min(times[29:60]) > 2 * max(times[1:29])
    assert "iteration       30/" in truth.causes[0].text


def test_a_log_can_stop_while_the_job_runs() -> None:
    job = replace(BASE, stop_after=33, log_every=1)
    _, (truth,) = loggen.render(job, loggen.Fault("slowdown", step=50), 1)
    assert (truth.verdict, truth.klass, truth.last_step) == ("running-at-end", None, 33)


def test_prefixes_and_skew() -> None:
    job = replace(BASE, labels=True, launcher="srun", skew=(0.0, 3600.0), framework="torchtitan")
    text = loggen.render(job, loggen.Fault("cuda-oom", rank=3), 1).files["job-4711.out"].decode()
    assert re.search(r"(?m)^3: \[rank3\]: Traceback", text)
    assert re.search(r"(?m)^0: \[rank0\]:\[titan\] 2026-11-30 21:0", text)
    hung = loggen.render(job, loggen.Fault("nccl-timeout", rank=1), 1).files["job-4711.out"].decode()
    hours = dict(re.findall(r"\[rank(\d)\]:\[E1130 (\d\d):", hung))
    assert hours == {"0": "21", "2": "22", "3": "22"}


def test_an_error_of_all_ranks_is_nobodys_in_particular() -> None:
    _, (truth,) = loggen.render(BASE, loggen.Fault("python-error", everywhere=True), 1)
    assert len(truth.causes) == BASE.world
    assert truth.culprit_rank is None
    assert truth.culprit_node is None


def test_a_fault_may_strike_at_start_or_in_a_checkpoint() -> None:
    _, (early,) = loggen.render(BASE, loggen.Fault("cuda-oom", phase="startup"), 1)
    assert early.first_step is early.last_step is None
    fault = loggen.Fault("hang-silent", step=37, phase="checkpoint")
    files, (late,) = loggen.render(replace(BASE, log_every=1), fault, 1)
    assert late.last_step == 30
    assert files["job-4711.out"].splitlines()[-1].startswith(b"saving checkpoint at iteration      30")


@pytest.mark.parametrize("size", [1 << 18, 3_000_000, 1 << 24])
def test_bulk_is_as_large_as_asked(size: int, tmp_path: Path) -> None:
    truth = loggen.bulk(tmp_path, size, 7)
    data = (tmp_path / truth[0].paths[0]).read_bytes()
    assert size - 2 * 445 < len(data) <= size
    steps = [int(n) for n in re.findall(rb"\] iteration +(\d+)/", data)]
    lengths = {len(line) + 1 for line in data.split(b"\n") if b"] iteration " in line}
    assert lengths == {445}
    assert (steps[0], steps[-1]) == (truth[0].first_step, truth[-1].last_step)
    assert [t.fault for t in truth] == ["gpu-xid79", "node-failure", "ecc", "none"]
    for cause in (cause for t in truth for cause in t.causes):
        place_is_right({cause.path: data}, cause)


def test_bulk_is_fast_and_the_same_twice(tmp_path: Path) -> None:
    begin = time.perf_counter()
    loggen.bulk(tmp_path / "a", 1 << 26, 7)
    assert time.perf_counter() - begin < 2.0
    loggen.bulk(tmp_path / "b", 1 << 26, 7)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        (replace(BASE, nodes=()), loggen.Fault()),
        (replace(BASE, skew=(1.0,)), loggen.Fault()),
        (replace(BASE, checkpoint_every=0), loggen.Fault("no-space")),
        (BASE, loggen.Fault("cuda-oom", rank=99)),
        (BASE, loggen.Fault("cuda-oom", node="elsewhere")),
        (BASE, loggen.Fault("cuda-oom", step=61)),
        (BASE, loggen.Fault("nan-loss", phase="startup")),
        (replace(BASE, nodes=HOSTS[:1], gpus_per_node=1), loggen.Fault("nccl-timeout")),
    ],
)
def test_what_cannot_be_is_refused(job: loggen.Job, fault: loggen.Fault) -> None:
    with pytest.raises(ValueError, match=r"^job: "):
        loggen.render(job, fault, 1)


ANY_JOB = st.builds(
    replace,
    st.just(BASE),
    framework=st.sampled_from(loggen.FRAMEWORKS),
    layout=st.sampled_from(loggen.LAYOUTS),
    launcher=st.sampled_from(["torchrun", "srun"]),
    labels=st.booleans(),
    traps=st.booleans(),
    interleave=st.floats(0, 1),
    gpus_per_node=st.integers(2, 8),
    log_every=st.integers(1, 9),
    checkpoint_every=st.integers(1, 60),
    chatter=st.integers(0, 5),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(job=ANY_JOB, kind=st.sampled_from(loggen.FAULT_KINDS), seed=st.integers(0, 1 << 30))
def test_any_job_keeps_the_promise(job: loggen.Job, kind: loggen.FaultKind, seed: int) -> None:
    rendered = loggen.render(job, loggen.Fault(kind), seed)
    assert rendered == loggen.render(job, loggen.Fault(kind), seed)
    for t in rendered.truth:
        for cause in t.causes:
            assert re.search(TOKENS[kind], place_is_right(rendered.files, cause))
        assert json.loads(t.as_json())["verdict"] == t.verdict
