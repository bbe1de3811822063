"""What can go wrong, as types. Apart from `words` (which passes them on), so that a scan need not wait for Arrow.

Errors form one tree: DefibError > ConfigError(problems), RuleError(problems), SourceError, StoreError.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault in a person's input: where it is, what is wrong and how to mend it. Prints as `path:line:col: message`."""

    path: str
    line: int
    column: int
    message: str
    mend: str = ""
    rule: str = ""
    unread: bool = False  # nothing is wrong with what it says: it is not there, or could not be read

    def __str__(self) -> str:
        about = f"{self.rule}: " if self.rule else ""
        mend = f"\n    mend: {self.mend}" if self.mend else ""
        return f"{self.path}:{self.line}:{self.column}: {about}{self.message}{mend}"


class DefibError(Exception):
    """Root of every error a caller may want to catch."""


class ProblemsError(DefibError):
    """Carries every fault found in one input, not just the first."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(p) for p in problems))

    @property
    def unread(self) -> bool:
        """Whether every fault is that something could not be read."""
        return all(p.unread for p in self.problems)

    def __reduce__(self) -> tuple[type[ProblemsError], tuple[list[Problem]]]:
        return type(self), (self.problems,)  # it may have to come from another process


class ConfigError(ProblemsError):
    """A setting is missing or cannot be."""


class RuleError(ProblemsError):
    """The rulebook does not load."""


class SourceError(DefibError):
    """A log could not be read; the rest goes on."""


class StoreError(DefibError):
    """The history could not be opened or written."""
