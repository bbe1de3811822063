"""`defib nodes`: the page a person reads at night, its JSON, and what may be told beside the logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.adapters.stories import Stories, Try, died, signal, suspect

from defib.adapters.cli import main

HOUR = 3600.0


@pytest.fixture
def fleet(stories: Stories) -> str:
    """n1 is a bad node: two jobs, ten days apart. n2 was suspected by its peers of what keeps no node out, n3 likely once. n4 was bad long ago."""
    for job, node, day, sure in (
        ("70001", "n1", 40, "certain"),
        ("70002", "n1", 50, "likely"),
        ("70003", "n3", 50, "likely"),
        ("70004", "n4", 1, "certain"),
    ):
        at = day * 24 * HOUR
        stories.write(
            job,
            died(
                node,
                at,
                "nvlink",
                suspect=suspect(node, how="cause", confidence=sure, gpu=None, evidence=(signal(died(node, at), 0),)),
            ),
        )
    stories.write("70005", died("n2", 50 * 24 * HOUR, "peer-lost", suspect=suspect("n2", how="peer", gpu=None)))
    return stories.db


def say(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["nodes", *words]) == 0
    return capsys.readouterr().out


def test_the_page(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    # n1: 1.0 x 0.5^(240/168) + 0.5 = 0.371 + 0.5 = 0.87; decays to 0.5 in 168 x log2(0.871/0.5) = 134.7 h.
    assert say(capsys, "--db", fleet).splitlines() == [
        "As of 2026-07-17 20:26:40 UTC (the newest incident of the history)",
        "",
        "MIGHT BE KEPT OUT - for a person to confirm; defib changes nothing",
        "  n1: nvlink: 2 incidents, 2 jobs agree (weight 0.87, 0.5 needed); keep it out, at the latest until 2026-07-23 11:06 UTC",
        "    2 incidents of 2 jobs, weight 0.87, last 2026-07-17 20:26:40: nvlink",
        "",
        "LEFT IN",
        "  n3: nvlink: 1 of 2 incidents, 1 of 2 jobs needed (weight 0.50, 0.5 needed)",
        "    1 incident of 1 job, weight 0.50, last 2026-07-17 20:26:40: nvlink",
        "  n2: nothing counts: 1 incident, 1 of class peer-lost, which keeps no node out",
        "    1 incident of 1 job, weight 0.00, last 2026-07-17 20:26:40: peer-lost",
        "  n4: nothing counts: 1 incident, 1 older than 672 h",
        "    1 incident of 1 job, weight 0.00, last 2026-05-29 20:26:40: nvlink",
    ]


def test_the_moment_and_what_is_out_already_may_be_told(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    early = json.loads(say(capsys, "--db", fleet, "--json", "--as-of", "2026-07-10"))
    assert early["as_of"] == "2026-07-10T00:00:00Z"
    assert [(r["node"], r["candidate"]) for r in early["rows"]] == [("n1", False), ("n4", False)]
    late = json.loads(
        say(capsys, "--db", fleet, "--json", "--as-of", "2026-07-18T00:00:00+02:00", "--cluster-nodes", "400")
    )
    assert (late["as_of"], late["cluster_nodes"]) == ("2026-07-17T22:00:00Z", 400)
    assert [r["node"] for r in late["rows"] if r["candidate"]] == ["n1"]
    (n1,) = [r for r in late["rows"] if r["node"] == "n1"]
    assert set(n1) == {"node", "candidate", "because", "weight", "until", "evidence"}
    assert set(n1["evidence"][0]) == {"gpu", "incidents", "jobs", "weight", "last_time", "classes"}
    assert "n1: it is kept out already; nvlink" in say(capsys, "--db", fleet, "--kept-out", "n1")


def test_a_sites_policy_is_used(fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "nodes.yaml").write_text("policy: nodes\nexpiry_hours: 100\n")
    page = say(capsys, "--db", fleet, "--rules", str(tmp_path / "site"))
    assert "No node has to be kept out." in page
    assert "n1: nvlink: 1 of 2 incidents" in page


@pytest.mark.parametrize("words", [["--as-of", "soon"], ["--cluster-nodes", "0"], ["--cluster-nodes", "many"]])
def test_what_is_no_time_or_number_is_refused(words: list[str], fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main(["nodes", "--db", fleet, *words])
    assert e.value.code == 2
    assert "give a" in capsys.readouterr().err


def test_an_empty_history_and_a_hostile_name(stories: Stories, capsys: pytest.CaptureFixture[str]) -> None:
    stories.write("70001", Try([(1, 10)], (0, 20)))
    assert "No incident of this history points at a node." in say(capsys, "--db", stories.db)
    evil = "n\x1b[2J\u202e'; DROP TABLE nodes; --\n"
    stories.write("70002", died(evil, suspect=suspect(evil, gpu="\x9b31m")))
    page = say(capsys, "--db", stories.db)
    assert "\\x1b[2J\\u202e'; DROP TABLE nodes; --\\x0a" in page
    assert not set(page) & {"\x1b", "\u202e", "\x9b"}
    assert [r["node"] for r in stories.ask("FROM nodes")] == [evil]
