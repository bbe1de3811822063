"""voices: bounded sets of who spoke, forgotten with progress, and the layout that follows from them."""

from __future__ import annotations

import pytest
from tests.conftest import Kit, signal
from tests.unit.crowd import crowd

from defib.engine.layout import layout_of
from defib.engine.voices import (
    BREADTH_US,
    MECHANISMS_MAX,
    NAMES_MAX,
    PEERS_MAX,
    RANKS_MAX,
    WITNESSES_MAX,
    Spread,
    Voices,
    bits,
    host,
    mechanism,
)


@pytest.fixture(scope="module")
def made() -> Kit:
    return crowd()


def heard(made: Kit, *rows: dict[str, object]) -> Voices:
    v = Voices()
    for n, row in enumerate(rows):
        v.hear(signal(made, str(row.pop("rule")), n, **row))
    return v


def test_bits_are_ranks() -> None:
    assert bits(0) == []
    assert bits(1 << 5 | 1 << 700) == [5, 700]


def test_names_lose_their_domain_and_addresses_do_not() -> None:
    assert [host(n) for n in ("gpu-b9.example.org", "10.12.0.9", "[fd00::1]", "n1")] == [
        "gpu-b9",
        "10.12.0.9",
        "fd00::1",
        "n1",
    ]


def test_everything_is_bounded(made: Kit) -> None:
    v = Voices()
    for n in range(NAMES_MAX + 50):
        s = signal(made, "u.lost", n, rank=n, node=f"n{n}", fields=f'{{"peer":"p{n}","task":"{n}"}}')
        v.hear(s)
        v.hear(signal(made, "u.lost", n, rank=n, fields='{"peer":"p0"}'))
        v.hear(signal(made, "u.address", n, node=f"n{n}", fields=f'{{"address":"10.0.0.{n}"}}'))
        v.hear(signal(made, "u.far", n, rank=n, fields=f'{{"completed":"{n}","group":"{n}"}}'))
    assert max(bits(v.known)) == RANKS_MAX - 1
    assert v.large
    assert len(v.homes) <= RANKS_MAX
    assert len(v.accused) == PEERS_MAX
    assert len(v.accused["p0"]) == WITNESSES_MAX
    assert len(v.addresses) == len(v.task_homes) == NAMES_MAX
    assert sum(map(len, v.far.values())) <= RANKS_MAX


def test_kinds_of_error_are_bounded_and_numbers_do_not_make_new_ones(made: Kit) -> None:
    v = Voices()
    for n in range(MECHANISMS_MAX + 10):
        text = "".join(chr(97 + int(c)) for c in str(n))
        v.hear(signal(made, "t.vague", n, fields=f'{{"exception":"E","message":"{text}"}}'))
    assert len(v.spreads) == MECHANISMS_MAX
    one, two = (signal(made, "t.vague", 0, fields=f'{{"message":"got {n} of 8"}}') for n in (3, 5))
    assert mechanism(one) == mechanism(two)


def test_who_comes_long_after_the_first_is_another_story(made: Kit) -> None:
    s = Spread()
    s.add(signal(made, "t.root", 0, rank=1, time_us=0), BREADTH_US)
    s.add(signal(made, "t.root", 1, rank=2, time_us=BREADTH_US), BREADTH_US)
    s.add(signal(made, "t.root", 2, rank=3, time_us=BREADTH_US + 1), BREADTH_US)
    assert bits(s.ranks) == [1, 2]


def test_progress_forgets_trouble_and_keeps_the_layout(made: Kit) -> None:
    v = heard(
        made,
        {"rule": "u.world", "fields": '{"world":"8"}'},
        {"rule": "u.waited", "rank": 3, "node": "n1", "fields": '{"timeout_ms":"9"}'},
    )
    assert bits(v.waited.ranks) == [3]
    v.forget_trouble()
    assert (v.waited.ranks, v.noticed.ranks, v.world, v.homes) == (0, 0, 8, {3: "n1"})


def test_of_several_worlds_the_largest_counts(made: Kit) -> None:
    v = heard(
        made,
        {"rule": "u.comm", "rank": 1, "node": "n1", "fields": '{"world":"4"}'},
        {"rule": "u.comm", "rank": 1, "node": "n5", "fields": '{"world":"8"}'},
        {"rule": "u.comm", "rank": 2, "node": "n1", "fields": '{"world":"4"}'},
        {"rule": "u.world", "fields": '{"world":"x"}'},
        {"rule": "u.world", "fields": '{"world":"99999999999"}'},
    )
    assert (v.world, v.comm_homes) == (8, {1: "n5"})


def test_a_task_on_two_nodes_is_on_none(made: Kit) -> None:
    v = heard(made, *({"rule": "u.lost", "node": n, "fields": '{"task":"3"}'} for n in ("n1", "n1")))
    assert layout_of(v).tasks == {3: "n1"}
    v.hear(signal(made, "u.lost", 9, node="n2", fields='{"task":"3"}'))
    assert layout_of(v).tasks == {}


def test_uneven_nodes_tell_nothing_of_neighbours(made: Kit) -> None:
    v = Voices(homes={0: "a", 3: "a", 4: "b", 7: "b"})
    assert layout_of(v).node_of(5) == "b"
    assert layout_of(Voices(homes={0: "a", 3: "b", 1: "b"})).size == 0
