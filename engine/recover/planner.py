"""The decision about one case: a plan, and whether every gate lets it through.

In: `Inputs`. Out: `Decision`. Always: pure; the same inputs give the same decision, in any mode (the mode is only a gate), and the stored JSON
of the inputs gives it again: `replay(decision.inputs_json)`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Literal

from defib.engine.recover import codec, consent, exclusion, fence, gates
from defib.engine.recover.exclusion import Excluded
from defib.engine.recover.gates import Reading
from defib.engine.recover.inputs import SECOND, Inputs, same
from defib.engine.recover.words import Plan, Refusal

# Gates that stay closed for this attempt whatever time brings: the case is refused at once instead of waiting.
LASTING = frozenset(["allow-list", "end", "budget"])


@dataclass(frozen=True, slots=True)
class Decision:
    """plan: what would be done, None where none can be made. readings: every gate in order. refusal: None where all are open.

    would: all gates are open but the one that asks for the mode: what observe would have done. for_good: the first gate that stays closed
    whatever time brings.
    """

    plan: Plan | None
    readings: tuple[Reading, ...]
    refusal: Refusal | None
    would: bool
    for_good: Reading | None
    notes: tuple[str, ...] = ()

    @property
    def lasting(self) -> bool:
        """Waiting will not help."""
        return self.for_good is not None

    def closed(self, *but: str) -> tuple[str, ...]:
        """Names of the closed gates, those named left out."""
        return tuple(r.name for r in self.readings if not r.open and r.name not in but)


def decide(inputs: Inputs) -> Decision:
    """The decision. Never raises: what cannot be read closes a gate."""
    plan, notes = _plan(inputs)
    readings = gates.read(inputs, plan)
    closed = [r for r in readings if not r.open]
    refusal = None
    if closed:
        first = closed[0]
        refusal = Refusal(first.gate, first.name, first.value, first.read_us, tuple(r.gate for r in closed[1:]))
    would = plan is not None and all(r.open or r.name == "mode" for r in readings)
    return Decision(plan, readings, refusal, would, next((r for r in closed if _lasts(r, inputs)), None), notes)


def replay(inputs_json: str | bytes) -> Decision:
    """The decision of stored inputs. Raises ValueError where the text is none."""
    return decide(codec.load(Inputs, inputs_json))


def _lasts(reading: Reading, inputs: Inputs) -> bool:
    """A closed gate of a lasting kind that was really read (and not only unknown for now, or about time windows that move on)."""
    if reading.name not in LASTING and not (reading.name == "consent" and inputs.target == "terminal"):
        return False
    if reading.read_us is None or len(inputs.found) != 1:
        return False
    if (
        reading.name == "consent" and inputs.final
    ):  # a read that is too old by now says nothing about what the owner wants
        again = gates.read(dataclasses.replace(inputs, final=False), None)
        return not any(r.open for r in again if r.name == "consent")
    if reading.name != "budget":
        return True
    t, b = inputs.tally, inputs.policy.budgets
    limit = gates.class_limit(inputs)
    return limit == 0 or t.same_place > 0 or t.group >= limit or t.lineage >= b.lineage.without_progress


def _plan(i: Inputs) -> tuple[Plan | None, tuple[str, ...]]:
    """What would be done, if anything can be: with the suspected nodes kept out where that is allowed and possible."""
    try:
        (facts,) = i.found
        if not same(facts.attempt, i.attempt):
            return None, ()
        chosen = exclusion.choose(
            i.candidates, facts, i.room, i.policy.exclusion, _may_exclude(facts.comment), i.now_us
        )
        by = fence.named_by(facts, i.cluster)
        verb: Literal["requeue", "requeuehold"] = "requeuehold" if chosen.add else "requeue"
        if i.reissue:
            return _again(i, by), chosen.notes
        return _sealed(
            i, Plan(verb, i.target, by, chosen.add, chosen.whole, due(i), "", _sentence(i, chosen))
        ), chosen.notes
    except Exception:  # an unforeseen value makes no plan; gate 8 says so
        return None, ()


def _again(i: Inputs, by: fence.By) -> Plan | None:
    """The one repetition: as planned before, aimed at the end that the attempt has come to since."""
    if i.plan is None:
        return None
    return _sealed(i, dataclasses.replace(i.plan, target=i.target, by=by, due_us=i.plan.due_us))


def _sealed(i: Inputs, plan: Plan) -> Plan:
    text = codec.dump(
        [fence.key_of(i.attempt, "mutate"), plan.verb, plan.target, list(plan.exclude), list(plan.all_excluded)]
    )
    return dataclasses.replace(plan, digest=hashlib.blake2b(text.encode(), digest_size=8).hexdigest())


def _may_exclude(comment: str) -> bool:
    try:
        return consent.parse(comment).exclude_nodes
    except consent.ConsentError:
        return False


def due(i: Inputs) -> int:
    """When the call is due: after the backoff of the lineage, counted from the first sign, spread by a number that the attempt itself gives."""
    waits = i.policy.call.backoff_s
    wait = waits[min(i.tally.lineage, len(waits) - 1)]
    spread = int(fence.key_of(i.attempt, "mutate")[:8], 16) / 0xFFFFFFFF
    return i.signed_us + int(wait * (1 + i.policy.call.jitter * spread) * SECOND)


def _sentence(i: Inputs, chosen: Excluded) -> str:
    """What is proposed, for people: numbers, words of ours and node names of the scheduler only."""
    job = f"job {i.attempt.job_id}" + (f" task {i.attempt.array_task}" if i.attempt.array_task is not None else "")
    what = {"terminal": "has ended", "running": "holds its nodes and does not move"}[i.target]
    where = f" with {', '.join(chosen.add)} kept out" if chosen.add else ""
    return f"{job} (run {i.attempt.restarts}) {what}: class {i.klass.id}; requeue it{where}"
