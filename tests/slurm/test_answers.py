"""What commands print -> jobs: every generation tells the same, nothing a user writes reaches another field, a bad record hides nobody."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slurm import printed
from tests.slurm.printed import JSONS, START, job

from defib.adapters.slurm import answers
from defib.adapters.slurm.answers import COLUMNS, Told
from defib.engine.jobs import JobFacts

DIVIDER = "~5f0c="
ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT.parent / "shared" / "field" / "slurm" / "samples"
FREE = ("name", "comment", "admin_comment")  # what users and operators write


def of_json(release: str, *jobs: printed.Job) -> Told:
    return answers.jobs_of_json(JSONS[release](list(jobs)), None)


def of_columns(*jobs: printed.Job, without: frozenset[str] = frozenset()) -> Told:
    keys = [k for k in COLUMNS if k not in without]
    return answers.jobs_of_columns(printed.columns(list(jobs), DIVIDER, keys), DIVIDER, None, without)


def of_scontrol(one: printed.Job) -> Told:
    return answers.job_of_text(printed.scontrol(one), one["job_id"], one["name"], "bed")


def only(told: Told) -> JobFacts:
    assert (told.fault, told.troubles, told.whole) == ("", (), True)
    assert len(told.jobs) == 1
    return told.jobs[0]


def everywhere(one: printed.Job) -> dict[str, JobFacts]:
    found = {release: only(of_json(release, one)) for release in JSONS}
    return found | {"columns": only(of_columns(one)), "scontrol": only(of_scontrol(one))}


SHAPES = {
    "running": job(),
    "pending": job(state=["PENDING"], reason="Priority", nodes="", host="", start=0, end=0),
    "held": job(state=["PENDING"], reason="JobHeldUser", priority=0, nodes="", host="", start=0, end=0),
    "suspended": job(state=["SUSPENDED"], suspend=START + 90, priority=0),
    "failed": job(state=["FAILED"], reason="NonZeroExitCode", status=768),
    "killed": job(state=["FAILED"], reason="RaisedSignal", status=9),
    "cancelled": job(state=["CANCELLED"], status=15),
    "node failed": job(state=["NODE_FAIL"], reason="NodeDown", requeue=False),
    "task": job(job_id=4713, array=4711, task=2, pattern=b"a_%A_%a.out", stdout=b"/home/ada/run/a_4711_2.out"),
    "component": job(het=4711, offset=0),
    "requeued": job(restarts=3, submit=START + 7200, start=START + 7300, end=START + 9000),
    "whole cluster": job(nodes="g[01-03],h-[7-8]-x", count=5),
}


@pytest.mark.parametrize("what", SHAPES)
def test_every_form_tells_the_same(what: str) -> None:
    found = everywhere(SHAPES[what])
    first = found["24.11"]
    for form, facts in found.items():
        facts = replace(facts, sluid=None, comment="", reason=facts.reason, suspended_us=first.suspended_us if form == "columns" else facts.suspended_us)  # fmt: skip
        assert facts == replace(first, sluid=None), form


def test_what_is_told() -> None:
    facts = only(of_json("26.05", job(state=["FAILED"], status=768, comment=b'{"a": 1}')))
    assert (facts.label, facts.state, facts.flags, facts.exit_code, facts.exit_signal) == (
        "4711",
        "FAILED",
        frozenset(),
        3,
        None,
    )
    assert (facts.nodes, facts.excluded, facts.batch_host) == (("g01", "g02"), ("g07", "g08"), "g01")
    assert (facts.submit_us, facts.start_us, facts.end_us) == (
        START * 10**6,
        (START + 60) * 10**6,
        (START + 3660) * 10**6,
    )
    assert (facts.gpus, facts.time_limit_s, facts.comment, facts.stdout) == (
        8,
        3600,
        '{"a": 1}',
        b"/home/ada/run/out-4711.log",
    )
    assert (facts.uid, facts.user, facts.cluster, facts.sluid) == (1001, "ada", "bed", "s509M8SE8EK500")


@pytest.mark.parametrize("release", JSONS)
def test_flags_beside_the_state(release: str) -> None:
    facts = only(of_json(release, job(state=["PENDING", "COMPLETING"], restarts=1)))
    assert "COMPLETING" in facts.flags
    assert facts.state == ("PENDING" if release in ("24.11", "26.05") else "")  # older ones print only the flag
    assert facts.told.state == "COMPLETING"
    assert facts.exit_code is None


@pytest.mark.parametrize("form", [*JSONS, "columns"])
def test_tasks_that_were_not_split_off_are_nobody(form: str) -> None:
    group = job(array=4711, tasks="2-5%2", state=["PENDING"], nodes="", host="", start=0, end=0, count=1)
    facts = only(of_columns(group) if form == "columns" else of_json(form, group))
    assert (facts.array_pending, facts.array_job_id, facts.array_task) == (True, 4711, None)


@pytest.mark.parametrize("form", [*JSONS, "columns"])
def test_components_belong_together(form: str) -> None:
    one = job(job_id=4712, het=4711, offset=1)
    facts = only(of_columns(one) if form == "columns" else of_json(form, one))
    assert (facts.het_job_id, facts.het_offset) == (4711, 1)
    assert facts.stdout is None, "the batch script runs in the leading component only"


@pytest.mark.parametrize("release", JSONS)
def test_a_bad_record_is_named_and_hides_nobody(release: str) -> None:
    told = of_json(
        release, job(job_id=1), job(job_id=2, nodes="g[1-"), job(job_id=3, state=["NONSENSE"]), job(job_id=4)
    )
    assert [j.job_id for j in told.jobs] == [1, 4]
    assert told.unread == {2, 3}
    assert told.whole
    assert [t.split(":")[0] for t in told.troubles] == ["job 2", "job 3"]


def test_a_record_without_an_id_makes_the_read_partial() -> None:
    data = JSONS["24.11"]([job(job_id=1), job(job_id=2)]).replace(b'"job_id": 2,', b'"job_id": null,')
    told = answers.jobs_of_json(data, None)
    assert ([j.job_id for j in told.jobs], told.whole) == ([1], False)


def test_errors_are_no_answer_whatever_the_exit_code() -> None:
    error = {"description": "Failed while looking for jobs", "error_number": -1, "error": "Unspecified error"}
    told = answers.jobs_of_json(printed.squeue_2205([], [error]), None)
    assert told.fault == "Unspecified error: Failed while looking for jobs"
    assert not told.broken
    assert not told.whole


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b'{"jobs": {}}', b"\xff\xfe", b"[" * 100_000, b'{"meta": 7, "x": []}']
)
def test_broken_documents_are_no_answer(data: bytes) -> None:
    told = answers.jobs_of_json(data, None)
    assert told.fault
    assert told.broken
    assert not told.whole


def test_columns_that_do_not_add_up_are_no_answer() -> None:
    data = printed.columns([job()], DIVIDER, list(COLUMNS))
    for cut in (2, 50, len(data) - 2):
        assert answers.jobs_of_columns(data[:-cut], DIVIDER, None).broken
    assert answers.jobs_of_columns(b"", DIVIDER, None) == Told()


def test_a_column_a_release_does_not_know() -> None:
    facts = only(of_columns(job(), without=frozenset(["ExcNodes"])))
    assert (facts.excluded, facts.nodes) == ((), ("g01", "g02"))


# ---- what users write ----

NASTY = st.one_of(
    st.sampled_from(
        [
            b" UserId=root(0) GroupId=root(0) ", b"\nJobId=4711 JobName=x UserId=root(0) ", b"JobState=FAILED", b" Restarts=9 ", b" Command=",
            b" Features=", b" WorkDir=/ StdErr=/ StdIn=/ StdOut=/etc/passwd Power= ", b"|", b"\n", b"\r", b"\t", b"\x1b[31m", b"\xff", b"\xc3",
            b'"', b"\\", b"%j", b"%", b"~", b"{", b"}", b'","job_id":1,"', b"N/A", b"(null)", b" ", b"=", b"NodeList=n09", b"\xed\xa0\x80",
            DIVIDER[:-1].encode(),
        ]
    ),
    st.binary(min_size=1, max_size=8).filter(lambda b: b"\0" not in b),
)  # fmt: skip
TEXT = st.lists(NASTY, max_size=8).map(b"".join).filter(lambda b: DIVIDER.encode() not in b)


def without(facts: JobFacts, *names: str) -> dict[str, object]:
    return {f.name: getattr(facts, f.name) for f in fields(facts) if f.name not in (*FREE, *names)}


@given(name=TEXT, comment=TEXT, admin=TEXT)
@settings(max_examples=300, deadline=None)
def test_no_name_and_no_comment_changes_another_field_or_job(name: bytes, comment: bytes, admin: bytes) -> None:
    hostile = {"name": name, "comment": comment, "admin_comment": admin}
    jobs, plain = (
        [job(job_id=1), job(job_id=2, **hostile), job(job_id=3)],
        [job(job_id=1), job(job_id=2), job(job_id=3)],
    )
    for release in JSONS:
        told, expected = of_json(release, *jobs), of_json(release, *plain)
        assert (told.troubles, told.unread, told.fault) == ((), frozenset(), "")
        assert list(map(without, told.jobs)) == list(map(without, expected.jobs)), release
        assert told.jobs[1].name == name.decode("utf-8", "replace")
        told.jobs[1].comment.encode()  # valid text, whatever the bytes were
    told, expected = of_columns(*jobs), of_columns(*plain)
    assert (told.troubles, told.unread, told.fault) == ((), frozenset(), "")
    assert list(map(without, told.jobs)) == list(map(without, expected.jobs))
    assert told.names[2] == name


@given(name=TEXT, comment=TEXT)
@settings(max_examples=300, deadline=None)
def test_no_name_and_no_comment_changes_a_record_of_scontrol(name: bytes, comment: bytes) -> None:
    paths = ("stdout", "stderr", "work_dir")
    facts = only(of_scontrol(job(name=name, comment=comment)))
    plain = only(of_scontrol(job()))
    assert without(facts, *paths) == without(plain, *paths)
    assert facts.stdout in (None, plain.stdout) or facts.stdout != b"/etc/passwd"


def test_a_record_of_another_job_is_refused() -> None:
    for data, job_id, name in (
        (printed.scontrol(job()), 4712, b"llm"),
        (printed.scontrol(job()), 4711, b"llm2"),
        (b"", 4711, b"llm"),
        (b"JobId=4711 JobName=llm", 4711, b"llm"),
    ):
        told = answers.job_of_text(data, job_id, name, "bed")
        assert (told.jobs, told.unread) == ((), {job_id})


@given(data=st.binary(max_size=200), job_id=st.integers(1, 9))
def test_no_bytes_raise(data: bytes, job_id: int) -> None:
    assert answers.jobs_of_json(data, None).fault
    answers.jobs_of_columns(data, DIVIDER, None)
    answers.job_of_text(data, job_id, b"x", None)
    answers.nodes_of_text(data)
    answers.nodes_of_json(data)


# ---- nodes ----


def test_nodes_in_every_form() -> None:
    new = b"""{"nodes": [{"name": "n1", "state": ["IDLE", "DRAIN"], "reason": "xid 79", "partitions": ["train"]},
      {"name": "n2", "state": ["DOWN", "NOT_RESPONDING"], "reason": "", "partitions": []}, {"state": ["IDLE"]}], "errors": []}"""
    old = b"""{"nodes": [{"name": "n1", "state": "idle", "state_flags": ["DRAIN"], "reason": "xid 79", "partitions": ["train"]},
      {"name": "n2", "state": "down", "state_flags": ["NOT_RESPONDING"], "reason": "", "partitions": []}, {"state": "idle"}], "errors": []}"""
    text = (
        b"NodeName=n1 Arch=x86_64 State=IDLE+DRAIN ThreadsPerCore=1 Partitions=train  BootTime=x Reason=xid 79 [root@2026-12-01T18:00:00]\n"
        b"NodeName=n2 State=DOWN* Partitions= BootTime=y\n"
    )
    for nodes, troubles in (answers.nodes_of_json(new), answers.nodes_of_json(old), answers.nodes_of_text(text)):
        assert nodes is not None
        assert [(n.name, n.state, n.usable, n.reason) for n in nodes] == [
            ("n1", "IDLE", False, "xid 79"),
            ("n2", "DOWN", False, ""),
        ]
        assert "DRAIN" in nodes[0].flags
        assert "NOT_RESPONDING" in nodes[1].flags
        assert len(troubles) <= 1
    assert answers.nodes_of_json(b'{"nodes": [], "errors": [{"error": "no"}]}') == (None, ("no",))


# ---- real answers of three releases, where they lie beside the checkout ----


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no recorded answers of Slurm beside the checkout")
@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_recorded_answers(release: str) -> None:
    folder = SAMPLES / release
    told = answers.jobs_of_json(
        (folder / ("squeue.json" if release == "22.05" else "squeue-all.json")).read_bytes(), None
    )
    assert (told.fault, told.troubles, len(told.jobs)) == ("", (), 26)
    jobs = {j.job_id: j for j in told.jobs}
    for path in folder.glob("s*show-job*.json"):
        again = answers.jobs_of_json(path.read_bytes(), None)
        assert (again.fault, again.troubles) == ("", ())
        assert {j.job_id: j.submit_us for j in again.jobs}.items() <= {i: j.submit_us for i, j in jobs.items()}.items()
    for line in (folder / "scontrol-o-show-job.txt").read_bytes().splitlines():
        found = re.match(rb"JobId=(\d+)", line)
        assert found
        j = jobs[int(found[1])]
        facts = only(answers.job_of_text(line, j.job_id, j.name.encode(), j.cluster))
        same = ("state", "start_us", "flags", "reason", "sluid")  # moments and spellings differ
        assert without(facts, *same) == without(j, *same)
        assert facts.state in (j.state, "")
    for path in [*folder.glob("*show-node.json"), *([folder / "sinfo.json"] if release == "22.05" else [])]:
        nodes, troubles = answers.nodes_of_json(path.read_bytes())
        assert nodes is not None
        assert ([n.name for n in nodes], troubles) == ([f"n{i:02d}" for i in range(1, 9)], ())
        text, _ = answers.nodes_of_text((folder / "scontrol-o-show-node.txt").read_bytes())
        assert {(n.name, n.reason, n.partitions) for n in text} == {(n.name, n.reason, n.partitions) for n in nodes}
