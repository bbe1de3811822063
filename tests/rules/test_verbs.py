"""`defib rules check | coverage | doc | schema`: exit codes, machine output, hostile text, and generated files that are up to date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from defib.adapters import rulefiles
from defib.adapters.cli import main, ruledoc

ROOT = Path(__file__).resolve().parents[2]
CLASSES = "classes:\n  - {id: c.a, title: 'A|<b>', verdict: crashed, fault: user, retry: once, exclude: never, budget: b, why: w}\n"
RULES = """family: t
about: 'about `t` | <script>'
signatures:
  - {id: t.one, title: 'One <b> | `x`', pattern: 'one thing', role: root, class: c.a, see: s,
     extract: 'rank (?P<rank>\\d+)', hits: ['one thing ``` | rank 3'], misses: [another]}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shipped folder of one rule, and a cache of its own."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    (folder / "classes.yaml").write_text(CLASSES)
    (folder / "t.yaml").write_text(RULES)
    monkeypatch.setattr(rulefiles, "BUILT_IN", folder)
    monkeypatch.setenv("DEFIB_CACHE", str(tmp_path / "cache"))
    return folder


def mine(tmp_path: Path, signature: str) -> str:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "m.yaml").write_text("family: m\nabout: a\nsignatures:\n  - " + signature)
    return str(folder)


def test_check_is_content(small, capsys):
    assert main(["rules", "check"]) == 0
    assert "1 signatures" in capsys.readouterr().out


def test_check_counts_warnings_and_lists_them_when_asked(small, tmp_path, capsys):
    folder = mine(
        tmp_path, "{id: m.a, title: T, pattern: 'NCCL INFO', role: confirm, hits: ['NCCL INFO'], misses: [x]}"
    )
    assert main(["rules", "check", folder]) == 0
    out = capsys.readouterr().out
    assert "3 warnings, 3 of them in your rules: 1 chatty, 1 literal, 1 unsourced (--warnings lists them)" in out
    assert "nobody can check" not in out
    assert main(["rules", "check", folder, "--warnings"]) == 0
    assert f"warning: {folder}/m.yaml:4:1: m.a: no 'see'" in capsys.readouterr().out


