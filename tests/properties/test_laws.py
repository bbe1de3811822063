"""Laws of judgement that hold for every log: what may never be named as a cause, and that every claim can be checked in the bytes.

Stories in the made-up language of conftest explore orders no framework prints; loggen's logs keep the laws honest on real wordings.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import Collected, Kit, replay

import loggen
from defib.engine.words import AttemptVerdict, JobKey, Signal, StreamFacts

TROUBLE = ["ROOT", "MAYBE", "HARD", "VAGUE", "HOSTOOM", "PEER", "WAITED", "WRAP"]
ENDS = ["EXIT", "TEARDOWN", "FINE", "COMPLETED", "TRAINED", "CANCELLED job=1", "PREEMPTED", "TIMELIMIT", "NODEFAIL"]
BEGINNINGS = ["LAUNCH", "AGAIN"]
PLAIN = ["x", "", "[rank3]: y", "\x1b[31mred\x1b[0m", "HARMLESS ROOT"]

trouble = st.sampled_from(TROUBLE)
any_line = st.one_of(
    st.sampled_from([*TROUBLE, *ENDS, *BEGINNINGS, *PLAIN]), st.integers(1, 9).map("step={}/9 time=1".format)
)
stories = st.lists(any_line, max_size=25)
labels = st.sampled_from(["", "", "[rank3]: ", "7: ", "2026-01-02 03:04:05 ", "\x1b[1m", "\0\0", "caf\u00e9 "])
law = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def bytes_of(lines: list[str], end: str = "\n") -> bytes:
    return "".join(f"{line}{end}" for line in lines).encode()


def climbing(lines: list[str]) -> list[str]:
    """The same story with steps that only go forward, so that it is one attempt unless a launch says otherwise."""
    return [f"step={n}/9 time=1" if line.startswith("step=") else line for n, line in enumerate(lines, 1)]


def signals_of(a: AttemptVerdict) -> list[Signal]:
    return ([a.cause.signal] if a.cause else []) + [e.signal for e in a.evidence]


@law
@given(
    before=stories,
    after=st.lists(st.sampled_from([*PLAIN, "FINE"]), max_size=5),
    errors=st.lists(trouble, min_size=1, max_size=50),
)
def test_an_error_followed_by_training_progress_is_never_the_cause(
    language: Kit, before: list[str], after: list[str], errors: list[str]
) -> None:
    quiet = [line for line in before if line not in ENDS + BEGINNINGS]
    lines = climbing(["step=", *quiet, *errors, "step=", *after])
    last = max(n for n, line in enumerate(lines, 1) if line.startswith("step="))
    for a in replay(language, lines).attempts:
        assert a.cause is None or a.cause.signal.line > last


@law
@given(lines=stories)
def test_whatever_the_story_the_cause_comes_after_the_attempts_last_training_step(
    language: Kit, lines: list[str]
) -> None:
    seen = replay(language, lines)
    steps = [r["line"] for r in seen.rows("progress") if r["format"] == "t.step"]
    firsts = {}
    for r in seen.rows("progress"):
        firsts.setdefault(r["line"], r["step"])
    for a in seen.attempts:
        if a.cause is None or a.cause.signal.role == "lifecycle" or a.cause.confidence == "possible":
            continue  # acts outlive a run's last words; what is only possible may have waited in a buffer
        mine = [n for n in steps if a.first_line[a.streams[0]] <= n <= a.last_line[a.streams[0]]]
        moved = [n for i, n in enumerate(mine) if i and firsts[n] > firsts[mine[i - 1]]]
        assert all(n < a.cause.signal.line for n in moved)


@law
@given(before=stories, after=st.lists(st.sampled_from([*TROUBLE, *PLAIN, "EXIT", "TEARDOWN"]), max_size=45))
def test_nothing_after_the_programs_planned_end_accuses(language: Kit, before: list[str], after: list[str]) -> None:
    quiet = climbing([line for line in before if line not in ENDS + BEGINNINGS])
    a = replay(language, ["step=1/99", *quiet, "step=98/99", "COMPLETED", *after]).only
    assert (a.verdict, a.klass, a.cause) == ("completed", None, None)


@law
@given(lines=stories, noise=st.lists(st.sampled_from(PLAIN), max_size=9), block=st.integers(1, 60))
def test_a_silent_stream_of_another_job_changes_nothing(
    language: Kit, lines: list[str], noise: list[str], block: int
) -> None:
    mine, other = StreamFacts(JobKey(job_id="1")), StreamFacts(JobKey(job_id="2"))
    alone = replay(language, {"a": bytes_of(lines)}, facts=[mine])
    beside = replay(language, {"a": bytes_of(lines), "b": bytes_of(noise)}, facts=[mine, other], block=block)
    theirs = [a for a in beside.attempts if a.job.job_id == "2"]
    assert [a for a in beside.attempts if a.job.job_id != "2"] == alone.attempts
    assert [(a.verdict, a.cause) for a in theirs] == [("unknown", None)]
    assert beside.rows("signals") == alone.rows("signals")
    assert beside.rows("progress") == alone.rows("progress")


def at_place(data: bytes, offset: int, line: int) -> str:
    """The record of the raw bytes at a place, checked for its line, as a person would see it."""
    assert data[:offset].count(b"\n") + 1 == line
    assert offset == 0 or data[offset - 1 : offset] in (b"\n", b"\r"), "a record begins after a line end"
    ends = [k for k in (data.find(b"\n", offset), data.find(b"\r", offset)) if k >= 0]
    return data[offset : min(ends, default=len(data))].decode("utf-8", "replace")


def visible(text: str) -> str:
    """Text without escapes and NUL bytes, as far as these tests print any."""
    for escape in ("\x1b[31m", "\x1b[0m", "\x1b[1m", "\0"):
        text = text.replace(escape, "")
    return text


def check_places(seen: Collected, streams: list[bytes]) -> None:
    for row in seen.rows("signals"):
        assert visible(at_place(streams[row["stream"]], row["offset"], row["line"])) == row["text"]
    for row in seen.rows("progress"):
        assert str(row["step"]) in at_place(streams[row["stream"]], row["offset"], row["line"]) or row["step"] is None
    for a in seen.attempts:
        for s in signals_of(a):
            assert visible(at_place(streams[s.stream], s.offset, s.line)) == s.text


@law
@given(
    lines=st.lists(st.tuples(labels, any_line, st.sampled_from(["\n", "\r", "\r\n"])), max_size=25),
    block=st.integers(1, 80),
    whole=st.booleans(),
)
def test_every_claim_points_at_the_text_it_claims(
    language: Kit, lines: list[tuple[str, str, str]], block: int, whole: bool
) -> None:
    data = "".join(label + line + end for label, line, end in lines).encode()
    data = data if whole else data.rstrip(b"\r\n")
    check_places(replay(language, data, block=block, batch_bytes=100), [data])


@law
@given(lines=st.lists(st.tuples(labels, any_line), max_size=25))
def test_what_a_line_does_not_print_is_null(language: Kit, lines: list[tuple[str, str]]) -> None:
    texts = [label + line for label, line in lines]
    seen = replay(language, texts)
    for row in [*seen.rows("signals"), *seen.rows("progress")]:
        text = texts[row["line"] - 1]
        assert (row["rank"] is not None) == ("[rank3]" in text)
        assert (row["time_us"] is not None) == ("2026" in text)
    for row in seen.rows("signals"):
        assert row["node"] is None
        assert row["local_rank"] is None
    for row in seen.rows("progress"):
        assert (row["step_time_s"] is not None) == ("time=" in texts[row["line"] - 1])
        assert [row[k] for k in ("loss", "throughput", "tflops", "epoch", "elapsed_s")] == [None] * 5
    stamped = [t for t in texts if "2026" in t]
    for a in seen.attempts:
        assert stamped or a.first_us is None


@law
@given(lines=stories)
def test_a_verdict_and_its_cause_agree(language: Kit, lines: list[str]) -> None:
    for a in replay(language, lines).attempts:
        if a.cause is None:
            assert a.klass is None
            assert a.verdict in ("completed", "running-at-end", "unknown")
        else:
            assert a.verdict not in ("completed", "running-at-end", "unknown")
            assert a.evidence[0].why == "cause"
            assert a.evidence[0].signal == a.cause.signal
            assert a.cause.confidence in ("certain", "likely", "possible", "unknown")
        assert a.cascades >= 0
        assert all(e.count >= 1 for e in a.evidence)


BASE = loggen.Job(
    "job", "4711", "megatron-lm", ("n001", "n002"), gpus_per_node=2, steps=40, log_every=4, checkpoint_every=10
)


@pytest.mark.parametrize("kind", loggen.FAULT_KINDS)
def test_the_laws_hold_on_generated_logs(shipped: Kit, kind: loggen.FaultKind) -> None:
    number = loggen.FAULT_KINDS.index(kind)
    framework = loggen.FRAMEWORKS[number % len(loggen.FRAMEWORKS)]
    layout = loggen.LAYOUTS[number % len(loggen.LAYOUTS)]
    job = replace(BASE, framework=framework, layout=layout, traps=True, interleave=0.5 if number % 2 else 0.0)
    files = loggen.render(job, loggen.Fault(kind), seed=number).files
    seen = replay(shipped, files)
    streams = list(files.values())
    printed = b"\n".join(streams).decode()
    assert seen.attempts
    for row in seen.rows("signals"):
        text = at_place(streams[row["stream"]], row["offset"], row["line"])
        assert row["text"].split(" [...] ")[-1] in text
        assert row["node"] is None or row["node"] in text
        assert row["rank"] is None or str(row["rank"]) in text
    for a in seen.attempts:
        for s in signals_of(a):
            assert s.text.split(" [...] ")[-1] in at_place(streams[s.stream], s.offset, s.line)
            assert s.node is None or s.node in printed
        if a.cause is not None:
            s = a.cause.signal
            later = [r for r in seen.rows("progress") if r["stream"] == s.stream and r["offset"] > s.offset]
            last = a.last_line[s.stream]
            assert not [
                r
                for r in later
                if r["line"] <= last and a.progress and r["step"] and r["step"] > (a.progress.last_step or 0)
            ]


@pytest.mark.parametrize("seed", range(3))
def test_a_silent_neighbour_changes_nothing_on_generated_logs(shipped: Kit, seed: int) -> None:
    fault = loggen.Fault(("cuda-oom", "restart-in-job", "none")[seed])
    files = loggen.render(BASE, fault, seed=seed).files
    alone = replay(shipped, files)
    beside = replay(shipped, {**files, "elsewhere/slurm-9999.out": b"hello\n" * 50}, block=700)
    assert [a for a in beside.attempts if a.job.job_id != "9999"] == alone.attempts
    assert beside.rows("signals") == alone.rows("signals")
