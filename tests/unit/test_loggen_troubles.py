"""loggen's troubles: where the truth says a run hung, slowed or died, the bytes and the times they came say so too."""

import re
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest

import loggen
from loggen.model import PHASES, Habits

HOSTS = ("n001", "n002")
BASE = loggen.Job(
    "job", "4711", "megatron-lm", HOSTS, gpus_per_node=4, steps=400, step_s=3.0, log_every=2, checkpoint_every=50,
    eval_every=100, eval_s=60.0, checkpoint_s=30.0,
)  # fmt: skip
MAIN = "job-4711.out"
BANNER = {
    "megatron-lm": "before the start of training step", "deepspeed": "Total optimization steps", "torchtitan": "Training starts at step 1",
    "nanogpt": "compiling the model", "fairseq": "begin training epoch 1", "lightning": "Sanity Checking", "nemo": "has data parallel group",
}  # fmt: skip


def silence_after(rendered: loggen.Rendered, at: float) -> float:
    """Seconds from `at` to the next byte of any file; to the end of watching where none comes."""
    later = [t for writes in rendered.arrivals.values() for t, _ in writes if t > at + 1.0]
    return min(later, default=rendered.ended_s) - at


def at_time(rendered: loggen.Rendered, path: str, at: float) -> bytes:
    """The file as it was then."""
    return rendered.files[path][: max([end for t, end in rendered.arrivals[path] if t <= at], default=0)]


def megatron_seconds(data: bytes) -> dict[int, float]:
    rows = re.findall(rb"iteration +(\d+)/ +\d+ .*?\(ms\): ([\d.]+) \|", data)
    return {int(step): float(ms) / 1000 for step, ms in rows}


@pytest.mark.parametrize("layout", loggen.LAYOUTS)
@pytest.mark.parametrize("framework", loggen.FRAMEWORKS)
def test_arrivals_grow_to_the_whole_file(framework: loggen.Framework, layout: loggen.Layout) -> None:
    job = replace(BASE, framework=framework, layout=layout, interleave=1.0, traps=True, chatter=5)
    for kind in ("none", "gpu-xid79", "restart-in-job"):
        rendered = loggen.render(job, loggen.Fault(kind), 3)  # type: ignore[arg-type]
        assert set(rendered.arrivals) == set(rendered.files)
        for path, data in rendered.files.items():
            writes = rendered.arrivals[path]
            assert writes[-1][1] == len(data)
            assert all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(writes))
            assert writes[-1][0] <= rendered.ended_s


def test_a_stamped_line_arrives_when_it_says() -> None:
    rendered = loggen.render(BASE, loggen.Fault(), 3)
    stamp = re.compile(rb"\[2026-11-30 (\d\d):(\d\d):([\d.]+)\] iteration")
    seen = begin = 0
    for at, end in rendered.arrivals[MAIN]:
        for hour, minute, second in stamp.findall(rendered.files[MAIN][begin:end]):
            seen += 1
            assert (int(hour) - 21) * 3600 + int(minute) * 60 + float(second) == pytest.approx(at, abs=1e-3)
        begin = end
    assert seen == BASE.steps // BASE.log_every


@pytest.mark.parametrize("framework", loggen.FRAMEWORKS)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("killer", ["nobody", "time-limit", "cancelled"])
def test_a_hang_is_silent_from_its_onset(phase: loggen.model.Phase, framework: loggen.Framework, killer: str) -> None:
    job = replace(BASE, framework=framework, traps=True)
    fault = loggen.Fault("hang-silent", 210, phase, wait_s=9000.0, killer=killer)  # type: ignore[arg-type]
    rendered = loggen.render(job, fault, 5)
    (truth,) = rendered.truth
    assert (truth.trouble, truth.phase, truth.culprit_node) == ("hung", phase, None)
    assert truth.onset_s is not None
    assert silence_after(rendered, truth.onset_s) == pytest.approx(9000.0, abs=1.0)
    assert truth.verdict == ("stalled" if killer == "nobody" else killer)
    said = b"CANCELLED AT" in rendered.files[MAIN]
    assert said == (killer != "nobody") == bool(truth.causes)
    assert [t.state for t in rendered.told] == [
        "RUNNING",
        *{"time-limit": ["TIMEOUT"], "cancelled": ["CANCELLED"]}.get(killer, []),
    ]
    shown = at_time(rendered, MAIN, truth.onset_s).decode()
    last = {"startup": 0, "compile": 0, "train": 210, "evaluation": 200, "checkpoint": 200, "ending": 400}[phase]
    assert truth.onset_step == last
    assert (BANNER[framework] in shown) == (phase != "startup")
    assert (truth.last_step or 0) in range(last - 2, last + 1)


