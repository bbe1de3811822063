"""progress: step lines -> PROGRESS rows in house units; low-priority formats give way; null is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import CLASSES, PREFIXES, Kit, batch_of, kit

from defib.engine.progress import ProgressReader
from defib.engine.words import PROGRESS

FORMATS = r"""
    framework: f
    about: a
    formats:
      - id: f.step
        title: t
        anchor: ['step ', 'STEP ']
        pattern: '(?i)step (?P<step>[\d.,KMe+-]+)(?:/(?P<total>\d+))?(?: rank (?P<rank>\d+))?'
        more:
          - 'took (?P<step_time>\S+)'
          - 'loss (?P<loss>\S+)'
          - 'tokens (?P<tokens>\S+)'
          - 'elapsed (?P<elapsed>\S+)'
          - 'total (?P<total>\d+)'
          - 'speed (?P<throughput>[\d,.]+)'
        unless: [dry, 'warm.?up']
        units: {step_time: ms, throughput: tokens/s/gpu}
        hits: ['step 1']
        misses: ['x']
      - id: f.values
        title: t
        anchor: ['grad ']
        pattern: 'grad (?P<grad_norm>\S+)'
        of: f.step
        hits: ['grad 1.5']
        misses: ['x']
      - id: f.bar
        title: t
        anchor: ['it]', '/s]']
        pattern: '(?P<step>\d+)/(?P<total>\d+) \[(?:(?P<rate>[\d.]+)(?P<rate_unit>s/it|it/s))?'
        priority: '5'
        hits: ['1/9 [2it/s]']
        misses: ['x']
      - id: f.both
        title: t
        anchor: ['it/s]']
        pattern: 'count (?P<step>\d+)'
        hits: ['count 3 it/s]']
        misses: ['x']
"""


@pytest.fixture(scope="module")
def formats() -> Kit:
    return kit({"classes.yaml": CLASSES, "f.yaml": FORMATS, "p.yaml": PREFIXES})


def read(made: Kit, *lines: str) -> list[dict[str, Any]]:
    """Rows without their nulls."""
    batch = batch_of("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    scanner = made.scanner()
    table = ProgressReader(made.book, scanner.plan.anchors).read(batch, scanner.scan(batch).anchors)
    assert table.schema == PROGRESS
    return [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]


def test_a_line_that_prints_only_a_step_gives_only_a_step(formats: Kit) -> None:
    assert read(formats, "x", "step 3") == [{"stream": 0, "offset": 2, "line": 2, "format": "f.step", "step": 3}]


def test_every_capture_lands_in_its_column_and_unit(formats: Kit) -> None:
    line = "[rank2]: 2026-01-02 03:04:05 step 1,200/9000 took 1500 loss 2.5e0 tokens 1.5M elapsed 1:00:05 speed 1,000.5"
    (row,) = read(formats, line)
    assert row == {
        "stream": 0, "offset": 0, "line": 1, "format": "f.step", "time_us": 1767323045000000, "rank": 2, "step": 1200, "total": 9000,
        "step_time_s": 1.5, "elapsed_s": 3605.0, "throughput": 1000.5, "throughput_unit": "tokens/s/gpu", "loss": 2.5, "tokens": 1.5e6,
    }  # fmt: skip


def test_the_main_pattern_wins_over_more_and_the_line_over_the_prefix(formats: Kit) -> None:
    assert read(formats, "step 1/5 total 9")[0]["total"] == 5
    assert read(formats, "step 1 total 9")[0]["total"] == 9
    assert read(formats, "[rank2]: step 1 rank 7")[0]["rank"] == 7


@pytest.mark.parametrize("line", ["dry step 3", "step 3 warm up", "step x", "steps", "nothing", "3/4 ["])
def test_what_is_vetoed_or_has_no_step_gives_no_row(formats: Kit, line: str) -> None:
    assert read(formats, line) == []


@pytest.mark.parametrize("step", ["1e13", "-", "1.2.3", "-5"])
def test_a_step_that_is_no_sane_number_is_unknown(formats: Kit, step: str) -> None:
    assert "step" not in read(formats, f"step {step}")[0]


@pytest.mark.parametrize("loss", ["nan", "NaN", "inf"])
def test_a_loss_that_is_not_finite_is_told(formats: Kit, loss: str) -> None:
    value = read(formats, f"step 1 loss {loss}")[0]["loss"]
    assert not abs(value) < 1e308


def test_value_lines_need_one_of_their_captures(formats: Kit) -> None:
    assert [r["format"] for r in read(formats, "step 1", "grad 0.5", "grad ")] == ["f.step", "f.values"]


@pytest.mark.parametrize(
    ("line", "seconds"), [("3/9 [4it/s]", 0.25), ("3/9 [4s/it]", 4.0), ("3/9 [0it/s]", None), ("3/9 [?it/s]", None)]
)
def test_a_bar_tells_seconds_per_step_either_way(formats: Kit, line: str, seconds: float | None) -> None:
    assert read(formats, line)[0].get("step_time_s") == seconds


def test_a_low_priority_format_gives_way_on_its_record_only(formats: Kit) -> None:
    rows = read(formats, "3/9 [4it/s]", "count 7 3/9 [4it/s]", "4/9 [4it/s]")
    assert [(r["line"], r["format"]) for r in rows] == [(1, "f.bar"), (2, "f.both"), (3, "f.bar")]


def test_rows_are_in_record_order_and_ordinary_formats_share_a_record(formats: Kit) -> None:
    rows = read(formats, "count 1 it/s] step 5", "grad 2", "step 6", "3/9 [4it/s]")
    assert [(r["line"], r["format"]) for r in rows] == [
        (1, "f.step"),
        (1, "f.both"),
        (2, "f.values"),
        (3, "f.step"),
        (4, "f.bar"),
    ]


def test_rows_of_one_batch_do_not_disturb_each_other(formats: Kit) -> None:
    lines = [
        "step 1K took 5",
        "[rank1]: step 2",
        "step 3 loss nan",
        "STEP 4",
        "3/9 [4it/s]",
        "step caf\udce9",
        "step 5 tokens 3,000",
    ]
    alone = [{**row, "offset": 0, "line": 0} for line in lines for row in read(formats, line)]
    assert str([{**row, "offset": 0, "line": 0} for row in read(formats, *lines)]) == str(alone)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            " [2026-01-02 03:04:05] iteration     1200/   15535 | consumed samples: 403200 | elapsed time per iteration (ms): 1399.2 |"
            " throughput per GPU (TFLOP/s/GPU): 410.5 | learning rate: 1.0E-04 | global batch size: 336 | lm loss: 2.311001E+00 |",
            {"format": "megatron-lm.iteration", "step": 1200, "total": 15535, "step_time_s": 1.3992, "loss": 2.311001},
        ),
        (
            " 10%|#         | 10/100 [00:10<01:30,  2.00s/it]",
            {"format": "tqdm.bar", "step": 10, "total": 100, "step_time_s": 2.0},
        ),
        (
            "iter 20: loss 2.3110, time 250.00ms, mfu 41.20%",
            {"format": "nanogpt.iter", "step": 20, "step_time_s": 0.25, "loss": 2.311},
        ),
    ],
)
def test_the_shipped_formats_of_three_frameworks(shipped: Kit, line: str, wanted: dict[str, object]) -> None:
    (row,) = read(shipped, line)
    assert {k: row.get(k) for k in wanted} == pytest.approx(wanted)
