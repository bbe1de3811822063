"""Suspects and episodes in the history: what a verdict says is what is stored and printed; evidence in SQL weighs as the engine does."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.stories import START_S, Stories, Try, attempt, died, episode, signal, suspect, us

from defib.adapters import rows, schema
from defib.adapters.cli import main
from defib.adapters.cli.tables import dumps
from defib.adapters.duck import DuckStore, connect
from defib.adapters.rulefiles import LoadedRules
from defib.engine.nodes import NodeFact, evidence, weigh
from defib.engine.policies import NodesPolicy
from defib.engine.words import JobKey, StoreError

V1 = Path(__file__).with_name("schema_v1.sql")


# --- suspects --------------------------------------------------------------------------------------------------------------------------


def test_the_suspect_is_told_in_the_attempt_and_names_the_node(stories: Stories) -> None:
    witness = died("n2")
    proof = signal(died("n9", at=90.0), 0)
    stories.write("70001", Try(**{**vars(witness), "suspect": suspect("n7", evidence=(proof,), breadth=2)}))
    (a,) = stories.ask("SELECT * FROM attempts")
    assert {k.removeprefix("suspect_"): v for k, v in a.items() if k.startswith("suspect_")} == {
        "rank": 3, "node": "n7", "gpu": "5", "how": "silent-rank", "confidence": "likely", "because": "it alone said nothing",
    }  # fmt: skip
    seven, two = stories.ask('SELECT * FROM nodes ORDER BY "role" DESC')
    assert (seven["node"], seven["role"], seven["gpu"], seven["source"], seven["breadth"]) == (
        "n7",
        "suspect",
        "5",
        "silent-rank",
        2,
    )
    assert (seven["confidence"], seven["class"], seven["time"]) == ("likely", "gpu-hardware", rows.moment(us(90)))
    assert (two["node"], two["role"], two["confidence"], two["source"]) == ("n2", "named", "unknown", None), (
        "a witness is no suspect"
    )


def test_a_suspect_without_a_node_accuses_no_node(stories: Stories) -> None:
    stories.write("70001", died("n2", suspect=suspect(None)))
    assert [(r["node"], r["role"]) for r in stories.ask("SELECT * FROM nodes")] == [("n2", "named")]
    assert stories.ask("SELECT * FROM node_evidence") == []


def test_without_a_suspect_nobody_is_accused(stories: Stories) -> None:
    """Whoever printed the cause may be one of many: then the engine names nobody, and the history must not either."""
    stories.write("70001", died("n2"))
    assert [(r["node"], r["role"], r["source"]) for r in stories.ask("SELECT * FROM nodes")] == [("n2", "named", None)]
    assert stories.ask("SELECT * FROM node_facts") == []
    assert stories.ask("SELECT suspect_node, suspect_how FROM attempts") == [
        {"suspect_node": None, "suspect_how": None}
    ]


def test_a_hang_without_a_line_is_an_incident_with_its_suspect(stories: Stories) -> None:
    """Nothing was printed: the silence itself is what is known, and the rank that said nothing before the others may be."""
    silence = episode("hung", 100, None, onset_step=2, because="no progress from here on")
    hung = Try(
        [(1, 90), (2, 100)], (0, 900), "stalled", "hang", episodes=(silence,), suspect=suspect("n7"), lined=False
    )
    stories.write("70001", hung)
    (i,) = stories.ask("SELECT * FROM incidents")
    assert (i["class"], i["rule"], i["confidence"], i["node"], i["rank"], i["step"]) == (
        "hang",
        None,
        "unknown",
        "n7",
        3,
        2,
    )
    assert (i["time"], i["because"], i["title"]) == (
        rows.moment(us(100)),
        "no progress from here on",
        "Nothing moved any more",
    )
    (n,) = stories.ask("SELECT * FROM nodes")
    assert (n["node"], n["role"], n["class"], n["confidence"], n["line"], n["time"]) == (
        "n7",
        "suspect",
        "hang",
        "likely",
        None,
        None,
    )
    assert stories.ask("SELECT node, weight FROM node_evidence") == [{"node": "n7", "weight": 0}], (
        "silence keeps no node out"
    )


def test_the_schedulers_bare_word_is_an_incident(stories: Stories) -> None:
    stories.write("70001", Try([(1, 90)], (0, 100), "crashed", "node-lost", lined=False))
    (i,) = stories.ask("SELECT * FROM incidents")
    assert (i["class"], i["domain"], i["retry"], i["time"]) == ("node-lost", "node", "yes", rows.moment(us(100)))
    assert stories.ask("SELECT * FROM nodes") == []


# --- episodes --------------------------------------------------------------------------------------------------------------------------

HANG = episode(
    "hung", 100, 160, onset_step=7, end_step=8, limit_s=30.0, stream=0, onset_offset=70, onset_line=7, because="silent"
)
LIVE = episode(
    "slow",
    50,
    None,
    clock="arrival",
    depth=0.25,
    scope="some",
    ranks=(3, 5),
    baseline_s=1.0,
    pace_s=1.3,
    because="slow",
)
STEPPED = episode("slow", 30, 90, clock="step", depth=0.5)


def test_every_field_of_an_episode_is_kept(stories: Stories) -> None:
    stories.write("70001", Try([(1, 10), (9, 200)], (0, 200), episodes=(HANG, LIVE, STEPPED)))
    hang, live, stepped = stories.ask("SELECT * FROM episodes ORDER BY position")
    assert list(hang) == list(schema.columns("episodes"))
    at = datetime.datetime.fromtimestamp(START_S, datetime.UTC).replace(tzinfo=None)
    seconds = datetime.timedelta(seconds=1)
    assert (hang["onset"], hang["declared"], hang["ended"]) == (
        at + 100 * seconds,
        at + 100 * seconds,
        at + 160 * seconds,
    )
    assert (hang["onset_s"], hang["ended_s"], hang["onset_step"], hang["end_step"]) == (
        START_S + 100,
        START_S + 160,
        7,
        8,
    )
    assert (hang["kind"], hang["phase"], hang["clock"], hang["limit_s"], hang["because"]) == (
        "hung",
        "steady",
        "event",
        30,
        "silent",
    )
    assert (hang["onset_offset"], hang["onset_line"], hang["ranks"], hang["depth"]) == (70, 7, [], None)
    assert stories.ask("SELECT path FROM episodes JOIN streams USING (stream_id)") == [{"path": "/logs/70001-0-0.out"}]
    assert (live["onset"], live["ended"], live["ended_s"]) == (rows.moment(50_000_000), None, None)
    assert (live["depth"], live["scope"], live["ranks"], live["pace_s"]) == (0.25, "some", [3, 5], 1.3)
    assert (stepped["onset"], stepped["ended"], stepped["onset_s"], stepped["ended_s"]) == (None, None, 30, 90)


def test_episodes_go_with_their_attempt(stories: Stories, loaded: LoadedRules) -> None:
    stories.write("70001", Try([(1, 10)], (0, 20), episodes=(HANG, LIVE)))
    stories.write("70002", Try([(1, 10)], (0, 20), episodes=(STEPPED,)))
    again = Stories(stories.db, loaded.book)  # the same logs, read once more
    again.write("70001", Try([(1, 10)], (0, 20), episodes=(HANG,)))
    assert stories.ask("SELECT attempt_id, kind FROM episodes ORDER BY ALL") == [
        {"attempt_id": "70001#0", "kind": "hung"},
        {"attempt_id": "70002#0", "kind": "slow"},
    ]


def test_the_object_of_jsonl_tells_both() -> None:
    told = died("n2", suspect=suspect("n7", evidence=(signal(died(), 0),)), episodes=(HANG, STEPPED))
    document = json.loads(dumps(rows.attempt_object(attempt(JobKey(job_id="70001"), 0, told, [0]), {0: "/logs/a.out"})))
    assert document["suspect"] == {
        "rank": 3, "node": "n7", "gpu": "5", "how": "silent-rank", "confidence": "likely", "because": "it alone said nothing", "breadth": 1,
        "evidence": [{"rule": "gpu.xid", "stream": "/logs/a.out", "line": 50, "offset": 500}],
    }  # fmt: skip
    hang, stepped = document["episodes"]
    assert (hang["onset"], hang["ended"], hang["onset_s"]) == (
        "2026-05-28T20:28:20Z",
        "2026-05-28T20:29:20Z",
        START_S + 100,
    )
    assert (hang["stream"], hang["kind"], hang["onset_step"], hang["limit_s"]) == ("/logs/a.out", "hung", 7, 30)
    assert (stepped["onset"], stepped["onset_s"], stepped["depth"], stepped["stream"]) == (None, 30, 0.5, None)
    bare = rows.attempt_object(attempt(JobKey(job_id="70001"), 0, Try(), [0]), {0: "x"})
    assert (bare["suspect"], bare["episodes"]) == (None, [])


# --- a store of the version before -------------------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A history as version 1 wrote it, with rows."""
    db = str(tmp_path / "old.duckdb")
    con = duckdb.connect(db)
    con.execute(V1.read_text(encoding="utf-8"))
    con.execute("INSERT INTO meta VALUES ('schema', '1'), ('rules', 'x')")
    con.execute(
        "INSERT INTO attempts (attempt_id, job, attempt_index, verdict, first_step, last_step) VALUES ('60001#0', '60001', 0, 'crashed', 1, 9)"
    )
    con.execute(
        "INSERT INTO incidents (incident_id, attempt_id, class, time) VALUES ('i1', '60001#0', 'gpu-hardware', '2026-05-01')"
    )
    con.execute(
        'INSERT INTO nodes (node, attempt_id, incident_id, "role", class, confidence, time) '
        "VALUES ('n1', '60001#0', 'i1', 'suspect', 'gpu-hardware', 'certain', '2026-05-01')"
    )
    con.close()
    return db


