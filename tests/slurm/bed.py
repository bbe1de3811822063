"""A real Slurm of several nodes on this machine, for tests: made in about a second, gone without a trace.

Every daemon runs in one PID, mount and UTS namespace, every node in a further one, all on 127.0.0.1. The first process of the namespace (this
file again, as a program) starts what it is told on its standard input and ends when that closes: however the tests end, the kernel then ends
everything below it, also jobs that left their process tree. Facts this rests on: Debian's slurmd may run many times on one host
(MULTIPLE_SLURMD), nodes differ by port, accounting and authentication can be switched off, and `cred_expire=5` shortens the delay of a
requeue to 6 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

DAEMONS = "/usr/sbin:/usr/bin:/sbin:/bin"
PATIENCE_S = 60.0  # of tests on a busy machine; they look every 50 ms
USERS = ("nobody", "games")  # two ordinary users every Debian has
CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire={cred}
StateSaveLocation={root}/state
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdSpoolDir={root}/spool/%n
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmdLogFile={root}/log/slurmd.%n.log
MailProg=/bin/true
PlugStackConfig=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2{delay}
PriorityType=priority/basic
SlurmctldTimeout=10
SlurmdTimeout={slurmd_timeout}
KillWait=2
MinJobAge={min_job_age}
InactiveLimit=0
MessageTimeout={message_timeout}
UnkillableStepTimeout=20
ReturnToService=1
FirstJobId={first_job}
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=4 RealMemory=2000 Gres=gpu:4 State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=01:00:00 State=UP
"""


def missing() -> str | None:
    """Why a Slurm cannot run here, or None."""
    if os.geteuid() != 0:
        return "it takes root (namespaces, jobs of several users)"
    tools = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "unshare", "setpriv")
    absent = [t for t in tools if shutil.which(t, path=DAEMONS) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, util-linux)"
    done = subprocess.run(
        ["unshare", "--pid", "--mount", "--uts", "--fork", "true"], capture_output=True, text=True, check=False
    )
    return f"namespaces cannot be made: {done.stderr.strip()}" if done.returncode else None


