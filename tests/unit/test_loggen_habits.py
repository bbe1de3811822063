"""loggen's habits: healthy runs that look like trouble, and the plan that mixes them with real trouble."""

import re
import time
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import median

import pytest

import loggen
from loggen.cli import main
from loggen.model import Habits
from loggen.plan import groups, shares

HOSTS = ("n001", "n002")
BASE = loggen.Job(
    "job", "4711", "megatron-lm", HOSTS, gpus_per_node=4, steps=400, step_s=3.0, jitter=0.01, log_every=1,
    checkpoint_every=100,
)  # fmt: skip
MAIN = "job-4711.out"


def run(job: loggen.Job, fault: loggen.Fault | None = None, **habits: object) -> loggen.Rendered:
    return loggen.render(replace(job, habits=Habits(**habits)), fault or loggen.Fault(), 5)  # type: ignore[arg-type]


def column(data: bytes, pattern: str) -> list[float]:
    return [float(v.replace(",", "")) for v in re.findall(pattern, data.decode())]


def pace(rendered: loggen.Rendered) -> list[float]:
    return column(rendered.files[MAIN], r"\(ms\): ([\d.]+) \|")


def gaps(rendered: loggen.Rendered) -> list[float]:
    times = [at for at, _ in rendered.arrivals[MAIN]]
    return [b - a for a, b in pairwise(times)]


def test_no_habit_is_trouble() -> None:
    every = {
        "compile_s": 900.0, "warmup_steps": 20, "tails": 0.05, "gc_every": 50, "gc_s": 9.0, "stalls": ((200, 60.0),),
        "suspends": ((250, 3600.0),), "curriculum": ((300, 2.0),), "clock_steps": ((600.0, 3600.0),), "quiet": ("checkpoint",),
        "inclusive": True, "lr_lines": True, "retries": (90, 180), "spinner_s": 5.0, "upload_s": 60.0,
    }  # fmt: skip
    for framework in loggen.FRAMEWORKS:
        rendered = run(replace(BASE, framework=framework, eval_every=150), **every)
        (truth,) = rendered.truth
        assert (truth.verdict, truth.trouble, truth.klass, truth.causes) == ("completed", None, None, ())
        assert truth.last_step in (399, 400)


def test_compile_and_warmup() -> None:
    times = pace(run(BASE, compile_s=1800.0, warmup_steps=40, warmup_x=3.0))
    assert times[0] > 1_800_000
    assert times[1] == pytest.approx(9000, rel=0.1)
    assert times[20] == pytest.approx(6000, rel=0.1)
    assert median(times[40:]) == pytest.approx(3000, rel=0.01)


def test_garbage_collection_stalls_and_tails() -> None:
    times = pace(run(BASE, gc_every=50, gc_s=8.0, stalls=((77, 120.0),)))
    assert [i + 1 for i, ms in enumerate(times) if ms > 9000 and i] == [50, 77, 100, 150, 200, 250, 300, 350, 400]
    assert times[76] == pytest.approx(123_000, rel=0.01)
    slow = sum(ms > 4400 for ms in pace(run(replace(BASE, steps=2000), tails=0.05)))
    assert 70 <= slow <= 130


@pytest.mark.parametrize(
    ("framework", "rate"),
    [
        ("megatron-lm", r"GPU\): ([\d.]+) \|"), ("deepspeed", r"RunningAvgSamplesPerSec=([\d.]+)"), ("torchtitan", r"tps: ([\d,]+)"),
        ("nanogpt", r"mfu ([\d.]+)%"), ("fairseq", r"wps=([\d.]+)"),
    ],
)  # fmt: skip
def test_a_curriculum_keeps_the_printed_throughput(framework: loggen.Framework, rate: str) -> None:
    rendered = run(replace(BASE, framework=framework), curriculum=((150, 2.0), (300, 3.0)))
    rates = [v for v in column(rendered.files[MAIN], rate) if v > 0]
    early, late = median(rates[20:140]), median(rates[310:])
    assert late == pytest.approx(early, rel=0.02)
    assert loggen.render(replace(BASE, framework=framework), loggen.Fault(), 5).ended_s < 0.7 * rendered.ended_s