def test_check_fails_on_faults(small, tmp_path, capsys):
    folder = mine(
        tmp_path, "{id: m.a, title: T, patterns: [aaaa, bbbb], role: confirm, see: s, hits: [aaaa], misses: [x]}"
    )
    assert main(["rules", "check", folder]) == 1
    assert "no example hits the wording bbbb" in capsys.readouterr().out
    assert main(["rules", "check", folder, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [(f["lint"], f["rule"]) for f in document["faults"]] == [("wording", "m.a")]


def test_a_rule_that_speaks_beside_shipped_ones_is_told_once_and_at_its_own_place(tmp_path, capsys):
    """Not at every shipped example it fires on, which nobody at a site could mend; nor where a generic one of ours gives way to it."""
    folder = mine(
        tmp_path,
        "{id: m.a, title: T, patterns: ['NCCL WARN', 'CUDA out of memory'], role: root, class: cuda-oom, domain: user, see: s, "
        "hits: ['NCCL WARN', 'CUDA out of memory'], misses: [x]}",
    )
    assert main(["rules", "check", folder]) == 1
    out = capsys.readouterr().out
    assert f"{folder}/m.yaml:4:1: m.a: fires on " in out
    assert " examples of shipped rules (" in out
    assert "Found 1 problem in 1 file." in out


def test_a_folder_of_a_site_that_is_called_rules_is_the_sites(tmp_path, capsys, monkeypatch):
    """Its faults are told at its own files, and no shipped one is to be changed."""
    rule = "{id: m.a, title: T, pattern: 'NVRM: Xid', role: benign, see: s, hits: ['NVRM: Xid'], misses: [x]}"
    Path(mine(tmp_path, rule)).rename(tmp_path / "rules")
    monkeypatch.chdir(tmp_path)
    assert main(["rules", "check", "rules"]) == 1
    out = capsys.readouterr().out
    assert "./rules/m.yaml:4:1: m.a: mutes " in out
    assert "Found 1 problem in 1 file." in out


def test_check_fails_on_rules_that_do_not_load(small, tmp_path, capsys):
    folder = mine(tmp_path, "{id: m.a, title: T, pattern: 'a(', role: confirm, hits: [a], misses: [x]}")
    assert main(["rules", "check", folder]) == 1
    assert "Found 1 problem in 1 file." in capsys.readouterr().out
    assert main(["rules", "check", folder, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["faults"]) == 1


def test_check_measures_costs(small, tmp_path, capsys):
    folder = mine(
        tmp_path, "{id: m.a, title: T, pattern: 'NCCL INFO', role: confirm, see: s, hits: ['NCCL INFO'], misses: [x]}"
    )
    assert main(["rules", "check", folder, "--cost"]) == 0
    out = capsys.readouterr().out
    assert "2 patterns alone" in out
    assert "rules that hit healthy chatter" in out
    assert main(["rules", "check", "--cost", "--json"]) == 0
    assert {c["owner"] for c in json.loads(capsys.readouterr().out)["costs"]} == {"t.one"}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.out").write_text(
        "one thing\nwarp core 7 failed to open /data/x/1.bin\n[rank3]: warp core 9 failed to open /data/y/z/2.bin\n"
    )
    (folder / "b.out").write_text("fine\nwarp core 8 failed to open /other/1\nlonely \x1b]0;x\x07\u202e error\n")
    return folder


def test_coverage_groups_by_shape_over_files(small, logs, capsys):
    assert main(["rules", "coverage", str(logs)]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 seen, 0 never" in out
    assert f"2 files      3 x  {logs}/a.out:2: warp core 7 failed" in out
    assert "\u202e" not in out
    assert "\x1b" not in out
    assert main(["rules", "coverage", str(logs), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["seen"] == [{"id": "t.one", "kind": "signature", "files": 1, "count": 1}]
    assert [(u["files"], u["count"], u["line"]) for u in document["unknown"]] == [(2, 3, 2), (1, 1, 3)]


def test_coverage_lists_what_was_never_seen(small, logs, capsys):
    (logs / "a.out").write_text("nothing\n")
    assert main(["rules", "coverage", str(logs / "a.out")]) == 0
    assert "Never seen" not in capsys.readouterr().out
    assert main(["rules", "coverage", str(logs / "a.out"), "--all"]) == 0
    assert "signature t.one" in capsys.readouterr().out


def test_coverage_suggests_rules_that_load(small, logs, tmp_path, capsys):
    assert main(["rules", "coverage", str(logs), "--suggest"]) == 0
    text = capsys.readouterr().out
    assert "failed to open" in text
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "m.yaml").write_text(text)
    assert main(["rules", "check", str(tmp_path / "own")]) == 0
    capsys.readouterr()
    assert main(["rules", "coverage", str(logs), "--rules", str(tmp_path / "own")]) == 0
    assert "without a rule: 0 shapes" in capsys.readouterr().out


def test_coverage_says_what_it_could_not_read(small, tmp_path, capsys):
    assert main(["rules", "coverage", str(tmp_path / "none")]) == 3
    assert "not read" in capsys.readouterr().err


def test_benign_rules_and_banners_count_as_seen(capsys, tmp_path):
    (tmp_path / "x.out").write_text(
        '[rank0]:     raise ValueError("CUDA out of memory. Tried to allocate")\n| train data pattern | x |\n'
    )
    assert main(["rules", "coverage", str(tmp_path), "--json"]) == 0
    seen = {s["id"] for s in json.loads(capsys.readouterr().out)["seen"]}
    assert {"benign.echoed-raise", "llm.c.banner"} <= seen


def test_doc_escapes_hostile_text(small, tmp_path, capsys):
    out = tmp_path / "rules.md"
    assert main(["rules", "doc", "-o", str(out)]) == 0
    text = out.read_text()
    assert "about &#96;t&#96; &#124; &#60;script&#62;" in text
    assert "| [t.one](#t.one) | root | c.a | One &#60;b&#62; &#124; &#96;x&#96; |" in text
    assert "\n````diff\n+ one thing ``` | rank 3\n- another\n````\n" in text
    assert "- captures: rank" in text
    assert "retry once, exclude never, budget b" in text
    assert main(["rules", "doc"]) == 0
    assert capsys.readouterr().out == text
    assert main(["rules", "doc", "-o", str(tmp_path / "no" / "where.md")]) == 3


@pytest.mark.parametrize("hostile", ["a|b", "`x`", "<img>", "[a](b)", "*x*", "# x", "\\", "\x1b[31m", "a\nb", "\u202e"])
def test_nothing_hostile_stays_live(hostile):
    text = ruledoc.md(hostile)
    assert not {"|", "`", "<", ">", "\n", "\x1b", "\u202e"} & set(text)
    assert text.count("[") == text.count("\\[")
    assert text.count("*") == text.count("\\*")


def test_every_link_of_the_page_has_its_place():
    import re

    text = (ROOT / "docs" / "rules.md").read_text()
    places = set(re.findall(r'<a id="([^"]+)"></a>', text)) | {
        h.lower().replace(" ", "-") for h in re.findall(r"^## ([\w ]+)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= places


def test_the_page_is_up_to_date(capsys):
    assert main(["rules", "doc"]) == 0
    fresh = capsys.readouterr().out
    assert fresh == (ROOT / "docs" / "rules.md").read_text(), "run: defib rules doc -o docs/rules.md"


def test_the_schema_is_up_to_date(capsys):
    assert main(["rules", "schema"]) == 0
    fresh = capsys.readouterr().out
    assert fresh == (ROOT / "rules" / "rules.schema.json").read_text(), (
        "run: defib rules schema > rules/rules.schema.json"
    )


def test_profile_names_what_costs_and_why(small, tmp_path, capsys):
    folder = mine(
        tmp_path, "{id: m.open, title: T, pattern: 'ERRNO=.*a', role: confirm, see: s, hits: [ERRNO=a], misses: [x]}"
    )
    with (Path(folder) / "m.yaml").open("a") as f:
        f.write(
            "\n  - {id: m.vain, title: T, pattern: 'handler [0-9]+ died', role: confirm, see: s, hits: [handler 1 died], misses: [x]}\n"
        )
    log = tmp_path / "x.out"
    log.write_text("handler 1 is fine\n" * 50 + ("ERRNO=" + "a" * 20 + "\n") * 3 + "quiet\n")
    assert main(["rules", "profile", str(log), "--rules", folder, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {r["rule"]: r for r in document["rows"]}
    assert document["bytes"] == log.stat().st_size
    assert (rows["m.open"]["hits"], rows["m.open"]["matches"]) == (3, 60)
    assert "close the open end" in rows["m.open"]["worth"]
    assert (rows["m.vain"]["records"], rows["m.vain"]["vain"], rows["m.vain"]["hits"]) == (50, 50, 0)
    assert "rarer" in rows["m.vain"]["worth"]
    assert main(["rules", "profile", str(log), str(tmp_path / "none"), "--rules", folder]) == 3
    said = capsys.readouterr()
    assert "2 patterns meet anything" in said.out
    assert "not read" in said.err
