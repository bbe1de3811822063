"""`defib rules explain`: every outcome of a rule, every part of a line, and the ways a place can be wrong."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from random import Random

import pytest
import zstandard
from tests.conftest import POLICY

from defib.adapters.cli import main
from defib.engine import rulecheck, scan
from defib.engine.explain import Explained, explain
from defib.engine.ports import Closed, Data, JobClosed, Opened, SourceItem
from defib.engine.words import JobKey, StreamFacts, StreamId

BOOK = """
family: t
about: test
signatures:
  - {id: t.oom, title: out of memory, pattern: 'CUDA out of memory', extract: 'Tried (?P<bytes>\\d+ MB)', role: root, class: c.oom,
     hits: [CUDA out of memory], misses: [x]}
  - {id: t.any, title: any error, pattern: 'Error: ', role: candidate, class: c.oom, generic: 'true', hits: ['Error: x'], misses: [x]}
  - {id: t.veto, title: vetoed, patterns: ['lost [a-z]', 'never'], unless: 'not really', role: candidate, class: c.oom,
     hits: [lost a, never], misses: [x]}
  - {id: t.down, title: exit, pattern: 'task 1 exited', role: cascade, mark: exit, hits: [task 1 exited], misses: [x]}
  - {id: t.stop, title: teardown, pattern: 'stopping all', role: cascade, mark: teardown, hits: [stopping all], misses: [x]}
  - {id: t.where, title: place, pattern: 'on host', role: locator, hits: [on host], misses: [x]}
  - {id: t.done, title: end, pattern: 'all done', role: lifecycle, mark: completed, hits: [all done], misses: [x]}
  - {id: t.fine, title: harmless, pattern: 'this is fine', role: benign, hits: [this is fine], misses: [x]}
"""
PROGRESS = """
framework: f
about: test
formats:
  - {id: f.step, title: step, anchor: 'step ', pattern: 'step (?P<step>\\d+) loss (?P<loss>\\S+)', unless: 'dry', hits: [step 1 loss 2], misses: [x]}
  - {id: f.bar, title: bar, anchor: 'step ', pattern: 'step (?P<step>\\d+)', priority: '5', hits: [step 1], misses: [x]}
banners:
  - {id: f.hello, pattern: 'hello from f', hits: [hello from f], misses: [x]}
"""
CLASSES = """
classes:
  - {id: c.oom, title: memory, verdict: crashed, fault: user, retry: once, exclude: never, budget: user, why: w}
"""
PREFIXES = """
prefixes:
  - {id: p.rank, title: rank, pattern: '^\\[rank(?P<rank>\\d+)\\]: ?', hits: ['[rank1]: x'], misses: [x]}
