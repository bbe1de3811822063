"""One record of a job or node, whatever it was read from -> plain values.

In: fields under the names `squeue --json` gives them; values in any shape `shapes` reads. Out: JobFacts, NodeFacts. Always: ValueError where a
record cannot be understood without doubt; the caller leaves that record out, names it, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from defib.adapters.slurm import paths, shapes
from defib.adapters.slurm.hosts import expand
from defib.adapters.slurm.shapes import clean, number, text, time_us
from defib.engine.jobs import TERMINAL_STATES, JobFacts, NodeFacts

Record = Mapping[str, Any]
ID_MAX = 0xFFFFFFFF
DEFAULT_LOG, DEFAULT_ARRAY_LOG = b"slurm-%j.out", b"slurm-%A_%a.out"
ODD = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
NODE_STATES = ("DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE", "UNKNOWN")


def sorted_out(
    records: Iterable[Any], build: Callable[[Record], JobFacts]
) -> tuple[list[JobFacts], list[str], frozenset[int], bool]:
    """Every record by itself: (facts, troubles, ids that could not be read, whether all that could not be read are named)."""
    facts: list[JobFacts] = []
    troubles: list[str] = []
    unread: set[int] = set()
    named = True
    for record in records:
        try:
            facts.append(build(record))
        except ODD as e:
            job = _id_of(record)
            if job is None:
                named = False
                troubles.append("a record without a job id was left out")
            else:
                unread.add(job)
                why = str(e) if isinstance(e, ValueError) else "an odd shape"
                troubles.append(f"job {job}: its record cannot be read ({clean(why)})")
    return facts, troubles, frozenset(unread), named


def _id_of(record: Any) -> int | None:
    try:
        return number(record.get("job_id"))
    except ODD:
        return None


def job(r: Record, cluster: str | None, version: tuple[int, ...] = ()) -> JobFacts:
    """One job. cluster: our own name for it, else the record's. Raises ValueError (and what odd shapes raise)."""
    job_id = shapes.needed(r["job_id"], "job id")
    if not 0 < job_id <= ID_MAX:
        raise ValueError("an impossible job id")
    base, flags = shapes.state(r["job_state"])
    array, task = number(r.get("array_job_id")) or None, number(r.get("array_task_id"))
    het = number(r.get("het_job_id"))
    task = task if array is not None else None
    over = base in TERMINAL_STATES
    code, sig = shapes.exit_of(r.get("exit_code")) if over else (None, None)
    nodes = expand(text(r.get("nodes")))
    priority = number(r.get("priority"))
    host = clean(text(r.get("batch_host"))) or (nodes[0] if nodes and base == "RUNNING" else None)
    step = r.get("step_id")
    batch = shapes.truth(r.get("batch_flag"))
    values = paths.Values(
        job_id, array, task, shapes.raw(text(r.get("name"))), shapes.raw(text(r.get("user_name"))),
        host.split(".")[0].encode() if host else None, number(r.get("restart_cnt")) or 0, version,
    )  # fmt: skip
    folder = shapes.raw(text(r.get("current_working_directory"))) or None
    # The batch script runs in the leading component only, and what srun or salloc run has no log that is told.
    logged = batch is not False and not (het and number(r.get("het_job_offset")))
    out, err = _logs(r, values, folder) if logged else (None, None)
    return JobFacts(
        cluster=cluster or clean(text(r.get("cluster"))) or "",
        job_id=job_id,
        state=base,
        submit_us=time_us(r.get("submit_time")) or _missing("submit time"),
        restarts=shapes.needed(r.get("restart_cnt"), "restart count"),
        user=clean(text(r.get("user_name"))),
        uid=number(r.get("user_id")),
        account=clean(text(r.get("account"))),
        partition=clean(text(r.get("partition"))),
        qos=clean(text(r.get("qos"))),
        name=clean(text(r.get("name"))),
        flags=flags,
        reason=_reason(r),
        array_job_id=array,
        array_task=task,
        array_pending=array is not None and task is None,
        het_job_id=het or None,
        het_offset=number(r.get("het_job_offset")) if het else None,
        start_us=time_us(r.get("start_time")),
        end_us=time_us(r.get("end_time")) if over else None,
        suspended_us=time_us(r.get("suspend_time")) if base == "SUSPENDED" else None,
        exit_code=code,
        exit_signal=sig,
        nodes=nodes,
        batch_host=host,
        excluded=expand(text(r.get("excluded_nodes"))),
        required=expand(text(r.get("required_nodes"))),
        node_count=_count(r.get("node_count")),
        gpus=_gpus(r),
        priority=priority,
        held=base in ("PENDING", "") and (priority == 0 or bool(shapes.truth(r.get("hold")))),
        requeue=shapes.truth(r.get("requeue")),
        batch=batch,
        comment=clean(text(r.get("comment"))),
        admin_comment=clean(text(r.get("admin_comment"))),
        dependency=clean(text(r.get("dependency"))),
        reservation=clean(text(r.get("resv_name"))),
        stdout=out,
        stderr=err if err != out else None,
        work_dir=folder,
        time_limit_s=shapes.minutes_s(r.get("time_limit")),
        sluid=(text(step.get("sluid")) if isinstance(step, Mapping) else text(r.get("sluid"))) or None,
    )


