"""Decisions, actions and the audit in the history: once each, whoever dies when, and the same after a rebuild."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest
from tests.act.loop import Loop, site
from tests.act.test_control import QUIET, crashed

from defib.adapters import daemon, rulefiles, schema
from defib.adapters.act import audit as audits
from defib.adapters.acts import Acts, load
from defib.adapters.duck import connect
from defib.adapters.journal.writer import Journal
from defib.adapters.livestore import LiveStore
from defib.engine.recover.words import Row
from defib.engine.words import StoreError

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def book() -> Any:
    return rulefiles.load([]).book


class Kept:
    """A controller whose audit goes into a history."""

    def __init__(self, folder: Path, book: Any, mode: str = "act") -> None:
        self.book, self.db = book, str(folder / "h.duckdb")
        self.open()
        self.loop = Loop(folder / "state", site(mode), self.acts)

    def open(self) -> None:
        self.store = LiveStore(self.db, self.book, "one")
        self.acts = self.store.beside = Acts(self.store.meta)

    def again(self) -> None:
        """A new process: what had not been flushed is gone with the old one."""
        self.loop.die()
        self.store.abandon()
        self.open()
        self.loop.acts = self.acts
        self.loop.start()

    def ask(self, query: str) -> Rows:
        self.store.flush()
        return self.store.cursor().execute(query).fetchall()

    def incident(self) -> None:
        self.loop.job()
        self.loop.run(QUIET)
        crashed(self.loop)

    def mended(self) -> None:
        mend(self.loop)


def mend(loop: Loop) -> None:
    """The next run starts and passes the step where it failed."""
    loop.run(130)
    loop.change(state="RUNNING", reason="", start_us=loop.us, nodes=("n03", "n04"))
    loop.run(20)
    loop.progress(101)
    loop.run(10)


@pytest.fixture
def kept(tmp_path: Path, book: Any) -> Any:
    made = Kept(tmp_path, book)
    yield made
    made.store.abandon()
    made.loop.die()


def test_a_recovery_can_be_asked_for_at_every_moment(kept: Kept) -> None:
    assert kept.ask("SELECT * FROM actions") == []
    kept.incident()
    query = "SELECT state, kind, calls, outcome, class, failed_step, user_name, gate FROM actions"
    assert kept.ask(query) == [("accepted", "requeue", 1, "done", "gpu-hardware", 100, "ada", None)]
    kept.mended()
    assert kept.ask(query) == [("recovered", "requeue", 1, "done", "gpu-hardware", 100, "ada", None)]
    assert kept.ask("SELECT state, reached_step FROM actions WHERE state = 'recovered'") == [("recovered", 101)]
    states = [s for (s,) in kept.ask("SELECT state FROM action_steps WHERE was IS DISTINCT FROM state ORDER BY seq")]
    assert states == ["suspect", "confirmed", "planned", "authorised", "issued", "accepted", "started", "recovered"]
    (call,) = orjson.loads(kept.ask("SELECT detail FROM actions")[0][0])
    assert (call["argv"], call["answer"]) == (["scontrol", "requeue", "1001"], "done")
    assert call["issued_us"] <= call["began_us"] <= call["answered_us"]
    ((verdict, gate, inputs, when),) = kept.ask(
        "SELECT verdict, gate, inputs, decided_at FROM decisions WHERE verdict = 'authorised'"
    )
    assert (verdict, gate, orjson.loads(inputs)["attempt"]["job_id"]) == ("authorised", None, 1001)
    assert isinstance(when, datetime)
    assert kept.ask("SELECT state, took_s > 0 FROM recoveries") == [("recovered", True)]


def test_a_decision_names_its_gate_the_value_and_when_it_was_read(kept: Kept) -> None:
    kept.loop.job(comment="")
    kept.loop.run(QUIET)
    crashed(kept.loop)
    ((verdict, gate, value, read_at, for_good, because),) = kept.ask(
        "SELECT verdict, gate, value, read_at, for_good, because FROM decisions"
    )
    assert (verdict, gate, for_good) == ("refused", "consent", "consent")
    assert value in because
    assert isinstance(read_at, datetime)
    assert kept.ask("SELECT state, kind, calls, gate FROM actions") == [("refused", None, 0, "consent")]


def test_observe_says_what_it_would_have_done(tmp_path: Path, book: Any) -> None:
    kept = Kept(tmp_path, book, "observe")
    kept.incident()
    assert kept.ask('SELECT state, calls, gate, "would" FROM actions') == [("planned", 0, "mode", True)]
    assert ("would-act", "mode") in kept.ask("SELECT verdict, gate FROM decisions ORDER BY seq")
    kept.store.abandon()
    kept.loop.die()


@pytest.mark.parametrize("flushed", [True, False], ids=["flushed", "killed-before-the-flush"])
def test_nothing_is_in_it_twice_after_a_kill_and_nothing_is_missing(kept: Kept, flushed: bool) -> None:
    kept.incident()
    if flushed:
        kept.store.flush()
    kept.again()
    kept.mended()
    kept.again()
    rows = list(audits.written(str(kept.loop.folder / "actions")))
    assert kept.ask("SELECT seq, chain, what FROM audit ORDER BY seq") == [(r.seq, c, r.what) for r, c in rows]
    assert kept.ask("SELECT state FROM actions") == [("recovered",)]
    assert kept.ask("SELECT count(*) FROM decisions") == [(sum(bool(r.inputs) for r, _ in rows),)]


class Failing:
    """A connection whose n-th statement fails."""

    def __init__(self, con: Any, at: int) -> None:
        self._con, self.at = con, at

    def execute(self, *args: Any) -> Any:
        self.at -= 1
        if self.at == 0:
            raise duckdb.IOException("no space left on device")
        return self._con.execute(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Row, str]]:
    """The audit of one recovery, from suspicion to proof."""
    loop = Loop(tmp_path_factory.mktemp("course") / "state", site())
    loop.job()
    loop.run(QUIET)
    crashed(loop)
    mend(loop)
    loop.controller.close()
    return list(audits.written(str(loop.folder / "actions")))


@pytest.mark.parametrize("at", range(1, 16))
def test_a_write_that_fails_anywhere_is_made_again_whole(
    at: int, course: list[tuple[Row, str]], tmp_path: Path, book: Any
) -> None:
    store = LiveStore(str(tmp_path / "h.duckdb"), book, "one")
    acts = store.beside = Acts(store.meta)
    acts.of("this")
    for row, chain in course[:-3]:
        acts.take(row, chain)
    failing = store.con = Failing(store.con, at)  # type: ignore[assignment]
    with pytest.raises(StoreError):
        store.flush()
    assert failing.at <= 0
    for row, chain in course[-3:]:
        acts.take(row, chain)
    store.flush()
    n = len(course)
    assert store.con.execute("SELECT count(*), count(DISTINCT seq), max(seq) FROM audit").fetchall() == [(n, n, n)]
    assert store.con.execute("SELECT state FROM actions").fetchall() == [("recovered",)]
    store.abandon()


def test_another_audit_is_told_of_anew(kept: Kept, tmp_path: Path) -> None:
    kept.incident()
    assert kept.ask("SELECT count(*) FROM actions") == [(1,)]
    other = audits.Audit(str(tmp_path / "other"))
    assert kept.acts.of(other.identity)
    other.close()
    assert kept.ask("SELECT count(*) FROM actions") == [(0,)]
    assert kept.ask("SELECT count(*) FROM audit") == [(0,)]
    kept.acts.of(kept.loop.controller.audit.identity)
    load(
        kept.acts,
        kept.loop.controller.audit.identity,
        audits.written(str(kept.loop.folder / "actions")),
        kept.store.flush,
        3,
    )
    assert kept.ask("SELECT state FROM actions") == [("accepted",)]


def test_a_rebuild_gives_the_same_rows(kept: Kept, tmp_path: Path) -> None:
    kept.incident()
    kept.mended()
    tables = {t: kept.ask(f"SELECT * FROM {t} ORDER BY ALL") for t in ("audit", "decisions", "actions")}
    Journal(str(kept.loop.folder / "journal"), ballast_bytes=4096).close()
    new = str(tmp_path / "new.duckdb")
    daemon.rebuild(str(kept.loop.folder), new, rulefiles.load([]))
    con = connect(new, read_only=True)
    assert {t: con.execute(f"SELECT * FROM {t} ORDER BY ALL").fetchall() for t in tables} == tables
    con.close()


def test_a_damaged_audit_stops_a_rebuild_unless_it_is_to_be_salvaged(kept: Kept, tmp_path: Path) -> None:
    kept.incident()
    Journal(str(kept.loop.folder / "journal"), ballast_bytes=4096).close()
    (segment,) = (kept.loop.folder / "actions").glob("*.seg")
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"all gates are open")] ^= 1
    segment.write_bytes(raw)
    loaded, new = rulefiles.load([]), tmp_path / "new.duckdb"
    with pytest.raises(StoreError, match="damaged at byte"):
        daemon.rebuild(str(kept.loop.folder), str(new), loaded)
    assert not new.exists()
    done = daemon.rebuild(str(kept.loop.folder), str(new), loaded, salvage=True)
    assert "damaged at byte" in done.notes[0]
    con = connect(str(new), read_only=True)
    assert con.execute("SELECT state FROM actions").fetchall() == [("planned",)]
    con.close()
    assert segment.read_bytes() == raw, "the audit itself is left as it is"


def test_a_history_of_the_version_before_gains_the_columns_and_keeps_its_rows(tmp_path: Path, book: Any) -> None:
    old = {
        "decisions": "decision_id VARCHAR PRIMARY KEY, attempt_id VARCHAR, incident_id VARCHAR, decided_at TIMESTAMP, verdict VARCHAR, "
        "gate VARCHAR, inputs JSON",
        "actions": "action_id VARCHAR PRIMARY KEY, decision_id VARCHAR, attempt_id VARCHAR, kind VARCHAR, state VARCHAR, issued_at TIMESTAMP, "
        "outcome VARCHAR, detail JSON",
        "audit": "seq BIGINT PRIMARY KEY, recorded_at TIMESTAMP, who VARCHAR, what VARCHAR, detail JSON, chain VARCHAR",
    }  # fmt: skip
    con = duckdb.connect(str(tmp_path / "h.duckdb"))
    con.execute("CREATE TABLE meta (key VARCHAR PRIMARY KEY, value VARCHAR)")
    con.execute("INSERT INTO meta VALUES ('schema', '3'), ('journal', 'one')")
    for name, declared in old.items():
        con.execute(f"CREATE TABLE {name} ({declared})")
    con.execute("INSERT INTO actions (action_id, state) VALUES ('early', 'recovered')")
    con.close()
    store = LiveStore(str(tmp_path / "h.duckdb"), book, "one")
    for name in old:
        assert [d[0] for d in store.con.execute(f"SELECT * FROM {name} LIMIT 0").description] == list(
            schema.columns(name)
        )
    assert store.con.execute("SELECT action_id, state, job FROM actions").fetchall() == [("early", "recovered", None)]
    assert store.con.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == (str(schema.VERSION),)
    store.abandon()