"""
LOG = """hello from f
Error: early
step 1 loss 2.5
step 2 loss 2.4
lost faith
[rank3]: Error: CUDA out of memory. Tried 20 MB
this is fine: CUDA out of memory
lost it, not really
on host n1
task 1 exited
stopping all
lost more
quiet
"""


class Memory:
    """A `Source` of one log."""

    def __init__(self, data: bytes, cut: int = 7) -> None:
        key = JobKey(place="log")
        blocks = [Data(0, data[i : i + cut], 0) for i in range(0, len(data), cut)]
        self.items: list[SourceItem] = [
            Opened(0, StreamId("log"), StreamFacts(key), len(data)), *blocks, Closed(0), JobClosed(key),
        ]  # fmt: skip

    def poll(self) -> list[SourceItem] | None:
        return [self.items.pop(0)] if self.items else None

    def close(self) -> None:
        self.items = []


@pytest.fixture(scope="module")
def kit():
    files = [("s.yaml", BOOK), ("p.yaml", PROGRESS), ("c.yaml", CLASSES), ("x.yaml", PREFIXES)]
    book = rulecheck.load([*files, *POLICY.items()])
    return book, scan.compile_databases(book)


def said(kit, line: int, log: str = LOG) -> Explained:
    return explain(*kit, Memory(log.encode()), line)


def outcomes(e: Explained) -> dict[str, str]:
    return {r.rule: r.outcome for r in e.records[0].rules}


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (2, "background"), (3, "progress"), (5, "cause"), (6, "cascade"), (7, "muted"), (8, "silent"), (9, "locator"), (10, "cascade"),
        (11, "teardown"), (12, "teardown"), (13, "silent"),
    ],
)  # fmt: skip
def test_every_line_has_its_part_and_a_reason(kit, line, part):
    # Of two claims within the band the stronger one leads, so without line 6's root line 5 is the cause.
    log = LOG.replace("CUDA out of memory. Tried 20 MB", "lost again") if line in (5, 6) else LOG
    e = said(kit, line, log)
    assert (e.lines, e.attempts) == (13, 1)
    assert e.records[0].part == part
    assert e.records[0].reason
    assert e.attempt is not None
    assert e.attempt.verdict == "crashed"


def test_a_stronger_claim_close_by_is_preferred_and_said_so(kit):
    assert said(kit, 6).records[0].part == "cause"
    passed = said(kit, 5).records[0]
    assert passed.part == "passed-over"
    assert "line 6" in passed.reason


def test_outcomes_captures_and_who_printed_it(kit):
    e = said(kit, 6)
    assert outcomes(e) == {"t.oom": "fires", "t.any": "gave-way"}
    oom = next(r for r in e.records[0].rules if r.rule == "t.oom")
    assert oom.captures == {"bytes": "20 MB", "rank": "3"}
    assert (e.records[0].prefixes, e.records[0].who) == (("p.rank",), {"rank": 3})
    assert next(r for r in e.records[0].rules if r.rule == "t.any").by == ("t.oom",)
    muted = said(kit, 7).records[0].rules
    assert [(r.rule, r.outcome, r.by) for r in muted] == [("t.oom", "muted", ("t.fine",)), ("t.fine", "mutes", ())]
    vetoed = said(kit, 8).records[0].rules[0]
    assert (vetoed.outcome, vetoed.by, vetoed.patterns) == ("vetoed", ("not really",), ("lost [a-z]",))
    assert outcomes(said(kit, 1)) == {"f.hello": "banner"}
    assert outcomes(said(kit, 13, LOG.replace("quiet", "this is fine"))) == {"t.fine": "would-mute"}


def test_progress_formats_read_vetoed_and_giving_way(kit):
    e = said(kit, 3)
    assert {f.format: f.outcome for f in e.records[0].formats} == {"f.step": "read", "f.bar": "gave-way"}
    assert e.records[0].formats[0].numbers == {"step": 1, "loss": 2.5}
    e = said(kit, 3, LOG.replace("step 1 loss 2.5", "step 1 loss 2.5 dry"))
    assert {f.format: f.outcome for f in e.records[0].formats} == {"f.step": "vetoed", "f.bar": "read"}
    e = said(kit, 3, LOG.replace("step 1 loss 2.5", "step one"))
    assert {f.outcome for f in e.records[0].formats} == {"anchor-only"}


def test_after_a_planned_end_everything_is_teardown(kit):
    log = "step 1 loss 2\nlost a\nall done\nlost b\n" + "\n" * 200
    assert said(kit, 3, log).records[0].part == "end"
    assert said(kit, 4, log).records[0].part == "teardown"
    assert said(kit, 2, log).records[0].part == "background"


def test_each_redraw_of_a_line_is_a_record(kit):
    log = "a\r\nstep 1\rstep 2 loss 1\rError: x\r\nlast, no line feed"
    e = said(kit, 2, log)
    assert [r.text for r in e.records] == ["step 1", "step 2 loss 1", "Error: x"]
    assert [r.offset for r in e.records] == [3, 10, 24]
    assert [r.text for r in said(kit, 3, log).records] == ["last, no line feed"]
    assert said(kit, 3, log).lines == 3
    assert said(kit, 4, log).records == ()


def test_a_bar_redrawn_for_days_is_held_in_bounds(kit):
    e = said(kit, 1, "".join(f"step {i}\r" for i in range(2000)) + "\n")
    assert len(e.records) == 499
    assert e.skipped == 1501
    assert e.records[-1].text == "step 1999"


def test_the_same_whatever_the_blocks(kit):
    log = LOG.replace("\nquiet", "\rquiet\rstep 5 loss 1").encode()
    whole = [explain(*kit, Memory(log, 1 << 20), n) for n in (6, 12)]
    assert [explain(*kit, Memory(log, 3), n) for n in (6, 12)] == whole


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "tr:ain.out"
    bar = "\r".join(f" {i}%|#| {i}/100 [00:01<00:01, 9.{i:02}it/s]" for i in range(1, 30))
    text = f"x\n{bar}\r\n[rank6]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.62 GiB. \x1b[31m\u202eGPU 6\n"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("pack", ["", ".gz", ".zst"])
def test_the_verb_reads_plain_and_packed_files(log, pack, capsys):
    data = log.read_bytes()
    packed = {"": data, ".gz": gzip.compress(data), ".zst": zstandard.compress(data)}[pack]
    path = log.with_name(log.name + pack)
    path.write_bytes(packed)
    assert main(["rules", "explain", f"{path}:3"]) == 0
    out = capsys.readouterr().out
    assert "cuda.out-of-memory (signature, root, class cuda-oom): fires" in out
    assert "gave way to cuda.out-of-memory" in out
    assert "part       cause" in out
    assert "printed by rank 6" in out
    assert "\\u202eGPU 6" in out
    assert "\u202e" not in out
    assert "\x1b" not in out


def test_the_verb_shows_redraws_and_json(log, capsys):
    assert main(["rules", "explain", f"{log}:2"]) == 0
    out = capsys.readouterr().out
    assert "29 records (redraws)" in out
    assert "other records of this line" in out
    assert main(["rules", "explain", f"{log}:2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "defib/explain/1"
    assert len(document["records"]) == 29
    assert {f["outcome"] for f in document["records"][4]["formats"]} >= {"read"}


@pytest.mark.parametrize(
    ("place", "code", "says"),
    [
        ("{log}:99", 2, "has 3 lines; there is no line 99"), ("{log}:0", 2, "a line from 1 on"), ("{log}", 2, "a line from 1 on"),
        ("{log}:x", 2, "a line from 1 on"), ("{log}:-1", 2, "a line from 1 on"), ("{log}.none:1", 3, "No such file"),
        ("{folder}:1", 2, "is a directory"), (":3", 2, "a line from 1 on"), ("{log}:²", 2, "a line from 1 on"),
    ],
)  # fmt: skip
def test_a_wrong_place_is_said_clearly(log, place, code, says, capsys):
    assert main(["rules", "explain", place.format(log=log, folder=log.parent)]) == code
    out = capsys.readouterr()
    assert says in out.err
    assert out.out == ""


def test_a_file_that_breaks_off_is_explained_as_far_as_it_was_read(log, capsys):
    path = log.with_name("cut.gz")
    packed = gzip.compress(log.read_bytes() + Random(1).randbytes(1_500_000).hex().encode())
    path.write_bytes(packed[: len(packed) - 200])
    assert main(["rules", "explain", f"{path}:3"]) == 3
    out = capsys.readouterr()
    assert "cuda.out-of-memory" in out.out
    assert "read to where it broke" in out.err
    assert "note: read to where it broke" in out.out


def test_a_name_that_is_not_text(log, capsys):
    path = os.fsencode(log.parent) + b"/caf\xe9.out"
    Path(os.fsdecode(path)).write_bytes(log.read_bytes())
    for more in ([], ["--json"]):
        assert main(["rules", "explain", os.fsdecode(path) + ":1", *more]) == 0
        assert "caf" in capsys.readouterr().out
