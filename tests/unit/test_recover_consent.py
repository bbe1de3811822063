"""Consent: what is no plain consent is none; what is printed is accepted; every narrowing is kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defib.engine.recover.consent import KINDS, Consent, ConsentError, explain, parse

GOOD = '{"defib": {"restart": ["crash", "hang"], "max_restarts": 3, "act_on_running": true}}'


def test_what_is_documented_is_accepted() -> None:
    assert parse(GOOD) == Consent(frozenset(["crash", "hang"]), 3, True)
    assert parse('{"defib":{"restart":["crash"]}}') == Consent(frozenset(["crash"]))
    assert parse('{"defib":{"restart":["crash"],"exclude_nodes":false}}').exclude_nodes is False


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("please restart", "no JSON object"),
        ('["defib"]', "no JSON object"),
        ('{"defib": {"restart": ["crash"]}', "no valid JSON"),
        (GOOD + "x", "no valid JSON"),
        ('{"defib": {"restart": ["crash"], "restart": ["hang"]}}', "twice"),
        ('{"defib": {"restart": ["crash"]}, "defib": {}}', "twice"),
        ('{"defib": {"restart": ["crash"], "retries": 3}}', "unknown key 'retries'"),
        ('{"defib": {"restart": ["crash"]}, "APS": {}}', "more than defib: 'APS'"),
        ('{"APS": {"auto_resume_mode": "requeue"}}', "does not name defib"),
        ('{"defib": []}', "no object"),
        ('{"defib": {}}', "no list"),
        ('{"defib": {"restart": "crash"}}', "no list"),
        ('{"defib": {"restart": [1]}}', "no list"),
        ('{"defib": {"restart": ["crush"]}}', "'crush'"),
        ('{"defib": {"restart": ["crash", "crash"]}}', "twice"),
        ('{"defib": {"restart": []}}', "taken back"),
        ('{"defib": {"restart": ["crash"], "max_restarts": true}}', "max_restarts"),
        ('{"defib": {"restart": ["crash"], "max_restarts": 1.0}}', "max_restarts"),
        ('{"defib": {"restart": ["crash"], "max_restarts": null}}', "max_restarts"),
        ('{"defib": {"restart": ["crash"], "max_restarts": -1}}', "max_restarts"),
        ('{"defib": {"restart": ["crash"], "max_restarts": 99999999999999}}', "too long"),
        ('{"defib": {"restart": ["crash"], "max_restarts": NaN}}', "NaN"),
        ('{"defib": {"restart": ["crash"], "act_on_running": 1}}', "act_on_running"),
        ('{"defib": {"restart": ["crash"], "act_on_running": "true"}}', "act_on_running"),
        ('{"defib": {"restart": ["crash"], "x": [[[[[]]]]]}}', "nested"),
        ("{" * 2000, "nested"),
        ('{"defib": {"restart": ["crash"]}, "pad": "' + "x" * 4096 + '"}', "longer"),
        ('{"defib": {"restart": ["crash\udcff"]}}', "UTF-8"),
        ("\x00" + GOOD, "no JSON object"),
    ],
)
def test_what_is_not_plainly_a_consent_is_none(comment: str, why: str) -> None:
    with pytest.raises(ConsentError) as e:
        parse(comment)
    assert why in e.value.why
    assert e.value.mend
    assert explain(comment)[0] is False


@given(
    st.sets(st.sampled_from(KINDS), min_size=1), st.none() | st.integers(0, 100), st.booleans(), st.booleans()
)  # fmt: skip
def test_what_is_printed_is_accepted_as_it_was_meant(
    kinds: set[str], limit: int | None, running: bool, exclude: bool
) -> None:
    c = Consent(frozenset(kinds), limit, running, exclude)
    text = c.comment()
    assert parse(text) == c
    assert "\n" not in text
    assert "'" not in text
    assert explain(text)[0]


@given(st.text(max_size=200))
def test_any_text_is_a_consent_or_a_refusal(text: str) -> None:
    try:
        parse(text)
    except ConsentError:
        return
    assert json.loads(text)["defib"]["restart"]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(["defib", "restart", "max_restarts", "act_on_running", "crash"]), x, max_size=3), max_leaves=12))  # fmt: skip
def test_any_json_is_a_consent_or_a_refusal(value: object) -> None:
    try:
        c = parse(json.dumps(value))
    except ConsentError:
        return
    assert c.restart <= set(KINDS)
    assert c.restart