def test_a_hang_stops_in_the_middle_of_its_phase() -> None:
    def shown(phase: loggen.model.Phase) -> str:
        rendered = loggen.render(BASE, loggen.Fault("hang-silent", 210, phase, wait_s=60.0), 5)
        return rendered.files[MAIN].decode()

    assert re.search(r"Evaluating on \d+ samples\n(Evaluating iter \d/10\n){3,6}$", shown("evaluation"))
    assert re.search(r"saving checkpoint at iteration +200 .*\n$", shown("checkpoint"))
    assert re.search(r"iteration +400/.*\n(.*\n){,30}\[after training is done\] .*\n$", shown("ending"))
    assert "exit code 0" not in shown("ending")


def test_a_spinner_turns_while_a_run_hangs_and_is_all_that_comes() -> None:
    job = replace(BASE, habits=Habits(spinner_s=10.0), layout="out-err")
    rendered = loggen.render(job, loggen.Fault("hang-silent", 210, wait_s=3600.0), 5)
    at = rendered.truth[0].onset_s or 0.0
    assert at_time(rendered, MAIN, at) == rendered.files[MAIN]
    rest = rendered.files["job-4711.err"][len(at_time(rendered, "job-4711.err", at)) :]
    assert rest.count(b"\r") == rest.count(b"wandb: ") == 360


@pytest.mark.parametrize("phase", [p for p in PHASES if p != "ending"])
@pytest.mark.parametrize("tells", ["silence", "sequence", "nothing"])
def test_a_watchdog_tells_the_culprit_or_not(tells: loggen.model.Tells, phase: loggen.model.Phase) -> None:
    job = replace(BASE, timeout_s=1800.0, interleave=0.7)
    rendered = loggen.render(job, loggen.Fault("nccl-timeout", 210, phase, rank=6, tells=tells), 5)
    (truth,) = rendered.truth
    assert truth.onset_s is not None
    assert silence_after(rendered, truth.onset_s) == pytest.approx(1800.0, abs=2.0)
    rows = re.findall(r"Rank (\d+)\] failure detected .* last completed work: (\d+)", rendered.files[MAIN].decode())
    work = {int(rank): int(done) for rank, done in rows}
    if tells == "silence":
        assert set(range(8)) - set(work) == {6}
    else:
        assert set(work) == set(range(8))
        behind = [rank for rank, done in work.items() if done < max(work.values())]
        assert behind == ([6] if tells == "sequence" else [])
    assert (truth.culprit_rank, truth.culprit_node) == ((None, None) if tells == "nothing" else (6, "n002"))
    assert (truth.verdict, truth.klass) == ("stalled", "collective-timeout")


@pytest.mark.parametrize("lost", [0.03, 0.1, 0.3, 0.6])
def test_a_slowdown_has_its_depth(lost: float) -> None:
    job = replace(BASE, log_every=1, jitter=0.01)
    rendered = loggen.render(job, loggen.Fault("slowdown", 200, depth=1 / (1 - lost)), 5)
    (truth,) = rendered.truth
    assert truth.depth == pytest.approx(lost)
    pace = megatron_seconds(rendered.files[MAIN])
    before, after = median(pace[n] for n in range(10, 200)), median(pace[n] for n in range(200, 401))
    assert 1 - before / after == pytest.approx(lost, abs=0.01)
    assert (truth.onset_step, truth.passed_s, truth.verdict) == (199, None, "completed")
    assert b"iteration      199/" in at_time(rendered, MAIN, (truth.onset_s or 0.0) + 0.01)
    assert b"iteration      200/" not in at_time(rendered, MAIN, (truth.onset_s or 0.0) + 0.01)


def test_a_slowdown_may_creep_in_and_pass() -> None:
    job = replace(BASE, log_every=1, jitter=0.01, steps=800)
    fault = loggen.Fault("slowdown", 210, depth=2.0, ramp_s=300.0, lasts_s=900.0)
    rendered = loggen.render(job, fault, 5)
    (truth,) = rendered.truth
    pace = megatron_seconds(rendered.files[MAIN])
    assert truth.passed_s == pytest.approx((truth.onset_s or 0.0) + 900.0, abs=10.0)
    assert truth.passed_step is not None
    assert median(pace[n] for n in range(210, 230)) < 1.3 * 3.0
    assert median(pace[n] for n in range(truth.passed_step - 40, truth.passed_step)) == pytest.approx(6.0, rel=0.03)
    assert median(pace[n] for n in range(truth.passed_step + 2, 800)) == pytest.approx(3.0, rel=0.03)