def test_a_batch_curriculum_shows_in_the_samples_and_one_of_lengths_does_not() -> None:
    by_batch = run(BASE, curriculum=((101, 2.0),)).files[MAIN]
    assert column(by_batch, r"global batch size: +(\d+)")[98:102] == [512, 512, 1024, 1024]
    assert column(by_batch, r"consumed samples: +(\d+)")[98:102] == [99 * 512, 100 * 512, 102 * 512, 104 * 512]
    by_length = run(BASE, curriculum=((101, 2.0),), curriculum_by="sequence").files[MAIN]
    assert set(column(by_length, r"global batch size: +(\d+)")) == {512}
    assert column(by_length, r"consumed samples: +(\d+)") == [512.0 * n for n in range(1, 401)]


def test_a_suspended_job_is_silent_and_the_scheduler_says_why() -> None:
    rendered = run(BASE, suspends=((200, 3600.0),))
    assert [t.state for t in rendered.told] == ["RUNNING", "SUSPENDED", "RUNNING", "COMPLETED"]
    stop, go = rendered.told[1].at, rendered.told[2].at
    assert go - stop == pytest.approx(3600.0)
    assert not any(stop < at < go for at, _ in rendered.arrivals[MAIN])
    assert max(gaps(rendered)) > 3600.0


def test_clock_steps_show_in_stamps_only() -> None:
    still, jumped = run(BASE), run(BASE, clock_steps=((600.0, 3600.0),))
    assert still.arrivals == jumped.arrivals
    stamps = re.findall(rb"\[2026-11-30 (\d\d):(\d\d):\d\d\.\d+\] iteration", jumped.files[MAIN])
    minutes = [int(h) * 60 + int(m) for h, m in stamps]
    leaps = [b - a for a, b in pairwise(minutes) if b - a > 30]
    assert leaps in ([60], [61])


def test_quiet_pauses_take_their_time_without_a_word() -> None:
    job = replace(BASE, eval_every=160, eval_s=300.0, checkpoint_s=200.0)
    rendered = run(job, quiet=("checkpoint", "evaluation"))
    assert not re.search(rb"saving checkpoint|Evaluating|validation loss", rendered.files[MAIN])
    assert sorted(round(gap, -2) for gap in gaps(rendered) if gap > 100) == [200, 200, 200, 200, 300, 300]


def test_an_inclusive_pace_counts_the_pause_before() -> None:
    job = replace(BASE, framework="torchtitan", checkpoint_s=60.0, log_every=10)
    rows = re.findall(r"step: +(\d+) .*tps: ([\d,]+)", run(job, inclusive=True).files[MAIN].decode())
    tps = {int(step): int(rate.replace(",", "")) for step, rate in rows}
    assert tps[110] < 0.5 * tps[100]
    assert tps[120] == pytest.approx(tps[100], rel=0.05)


def test_a_spinner_turns_while_results_are_uploaded() -> None:
    rendered = run(BASE, spinner_s=5.0, upload_s=600.0)
    assert rendered.files[MAIN].count(b"\rwandb: ") == 120
    assert rendered.truth[0].verdict == "completed"


def test_caught_errors_do_no_harm() -> None:
    text = run(BASE, retries=tuple(range(50, 350, 20)), lr_lines=True).files[MAIN].decode()
    assert "OutOfMemoryError" in text
    assert "trying again with micro batch 4" in text
    assert text.count("lr scheduler: stage") == 5


