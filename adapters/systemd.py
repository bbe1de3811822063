"""A service of systemd: telling it how we are (sd_notify(3), a datagram and no library), and the unit that runs us with as little as we need."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

UNIT = """# defib: watches the logs of running jobs. Print anew with: defib config unit
[Unit]
Description=defib, watches the logs of training jobs
Documentation=man:systemd.service(5)
After=network-online.target remote-fs.target
Wants=network-online.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={command} watch --config /etc/defib/defib.toml --state /var/lib/defib
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
WatchdogSec=120
TimeoutStartSec=600
TimeoutStopSec=60
KillMode=mixed

# Logs of users are read, not written; DAC_READ_SEARCH is what reading them takes where we are not their owner.
User=defib
Group=defib
SupplementaryGroups=
StateDirectory=defib
StateDirectoryMode=0700
CacheDirectory=defib
Environment=DEFIB_CACHE=/var/cache/defib
UMask=0077
LimitNOFILE=65536
AmbientCapabilities=CAP_DAC_READ_SEARCH
CapabilityBoundingSet=CAP_DAC_READ_SEARCH
NoNewPrivileges=yes

ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectProc=invisible
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
# Unix: our sockets, Slurm's authentication. IP: Slurm's controller, the metrics of this machine.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
MemoryHigh=3G
MemoryMax=4G
TasksMax=512
OOMScoreAdjust=-200

[Install]
WantedBy=multi-user.target
"""


def unit(command: str) -> str:
    """The unit file. command: the program, absolute."""
    return UNIT.replace("{command}", command.replace("%", "%%"))


@dataclass(slots=True)
class Notifier:
    """Tells the service manager, if there is one, how we are. Nothing here fails."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _beat_us: int = 0

    @property
    def watchdog_us(self) -> int:
        """How often we must be heard, at least; 0 for no watchdog."""
        text, pid = self.environ.get("WATCHDOG_USEC", ""), self.environ.get("WATCHDOG_PID", "")
        if pid and pid != str(os.getpid()):
            return 0
        return int(text) if text.isascii() and text.isdigit() else 0

    def tell(self, state: str) -> bool:
        """`READY=1`, `STOPPING=1`, `STATUS=…`; whether it was sent."""
        name = self.environ.get("NOTIFY_SOCKET", "")
        if name[:1] not in ("/", "@"):
            return False
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
            s.setblocking(False)
            s.sendto(state.encode("utf-8", "replace"), "\0" + name[1:] if name[0] == "@" else name)
            return True
        return False

    def beat(self, now_us: int) -> None:
        """The main loop has turned. Told at most every quarter of what the watchdog asks for."""
        every = self.watchdog_us // 4
        if every and now_us - self._beat_us >= every:
            self._beat_us = now_us
            self.tell("WATCHDOG=1")
