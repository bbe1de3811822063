"""Jobs as each generation of Slurm prints them, from one description: shapes and keys as observed, values of our own.

A text field is bytes and is printed as Slurm does: raw in text, and in JSON escaped where JSON asks for it, bytes that are no UTF-8 as they are.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

Job = dict[str, Any]
NO_VAL = 4294967294
START = 1_796_000_000

BASE: Job = {
    "job_id": 4711, "array": None, "task": None, "tasks": "", "het": None, "offset": 0, "state": ["RUNNING"], "reason": "None", "submit": START,
    "start": START + 60, "end": START + 3660, "restarts": 0, "uid": 1001, "user": "ada", "partition": "train", "qos": "normal", "account": "physics",
    "nodes": "g[01-02]", "host": "g01", "excluded": "g[07-08]", "required": "", "count": 2, "priority": 4294901700, "requeue": True, "batch": True,
    "status": 0, "name": b"llm", "comment": b"", "admin_comment": b"", "dependency": "", "reservation": "", "work_dir": b"/home/ada/run",
    "pattern": b"/home/ada/run/out-%j.log", "stdout": b"/home/ada/run/out-4711.log", "limit": 60, "suspend": 0, "gpus": 8, "sluid": "s509M8SE8EK500",
}  # fmt: skip


def job(**changes: Any) -> Job:
    """A running job with changes."""
    return {**BASE, **changes}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _dump(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _num(value: int | None, *, plain: bool) -> Any:
    if plain:
        return value
    return {"set": value is not None, "infinite": False, "number": value or 0}


def _code(status: int) -> dict[str, Any]:
    sig = status & 0x7F
    return {
        "status": ["SIGNALED" if sig else "ERROR" if status else "SUCCESS"],
        "return_code": {"set": not sig, "infinite": False, "number": 0 if sig else status >> 8},
        "signal": {"id": {"set": bool(sig), "infinite": False, "number": sig}, "name": ""},
    }


def _common(j: Job, *, plain: bool) -> dict[str, Any]:
    def n(value: int | None) -> Any:
        return _num(value, plain=plain)

    tres = f"cpu=2,node={j['count']}" + (f",gres/gpu={j['gpus']}" if j["gpus"] else "")
    return {
        "account": j["account"], "admin_comment": _text(j["admin_comment"]), "array_job_id": n(j["array"] or 0), "array_task_id": n(j["task"]),
        "array_task_string": j["tasks"], "batch_flag": j["batch"], "batch_host": j["host"], "cluster": "bed", "comment": _text(j["comment"]),
        "dependency": j["dependency"], "end_time": n(j["end"]), "excluded_nodes": j["excluded"], "het_job_id": n(j["het"] or 0),
        "het_job_offset": n(j["offset"]), "job_id": j["job_id"], "name": _text(j["name"]), "nodes": j["nodes"], "node_count": n(j["count"]),
        "partition": j["partition"], "priority": n(j["priority"]), "qos": j["qos"], "required_nodes": j["required"], "requeue": j["requeue"],
        "restart_cnt": j["restarts"], "resv_name": j["reservation"], "start_time": n(j["start"]), "state_description": "",
        "state_reason": j["reason"], "submit_time": n(j["submit"]), "suspend_time": n(j["suspend"]), "time_limit": n(j["limit"]),
        "tres_req_str": tres, "tres_alloc_str": "", "user_id": j["uid"], "user_name": j["user"],
        "current_working_directory": _text(j["work_dir"]),
    }  # fmt: skip


def _word(j: Job) -> str:
    """The state where one word is printed: a flag wins."""
    return str(j["state"][-1])


def squeue_2205(jobs: list[Job], errors: list[Any] | None = None) -> bytes:
    """openapi/v0.0.38: plain numbers, one state word, raw patterns."""
    out = [
        _common(j, plain=True)
        | {
            "job_state": _word(j),
            "exit_code": j["status"],
            "standard_output": _text(j["pattern"]),
            "standard_error": "",
        }
        for j in jobs
    ]
    meta = {"Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}, "release": "22.05.8"}}
    return _dump({"meta": meta, "errors": errors or [], "jobs": out})


def squeue_2302(jobs: list[Job]) -> bytes:
    """data_parser/v0.0.39: numbers as objects, one state word, the wait status as an object."""
    out = [
        _common(j, plain=False)
        | {"job_state": _word(j), "exit_code": _num(j["status"], plain=False), "standard_output": _text(j["stdout"]),
           "standard_error": _text(j["stdout"]), "hold": j["priority"] == 0}
        for j in jobs
    ]  # fmt: skip
    meta = {"Slurm": {"version": {"major": 23, "micro": 6, "minor": 2}, "release": "23.02.6"}}
    return _dump({"meta": meta, "errors": [], "warnings": [], "jobs": out})


def squeue_2411(jobs: list[Job]) -> bytes:
    """data_parser/v0.0.42: lists of state words, exit codes as objects, expanded paths."""
    out = [
        _common(j, plain=False)
        | {"job_state": j["state"], "exit_code": _code(j["status"]), "standard_output": _text(j["stdout"]),
           "standard_error": _text(j["stdout"]), "hold": j["priority"] == 0}
        for j in jobs
    ]  # fmt: skip
    meta = {"slurm": {"version": {"major": "24", "micro": "5", "minor": "11"}, "release": "24.11.5", "cluster": "bed"}}
    return _dump({"jobs": out, "meta": meta, "errors": [], "warnings": [{"description": "nothing of weight"}]})


def squeue_2605(jobs: list[Job]) -> bytes:
    """data_parser/v0.0.45: raw pattern and expanded path side by side, SLUIDs."""
    out = [
        _common(j, plain=False)
        | {"job_state": j["state"], "exit_code": _code(j["status"]), "standard_output": _text(j["pattern"]), "standard_error": "",
           "stdout_expanded": _text(j["stdout"]), "stderr_expanded": "", "hold": j["priority"] == 0, "step_id": {"sluid": j["sluid"]}}
        for j in jobs
    ]  # fmt: skip
    meta = {"slurm": {"version": {"major": "26", "micro": "5", "minor": "05"}, "release": "26.05.5", "cluster": "bed"}}
    return _dump({"jobs": out, "meta": meta, "errors": [], "warnings": []})


JSONS = {"22.05": squeue_2205, "23.02": squeue_2302, "24.11": squeue_2411, "26.05": squeue_2605}


def columns(jobs: list[Job], divider: str, keys: list[str]) -> bytes:
    """`squeue -h -O`: each column whole, ended by the divider, a line a job."""
    return b"".join(b"".join(_column(j, k) + divider.encode() for k in keys) + b"\n" for j in jobs)


def _column(j: Job, key: str) -> bytes:
    def n(value: Any) -> str:
        return "N/A" if value is None else str(value)

    tres = f"cpu=2,node={j['count']}" + (f",gres/gpu={j['gpus']}" if j["gpus"] else "")
    het = j["het"] is not None
    found: dict[str, Any] = {
        "JobID": j["job_id"], "ArrayJobID": j["array"] or j["job_id"], "ArrayTaskID": j["tasks"] or n(j["task"]), "State": _word(j),
        "RestartCnt": j["restarts"], "SubmitTime": j["submit"], "StartTime": n(j["start"] or None), "EndTime": n(j["end"] or None),
        "UserID": j["uid"], "UserName": j["user"], "Account": j["account"] or "(null)", "Partition": j["partition"], "QOS": j["qos"],
        "Reason": j["reason"], "NodeList": j["nodes"], "BatchHost": j["host"] or "n/a", "HetJobID": n(j["het"]),
        "HetJobOffset": j["offset"] if het else "N/A", "exit_code": j["status"], "PriorityLong": j["priority"], "Requeue": int(j["requeue"]),
        "BatchFlag": int(j["batch"]), "ReqNodes": j["required"], "ExcNodes": j["excluded"], "NumNodes": j["count"], "tres-alloc": tres,
        "tres-per-node": "N/A", "TimeLimit": "1:00:00" if j["limit"] == 60 else "UNLIMITED", "Cluster": "bed",
        "Reservation": j["reservation"] or "(null)", "Dependency": j["dependency"] or "(null)", "Name": j["name"],
        "Comment": j["comment"] or "(null)", "admin_comment": j["admin_comment"] or "(null)", "WorkDir": j["work_dir"], "STDOUT": j["pattern"],
        "STDERR": j["pattern"],
    }  # fmt: skip
    value = found[key]
    return value if isinstance(value, bytes) else str(value).encode()


def scontrol(j: Job) -> bytes:
    """One line of `scontrol -o show job`, with ISO times in UTC."""

    def t(seconds: int) -> str:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") if seconds else "Unknown"

    s = j["status"]
    code = f"0:{s & 0x7F}" if s & 0x7F else f"{s >> 8}:0"
    array = f"ArrayJobId={j['array']} ArrayTaskId={j['task'] if j['task'] is not None else j['tasks']} ArrayTaskThrottle=2 " if j["array"] else ""  # fmt: skip
    het = f"HetJobId={j['het']} HetJobOffset={j['offset']} " if j["het"] else ""
    front = (
        f"UserId={j['user']}({j['uid']}) GroupId=g(100) MCS_label=N/A Priority={j['priority']} Nice=0 Account={j['account'] or '(null)'} "
        f"QOS={j['qos']} JobState={_word(j)} Reason={j['reason']} Dependency={j['dependency'] or '(null)'} Requeue={int(j['requeue'])} "
        f"Restarts={j['restarts']} BatchFlag={int(j['batch'])} Reboot=0 ExitCode={code} RunTime=00:01:13 TimeLimit=01:00:00 TimeMin=N/A "
        f"SubmitTime={t(j['submit'])} EligibleTime={t(j['submit'])} StartTime={t(j['start'])} EndTime={t(j['end'])} Deadline=N/A "
        f"SuspendTime={t(j['suspend']) if j['suspend'] else 'None'} SecsPreSuspend=0 Partition={j['partition']} AllocNode:Sid=head1:2424 "
        f"ReqNodeList={j['required'] or '(null)'} ExcNodeList={j['excluded'] or '(null)'} NodeList={j['nodes']} "
        + (f"BatchHost={j['host']} " if j["host"] else "")
        + f"NumNodes={j['count']}-{j['count']} NumCPUs=2 ReqTRES=cpu=2,node={j['count']},gres/gpu={j['gpus']} AllocTRES=(null) Socks/Node=* "
        f"Features=(null) DelayBoot=00:00:00 Licenses=(null) Network=(null) Command="
    )
    back = (
        b"/home/ada/train.sh WorkDir=" + j["work_dir"] + (b" Comment=" + j["comment"] + b" " if j["comment"] else b"")
        + b" StdErr=" + j["stdout"] + b" StdIn=/dev/null StdOut=" + j["stdout"] + b" Power= \n"
    )  # fmt: skip
    return f"JobId={j['job_id']} {array}{het}JobName=".encode() + j["name"] + b" " + front.encode() + back
