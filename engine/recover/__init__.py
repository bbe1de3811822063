"""Recovery without hands: from verdicts to at most one scheduler call per attempt, and the proof that it helped.

`machine.advance(state, event) -> effects` is the only way in and out. `words` holds every type, `gates` and `planner` the decision,
`steps` and `verify` the life of one case, `breakers` and `budgets` what stops it, `invariants` what may never be seen in its rows.
"""
