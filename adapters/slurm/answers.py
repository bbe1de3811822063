"""What a command printed -> jobs and nodes: JSON of every generation, and text where there is no JSON.

Always: whatever users wrote into a job changes no other field and no other job. JSON is escaped by Slurm; of text only forms are read that a
user cannot forge: columns divided by a word drawn anew for each call, or one record whose job name is known beforehand. A record that cannot be
read is left out and named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from defib.adapters.show import cut, safe
from defib.adapters.slurm import records, shapes
from defib.engine.jobs import JobFacts, NodeFacts

# Columns of `squeue -O` and the names JSON gives the same fields. Only the last ones hold what users wrote.
COLUMNS = {
    "JobID": "job_id", "ArrayJobID": "array_job_id", "ArrayTaskID": "array_task_id", "State": "job_state", "RestartCnt": "restart_cnt",
    "SubmitTime": "submit_time", "StartTime": "start_time", "EndTime": "end_time", "UserID": "user_id", "UserName": "user_name",
    "Account": "account", "Partition": "partition", "QOS": "qos", "Reason": "state_reason", "NodeList": "nodes", "BatchHost": "batch_host",
    "HetJobID": "het_job_id", "HetJobOffset": "het_job_offset", "exit_code": "exit_code", "PriorityLong": "priority", "Requeue": "requeue",
    "BatchFlag": "batch_flag", "ReqNodes": "required_nodes", "ExcNodes": "excluded_nodes", "NumNodes": "node_count",
    "tres-alloc": "tres_alloc_str", "tres-per-node": "tres_per_node", "TimeLimit": "time_limit", "Cluster": "cluster",
    "Reservation": "resv_name", "Dependency": "dependency",
    "Name": "name", "Comment": "comment", "admin_comment": "admin_comment", "WorkDir": "current_working_directory",
    "STDOUT": "standard_output", "STDERR": "standard_error",
}  # fmt: skip
# Keys of `scontrol -o show job` that stand before the first field a user writes freely, and those behind.
KEYS = {
    "UserId": "user_id", "Priority": "priority", "Account": "account", "QOS": "qos", "JobState": "job_state", "Reason": "state_reason",
    "Dependency": "dependency", "Requeue": "requeue", "Restarts": "restart_cnt", "BatchFlag": "batch_flag", "ExitCode": "exit_code",
    "TimeLimit": "time_limit", "SubmitTime": "submit_time", "StartTime": "start_time", "EndTime": "end_time", "SuspendTime": "suspend_time",
    "Partition": "partition", "ReqNodeList": "required_nodes", "ExcNodeList": "excluded_nodes", "NodeList": "nodes",
    "BatchHost": "batch_host", "NumNodes": "node_count", "TRES": "tres_req_str", "ReqTRES": "tres_req_str", "AllocTRES": "tres_alloc_str",
    "SLUID": "sluid",
}  # fmt: skip
FREE = ("name", "comment", "admin_comment")
_HEAD = re.compile(
    r"JobId=(\d+) (?:ArrayJobId=(\d+) ArrayTaskId=(\S+) (?:ArrayTaskThrottle=\d+ )?)?"
    r"(?:HetJobId=(\d+) HetJobOffset=(\d+) )?JobName=",
    re.ASCII,
)
_USER = re.compile(r"(?:[A-Za-z]\w*=\S* )*?UserId=([^\s()]*)\((\d+)\) ", re.ASCII)
_PAIR = re.compile(r"(?:^| )([A-Za-z][\w/:]*)=(\S*)(?= |$)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Told:
    """Jobs of one answer. fault: why it is no answer, broken: because its form cannot be read; whole: every record that could not be read is
    named in `unread`. names: of jobs read from columns, as bytes."""

    jobs: tuple[JobFacts, ...] = ()
    troubles: tuple[str, ...] = ()
    unread: frozenset[int] = frozenset()
    whole: bool = True
    fault: str = ""
    broken: bool = False
    version: tuple[int, ...] = ()
    names: Mapping[int, bytes] = field(default_factory=dict)


def load(data: bytes) -> Any:
    """A JSON document. Slurm prints names as they are: bytes that are no UTF-8, control characters. Raises ValueError."""
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return json.loads(data.decode("utf-8", "surrogateescape"), strict=False)
        except RecursionError:
            raise ValueError("JSON of absurd depth") from None


def jobs_of_json(data: bytes, cluster: str | None) -> Told:
    """`squeue --json`, `scontrol show job --json`. Non-empty `errors` is no answer, whatever the exit code was."""
    try:
        document = load(data)
    except ValueError:
        return Told(whole=False, fault="its JSON cannot be read", broken=True)
    if not isinstance(document, dict) or not isinstance(document.get("jobs"), list):
        return Told(whole=False, fault="its JSON has no list of jobs", broken=True)
    if errors := document.get("errors"):
        return Told(whole=False, fault=_errors(errors))
    version, own = _meta(document.get("meta"))
    found = records.sorted_out(document["jobs"], lambda r: records.job(r, cluster or own, version))
    return Told(tuple(found[0]), tuple(found[1]), found[2], found[3], version=version)


def _errors(errors: Any) -> str:
    first = errors[0] if isinstance(errors, list) else errors
    words = (
        [str(first[k]) for k in ("error", "description") if first.get(k)]
        if isinstance(first, Mapping)
        else [str(first)]
    )
    return cut(safe(": ".join(words) or "an error without a word"), 300)


def _meta(meta: Any) -> tuple[tuple[int, ...], str | None]:
    """(version, cluster): numbers or texts, under `Slurm` or `slurm`."""
    inner = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, Mapping) else None
    if not isinstance(inner, Mapping):
        return (), None
    told = inner.get("version")
    numbers = [told.get(k) for k in ("major", "minor", "micro")] if isinstance(told, Mapping) else []
    version = tuple(int(str(n)) for n in numbers if str(n).isdigit())
    return version, cut(shapes.clean(str(inner.get("cluster") or "")), 100) or None


def nodes_of_json(data: bytes) -> tuple[tuple[NodeFacts, ...] | None, tuple[str, ...]]:
    """`scontrol show nodes --json`, and what 22.05's `sinfo --json` printed. (None, why) where it is no answer."""
    try:
        document = load(data)
    except ValueError:
        return None, ("its JSON cannot be read",)
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        return None, ("its JSON has no list of nodes",)
    if errors := document.get("errors"):
        return None, (_errors(errors),)
    return _nodes(document["nodes"])


