"""Policy files -> checked policies, or every fault at once.

In: YAML text of `policy:` files (shapes: `policies`). Out: a frozen dataclass, or `RuleError` with one `Problem` per fault at its line.
Always: a later file of the same policy lays its keys over those of an earlier one, mapping by mapping, so a site's file
names only what it changes; what is laid over is checked as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from defib.engine import policies, rulefaults, yamlpos
from defib.engine.policies import P
from defib.engine.words import Problem, RuleError


def load_policy(text: str, path: str, model: type[P]) -> P:
    """One policy file. Raises RuleError carrying every fault with its line and mend."""
    source = yamlpos.read(path, text)
    problems = list(source.problems)
    found = None if problems else laid(model, [source], problems)
    if found is None or problems:
        raise RuleError(sorted(problems, key=lambda p: (p.path, p.line, p.column)))
    return found


def laid(model: type[P], files: Sequence[yamlpos.Positioned], problems: list[Problem]) -> P | None:
    """The policy the files make together, each laid over those before it. Faults go to problems; then the answer is None."""
    data: Any = {}
    for f in files:
        if not isinstance(f.data, dict):
            problems.append(f.problem((), "a policy file is a mapping", "begin with 'policy:'"))
            return None
        data = _over(data, f.data)

    def tell(loc: tuple[Any, ...], message: str, mend: str) -> Problem:
        owner = next((f for f in reversed(files) if loc in f.at), files[0])
        return owner.problem(loc, message, mend)

    try:
        return TypeAdapter(model).validate_python(data)
    except ValidationError as e:
        problems += rulefaults.problems_of(e, tell, lambda loc: keys(model, loc))
        return None


def assemble(files: Iterable[yamlpos.Positioned], problems: list[Problem]) -> dict[str, dict[str, Any]]:
    """Name -> plain values of every policy in the files (`restore` makes the shape of them again). Unknown names are faults."""
    named: dict[str, list[yamlpos.Positioned]] = {}
    for f in files:
        name = str(f.data["policy"])
        if name in policies.POLICIES:
            named.setdefault(name, []).append(f)
        else:
            known = sorted(policies.POLICIES)
            mend = rulefaults.near(name, known) or f"one of {', '.join(known)}"
            problems.append(f.problem(("policy",), f"there is no policy '{name}'", mend))
    out: dict[str, dict[str, Any]] = {}
    for name, same in named.items():
        policy = laid(policies.POLICIES[name], same, problems)
        if policy is not None:
            out[name] = dataclasses.asdict(policy)  # type: ignore[call-overload]  # every shape is a dataclass
    return out


def _over(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{k: _over(below.get(k), v) for k, v in above.items()}}


def keys(model: type[Any], loc: rulefaults.Loc = ()) -> list[str]:
    """The keys a shape knows of its part at a place; none where there is no such part."""
    here: type[Any] | None = model
    for name in (n for n in loc if isinstance(n, str)):
        hints = get_type_hints(here) if here is not None else {}
        here = _part(hints[name]) if name in hints else None
    return [] if here is None else [f.name for f in dataclasses.fields(here)]


def _part(hint: Any) -> type[Any] | None:
    return next((t for t in (hint, *get_args(hint)) if isinstance(t, type) and dataclasses.is_dataclass(t)), None)