def wait_for(what: Callable[[], object], why: str, seconds: float = PATIENCE_S) -> None:
    """Ask every 50 ms until it is true; TimeoutError says what was waited for."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {why}")
        time.sleep(0.05)


@dataclass
class Bed:
    """One cluster. nodes n01 … ; `start`, then use its methods, then `stop`."""

    count: int = 4
    name: str = "bed"
    slurmd_timeout: int = 10
    min_job_age: int = 300
    message_timeout: int = 10
    first_job: int = 1001
    cred_s: int = 5  # lifetime of a credential; a requeued job waits a second longer
    delay_s: int | None = None  # requeue_delay, where this Slurm knows it
    root: Path = field(default_factory=Path)
    _init: subprocess.Popen[bytes] | None = None
    _pids: dict[str, int] = field(default_factory=dict)

    @property
    def conf(self) -> str:
        return str(self.root / "slurm.conf")

    @property
    def nodes(self) -> list[str]:
        return [f"n{i:02d}" for i in range(1, self.count + 1)]

    def start(self) -> Bed:
        """Up with every node idle."""
        self.root = Path(tempfile.mkdtemp(prefix="slurmbed-"))
        self.root.chmod(0o755)
        for folder in ("state", "spool", "log", "run", "dev", *(f"spool/{n}" for n in self.nodes)):
            (self.root / folder).mkdir()
        for user in USERS:
            home = self.root / "home" / user
            home.mkdir(parents=True)
            os.chown(home, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        self._configure()
        inner = f"mount --bind {shlex.quote(str(self.root / 'hosts'))} /etc/hosts && exec {shlex.quote(sys.executable)} -I {shlex.quote(__file__)}"
        self._init = subprocess.Popen(
            ["unshare", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-c", inner],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd="/",
            env={"PATH": DAEMONS, "SLURM_CONF": self.conf, "TZ": "UTC", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        try:
            self._tell({"run": ["slurmctld", "-D"], "name": "slurmctld", "log": str(self.root / "log/slurmctld.out")})
            for node in self.nodes:
                self.power_on(node)
            wait_for(lambda: self.states() == dict.fromkeys(self.nodes, "IDLE"), "all nodes to be idle")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the first process of the namespace: the kernel ends the rest."""
        if self._init is not None:
            assert self._init.stdin is not None
            assert self._init.stdout is not None
            with contextlib.suppress(OSError):
                self._init.stdin.close()
            try:
                self._init.wait(10)
            except subprocess.TimeoutExpired:
                self._init.kill()  # --kill-child takes the namespace with it
                self._init.wait(10)
            self._init.stdout.close()
            self._init = None
        shutil.rmtree(self.root, ignore_errors=True)

    # what may happen to a cluster

    def power_off(self, node: str) -> None:
        """slurmd, slurmstepd and job processes of a node die at once."""
        self._signal(node, signal.SIGKILL)

    def power_on(self, node: str) -> None:
        """Boot: a new namespace with a new slurmd. Bash is its first process and reaps."""
        inner = f"hostname {node}; slurmd -D -N {node} & wait"
        argv = ["unshare", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child", "bash", "-c", inner]
        self._tell({"run": argv, "name": node, "log": str(self.root / f"log/{node}.out")})

    def hang(self, name: str) -> None:
        """SIGSTOP slurmctld, or the slurmd of a node; job processes go on."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def kill_controller(self) -> None:
        self._signal("slurmctld", signal.SIGKILL)

    def start_controller(self) -> None:
        """`-i`: not every state file need be there yet."""
        self._tell({"run": ["slurmctld", "-D", "-i"], "name": "slurmctld", "log": str(self.root / "log/slurmctld.out")})
        wait_for(lambda: b"is UP" in self.run("scontrol", "ping").stdout, "the controller to answer")

    def down(self, node: str, reason: str = "test") -> None:
        self.check("scontrol", "update", f"NodeName={node}", "State=DOWN", f"Reason={reason}")

    def up(self, node: str) -> None:
        self.check("scontrol", "update", f"NodeName={node}", "State=RESUME")

    # its commands

    def run(
        self, *argv: str | bytes, user: str | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """A command against this cluster, as root or as a user."""
        who = pwd.getpwnam(user) if user else None
        return subprocess.run(
            argv, capture_output=True, check=False, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
            cwd=cwd or (self.home(user) if user else self.root),
            env={"PATH": DAEMONS, "SLURM_CONF": self.conf, "TZ": "UTC", "LC_ALL": "C.UTF-8", "HOME": str(self.root)},
            user=who.pw_uid if who else None, group=who.pw_gid if who else None, extra_groups=[] if who else None,
        )  # fmt: skip

    def check(self, *argv: str | bytes, user: str | None = None) -> str:
        """A command that has to work; what it printed."""
        done = self.run(*argv, user=user)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout.decode("utf-8", "replace")

    def home(self, user: str) -> Path:
        return self.root / "home" / user

    def submit(self, script: str, *options: str | bytes, user: str = USERS[0]) -> int:
        """sbatch a script; the job's id. Options may be bytes."""
        path = self.home(user) / f"job-{random.randrange(10**9)}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        return int(self.check("sbatch", "--parsable", *options, str(path), user=user).split(";")[0])

    def states(self) -> dict[str, str]:
        """Node -> state as sinfo spells it, upper case."""
        done = self.run("sinfo", "-h", "-N", "-o", "%N %T")
        words = [line.split() for line in done.stdout.decode().splitlines()] if done.returncode == 0 else []
        return {w[0]: w[1].upper() for w in words if len(w) == 2}

    def state(self, job: int | str) -> str:
        """A job's state in one word, "" when it is gone."""
        done = self.run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T")
        return done.stdout.decode().strip().split("\n")[0]

    def until(self, job: int | str, *states: str) -> None:
        wait_for(lambda: self.state(job) in states, f"job {job} to be {' or '.join(states) or 'gone'}")

    # inside

    def begin_again(self, job: int) -> None:
        """A requeued job runs once more, when Slurm's own delay is over.

        Hurried (StartTime=now at once), the new run can begin in the second the old one's credential was revoked in: the node then refuses it,
        and the job is held for good. Where Slurm set the delay anew while it still settled the first run's end, it is asked after a while.
        """
        patient_until = time.monotonic() + 15

        def running() -> bool:
            if time.monotonic() > patient_until:
                self.run("scontrol", "release", str(job))
                self.run("scontrol", "update", f"JobId={job}", "StartTime=now")
                time.sleep(2)
            return self.state(job) == "RUNNING"

        wait_for(running, f"another run of job {job}")

    def _configure(self) -> None:
        host = socket.gethostname().split(".")[0]
        ports = _free_ports(self.count + 1)
        span = f"[01-{self.count:02d}]"
        conf = CONF.format(
            name=self.name, cred=self.cred_s, host=host, port=ports, root=self.root, slurmd_timeout=self.slurmd_timeout,
            min_job_age=self.min_job_age, message_timeout=self.message_timeout, first_job=self.first_job, nodes=f"n{span}",
            ports=f"[{ports + 1}-{ports + self.count}]", delay=f",requeue_delay={self.delay_s}" if self.delay_s else "",
        )  # fmt: skip
        (self.root / "slurm.conf").write_text(conf)
        for i in range(4):  # a GPU of Slurm's needs a device; copies of /dev/null do
            os.mknod(self.root / f"dev/gpu{i}", 0o20666, os.makedev(1, 3))
        (self.root / "gres.conf").write_text(f"NodeName=n{span} Name=gpu File={self.root}/dev/gpu[0-3]\n")
        (self.root / "cgroup.conf").write_text("CgroupPlugin=disabled\n" if _version() >= (23, 2) else "")
        hosts = Path("/etc/hosts").read_text() + f"127.0.0.1 {host}\n" + "".join(f"127.0.0.1 {n}\n" for n in self.nodes)
        (self.root / "hosts").write_text(hosts)

    def _tell(self, order: dict[str, object]) -> None:
        assert self._init is not None
        assert self._init.stdin is not None
        assert self._init.stdout is not None
        self._init.stdin.write(json.dumps(order).encode() + b"\n")
        self._init.stdin.flush()
        said = self._init.stdout.readline()
        assert said, "the cluster's first process is gone"
        self._pids[str(order["name"])] = int(json.loads(said)["pid"])

    def _signal(self, name: str, number: signal.Signals) -> None:
        """To slurmctld; of a node, SIGKILL to its first process, anything else to its slurmd."""
        assert self._init is not None
        pid = self._outside(self._pids[name])
        if name != "slurmctld":
            pid = _children(pid)[0]  # unshare -> bash
            if number != signal.SIGKILL:
                pid = next(p for p in _children(pid) if b"slurmd" in Path(f"/proc/{p}/cmdline").read_bytes())
        os.kill(pid, number)
        if number == signal.SIGKILL:
            wait_for(lambda: not os.path.exists(f"/proc/{pid}"), f"{name} to die")

    def _outside(self, inner: int) -> int:
        """The PID here of a process the namespace knows as `inner`."""
        assert self._init is not None
        first = _children(self._init.pid)[0]
        for pid in _children(first):
            status = Path(f"/proc/{pid}/status").read_text()
            if status.split("NSpid:")[1].split("\n")[0].split()[-1] == str(inner):
                return pid
        raise ProcessLookupError(inner)


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _version() -> tuple[int, ...]:
    said = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True, env={"PATH": DAEMONS}).stdout
    return tuple(int(n) for n in said.split()[-1].split(".")[:2])


def _free_ports(count: int) -> int:
    """The first of so many free ports in a row, below those the kernel hands out."""
    for _ in range(200):
        base = random.randrange(20000, 32000 - count)
        with contextlib.ExitStack() as held:
            try:
                for port in range(base, base + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise OSError("no free ports in a row")


def serve() -> None:
    """The first process of the namespace: run each order, reap, end when nobody speaks any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    for line in sys.stdin.buffer:
        order = json.loads(line)
        with open(order["log"], "ab") as log:
            child = subprocess.Popen(order["run"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)  # fmt: skip
        sys.stdout.write(json.dumps({"pid": child.pid}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