def _logs(r: Record, values: paths.Values, folder: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Where standard output and error go."""
    out, err = _output(r, values, folder), _path(r, "standard_error", "stderr_expanded", values, folder)
    if values.array_task is not None and folder is not None and err == paths.expand(DEFAULT_LOG, values, folder):
        err = None if "stderr_expanded" not in r else err  # some text output: it goes to stdout, see `_output`
    return out, err


def _missing(what: str) -> int:
    raise ValueError(f"no {what}")


def _reason(r: Record) -> str:
    """A word of Slurm's own; text output may put a sentence in its place, with underscores for blanks."""
    found = clean(text(r.get("state_reason")))
    return "" if found in shapes.EMPTY else found


def _gpus(r: Record) -> int | None:
    """What the accounting counts, else what was asked for on each node (accounting of GPUs is a site's choice)."""
    counted = shapes.gpus(text(r.get("tres_alloc_str")), text(r.get("tres_req_str")))
    if counted is None and (each := shapes.per_node(text(r.get("tres_per_node")))) is not None:
        nodes = _count(r.get("node_count"))
        return each * nodes if nodes is not None else None
    return counted


def _count(value: Any) -> int | None:
    """Nodes: a number, or `2-4` where a range was asked for."""
    return number(value.split("-")[0]) if isinstance(value, str) else number(value)


def _output(r: Record, values: paths.Values, folder: bytes | None) -> bytes | None:
    """Where nothing was asked for, Slurm's own name in the work folder. Some text output gives an array's task that of a plain job."""
    found = _path(r, "standard_output", "stdout_expanded", values, folder)
    if folder is None or (values.array_job_id is not None and values.array_task is None):
        return found
    plain = paths.expand(DEFAULT_LOG, values, folder)
    if values.array_task is None:
        return plain if found is None else found
    odd = found is None or (found == plain and "stdout_expanded" not in r)
    return paths.expand(DEFAULT_ARRAY_LOG, values, folder) if odd else found


def _path(r: Record, plain: str, expanded: str, values: paths.Values, folder: bytes | None) -> bytes | None:
    """The scheduler's own expansion where there is one. Releases that print numbers as objects expand the plain field; older ones, which
    print plain numbers, do not."""
    done = shapes.raw(text(r.get(expanded)))
    given = shapes.raw(text(r.get(plain)))
    if (b"\\" in given or b"%%" in given) and expanded in r:  # there the scheduler expands what the node will not
        return paths.expand(given, values, folder or b"/")
    if not done and (r.get("paths_expanded") or isinstance(r.get("submit_time"), Mapping)) and expanded not in r:
        done = given
    if done:
        return paths.finish(done, values, folder or b"/")
    return paths.expand(given, values, folder or b"/") if given and expanded not in r else None


def node(r: Record) -> NodeFacts:
    """One node. State words may come as a list, `IDLE+DRAIN`, or a word and a list of flags; a star says that it does not answer."""
    told = r["state"]
    words = list(told) if isinstance(told, list) else text(told).split("+")
    words += r.get("state_flags") or []
    flags = {text(w).upper() for w in words}
    flags |= {"NOT_RESPONDING" for w in flags if w.endswith("*")} | {"DRAIN" for w in flags if w.startswith("DRAIN")}
    flags = {w.strip("*~#%$@!^-") for w in flags}
    base = next((w for w in NODE_STATES if w in flags), "")
    partitions = r.get("partitions") or []
    named = text(r.get("name"))
    if not named:
        raise ValueError("no node name")
    return NodeFacts(
        named,
        base,
        frozenset(flags - {base, ""}),
        tuple(partitions.split(",") if isinstance(partitions, str) else map(text, partitions)),
        clean(text(r.get("reason"))),
    )