def test_a_store_of_the_version_before_keeps_its_rows_and_gains_what_is_new(
    old: str, stories: Stories, loaded: LoadedRules
) -> None:
    DuckStore(old, loaded.book).close()
    con = connect(old, read_only=True)
    assert con.execute("SELECT value FROM meta WHERE key = 'schema'").fetchall() == [(str(schema.VERSION),)]
    for table in schema.TABLES:
        names = [r[0] for r in con.execute(f"DESCRIBE {table}").fetchall()]
        assert names == list(schema.columns(table)), "as a new store has them, in order"
    kept = con.execute("SELECT job, verdict, last_step, suspect_node, progress_counts FROM attempts").fetchall()
    assert kept == [("60001", "crashed", 9, None, None)]
    assert con.execute("SELECT node, incidents, jobs, weight FROM node_evidence").fetchall() == [("n1", 1, 1, 1.0)]
    con.close()
    fresh = Stories(old, loaded.book)
    fresh.write("70001", died("n1", episodes=(HANG,), suspect=suspect("n1")))
    assert [(r["job"], r["suspect_how"]) for r in fresh.ask("SELECT * FROM attempts ORDER BY job")] == [
        ("60001", None),
        ("70001", "silent-rank"),
    ]
    assert [r["jobs"] for r in fresh.ask("SELECT sum(jobs)::INT AS jobs FROM node_evidence")] == [2]