@pytest.mark.parametrize("layout", ["per-rank", "single"])
def test_a_straggler_alone_is_slow(layout: loggen.Layout) -> None:
    job = replace(BASE, framework="torchtitan", layout=layout, jitter=0.01, habits=Habits(rank_lines=True, loose=True))
    fault = loggen.Fault("slowdown", 200, rank=5, depth=1 / 0.7, alone=True)
    rendered = loggen.render(job, fault, 5)
    (truth,) = rendered.truth
    assert (truth.culprit_rank, truth.culprit_node) == (5, "n002")
    for rank in range(8):
        path = f"4711/rank_{rank}.log" if layout == "per-rank" else MAIN
        tag = "" if layout == "per-rank" else rf"\[rank{rank}\]:"
        rows = re.findall(tag + r"\[titan\] .*step: +(\d+) .*tps: ([\d,]+)", rendered.files[path].decode())
        tps = {int(step): int(rate.replace(",", "")) for step, rate in rows}
        assert len(tps) == 201
        lost = 1 - median(v for n, v in tps.items() if n > 202) / median(v for n, v in tps.items() if 10 < n < 200)
        assert lost == pytest.approx(0.3 if rank == 5 else 0.0, abs=0.02)
    last = {n: at for n, at in printed_at(rendered, 5 if layout == "per-rank" else None).items() if n > 200}
    if layout == "per-rank":
        others = printed_at(rendered, 0)
        assert last[248] - others[248] == pytest.approx(48 * 3.0 * (1 / 0.7 - 1), rel=0.1), "it falls behind"
        assert last[252] - others[252] < 12.0, "until the next checkpoint"


def printed_at(rendered: loggen.Rendered, rank: int | None) -> dict[int, float]:
    """Step -> when its line of this rank's file arrived."""
    path = MAIN if rank is None else f"4711/rank_{rank}.log"
    out = {}
    begin = 0
    for at, end in rendered.arrivals[path]:
        for step in re.findall(rb"step: +(\d+) ", rendered.files[path][begin:end]):
            out[int(step)] = at
        begin = end
    return out


def test_ranks_in_lockstep_blame_nobody() -> None:
    job = replace(BASE, framework="torchtitan", habits=Habits(rank_lines=True))
    _, (truth,) = loggen.render(job, loggen.Fault("slowdown", 200, depth=1.5), 5)
    assert (truth.culprit_rank, truth.culprit_node) == (None, None)


@pytest.mark.parametrize("tells", ["silence", "nothing"])
def test_peers_of_a_lost_node_name_it_or_cannot(tells: loggen.model.Tells) -> None:
    rendered = loggen.render(BASE, loggen.Fault("lost-peer", 210, rank=6, tells=tells), 5)
    (truth,) = rendered.truth
    text = rendered.files[MAIN][len(at_time(rendered, MAIN, truth.onset_s or 0.0)) :].decode()
    named = set(re.findall(r"remote peer (n00\d)", text))
    assert named == ({"n002"} if tells == "silence" else set())
    assert (truth.culprit_rank, truth.culprit_node) == (None, "n002" if tells == "silence" else None)
    assert not re.search(r"\[rank[4-7]\]:|n002:|host +: n002", text), "the lost node is silent"
    assert truth.causes


def test_attempts_may_follow_each_other_in_one_file() -> None:
    third = loggen.Fault("hang-silent", wait_s=3600.0)
    fault = loggen.Fault("cuda-oom", 120, then=loggen.Fault("node-failure", 250, rank=3, then=third))
    rendered = loggen.render(BASE, fault, 5)
    assert [t.fault for t in rendered.truth] == ["cuda-oom", "node-failure", "hang-silent"]
    assert [t.verdict for t in rendered.truth] == ["crashed", "crashed", "stalled"]
    assert [t.first_step for t in rendered.truth] == [2, 102, 202]
    assert list(rendered.files) == [MAIN]
    starts = [m.start() for m in re.finditer(r"=== job 4711 ", rendered.files[MAIN].decode())]
    assert len(starts) == 3
    assert [(t.state, t.restarts) for t in rendered.told] == [
        ("RUNNING", 0), ("FAILED", 0), ("RUNNING", 1), ("NODE_FAIL", 1), ("RUNNING", 2),
    ]  # fmt: skip
    ends = [t.onset_s for t in rendered.truth]
    assert ends == sorted(ends)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        (BASE, loggen.Fault("cuda-oom", phase="compile")),
        (replace(BASE, eval_every=0), loggen.Fault("hang-silent", phase="evaluation")),
        (BASE, loggen.Fault("slowdown", alone=True)),
        (BASE, loggen.Fault("slowdown", depth=0.9)),
        (replace(BASE, nodes=HOSTS[:1]), loggen.Fault("lost-peer")),
        (replace(BASE, labels=True, habits=Habits(buffer=4096)), loggen.Fault()),
        (replace(BASE, habits=Habits(rank_lines=True)), loggen.Fault()),
        (BASE, loggen.Fault("segfault", then=loggen.Fault("cuda-oom", rank=99))),
    ],
)
def test_what_cannot_be_is_refused(job: loggen.Job, fault: loggen.Fault) -> None:
    with pytest.raises(ValueError, match=r"^job: "):
        loggen.render(job, fault, 1)
