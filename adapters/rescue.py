"""Recovery inside a running watch: what the watch finds goes to the controller, what the controller says to people.

In: the settings, an open watch, its scheduler. Out: a sink of effects, a hearer of reads, one turn per poll. Always holds: in mode observe no
executor is there and no command but the scheduler's questions is run; a fault of recovery disarms it, is told, and does not stop the watch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from defib.adapters.act.asking import Asker
from defib.adapters.act.audit import Audit
from defib.adapters.act.client import ExecutorProcess
from defib.adapters.act.ports import Ports, Watching
from defib.adapters.act.verdicts import Verdicts
from defib.adapters.acts import Acts
from defib.adapters.control import Controller
from defib.adapters.news import News
from defib.adapters.slurm.calls import Commands
from defib.engine.core import HealthChanged, State
from defib.engine.errors import ConfigError, Problem
from defib.engine.jobs import ClusterRead
from defib.engine.policies import NodesPolicy, RecoveryPolicy
from defib.engine.recover.desk import Rules
from defib.engine.rulebook import Rulebook

ROOM_MIN = 16 * 1024 * 1024  # free bytes below which the state folder counts as full
KEYS = {"stop_files": list, "notify": list, "webhook": str}


@dataclass(slots=True)
class Rescue:
    """One cluster's recovery, hosted by a watch."""

    controller: Controller
    verdicts: Verdicts
    news: News
    executor: Callable[[], ExecutorProcess]
    say: Callable[[str], None]

    def renew(self, book: Rulebook) -> None:
        """Other rules and policies from now on."""
        before, rules = self.controller.rules.policy.mode, _rules(book)
        self._guarded(lambda: self.controller.renew(rules, self.executor))
        if rules.policy.mode != before:
            self.say(f"recovery: the mode was {before}, and is {rules.policy.mode} from now on")

    def heard(self, read: ClusterRead) -> None:
        """The scheduler was read."""

        def act() -> None:
            self.controller.scheduled(read)
            for event in self.verdicts.read(read):
                self.controller.feed(event)

        self._guarded(act)

    def apply(self, effects: list[object]) -> None:
        """As a sink: what follows for recovery."""

        def act() -> None:
            for event in self.verdicts.take(effects):
                self.controller.feed(event)

        self._guarded(act)

    def turn(self) -> None:
        """Once per poll."""
        self._guarded(self.controller.step)

    def _guarded(self, act: Callable[[], None]) -> None:
        """A fault of ours disarms recovery for good; detection goes on."""
        if self.controller.broken:
            return
        try:
            act()
        except Exception as e:  # whatever it is, nothing may be called after it
            self.controller.disarm(f"a fault of defib's own: {type(e).__name__}: {e}")

    def status(self) -> dict[str, Any]:
        """For the status."""
        c = self.controller
        return {
            "mode": c.rules.policy.mode,
            "broken": c.broken or None,
            "open_cases": len(c.desk.live),
            "breakers": sorted(b.name for b in c.desk.breakers.values() if b.state != "closed"),
            "news_waiting": self.news.waiting,
        }

    def close(self) -> None:
        self.controller.close()
        self.news.close()


def checked(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The `[recovery]` table. Raises ConfigError with every fault."""
    problems = []
    for key, value in table.items():
        kind = KEYS.get(key)
        if kind is None:
            problems.append(
                Problem(
                    where,
                    1,
                    1,
                    f"[recovery] unknown key '{key}'",
                    f"known: {', '.join(KEYS)}; the mode is policy: recovery.yaml",
                )
            )
        elif not isinstance(value, kind) or (kind is list and not all(isinstance(v, str) and v for v in value)):
            problems.append(
                Problem(
                    where,
                    1,
                    1,
                    f"[recovery] {key}: not {'a list of texts' if kind is list else 'a text'}",
                    f"see [recovery] {key}",
                )
            )
    notify = table.get("notify")
    if isinstance(notify, list) and notify and not str(notify[0]).startswith("/"):
        problems.append(
            Problem(
                where, 1, 1, "[recovery] notify: the command is no full path", 'e.g. ["/usr/local/bin/page", "defib"]'
            )
        )
    hook = table.get("webhook")
    if isinstance(hook, str) and not hook.startswith(("https://", "http://")):
        problems.append(Problem(where, 1, 1, "[recovery] webhook: no http address", '"https://…"'))
    if problems:
        raise ConfigError(problems)
    return dict(table)


def rescue_of(
    settings: Mapping[str, Any],
    folder: str,
    book: Rulebook,
    state: State,
    commands: Commands,
    now_us: Callable[[], int],
    behind: Callable[[], bool],
    say: Callable[[str], None],
    group: int | None = None,
    acts: Acts | None = None,
) -> Rescue:
    """Recovery as the site's policy has it. acts: the history's view of it. Raises StoreError where the audit cannot be trusted."""
    rules = _rules(book)
    audit = Audit(os.path.join(folder, "actions"))
    for text in audit.told:
        say(text)
    if acts is not None:
        if acts.of(audit.identity):
            say(
                f"{audit.folder}: not the audit the history knows; decisions and actions in the history are made anew from it"
            )
        audit.heard = acts.take
    stops = tuple(settings.get("stop_files", ()))
    kills = (os.path.join(folder, "STOP"), *stops)

    def executor() -> ExecutorProcess:
        return ExecutorProcess(os.path.join(folder, "executor"), audit.folder, kills, commands, say)

    news = News(tuple(settings.get("notify", ())), settings.get("webhook"), say)
    verdicts = Verdicts(state, now_us)
    verdicts.resumed(state)
    ports = Ports(
        Asker(commands, now_us),
        None if rules.policy.mode == "observe" else executor(),
        lambda c: verdicts.evidence(c.attempt),
        news,
        lambda: watching(folder, state, now_us, behind),
        now_us,
    )
    made = Rescue(Controller(folder, rules, ports, audit, stops, group), verdicts, news, executor, say)
    made.apply(_standing(state, now_us()))
    return made


def _rules(book: Rulebook) -> Rules:
    return Rules(book.policy(RecoveryPolicy), book.policy(NodesPolicy), book.class_by_id)


def _standing(state: State, now_us: int) -> list[object]:
    """What an earlier watch found last of the jobs that were open then."""
    found = state.live.watches.values()
    return [
        HealthChanged(w.job, w.attempt, "", w.health, now_us, w.because, w.unwell)
        for w in found
        if w.health in ("dead", "hung", "slow")
    ]


def watching(folder: str, state: State, now_us: Callable[[], int], behind: Callable[[], bool]) -> Watching:
    """What the watch knows of itself. The self-test: a tick has gone through the whole engine."""
    ticked = state.live.now_us
    room = os.statvfs(folder)
    healths = [w.health for w in state.live.watches.values()]
    lag = None if ticked is None else max(0, now_us() - ticked) / 1e6
    return Watching(
        ticked, lag, len(healths), healths.count("blind"), (), room.f_bavail * room.f_frsize < ROOM_MIN,
        ticked is not None and not behind(),
    )  # fmt: skip
