"""The numbers: the text format as Prometheus reads it, hostile labels, bounds, and a server that only hands out what was published."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defib.adapters.metrics import LABELS_MAX, MetricsServer, Registry, labels

LINE = re.compile(
    r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"(,[a-z_]+="(?:[^"\\\n]|\\[\\"n])*")*\})? (\S+)'
)


def test_the_text_format() -> None:
    r = Registry()
    r.gauge("defib_jobs", "Jobs\nby health.", lambda: {labels(health="hung"): 2.0, labels(health="slow"): 0.5})
    r.counter("defib_lines_total", "Lines.").add(41)
    h = r.histogram("defib_loop_seconds", "Turns.", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        h.observe(value)
    assert r.text() == (
        "# HELP defib_jobs Jobs\\\\x0aby health.\n# TYPE defib_jobs gauge\n"
        'defib_jobs{health="hung"} 2\ndefib_jobs{health="slow"} 0.5\n'
        "# HELP defib_lines_total Lines.\n# TYPE defib_lines_total counter\ndefib_lines_total 41\n"
        "# HELP defib_loop_seconds Turns.\n# TYPE defib_loop_seconds histogram\n"
        'defib_loop_seconds_bucket{le="0.1"} 2\ndefib_loop_seconds_bucket{le="1"} 3\ndefib_loop_seconds_bucket{le="+Inf"} 4\n'
        "defib_loop_seconds_sum 7.65\ndefib_loop_seconds_count 4\n"
    )


@given(st.text(), st.floats())
def test_whatever_a_label_holds_a_line_is_a_line(text: str, value: float) -> None:
    r = Registry()
    r.gauge("g", "G.").set(value, mount=text)
    (line,) = [x for x in r.text().split("\n") if x and not x.startswith("#")]
    found = LINE.fullmatch(line)
    assert found is not None
    assert float(found[3].replace("Inf", "inf")) == value or value != value


def test_labels_are_bounded_and_nothing_is_lost() -> None:
    r = Registry()
    set_, read = r.counter("a_total", "A."), {labels(user=str(n)): 1.0 for n in range(1000)}
    r.gauge("b", "B.", lambda: read)
    for n in range(1000):
        set_.add(user=str(n))
    lines = [x for x in r.text().split("\n") if x and not x.startswith("#")]
    assert len(lines) <= 2 * (LABELS_MAX + 1)
    assert sum(float(x.split()[1]) for x in lines) == 2000
    assert 'b{user="other"} 800' in lines


def test_a_name_is_registered_once_and_right() -> None:
    r = Registry()
    r.gauge("a", "A.")
    for bad in ("a", "1a", "a b", "ä"):
        with pytest.raises(AssertionError):
            r.gauge(bad, "B.")
    with pytest.raises(AssertionError):
        r.counter("lines", "Without its ending.")


def test_the_server_hands_out_what_was_published() -> None:
    r = Registry()
    gauge = r.gauge("a", "A.")
    gauge.set(1)
    server = MetricsServer(("127.0.0.1", 0), r)
    try:
        r.publish()
        gauge.set(2)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b"\na 1\n" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/etc/passwd", timeout=10)
        caught.value.close()
    finally:
        server.close()