@pytest.mark.parametrize("layout", ["single", "out-err", "per-node", "per-rank"])
@pytest.mark.parametrize("block", [4096, 8192])
def test_a_buffer_goes_out_in_whole_blocks(layout: loggen.Layout, block: int) -> None:
    job = replace(BASE, framework="nemo", layout=layout)
    rendered = run(job, buffer=block)
    path = {"per-node": "4711/node_n001.log", "per-rank": "4711/rank_0.log"}.get(layout, MAIN)
    sizes = [b - a for (_, a), (_, b) in zip([(0, 0), *rendered.arrivals[path]], rendered.arrivals[path], strict=False)]
    whole = [size for size in sizes if size >= block]
    assert len(whole) > 5
    assert all(size % block == 0 for size in whole)
    plain = loggen.render(job, loggen.Fault(), 5)
    for name, data in plain.files.items():
        assert sum(data) == sum(rendered.files[name]), "a run that ends well loses nothing"
    assert rendered.truth[0].last_step == plain.truth[0].last_step


@pytest.mark.parametrize("kind", ["segfault", "time-limit", "hang-silent"])
def test_a_killed_process_loses_what_it_held(kind: loggen.FaultKind) -> None:
    rendered = run(replace(BASE, framework="nemo"), loggen.Fault(kind, 300, wait_s=60.0), buffer=8192)
    (truth,) = rendered.truth
    printed = [int(n) for n in re.findall(rb"iteration (\d+)/399 \|.*consumed_samples: \d+\n", rendered.files[MAIN])]
    assert printed[-1] == truth.last_step < 299
    assert truth.onset_step == 300


def test_an_exception_flushes_the_culprits_buffer_only() -> None:
    fault = loggen.Fault("cuda-oom", 300, rank=0)
    assert run(replace(BASE, framework="nemo"), fault, buffer=8192).truth[0].last_step == 299
    assert (run(replace(BASE, framework="nemo"), replace(fault, rank=5), buffer=8192).truth[0].last_step or 0) < 299


def test_causes_in_a_buffer_are_where_they_are_said_to_be() -> None:
    job = replace(BASE, framework="nemo", traps=True)
    seen = 0
    for step in range(100, 140):
        rendered = run(job, loggen.Fault("slowdown", step), buffer=4096)
        for cause in rendered.truth[0].causes:
            data = rendered.files[cause.path]
            assert data[cause.at :].startswith(cause.text.encode())
            assert cause.line == data[: cause.at].count(b"\n") + 1
            assert cause.offset == data.rfind(b"\n", 0, cause.at) + 1
            seen += 1
    assert seen > 20


def test_a_plan_is_the_same_however_long_it_is() -> None:
    few, many = list(loggen.plan(7, 30)), list(loggen.plan(7, 300))
    assert few == many[:30]
    assert len({p.name for p in many}) == len({p.job.job_id for p in many}) == 300
    assert {p.job.framework for p in many} == set(loggen.FRAMEWORKS)
    assert [p.job for p in few] != [p.job for p in loggen.plan(8, 30)]


def test_shares_hold_for_any_prefix() -> None:
    share = shares()
    assert sum(share.values()) == pytest.approx(1.0)
    drawn = list(islice(groups(), 1000))
    for n in (200, 500, 1000):
        for name, part in share.items():
            assert abs(drawn[:n].count(name) - part * n) <= 2.0


def test_planned_runs_are_what_their_group_says_and_quickly_made() -> None:
    begin, hours = time.perf_counter(), 0.0
    for p in loggen.plan(11, 120):
        rendered = loggen.render(p.job, p.fault, p.seed)
        first = rendered.truth[0]
        trouble = {"healthy": None, "hang": "hung", "slow": "slow", "straggler": "slow"}.get(
            p.group.split("-")[0], "crash"
        )
        assert first.trouble == trouble, p.name
        assert (first.onset_s is None) == (trouble is None)
        assert sum(map(len, rendered.files.values())) < 6 << 20
        hours += rendered.ended_s / 3600 if trouble is None else 0.0
    assert hours > 100.0
    assert time.perf_counter() - begin < 40.0


def test_the_preset_writes_a_plan(tmp_path: Path) -> None:
    assert main([str(tmp_path), "--preset", "detectors", "--jobs", "8", "--seed", "3"]) == 0
    rows = (tmp_path / "truth.jsonl").read_text().splitlines()
    assert {p.job.job_id for p in loggen.plan(3, 8)} == {re.search(r'"job_id": "(\d+)"', row)[1] for row in rows}  # type: ignore[index]