def _nodes(found: Sequence[Any]) -> tuple[tuple[NodeFacts, ...], tuple[str, ...]]:
    nodes, troubles = [], []
    for record in found:
        try:
            nodes.append(records.node(record))
        except records.ODD:
            troubles.append("a node's record cannot be read")
    return tuple(nodes), tuple(troubles)


def nodes_of_text(data: bytes) -> tuple[tuple[NodeFacts, ...], tuple[str, ...]]:
    """`scontrol -o show node`: a line each. Only operators write into it (Reason, last)."""
    found = []
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        if line.startswith("NodeName="):
            head, _, reason = line.partition(" Reason=")
            keys = dict(_PAIR.findall(head))
            found.append({"name": keys.get("NodeName"), "state": keys.get("State"), "reason": reason.rsplit(" [", 1)[0],
                          "partitions": keys.get("Partitions", "")})  # fmt: skip
    return _nodes(found)


def columns(divider: str, without: frozenset[str] = frozenset()) -> str:
    """The argument of `squeue -O`: every column ends with the divider, and so is printed whole."""
    return ",".join(f"{c}:{divider}" for c in COLUMNS if c not in without)


def jobs_of_columns(
    data: bytes, divider: str, cluster: str | None, without: frozenset[str] = frozenset(), version: tuple[int, ...] = ()
) -> Told:
    """What `squeue -h -O columns(divider)` printed. The divider is not known to users, so what they wrote divides nothing."""
    keys = [v for k, v in COLUMNS.items() if k not in without]
    pieces = data.decode("utf-8", "surrogateescape").split(divider)
    if len(pieces) % len(keys) != 1 or pieces[-1] not in ("", "\n"):
        return Told(whole=False, fault="its columns do not add up", broken=True)
    rows = [dict(zip(keys, pieces[i : i + len(keys)], strict=True)) for i in range(0, len(pieces) - 1, len(keys))]
    found = records.sorted_out(map(_row, rows), lambda r: records.job(r, cluster, version))
    names = {int(r["job_id"]): shapes.raw(r["name"] or "") for r in rows if r["job_id"].isdigit()}
    return Told(tuple(found[0]), tuple(found[1]), found[2], found[3], version=version, names=names)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Columns say what is not there in their own way: the array's id of a job without one is its own."""
    row["job_id"] = row["job_id"].strip("\n")
    task = row["array_task_id"]
    if task in shapes.EMPTY:
        row["array_job_id"] = row["array_task_id"] = None
    elif not task.isdigit():  # tasks that were not split off: `2-5%2`
        row["array_task_id"] = None
    for key, value in row.items():
        if (value == "(null)" and key != "name") or (value in ("N/A", "n/a") and key not in FREE):
            row[key] = None
    return row