def test_opening_again_writes_the_rules_numbers_only_when_they_changed(stories: Stories, loaded: LoadedRules) -> None:
    stories.write("70001", died("n1"))
    half_life = "SELECT value FROM policy WHERE key = 'half_life_hours'"
    assert stories.ask(half_life) == [{"value": 168}]
    assert len(stories.ask("FROM classes")) == len(loaded.book.classes)
    policies = {"nodes": {**loaded.book.policies["nodes"], "half_life_hours": 24.0}}
    DuckStore(stories.db, dataclasses.replace(loaded.book, policies=policies)).close()
    assert stories.ask(half_life) == [{"value": 168}], "the same hash means the same rules"
    DuckStore(stories.db, dataclasses.replace(loaded.book, policies=policies, hash="other")).close()
    assert stories.ask(half_life) == [{"value": 24}]
    assert len(stories.ask("FROM attempts")) == 1


def test_a_view_that_was_dropped_comes_back(stories: Stories, loaded: LoadedRules) -> None:
    stories.write("70001", died("n1"))
    con = duckdb.connect(stories.db)
    con.execute("DROP VIEW goodput")
    con.close()
    DuckStore(stories.db, loaded.book).close()
    assert len(stories.ask("FROM goodput")) == 1


def test_a_reader_of_an_old_store_is_told_what_to_do(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "--db", old]) == 3
    assert (
        "written by an earlier defib (schema 1); the next 'defib replay LOGS…' into it, or the next start of its watch, brings it up to date"
        in capsys.readouterr().err
    )
    assert main(["attempts", "--db", old]) == 0, "what the old store has can be read"


