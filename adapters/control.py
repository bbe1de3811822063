"""The control loop of recovery: gives the pure machine what was seen, makes its rows durable, and carries out what follows from them.

In: events of a watch (`feed`), answers of scheduler, executor and people (`step`, called about every second). Out: rows in the audit, orders for
the executor, questions, news. Always: a row is on disk before any later effect leaves the process; an order is handed over once; in mode
`observe` there is no executor at all; a full disk stops effects and loses none; any other failure of the audit disarms for good.

    DIR/actions/   the audit, with the cluster's lock        DIR/executor/  the executor's own journal
    DIR/said/      approvals and other words of people       DIR/inbox/     evidence from outside
    DIR/STOP       the kill switch                           DIR/asked.json what waits for a person
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from defib.adapters.act import people, switch
from defib.adapters.act.asking import Survey
from defib.adapters.act.audit import Audit
from defib.adapters.act.people import Sign
from defib.adapters.act.ports import ExecutorPort, Ports
from defib.adapters.act.spool import Letter, Spool
from defib.adapters.journal import place
from defib.adapters.room import FullError
from defib.engine.jobs import ClusterFacts, ClusterRead, NodeFacts
from defib.engine.recover import machine
from defib.engine.recover.desk import Desk, Rules, case_id, name
from defib.engine.recover.inputs import line
from defib.engine.recover.words import (
    FINAL,
    UNDERWAY,
    Ask,
    Copied,
    Copy,
    Effect,
    Event,
    Fresh,
    Issue,
    Judged,
    Look,
    Notify,
    OutsideEvidence,
    Record,
    Returned,
    Scheduled,
    Started,
    TakenBack,
    Tick,
    Vitals,
)
from defib.engine.words import StoreError

SECOND = 1_000_000
TICK_US, BEAT_US, SURVEY_US, LETTERS_US = SECOND, 5 * SECOND, 10 * SECOND, SECOND
TELL_US = 20 * SECOND  # a verdict that stands is told again so often: each time is one observation
STANDING_MAX = 10_000
FORGET_US = 3600 * SECOND  # a verdict that opened no case within this time
SIGN_US = 600 * SECOND  # signs from outside are remembered so long; the policy asks for fresher ones


@dataclass(slots=True)
class _Due:
    """When what is next, by the observer's clock."""

    tick: int = 0
    beat: int = 0
    survey: int = 0
    letters: int = 0
    tell: int = 0