def job_of_text(data: bytes, job_id: int, name: bytes, cluster: str | None, version: tuple[int, ...] = ()) -> Told:
    """One record of `scontrol -o [-d] show job`, of a job whose raw id and name are known: what follows the name up to `Command=` is Slurm's.

    Behind that stand paths and texts a user chose: of those only the output paths are taken, and only where they cannot be anything else.
    """
    one = data.decode("utf-8", "surrogateescape")
    known = name.decode("utf-8", "surrogateescape")
    found = records.sorted_out(
        [{"job_id": job_id, "": one}], lambda r: records.job(_scontrol(r[""], job_id, known), cluster, version)
    )
    return Told(tuple(found[0]), tuple(found[1]), found[2], found[3], version=version)


def _scontrol(record: str, job_id: int, name: str) -> dict[str, Any]:
    head = _HEAD.match(record)
    if head is None or int(head[1]) != job_id or not record.startswith(name, head.end()):
        raise ValueError("it is not the record that was asked for")
    user = _USER.match(record, head.end() + len(name) + 1)
    if user is None:
        raise ValueError("no user")
    front, _, back = record[head.end() + len(name) :].partition(" Command=")
    keys: dict[str, str] = {}
    for key, value in _PAIR.findall(front.partition(" Features=")[0].partition(" Network=")[0]):
        keys.setdefault(key, value)
    out: dict[str, Any] = {KEYS[k]: v for k, v in keys.items() if k in KEYS}
    task = head[3]
    out |= {
        "job_id": head[1], "array_job_id": head[2], "array_task_id": task if task and task.isdigit() else None, "het_job_id": head[4],
        "het_job_offset": head[5], "name": name, "user_name": user[1], "user_id": user[2], "paths_expanded": True,
    }  # fmt: skip
    for key, value in out.items():
        if key != "name" and value in shapes.EMPTY:
            out[key] = None
    folder, path = _place(back)
    out |= {"current_working_directory": folder, "standard_output": path}
    return out


def _place(back: str) -> tuple[str | None, str | None]:
    """(work folder, standard output) behind `Command=`, where each key stands exactly once: else a text of the user's may hold it."""
    if any(back.count(f" {k}=") != 1 for k in ("WorkDir", "StdErr", "StdIn", "StdOut")):
        return None, None
    folder = re.search(r" WorkDir=(.*?)(?: Comment=| AdminComment=| SystemComment=| StdErr=)", back, re.S)
    path = re.search(r" StdIn=.*? StdOut=(.*?)(?: Power=| TresPer| MailUser=| NtasksPerTRES|\s*$)", back, re.S)
    return (folder[1] if folder else None), (path[1] if path else None)
