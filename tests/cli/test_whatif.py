"""`defib whatif` over a real history: which advices another policy changes, what it wins and loses, who would have gone on alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.stories import Stories, Try, episode

from defib.adapters import daemon, rulefiles
from defib.adapters.cli import main
from defib.adapters.tail.clock import SystemClock

Capture = pytest.CaptureFixture[str]
H = 3600.0
NEVER = "policy: recovery\nbudgets: {lineage: {without_progress: 0}}\n"
RUNNING = "policy: recovery\nact_on_running: true\n"


def run(begun_h: float, ended_h: float, first: int, last: int, klass: str | None, **more: Any) -> Try:
    """An attempt of so many hours."""
    verdict = "crashed" if klass else "completed"
    steps = [(first, begun_h * H + 60), (last, ended_h * H - 60)]
    return Try(steps, (begun_h * H, ended_h * H), more.pop("verdict", verdict), klass, at=ended_h * H, **more)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four jobs: hardware died and the next run passed it; the same, and the next run died at the same place; a user's fault; a hang that passed."""
    db = str(tmp_path_factory.mktemp("whatif") / "h.duckdb")
    told = Stories(db, rulefiles.load([]).book)
    told.write("1", run(0, 10, 1, 100, "gpu-hardware"), run(20, 30, 90, 300, None))
    told.write("2", run(40, 50, 1, 100, "gpu-hardware"), run(60, 64, 90, 100, None, verdict="cancelled"))
    told.write("3", run(70, 71, 1, 5, "user-code"))
    hung = episode("hung", 82 * H, 83 * H, onset_step=50)
    told.write("4", run(80, 90, 1, 500, None, episodes=(hung,)))
    return db


def asked(db: str, policy: Path, text: str, capsys: Capture, *more: str) -> str:
    policy.write_text(text)
    assert main(["whatif", "--policy", str(policy), "--db", db, *more]) == 0
    return capsys.readouterr().out


def test_advices_that_change_and_gpu_hours(history: str, tmp_path: Path, capsys: Capture) -> None:
    said = json.loads(asked(history, tmp_path / "new.yaml", NEVER, capsys, "--json"))
    assert said["schema"] == "defib/whatif/1"
    assert (said["attempts"], said["restarts_before"], said["restarts_after"], said["left_out"]) == (5, 2, 0, 0)
    changed = {c["past"]["attempt"]: c for c in said["changed"]}
    assert set(changed) == {"1#0", "2#0"}
    assert changed["1#0"]["after"]["because"].startswith("budget: ")
    wait_h = changed["1#0"]["before"]["wait_s"] / 3600
    # without it the ten hours until a person restarted job 1 are lost again, and the four of job 2's second run, which helped nobody, are won
    assert changed["1#0"]["gpu_h"] == pytest.approx(-(10 - wait_h))
    assert changed["2#0"]["gpu_h"] == pytest.approx(4)
    assert (said["won_gpu_h"], said["lost_gpu_h"]) == (pytest.approx(4), pytest.approx(10 - wait_h))


def test_runs_that_would_have_gone_on_alone(history: str, tmp_path: Path, capsys: Capture) -> None:
    said = json.loads(asked(history, tmp_path / "new.yaml", RUNNING, capsys, "--json"))
    assert (said["alone_before"], said["alone_after"], said["unknown"]) == (0, 1, 1)
    (change,) = said["changed"]
    assert (change["past"]["attempt"], change["past"]["healed"], change["gpu_h"]) == ("4#0~0", True, None)
    page = asked(history, tmp_path / "new.yaml", RUNNING, capsys)
    assert "restarts of runs that went on by themselves: 0 now, 1 with the new policy" in page


def test_the_same_policy_changes_nothing(history: str, tmp_path: Path, capsys: Capture) -> None:
    page = asked(history, tmp_path / "new.yaml", "policy: recovery\nmode: observe\n", capsys)
    assert page.startswith("5 attempts that did not end well: 2 restarts advised now, 2 with the new policy\n")
    assert "GPU-hours won 0.0, lost 0.0" in page


def test_a_bad_policy_is_refused_at_its_line_with_a_mend(history: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "new.yaml"
    file.write_text("policy: recovery\nmode: act\ncall:\n  backof_s: [0]\n")
    assert main(["whatif", "--policy", str(file), "--db", history]) == 2
    said = capsys.readouterr().err
    assert f"{file}:4:3" in said
    assert "backoff_s" in said
    assert main(["whatif", "--policy", str(tmp_path / "none.yaml"), "--db", history]) != 0
    assert "none.yaml" in capsys.readouterr().err


def test_an_empty_history_and_none_at_all(tmp_path: Path, capsys: Capture) -> None:
    empty = str(tmp_path / "empty.duckdb")
    Stories(empty, rulefiles.load([]).book).write("1", run(0, 10, 1, 100, None))
    page = asked(empty, tmp_path / "new.yaml", NEVER, capsys)
    assert page.startswith("0 attempts that did not end well: 0 restarts advised now, 0 with the new policy\n")
    assert main(["whatif", "--policy", str(tmp_path / "new.yaml"), "--db", str(tmp_path / "no.duckdb")]) == 3
    assert "no history here" in capsys.readouterr().err


def test_a_history_that_a_watch_holds_can_be_asked(tmp_path: Path, capsys: Capture) -> None:
    class Hooks:
        def asked(self) -> bool:
            return False

        def alarm(self, text: str) -> None:
            raise AssertionError(text)

    class Ears:
        def apply(self, effects: list[object]) -> None: ...

    state = tmp_path / "state"
    station = daemon.open_station(str(state), rulefiles.load([]), Ears(), Hooks(), SystemClock())
    try:
        assert asked(str(state), tmp_path / "new.yaml", NEVER, capsys).startswith("0 attempts")
    finally:
        station.close()
