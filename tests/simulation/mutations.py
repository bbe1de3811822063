"""Bugs put back into the code under test, one at a time, to show that the simulator would have caught them.

A mutation replaces a piece of a function's source; the piece has to be there exactly once, so a mutation that no longer fits the code fails loudly
instead of testing nothing. Each is undone afterwards.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from defib.engine.recover import (
    breakers,
    budgets,
    desk,
    exclusion,
    fence,
    gates,
    gather,
    inputs,
    machine,
    planner,
    steps,
    verify,
)


@dataclass(frozen=True)
class Mutation:
    """What was forgotten (name), where, and how the code then reads."""

    name: str
    module: ModuleType
    function: str  # or Class.method
    old: str
    new: str
    faults: str = ""  # what has to go wrong for it to matter; nothing: whatever the seed draws
    also: tuple[
        tuple[ModuleType, str, str, str], ...
    ] = ()  # the same thing is asked for here too: defence in depth has to fail as a whole
    first: int = 1  # the first seed that is tried: rare ones would take long otherwise

    @property
    def only(self) -> frozenset[str] | None:
        return frozenset(self.faults.split()) if self.faults else None


DEATHS = "bad-nodes bugs"
ONCE = ((gates, "_budget", 'if t.attempt > (1 if i.reissue and i.target == "terminal" else 0):', "if False:"),)
MUTATIONS = (
    Mutation("the mode is not asked for", gates, "_mode", 'if i.policy.mode == "act":', "if True:"),
    Mutation("the kill switch is not asked for", gates, "_kill_switch", "return not v.killed,", "return True,", DEATHS + " hangs kill-switch"),
    Mutation("allow-lists are empty for everybody", gates, "_allowed", 'if "*" not in names and', "if False and", DEATHS),
    Mutation("a run is ended without the site's word", gates, "_allowed", 'if i.target == "running" and not', "if False and not", first=8),
    Mutation("consent is taken for granted", gates, "_consent", 'return False, f"none: {e.why}"', 'return True, f"none: {e.why}"', DEATHS),
    Mutation("consent for one kind is consent for all", gates, "_consent", "if kind not in c.restart:", "if False:", DEATHS + " hangs"),
    Mutation("the owner's limit is not counted", gates, "_consent", "if c.max_restarts is not None and", "if False and", DEATHS),
    Mutation("an old read will do", gates, "_fresh", "if i.final and not", "if False and not", DEATHS + " slow-reads"),
    Mutation("another run of the same job will do", inputs, "same", "return fences and", "return (a.job_id, a.array_task) == (b.job_id, b.array_task) and",
             DEATHS + " hangs other-requeuer delay", first=90),
    Mutation("held runs are targets", gates, "_identity", "if f.held or f.flags:", "if False:", "hangs hold"),
    Mutation("jobs that are not to be requeued are targets", gates, "_identity", "if f.requeue is not True or f.batch is not True:", "if False:",
             DEATHS),
    Mutation("exit codes do not matter", gates, "_end", "if code is not None and code != 0 and code in", "if False and code in", "storm bad-nodes"),
    Mutation("nobody else gets time to restart it", gates, "_others", "if age < i.policy.confirm.settle_s:", "if False:", DEATHS + " delay",
             ((steps, "_suspect", "seen.looks < p.terminal_looks or seen.ended_us is None or desk.age_s(seen.ended_us) < p.settle_s", "False"),)),
    Mutation("the log alone ends a run", gates, "_independent", 'return False, "nothing but the log says so", None',
             'return True, "the log says so", j.at_us', "hangs false-hang"),
    Mutation("budgets without progress are not kept", budgets, "without_progress", "return [c for c in mine if", "return [c for c in [] if",
             "bugs misjudged", first=20),
    Mutation("the user's budget is not kept", budgets, "tally", "user_hour=sum(", "user_hour=0 * sum(", DEATHS + " hangs", first=10),
    Mutation("the cluster's rate is not kept", gates, "_rate", "if t.ten_minutes >= r.per_ten_minutes:", "if False:", DEATHS + " kill-switch", first=168),
    Mutation("two calls may follow at once", gates, "_rate", "if t.cluster_us is not None and", "if False and", DEATHS + " kill-switch", first=36),
    Mutation("open breakers do not stop", gates, "_breakers", 'if b.state == "open" or', "if", DEATHS + " blind regret"),
    Mutation("many at once open no breaker", breakers, "_correlated", "if len(recent) < p.correlated_lineages:", "if True:", DEATHS + " storm", first=7),
    Mutation("no window is needed", fence, "window", 'if by == "sluid":', "if True:", DEATHS + " short-delay"),
    Mutation("a task is named by its own number", fence, "named_by", 'return "task" if', 'return "id" if', DEATHS),
    Mutation("a start sends again", machine, "_take_start", '"unknown", "we were', '"planned", "we were', DEATHS + " crash lost-reply delay",
             ONCE, first=150),
    Mutation("unclear is taken as not run", verify, "heard",
             'return desk.move(case, "unknown", f"the end of the call is not known: {code or \'unclear\'}")', 'return _not_run(desk, case, "late")',
             DEATHS + " controller-down controller-hung lost-reply", ONCE),
    Mutation("silence is taken as not run", verify, "_silent",
             'return desk.move(case, "unknown", "nothing was heard of the call")', 'return _not_run(desk, case, "late")',
             DEATHS + " executor-crash", ONCE),
    Mutation("a run is called again and again", verify, "_not_done", "if not ended or case.reissue:", "if False:", DEATHS + " hangs executor-crash", ONCE),
    Mutation("whoever holds it, we release", verify, "_hold", "if f.reason != case.hold_reason or _released(case):", "if False:",
             "bad-nodes hold"),
    Mutation("a hold is never released", verify, "_hold", 'return _follow(desk, case, f, "release", ())', "return case", "bad-nodes"),
    Mutation("the user's own exclusions are lost", exclusion, "choose", "{*facts.excluded, *add}", "{*add}", "bad-nodes"),
    Mutation("nobody counts the nodes that are left", exclusion, "_against", "if left < need:", "if False:", "bad-nodes"),
    Mutation("a case inherits from the one before", desk, "opened", "signed_us=desk.now_us,", "signed_us=desk.now_us, copied_us=desk.now_us,"),
    Mutation("a change leaves no row", desk, "Desk._store", "self.record(", 'changed.state == "confirmed" or self.record('),
    Mutation("rows have gaps", desk, "Desk.record", "self.seq += 1", "self.seq += 1 + (what == 'breaker')", "blind"),
    Mutation("a part of a heterogeneous job is a job", gates, "_identity", "if f.het_offset not in (None, 0):", "if False:", DEATHS + " parts"),
    Mutation("orders of an old epoch", fence, "mutating", "policy, epoch, reissue,", "policy, 1, reissue,", DEATHS + " crash"),
    Mutation("the plan depends on the mode", planner, "_plan", "exclusion.choose(", "exclusion.choose(() if i.policy.mode != 'act' else ",
             "bad-nodes"),
)  # fmt: skip


@contextmanager
def planted(m: Mutation) -> Iterator[None]:
    """The code with this bug, everywhere where the functions were imported to."""
    with ExitStack() as stack:
        for module, function, old, new in ((m.module, m.function, m.old, m.new), *m.also):
            stack.enter_context(_edited(m.name, module, function, old, new))
        yield


@contextmanager
def _edited(what: str, module: ModuleType, function: str, old: str, new: str) -> Iterator[None]:
    owner: Any = module
    for part in function.split(".")[:-1]:
        owner = getattr(owner, part)
    name = function.rpartition(".")[2]
    right = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(right))
    if source.count(old) != 1:
        raise LookupError(f"{what}: '{old}' is {source.count(old)} times in {function}")
    made: dict[str, Any] = {}
    exec(compile(source.replace(old, new), inspect.getfile(module), "exec"), vars(module), made)
    wrong = made[name]
    users = [(mod, n) for mod in MODULES for n, v in list(vars(mod).items()) if v is right]
    table, takes = gates.GATES, dict(machine._TAKE)
    gates.GATES = tuple((n, wrong if g is right else g) for n, g in table)
    machine._TAKE.update({k: wrong for k, v in takes.items() if v is right})
    for where, n in [(owner, name), *users]:
        setattr(where, n, wrong)
    try:
        yield
    finally:
        gates.GATES = table
        machine._TAKE.update(takes)
        for where, n in [(owner, name), *users]:
            setattr(where, n, right)


MODULES = (breakers, budgets, desk, exclusion, fence, gates, gather, inputs, machine, planner, steps, verify)
