"""A whole service in a process of its own: settings from a file, status, metrics, new rules on SIGHUP, an orderly end, a mount that hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import COMMAND, environment
from tests.cli.test_watch import BANNER, POLICY, steps

PATIENCE_S = 100.0
RULE = """family: site
about: The site's own.
signatures:
  - {{id: site.words, title: words, pattern: {word}, role: root, class: user-code, hits: [{word}], misses: [x]}}
"""


class Daemon:
    """`defib watch --config` over `logs`; its state lies in `state`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("logs", "rules"):
            (folder / name).mkdir()
        (folder / "rules" / "detect.yaml").write_text(POLICY)
        self.rule("SITEWORD")
        self.config = folder / "defib.toml"
        self.config.write_text(
            f"""
[watch]
paths = ["{folder}/logs"]
every = "200ms"
[state]
directory = "{folder}/state"
[metrics]
listen = "127.0.0.1:{free_port()}"
[policy]
rules = ["{folder}/rules"]
shadow = "1s"
"""
        )
        self.process: subprocess.Popen[bytes] | None = None

    def rule(self, word: str) -> None:
        (self.folder / "rules" / "site.yaml").write_text(RULE.format(word=word))

    def start(self) -> None:
        with (self.folder / "err").open("ab") as errors, (self.folder / "out").open("ab") as out:
            self.process = subprocess.Popen(
                [COMMAND, "watch", "--config", self.config], stdout=out, stderr=errors, env=environment()
            )

    def said(self) -> str:
        return (self.folder / "err").read_text()

    def until(self, holds: Callable[[], Any]) -> Any:
        began = time.monotonic()
        while not (found := holds()):
            assert time.monotonic() - began < PATIENCE_S, self.said()
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            time.sleep(0.1)
        return found

    def status(self) -> dict[str, Any]:
        done = subprocess.run(
            [COMMAND, "status", "--state", self.folder / "state", "--json"],
            capture_output=True,
            env=environment(),
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def metrics(self) -> dict[str, float]:
        port = re.search(r"127.0.0.1:(\d+)", self.config.read_text())
        assert port is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=10) as answer:
            lines = [x for x in answer.read().decode().splitlines() if x and not x.startswith("#")]
        return {x.rpartition(" ")[0]: float(x.rpartition(" ")[2]) for x in lines}

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path.resolve())
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


@pytest.mark.timeout(300)
def test_a_life_of_a_service(daemon: Daemon) -> None:
    log = daemon.folder / "logs" / "slurm-4711.out"
    log.write_text(BANNER + steps(1, 30))
    daemon.start()
    s = daemon.until(lambda: (s := daemon.status()) and s["jobs"].get("healthy") == 1 and s)
    assert (s["streams"]["open"], s["streams"]["troubled"], s["pid"]) == (1, 0, daemon.process and daemon.process.pid)
    assert s["journal"]["sequence"] > 0
    m = daemon.until(lambda: (m := daemon.metrics()) and m['defib_jobs{health="healthy"}'] == 1 and m)
    assert m["defib_lines_total"] == 31
    assert m["defib_read_bytes_total"] == log.stat().st_size
    assert m["process_resident_memory_bytes"] > 10**7

    # The mount's reader stops as a hung call stops it: its logs are not vouched for, then it answers again.
    (mount,) = daemon.until(lambda: [x for x in daemon.status()["mounts"] if x["followed"]])
    os.kill(mount["pid"], signal.SIGSTOP)
    s = daemon.until(lambda: (s := daemon.status()) and s["streams"]["troubled"] == 1 and s)
    assert "does not answer for 20 s" in s["mounts"][0]["trouble"]
    daemon.until(lambda: daemon.status()["jobs"].get("blind") == 1)
    os.kill(mount["pid"], signal.SIGCONT)
    daemon.until(lambda: daemon.status()["streams"]["troubled"] == 0)

    # A bad set of rules is refused, the old one goes on; a good one takes over after its time in the shadow.
    before = daemon.status()["rules"]["hash"]
    (daemon.folder / "rules" / "site.yaml").write_text(RULE.format(word="[unclosed"))
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: "new rules are refused" in daemon.said())
    assert daemon.status()["rules"]["hash"] == before
    daemon.rule("ANOTHERWORD")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: "run in the shadow" in daemon.said())
    with log.open("a") as f:
        f.write("SITEWORD ANOTHERWORD\n" + steps(31, 60))
    daemon.until(lambda: "new rules have taken over" in daemon.said())
    daemon.until(lambda: daemon.status()["rules"]["hash"] != before)
    assert daemon.end() == 0
    assert not (daemon.folder / "state" / "status.sock").exists()
    assert all(re.match(r"time=\S+Z level=\w+ event=", x) for x in daemon.said().splitlines()[:-1])
    assert "Traceback" not in daemon.said()


@pytest.mark.timeout(200)
def test_it_goes_on_after_it_was_killed(daemon: Daemon) -> None:
    log = daemon.folder / "logs" / "slurm-1.out"
    log.write_text(BANNER + steps(1, 30))
    daemon.start()
    daemon.until(lambda: daemon.status().get("jobs", {}).get("healthy") == 1)
    assert daemon.process is not None
    (pid,) = [x["pid"] for x in daemon.status()["mounts"] if x["followed"] or x["pid"]]
    daemon.process.kill()
    daemon.process.wait()
    began = time.monotonic()
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() - began < 10, "its reader outlives it"
        time.sleep(0.05)
    with log.open("a") as f:
        f.write(steps(31, 40))
    daemon.start()
    daemon.until(lambda: daemon.status().get("jobs", {}).get("healthy") == 1)
    daemon.until(lambda: daemon.metrics()["defib_lines_total"] == 10)
    assert daemon.end() == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "[state] directory: a service remembers, and is told where"),
        ('[state]\ndirectory = "/nowhere"\n', "nothing to follow"),
        ("[watch]\nevery = 1\n", "defib.toml:2:1: [watch] every: a number is not what is wanted"),
        (
            '[watch]\npaths = ["/x"]\n[state]\ndirectory = "/x"\ngroup = "no such group"\n',
            "defib.toml:5:1: [state] group: there is no group",
        ),
    ],
)
def test_what_cannot_be_is_told_before_anything_happens(text: str, told: str, say: Any, tmp_path: Path) -> None:
    path = tmp_path / "defib.toml"
    path.write_text(text)
    done = say("watch", "--config", path)
    assert done.returncode == 2
    assert told.encode() in done.stderr


def test_the_commands_of_the_configuration(say: Any, tmp_path: Path) -> None:
    done = say("config", "example")
    path = tmp_path / "defib.toml"
    path.write_bytes(done.stdout)
    assert say("config", "check", path).returncode == 0
    shown = json.loads(say("config", "show", path, "--json").stdout)
    assert {k["origin"] for k in shown["keys"]} == {"default"} | {
        f"{path}:{n}" for n, x in enumerate(path.read_text().splitlines(), 1) if " = " in x and not x.startswith("#")
    }
    assert b"[watch] every" in say("config", "show", path).stdout
    path.write_text("[watch]\nevry = 1\n[log]\nlevel = 1\n")
    done = say("config", "check", path)
    assert (done.returncode, done.stderr.count(b"mend: ")) == (2, 2)
    assert say("status", "--state", tmp_path).returncode == 3
    assert b"ExecStart=" in say("config", "unit").stdout
