"""The control loop on a clock of the test's own: rows before orders, once each, across deaths of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.act.loop import SECOND, Loop, site

from defib.engine.recover.events import SuspectPlace

QUIET = 100  # seconds until a controller that was just seen counts as steady


def begun(tmp_path: Path, mode: str = "act", **changes: object) -> Loop:
    """A loop that has watched a running job for a while."""
    loop = Loop(tmp_path / "state", site(mode, **changes))
    loop.job()
    loop.run(QUIET)
    return loop


def crashed(loop: Loop) -> None:
    loop.change(state="FAILED", exit_code=1, end_us=loop.us)
    loop.run(20)
    loop.judge()
    loop.run(60)


def test_a_crash_is_requeued_once_and_proven(tmp_path: Path) -> None:
    loop = begun(tmp_path)
    crashed(loop)
    assert loop.verbs == ["requeue"]
    assert loop.state == "accepted"
    assert [c.incident for c in loop.copies] == ["incident"]
    loop.run(130)
    loop.change(state="RUNNING", reason="", start_us=loop.us, nodes=("n03", "n04"))
    loop.run(20)
    assert loop.state == "started"
    loop.progress(100)
    loop.run(10)
    assert loop.state == "started"  # only where it failed, not past it
    loop.progress(101)
    loop.run(10)
    assert loop.state == "recovered", loop.history[-4:]
    assert loop.verbs == ["requeue"]
    assert [n.kind for n in loop.told.news] == ["acted", "recovered"]
    loop.controller.close()


def test_observe_decides_the_same_and_calls_nothing(tmp_path: Path) -> None:
    loop = begun(tmp_path, "observe")
    crashed(loop)
    loop.run(600)
    assert loop.executor.orders == []
    assert loop.controller.ports.executor is None
    assert loop.gate == "mode"
    (case,) = loop.controller.desk.cases.values()
    assert case.plan is not None
    assert case.plan.verb == "requeue"
    loop.controller.close()


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        ({"comment": ""}, "consent"),
        ({"comment": '{"defib": {"restart": ["hang"]}}'}, "consent"),
        ({"requeue": False}, "identity"),
        ({"partition": "other"}, "allow-list"),
        ({"exit_code": 93}, "end"),
    ],
)
def test_the_first_closed_gate_is_named(tmp_path: Path, change: dict[str, object], gate: str) -> None:
    loop = begun(tmp_path)
    loop.change(**change)  # type: ignore[arg-type]
    crashed_with = {"exit_code": change.get("exit_code", 1)}
    loop.change(state="FAILED", end_us=loop.us, **crashed_with)
    loop.run(20)
    loop.judge()
    loop.run(200)
    assert (loop.executor.orders, loop.gate) == ([], gate)
    loop.controller.close()


def test_a_completed_job_is_left_alone(tmp_path: Path) -> None:
    loop = begun(tmp_path)
    loop.judge("hung")
    loop.run(30)
    loop.change(state="COMPLETED", exit_code=0, end_us=loop.us)
    loop.judge()
    loop.run(300)
    assert (loop.executor.orders, loop.state) == ([], "cleared")
    loop.controller.close()


def test_the_kill_switch_in_the_state_folder(tmp_path: Path) -> None:
    loop = begun(tmp_path)
    (loop.folder / "STOP").touch()
    crashed(loop)
    loop.run(120)
    assert (loop.executor.orders, loop.gate) == ([], "kill-switch")
    (loop.folder / "STOP").unlink()
    loop.run(120)
    assert loop.verbs == ["requeue"]
    loop.controller.close()


def test_a_hang_needs_a_sign_from_outside_and_the_inbox_gives_it(tmp_path: Path) -> None:
    from defib.adapters.act import spool

    loop = begun(tmp_path)
    loop.judge("hung")
    loop.run(300)
    assert (loop.executor.orders, loop.gate) == ([], "independent-sign")
    spool.post(
        str(loop.folder / "inbox"),
        {
            "kind": "node",
            "node": "n02",
            "class": "gpu-hardware",
            "source": "nhc",
            "confidence": "certain",
            "expires_s": 3600,
        },
    )
    loop.run(100)
    assert loop.verbs == ["requeuehold", "exclude", "release"]
    assert loop.executor.orders[1].nodes == ("n02",)
    assert loop.executor.orders[0].incomplete
    loop.run(60)
    loop.change(state="RUNNING", reason="", start_us=loop.us, nodes=("n03", "n04"))
    loop.run(20)
    loop.progress(120)
    loop.run(10)
    assert loop.state == "recovered", loop.history[-4:]
    loop.controller.close()


def test_a_person_approves_exactly_what_was_shown(tmp_path: Path) -> None:
    import orjson

    from defib.adapters.act import spool

    loop = begun(tmp_path, "approve")
    crashed(loop)
    shown = orjson.loads((loop.folder / "asked.json").read_bytes())
    (asked,) = shown["asked"]
    assert loop.executor.orders == []
    said = str(loop.folder / "said")
    spool.post(said, {"what": "approve", "target": asked["case"], "digest": "0" * len(asked["digest"])})
    loop.run(90)
    assert loop.executor.orders == []
    spool.post(said, {"what": "approve", "target": asked["case"], "digest": asked["digest"]})
    loop.run(30)
    assert loop.verbs == ["requeue"]
    (case,) = loop.controller.desk.cases.values()
    assert case.approved == asked["digest"]
    loop.controller.close()


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_nothing_is_sent_again_because_of_a_restart(tmp_path: Path, happened: bool, clean: bool) -> None:
    """We end or die right after the call went out, and nobody told us what came of it."""
    loop = begun(tmp_path)
    loop.executor.silent, loop.executor.acts = True, happened
    loop.change(state="FAILED", exit_code=1, end_us=loop.us)
    loop.run(20)
    loop.judge()
    for _ in range(100):
        if not loop.executor.orders:
            loop.run(1)
    if clean:
        loop.controller.close()
    else:
        loop.die()
    loop.start()
    loop.run(55)
    assert len(loop.executor.orders) == 1
    loop.run(125)
    # only a call that was shown not to have happened is repeated, and it says so itself
    assert [o.reissue for o in loop.executor.orders] == ([False] if happened or not clean else [False, True])
    if happened:
        assert loop.state == "accepted"
    loop.controller.close()


def test_a_second_controller_is_kept_out_and_a_later_one_fences_the_first(tmp_path: Path) -> None:
    from defib.adapters.act.audit import Audit
    from defib.engine.words import StoreError

    loop = begun(tmp_path)
    with pytest.raises(StoreError, match="another defib"):
        Audit(str(loop.folder / "actions"))
    # the lock file is taken over behind its back: the lock gate closes
    lock = loop.folder / "actions" / "lock"
    lock.write_text(f"{99:020d} {1:010d}\n")
    crashed(loop)
    loop.run(60)
    assert (loop.executor.orders, loop.gate) == ([], "lock")
    loop.die()


def test_a_full_disk_stops_calls_and_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from defib.adapters.act.audit import verify
    from defib.adapters.journal.writer import Journal
    from defib.adapters.room import FullError

    loop = begun(tmp_path)
    sync, full = Journal.sync, [False]

    def maybe(self: Journal) -> None:
        if full[0]:
            raise FullError("full")
        sync(self)

    monkeypatch.setattr(Journal, "sync", maybe)
    full[0] = True
    loop.change(state="FAILED", exit_code=1, end_us=loop.us)
    loop.run(20)
    loop.judge()
    loop.run(120)
    assert loop.executor.orders == []
    assert "disarmed" in [n.kind for n in loop.told.news]
    full[0] = False
    loop.run(120)
    assert loop.verbs == ["requeue"]
    loop.controller.close()
    assert verify(str(loop.folder / "actions")).rows == loop.controller.desk.seq


def test_an_audit_that_fails_disarms_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from defib.adapters.journal.writer import Journal
    from defib.engine.words import StoreError

    loop = begun(tmp_path)

    def broken(self: Journal) -> None:
        raise StoreError("input/output error")

    monkeypatch.setattr(Journal, "sync", broken)
    crashed(loop)
    monkeypatch.undo()
    loop.run(300)
    assert loop.executor.orders == []
    assert "input/output" in loop.controller.broken
    assert loop.told.news[-1].kind == "disarmed"


def test_a_damaged_audit_is_not_acted_on(tmp_path: Path) -> None:
    from defib.adapters.act.audit import Audit, verify
    from defib.engine.words import StoreError

    loop = begun(tmp_path)
    crashed(loop)
    loop.controller.close()
    folder = loop.folder / "actions"
    whole = verify(str(folder))
    assert whole.rows > 4
    assert whole.evidence == 1
    (segment,) = folder.glob("*.seg")
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 1
    segment.write_bytes(bytes(raw))
    with pytest.raises(StoreError, match="damaged"):
        verify(str(folder))
    with pytest.raises(StoreError, match="damaged"):
        Audit(str(folder))


def test_an_executor_and_observe_do_not_go_together(tmp_path: Path) -> None:
    from defib.adapters.act.audit import Audit
    from defib.adapters.act.ports import Ports
    from defib.adapters.control import Controller

    loop = begun(tmp_path)
    loop.controller.close()
    audit = Audit(str(loop.folder / "actions"))
    p = loop.controller.ports
    with pytest.raises(ValueError, match="executor"):
        Controller(str(loop.folder), site("observe"), p, audit)
    with pytest.raises(ValueError, match="executor"):
        Controller(str(loop.folder), site("act"), Ports(p.scheduler, None, p.copy, p.tell, p.watching, p.now_us), audit)
    audit.close()


def test_evidence_that_cannot_be_kept_is_no_call(tmp_path: Path) -> None:
    loop = begun(tmp_path)

    def none(_: object) -> dict[str, object]:
        raise ValueError("no verdict")

    import dataclasses

    loop.controller.ports = dataclasses.replace(loop.controller.ports, copy=none)
    crashed(loop)
    loop.run(120)
    assert (loop.executor.orders, loop.gate) == ([], "evidence")
    assert loop.us > SECOND
    loop.controller.close()


def test_another_policy_counts_from_then_on(tmp_path: Path) -> None:
    loop = begun(tmp_path, "observe")
    crashed(loop)
    loop.run(100)
    assert (loop.verbs, loop.gate) == ([], "mode")
    loop.controller.renew(site("act"), lambda: loop.executor)
    loop.run(100)
    assert (loop.verbs, loop.state) == (["requeue"], "accepted")
    loop.controller.renew(site("observe"), lambda: loop.executor)
    assert loop.controller.ports.executor is loop.executor, "a case is under way"
    loop.change(state="RUNNING", reason="", start_us=loop.us, nodes=("n03", "n04"))
    loop.run(20)
    loop.progress(101)
    loop.run(20)
    assert loop.state == "recovered"
    assert loop.controller.ports.executor is None
    loop.controller.close()


def test_a_job_held_by_an_earlier_start_is_a_persons_where_only_watching_is_left(tmp_path: Path) -> None:
    """Nothing is called in observe, not even the release: it is told, and recovery's bookkeeping goes on."""
    loop = begun(tmp_path)
    loop.executor.silent = False
    loop.change(state="FAILED", exit_code=1, end_us=loop.us)
    loop.run(20)
    for n in range(2):
        loop.judge(suspects=(SuspectPlace("n01", None, "certain", "cause"),), because=f"told {n}")
        loop.run(20)
    assert loop.verbs[0] == "requeuehold", loop.history
    loop.die()
    loop.rules = site("observe")
    loop.executor.orders.clear()
    loop.change(held=True, excluded=(), reason="job_requeued_in_held_state")
    loop.start()
    loop.run(1500)
    assert loop.controller.broken == ""
    assert loop.verbs == []
    assert loop.state == "stranded", loop.history[-5:]
    assert "human" in [n.kind for n in loop.told.news]
    loop.controller.close()
