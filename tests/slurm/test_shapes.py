"""Host lists, numbers, states, exit codes: every shape they come in, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defib.adapters.slurm import shapes
from defib.adapters.slurm.hosts import expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()), ("(null)", ()), ("n01", ("n01",)), ("n[01-03,07]", ("n01", "n02", "n03", "n07")),
        ("n[01-02],gpu-[7-9]-x", ("n01", "n02", "gpu-7-x", "gpu-8-x", "gpu-9-x")),
        ("r[1-2]c[08-10]", ("r1c08", "r1c09", "r1c10", "r2c08", "r2c09", "r2c10")), ("a,b,a", ("a", "b")),
        ("n[9-11]", ("n9", "n10", "n11")), ("n[009-011].site.org", ("n009.site.org", "n010.site.org", "n011.site.org")), ("n[5]", ("n5",)),
    ],
)  # fmt: skip
def test_host_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["n[1-", "n]1[", "n[1-2", "n[2-1]", "n[a-b]", "n[]", "n[1,,2]", "a,,b", ",a", "a b", "n[[1-2]]", "n[1-200000]", "n[1-999]x[1-999]", "n[" * 9]
)  # fmt: skip
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        expand(text)


def test_a_bound_is_met_before_names_are_made() -> None:
    assert len(expand("n[1-100000]")) == 100_000
    for text in ("n[1-100001]", "a[1-99999],b[1-2]", "n[000000000000-999999999999]" * 3):
        with pytest.raises(ValueError, match="more than 100,000"):
            expand(text)


@given(st.lists(st.tuples(st.sampled_from(["n", "gpu-", "a.b"]), st.integers(0, 99), st.integers(0, 9), st.sampled_from(["", "-x"])), min_size=1, max_size=6))  # fmt: skip
def test_ranges_say_what_they_list(parts: list[tuple[str, int, int, str]]) -> None:
    text = ",".join(f"{p}[{low:02d}-{low + more:02d}]{s}" for p, low, more, s in parts)
    long = [f"{p}{n:02d}{s}" for p, low, more, s in parts for n in range(low, low + more + 1)]
    assert expand(text) == tuple(dict.fromkeys(long))
    assert expand(",".join(long)) == tuple(dict.fromkeys(long))


@given(st.text(max_size=40))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert len(names) <= 100_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5), ("5", 5), (5.0, 5), ({"set": True, "infinite": False, "number": 5}, 5), ({"set": False, "infinite": False, "number": 0}, None),
        ({"set": True, "infinite": True, "number": 0}, None), (None, None), ("", None), ("N/A", None), ("(null)", None), ("UNLIMITED", None),
        (4294967294, None), (4294967295, None), (18446744073709551614, None), (65534, 65534), ("-3", -3),
    ],
)  # fmt: skip
def test_numbers(value: Any, expected: int | None) -> None:
    assert shapes.number(value) == expected


@pytest.mark.parametrize("value", [True, "x", 1.5, [1], "1e3", "٣", object()])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(ValueError, match="number"):
        shapes.number(value)


@pytest.mark.parametrize(
    ("value", "base", "flags"),
    [
        ("RUNNING", "RUNNING", set()), (["RUNNING"], "RUNNING", set()), (["PENDING", "COMPLETING"], "PENDING", {"COMPLETING"}),
        ("COMPLETING", "", {"COMPLETING"}), ("CANCELLED by 1001", "CANCELLED", set()), ("CANCELLED+", "CANCELLED", set()),
        ("CONFIGURING", "RUNNING", {"CONFIGURING"}), ("SPECIAL_EXIT", "PENDING", {"SPECIAL_EXIT"}),
        (["RUNNING", "NEW_IN_2030"], "RUNNING", {"NEW_IN_2030"}), (["COMPLETED", "COMPLETING"], "COMPLETED", {"COMPLETING"}),
    ],
)  # fmt: skip
def test_states(value: Any, base: str, flags: set[str]) -> None:
    assert shapes.state(value) == (base, flags)


@pytest.mark.parametrize("value", ["", [], "NEW_IN_2030", ["NEW_IN_2030"], None, 7, [7]])
def test_unknown_states_are_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        shapes.state(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, (0, None)), (768, (3, None)), (9, (0, 9)), (4021, (0, 53)), ("3:0", (3, None)), ("0:15", (0, 15)), ("768", (3, None)), (None, (None, None)),
        ({"set": True, "infinite": False, "number": 256}, (1, None)), ({"return_code": 3, "status": "ERROR"}, (3, None)),
        ({"return_code": {"set": False, "number": 0}, "signal": {"id": {"set": True, "number": 9}, "name": "KILL"}}, (0, 9)),
        ({"return_code": None, "signal": {"signal_id": 15, "name": "Terminated"}}, (0, 15)),
    ],
)  # fmt: skip
def test_exit_codes(value: Any, expected: tuple[int | None, int | None]) -> None:
    assert shapes.exit_of(value) == expected


def test_times_and_limits() -> None:
    assert (
        shapes.time_us("2026-12-01T18:41:55")
        == 1796150515 * 10**6
        == shapes.time_us(1796150515)
        == shapes.time_us("1796150515")
    )
    assert shapes.time_us(0) is shapes.time_us("Unknown") is shapes.time_us("N/A") is None
    with pytest.raises(ValueError, match="time"):
        shapes.time_us("2026-13-01T00:00:00")
    limits = ["3-12:00:00", "1:00:00", "05:00", "UNLIMITED", 60, {"set": True, "infinite": True, "number": 0}]
    assert [shapes.minutes_s(v) for v in limits] == [302_400, 3600, 300, None, 3600, None]


def test_gpus() -> None:
    assert shapes.gpus("", "cpu=2,node=2,gres/gpu=4") == 4
    assert shapes.gpus("gres/gpu:h100=4,gres/gpu=4", "gres/gpu=9") == 4
    assert shapes.gpus("gres/gpu:h100=4,gres/gpu:a100=2") == 6
    assert shapes.gpus("cpu=1", "") is None
    each = ["gres:gpu:2", "gres/gpu:h100=4,gres/shm=1", "gpu", "gres:gpu:a100:8", "", "gres:shm:3", "gres/gpumem:5"]
    assert [shapes.per_node(w) for w in each] == [2, 4, 1, 8, None, None, None]