class Controller:
    """One cluster's recovery. folder: the state folder; stops: further kill switches. Raises StoreError where the audit cannot be trusted.

    broken: why nothing is decided any more, "" while all is well.
    """

    def __init__(
        self, folder: str, rules: Rules, ports: Ports, audit: Audit, stops: tuple[str, ...] = (), group: int | None = None
    ) -> None:  # fmt: skip
        if (rules.policy.mode == "observe") != (ports.executor is None):
            raise ValueError("an executor goes with the modes approve and act, and with no other")
        self.folder, self.rules, self.ports, self.audit = folder, rules, ports, audit
        self.stops = (os.path.join(folder, switch.STOP), *stops)
        self.broken = ""
        self._group, self._tell_us = group, _often(rules)
        self._people = Spool(os.path.join(folder, "said"), group)
        self._inbox = Spool(os.path.join(folder, "inbox"), group)
        self._events: deque[Event] = deque()
        self._effects: deque[Effect] = deque()
        self._due, self._full = _Due(), False
        self._standing: dict[Any, tuple[int, Judged]] = {}
        self._signs: dict[str, tuple[str, int]] = {}
        self._acted: dict[Any, int] = {}  # when the newest call about a job went out, or came back
        self._survey: Survey | None = None
        self._pings, self._committed_us = 0, 0
        self._asked: dict[str, Ask] = {}
        self._shown = b""
        self.desk: Desk = machine.rebuilt(rules, audit.rows())
        self.feed(Started(ports.now_us(), audit.epoch, audit.clean))
        if self.desk.epoch != audit.epoch:
            self._break(f"the audit's epoch {self.desk.epoch} is not the lock's {audit.epoch}")

    # what comes in

    def feed(self, event: Event) -> None:
        """Take an event of the watch. Its time is set to now: what was seen counts from when it is told."""
        if isinstance(event, Judged):
            self._stand(event)
            event = self._signed(event)
        elif isinstance(event, TakenBack):
            self._standing.pop(line(event.attempt), None)
        self._events.append(event)
        self._work()

    def scheduled(self, read: ClusterRead) -> None:
        """A periodic read of the scheduler, with what the last survey found."""
        cluster: ClusterFacts | None = None
        nodes: tuple[NodeFacts, ...] | None = None
        if self._survey is not None:
            cluster, nodes = self._survey.cluster, self._survey.nodes
            if cluster is not None:
                cluster = dataclasses.replace(
                    cluster, ping_s=None
                )  # it differs each time, and every change makes a row
            self._survey = dataclasses.replace(self._survey, cluster=None, nodes=None)
        self.feed(Scheduled(read.at_us, read, cluster, nodes))

    def renew(self, rules: Rules, executor: Callable[[], ExecutorPort]) -> None:
        """Other rules from the next event on. An executor begins where the new mode needs one; in observe it ends when no call of ours is open any
        more, as a job that we hold has to be let go."""
        if rules.policy.mode != "observe" and self.ports.executor is None:
            self.ports = dataclasses.replace(self.ports, executor=executor())
        self.rules = self.desk.rules = rules
        self._tell_us = _often(rules)
        self._rest()

    def _rest(self) -> None:
        """In observe there is no executor, once nothing is left for it to bring to its end."""
        executor, desk = self.ports.executor, self.desk
        if executor is None or self.rules.policy.mode != "observe":
            return
        if not any(desk.cases[id_].state in UNDERWAY for id_ in desk.live):
            self.ports = dataclasses.replace(self.ports, executor=None)
            executor.close()

    def step(self) -> None:
        """Hear what has come, tell what is due. Never waits for anybody but the disk."""
        if self.broken:
            return
        now, due = self.ports.now_us(), self._due
        if self.ports.executor is not None:
            for said in self.ports.executor.poll(now):
                self._returned(said, now)
        for answer in self.ports.scheduler.poll():
            self._heard(answer)
        if now >= due.letters:
            due.letters = now + LETTERS_US
            self._letters(now)
        if now >= due.survey:
            due.survey = now + SURVEY_US
            self.ports.scheduler.survey()
            if self.ports.executor is not None:
                self.ports.executor.ping(now)
        if now >= due.beat:
            due.beat = now + BEAT_US
            self._beat(now)
            self._events.append(self._vitals(now))
        if now >= due.tell:
            due.tell = now + self._tell_us
            self._retell(now)
        if now >= due.tick:
            due.tick = now + TICK_US
            self._events.append(Tick(now))
        self._work()
        self._rest()
        self._show()

    def close(self) -> None:
        """End in order. Raises StoreError."""
        if self.ports.executor is not None:
            self.ports.executor.close()
        self.ports.scheduler.close()
        self.audit.close()

    # carrying out

    def _work(self) -> None:
        """Events into the machine, effects out of it, until there is neither."""
        try:
            self._carry()
            while self._events and not self._full and not self.broken:
                event = self._events.popleft()
                moment = max(self.ports.now_us(), self.desk.now_us)
                self._effects += machine.advance(self.desk, dataclasses.replace(event, at_us=moment))
                self._carry()
        except FullError as e:
            if not self._full:
                self._news("disarmed", "full", f"{e}; nothing is called until there is room")
            self._full = True
        except StoreError as e:
            self._break(str(e))

    def _carry(self) -> None:
        """Effects in their order; rows are on disk before what comes after them. Raises FullError (nothing is lost), StoreError."""
        if self._full:
            self.audit.sync()
            self._full = False
        while self._effects:
            effect = self._effects.popleft()
            if isinstance(effect, Record):
                self.audit.record(effect.row)
                if self._effects and isinstance(self._effects[0], Record):
                    continue
                self.audit.sync()
                self._committed_us = self.ports.now_us()
            else:
                self._out(effect)

    def _out(self, effect: Effect) -> None:
        ports, now = self.ports, self.ports.now_us()
        if isinstance(effect, Issue):
            if ports.executor is None and effect.order.verb in ("requeue", "requeuehold"):
                raise StoreError("an order in mode observe: this is a fault of defib's own, please report it")
            if (
                ports.executor is None
            ):  # a job that an earlier start in another mode held: nobody can let it go but a person
                self._events.append(Returned(now, effect.order.number, effect.order.key, "not-run", "no-executor"))
                return
            self._acted[line(effect.order.expected)] = now
            ports.executor.order(effect.order, now)
        elif isinstance(effect, Look):
            ports.scheduler.look(effect.attempt, effect.label)
        elif isinstance(effect, Copy):
            self._copy(effect, now)
        elif isinstance(effect, Ask):
            self._asked[effect.case] = effect
            ports.tell(Notify("asked", f"{effect.case}:{effect.digest}", effect.sentence, effect.case))
        elif isinstance(effect, Notify):
            ports.tell(effect)

    def _copy(self, effect: Copy, now: int) -> None:
        """The evidence into the audit. A copy that fails is asked for again by the machine."""
        try:
            kept = self.ports.copy(effect)
            self.audit.keep(
                effect.case, {"attempt": dataclasses.asdict(effect.attempt), "incident": effect.incident, **kept}
            )
        except FullError:
            raise
        except (StoreError, ValueError, OSError, TypeError) as e:
            self._events.append(Copied(now, effect.case, False, str(e)[:200]))
            return
        self._events.append(Copied(now, effect.case, True))

    def disarm(self, why: str) -> None:
        """Decide and call nothing any more, until a person has looked."""
        self._break(why)

    def _break(self, why: str) -> None:
        self.broken = why
        self._events.clear()
        self._effects.clear()
        self._news("disarmed", "broken", f"recovery is off until a person has looked: {why}")

    def _news(self, kind: str, key: str, sentence: str) -> None:
        self.ports.tell(Notify(kind, key, sentence))

    # what is known of ourselves

    def _returned(self, said: Returned, now: int) -> None:
        for id_ in self.desk.live:
            case = self.desk.cases[id_]
            if any(o.order.number == said.number for o in case.orders):
                self._acted[line(case.attempt)] = now
        while len(self._acted) > STANDING_MAX:
            del self._acted[next(iter(self._acted))]
        self._events.append(said)

    def _heard(self, answer: Fresh | Survey) -> None:
        if isinstance(answer, Survey):
            self._survey = answer
            self._pings = self._pings + 1 if answer.swift and answer.maintenance is not None else 0
            return
        if answer.begun_us < self._acted.get(line(answer.attempt), 0):
            # begun before the newest call of ours came back: it may show what was before that call
            answer = dataclasses.replace(answer, ok=False, found=())
        self._events.append(answer)

    def _beat(self, now: int) -> None:
        """Something durable, so that a disk that hangs or is full shows before it matters."""
        try:
            place.save(os.path.join(self.audit.folder, "alive"), b"%d\n" % now)
            self._committed_us = self.ports.now_us()
        except OSError:
            pass  # the dead-man gate closes as the time goes on

    def _vitals(self, now: int) -> Vitals:
        host, survey = self.ports.watching(), self._survey
        try:
            newest: int | None = switch.newest_epoch(self.audit.folder)
        except (OSError, ValueError):
            newest = None
        canary = host.canary_us
        if self.ports.executor is not None:  # the self-test covers the process that would call
            ponged = self.ports.executor.ponged_us
            alive = ponged is not None and self.ports.executor.epoch == self.audit.epoch
            canary = min(canary, ponged) if canary is not None and ponged is not None and alive else None
        return Vitals(
            now, switch.stopped(self.stops), canary, host.lag_s, self._committed_us or None, host.stepped_us, newest == self.audit.epoch,
            newest, self._pings, survey.backlog if survey else None, host.streams, host.blind, host.mounts_hung,
            self._full or host.full, (survey.maintenance or ()) if survey else (), host.caught_up,
        )  # fmt: skip

    # verdicts that stand

    def _stand(self, judged: Judged) -> None:
        key = line(judged.attempt)
        old = self._standing.get(key)
        since = old[0] if old is not None and old[1].attempt == judged.attempt else self.ports.now_us()
        self._standing[key] = (since, judged)
        while len(self._standing) > STANDING_MAX:
            del self._standing[next(iter(self._standing))]

    def _retell(self, now: int) -> None:
        """What the watch holds still, it says again, until its case is closed or nobody knows the job."""
        for key, (since, judged) in list(self._standing.items()):
            case = self.desk.cases.get(case_id(judged.attempt))
            seen = self.desk.seen.get(key)
            moved = seen is not None and seen.facts.attempt.restarts != judged.attempt.restarts
            if moved or (case is not None and case.state in FINAL) or (case is None and now - since > FORGET_US):
                del self._standing[key]
            else:
                self._events.append(self._signed(judged))

    def _signed(self, judged: Judged) -> Judged:
        """The verdict with the newest sign from outside log and job, where there is one and it has none of its own."""
        if judged.sign or judged.kind == "dead":
            return judged
        seen = self.desk.seen.get(line(judged.attempt))
        names = [name(judged.attempt).split()[1], *(seen.facts.nodes if seen is not None else ())]
        found = [self._signs[n] for n in names if n in self._signs]
        if not found:
            return judged
        sign, at = max(found, key=lambda s: s[1])
        return dataclasses.replace(judged, sign=sign, sign_us=at)

    # people and other diagnosers

    def _letters(self, now: int) -> None:
        for letter in self._people.take():
            self._letter(self._people, letter, lambda x: people.said(x, now), now)
        for letter in self._inbox.take():
            self._letter(self._inbox, letter, lambda x: people.evidence(x, now, self.rules.classes), now)
        for key in [k for k, (_, at) in self._signs.items() if now - at > SIGN_US]:
            del self._signs[key]

    def _letter(self, spool: Spool, letter: Letter, make: Callable[[Letter], people.Word], now: int) -> None:
        word, why = people.read(letter, make)
        if isinstance(word, OutsideEvidence) and self.desk.nodes and word.node not in self.desk.nodes:
            word, why = None, "the scheduler has no node of that name"
        if not spool.settle(letter, why) or word is None:
            return
        if isinstance(word, Sign):
            self._signs[word.job] = (f"{word.source} by {word.who}", now)
            return
        if isinstance(word, OutsideEvidence) and word.confidence != "possible":
            self._signs[word.node] = (f"{word.source} about {word.node}", now)
        self._events.append(word)

    def _show(self) -> None:
        """What waits for a person, for `defib act list`; written where it has changed."""
        for case in [c for c in self._asked if c not in self.desk.cases or self.desk.cases[c].state != "planned"]:
            del self._asked[case]
        document = {
            "schema": "defib/asked/1", "mode": self.rules.policy.mode, "broken": self.broken,
            "asked": [dataclasses.asdict(a) | {"job": name(self.desk.cases[a.case].attempt)} for a in self._asked.values()],
            "breakers": [dataclasses.asdict(b) for _, b in sorted(self.desk.breakers.items()) if b.state != "closed"],
            "open": [
                {"case": c.id, "job": name(c.attempt), "state": c.state, "gate": c.gate, "because": c.because}
                for c in (self.desk.cases[i] for i in self.desk.live)
            ],
        }  # fmt: skip
        raw = orjson.dumps(document, option=orjson.OPT_INDENT_2)
        if raw == self._shown:
            return
        path = os.path.join(self.folder, "asked.json")
        try:
            place.save(path, raw)
            if self._group is not None:
                os.chown(path, -1, self._group)
                os.chmod(path, 0o640)
        except OSError:
            return  # shown again at the next step
        self._shown = raw


def _often(rules: Rules) -> int:
    """How often a verdict that stands is told again: as many looks as the policy asks for, in the time that it gives."""
    confirm = rules.policy.confirm
    return min(TELL_US, int(confirm.hang_s * SECOND / confirm.hang_looks))
