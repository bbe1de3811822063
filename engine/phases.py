"""What a run is doing: start-up, its first steps, steady training, evaluation, checkpoint, ending.

Phase lines say so where a framework prints them; progress closes whatever was open (an end line that never comes must not leave a phase
open for ever). Everything belongs to one attempt and is gone with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from defib.engine.words import Signal

NAMES = {"startup": "startup", "resume": "startup", "compile": "compile", "evaluation": "evaluation", "checkpoint": "checkpoint",
         "data": "unknown", "ending": "ending"}  # fmt: skip
FIRST_STEPS = 3  # steps forward after which a run is steady


@dataclass(slots=True)
class Phases:
    """Folded by a trace: what was announced since training last moved."""

    open: list[str] = field(default_factory=list)
    touched: dict[str, int] = field(
        default_factory=dict
    )  # phase -> where it was last spoken of, since training last moved
    spoken: dict[str, int] = field(
        default_factory=dict
    )  # the same since the attempt began: each counter has moves of its own

    def told(self, s: Signal) -> None:
        """A phase line."""
        if s.phase is None:
            return
        self.touch(s.offset, NAMES[s.phase])
        name = NAMES[s.phase]
        if s.edge == "begin" and name not in self.open:
            self.open.append(name)
        elif s.edge == "end" and name in self.open:
            self.open.remove(name)

    def touch(self, offset: int, name: str) -> None:
        self.touched[name] = max(offset, self.touched.get(name, offset))
        self.speak(offset, name)

    def speak(self, offset: int, name: str) -> None:
        """Spoken of before training moved on."""
        self.spoken[name] = max(offset, self.spoken.get(name, offset))

    def since(self, offset: int) -> tuple[str, ...]:
        """Phases announced after a place."""
        return tuple(sorted(name for name, at in self.touched.items() if at > offset))

    def moved(self) -> None:
        """Training went forward: whatever was going on is over."""
        self.open.clear()
        self.touched.clear()

    def now(self, advances: int, *, through: bool) -> str:
        """The phase at this moment. advances: training steps seen going forward; through: the loop is done, or its last step was printed."""
        if through:
            return "ending"
        if self.open:
            return self.open[-1]
        if not advances:
            return "startup"
        return "compile" if advances < FIRST_STEPS else "steady"