def test_an_old_store_is_left_alone_when_the_upgrade_fails(
    old: str, loaded: LoadedRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Path(old).read_bytes()
    monkeypatch.setattr(schema, "views", lambda: ["SELECT error('no room')"])
    with pytest.raises(StoreError, match="no room"):
        DuckStore(old, loaded.book)
    con = duckdb.connect(old)
    assert con.execute("SELECT value FROM meta WHERE key = 'schema'").fetchall() == [("1",)]
    assert "suspect_node" not in {r[0] for r in con.execute("DESCRIBE attempts").fetchall()}
    con.close()
    assert len(before) <= Path(old).stat().st_size


# --- evidence in SQL -------------------------------------------------------------------------------------------------------------------

CLASSES = ("gpu-hardware", "nvlink", "gpu-suspect", "storage-fault", "user-code", "peer-lost")
INCIDENTS = st.lists(
    st.tuples(
        st.sampled_from(["n1", "n2", "n3", "n4"]),
        st.sampled_from([None, "0", "1"]),
        st.sampled_from(["80001", "80002", "80003"]),
        st.sampled_from(CLASSES),
        st.sampled_from(["certain", "likely", "possible", "unknown"]),
        st.none() | st.integers(0, 700 * 12).map(lambda n: n * 300),  # five minutes apart: some fall together
        st.sampled_from([None, 1, 2, 3]),
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def bare(loaded: LoadedRules) -> Iterator[duckdb.DuckDBPyConnection]:
    """A store in memory with the shipped classes and policy."""
    con = duckdb.connect(":memory:")
    for statement in [*schema.tables(), *schema.views()]:
        con.execute(statement)
    for table, values in (("classes", rows.class_rows(loaded.book)), ("policy", rows.policy_rows(loaded.book))):
        for v in values:
            con.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(v))})", list(v.values()))
    yield con
    con.close()


@settings(max_examples=60)
@given(INCIDENTS)
def test_the_view_weighs_as_the_engine_does(
    bare: duckdb.DuckDBPyConnection, loaded: LoadedRules, incidents: list[tuple[Any, ...]]
) -> None:
    con = bare
    con.execute("DELETE FROM attempts; DELETE FROM nodes")
    facts = []
    for i, (node, gpu, job, klass, sure, seconds, breadth) in enumerate(incidents):
        at = None if seconds is None else us(seconds)
        con.execute("INSERT INTO attempts (attempt_id, job) VALUES (?, ?)", [f"{job}#{i}", job])
        con.execute(
            "INSERT INTO nodes (node, gpu, attempt_id, incident_id, \"role\", class, confidence, time, breadth) VALUES (?, ?, ?, ?, 'suspect', ?, ?, ?, ?)",
            [node, gpu, f"{job}#{i}", f"i{i}", klass, sure, rows.moment(at), breadth],
        )
        facts.append(NodeFact(node, gpu, at, klass, sure, job, f"i{i}", None, breadth))
    now = max((f.time_us for f in facts if f.time_us is not None), default=0)
    told = evidence(weigh(facts, loaded.book.class_by_id, loaded.book.policy(NodesPolicy), now))
    want = sorted((e.node, e.gpu or "", e.incidents, e.jobs, rows.moment(e.last_us), list(e.classes)) for e in told)
    weights = {(e.node, e.gpu): e.weight for e in told}
    got = con.execute("SELECT node, gpu, incidents, jobs, weight, last_time, classes FROM node_evidence").fetchall()
    assert sorted((n, g or "", i, j, t, c) for n, g, i, j, _, t, c in got) == want
    for node, gpu, _, _, weight, _, _ in got:
        assert weight == pytest.approx(weights[node, gpu], abs=1e-6)
    assert [r[4] for r in got] == sorted((r[4] for r in got), reverse=True)
