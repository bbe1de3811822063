"""The made-up language of logs with words for a crowd: ranks on nodes, sockets, timeouts, positions, exit codes.

n1: [rank3]: LOST n2        rank 3 on node n1 lost its connection to n2
[rank3]: WAITED 60000       rank 3 waited a minute for a collective
[rank3]: FAR 7 9            rank 3 had completed work 7 and put 9 into the queue
"""

from __future__ import annotations

from tests.conftest import LANGUAGE, Kit, kit, replay

from defib.engine.words import AttemptVerdict

CROWD = r"""
    family: u
    about: Words of a crowd.
    signatures:
      - {id: u.waited, title: w, pattern: 'LONG \d', extract: 'LONG (?P<timeout_ms>\d+)', role: cascade, class: collective-timeout, looks_back: timeout_ms, hits: [LONG 60000], misses: [x]}
      - {id: u.lost, title: l, pattern: LOST, extract: 'LOST (?P<peer>\S+)', role: cascade, class: peer-lost, hits: [LOST n1], misses: [x]}
      - {id: u.retry, title: r, pattern: RETRY, extract: 'RETRY (?P<peer>\S+)', role: candidate, class: nic-link, domain: network, traits: witness, hits: [RETRY n1], misses: [x]}
      - {id: u.absent, title: a, pattern: ABSENT, extract: 'ABSENT (?P<missing>[\d, ]+)', role: locator, class: collective-timeout, hits: ['ABSENT 1, 2'], misses: [x]}
      - {id: u.far, title: f, pattern: 'FAR \d', extract: 'FAR (?P<completed>\d+) (?P<enqueued>\d+)', role: locator, hits: [FAR 1 2], misses: [x]}
      - {id: u.world, title: w, pattern: 'WORLD \d', extract: 'WORLD (?P<world>\d+)', role: locator, hits: [WORLD 4], misses: [x]}
      - {id: u.comm, title: c, pattern: 'COMM \d', extract: 'COMM (?P<rank>\d+) of (?P<world>\d+) on (?P<node>\w+)', role: locator, hits: [COMM 1 of 4 on n1], misses: [x]}
      - {id: u.address, title: a, pattern: 'USES \d', extract: '(?P<node>\w+) USES (?P<address>[\d.]+)', role: locator, hits: [n1 USES 10.0.0.1], misses: [x]}
      - id: u.report
        title: a launcher's report, line by line
        patterns: ['HOST \w', 'RANK \d', 'CODE \W?\d']
        extract: ['HOST (?P<node>\w+)', 'RANK (?P<rank>\d+)', 'CODE (?P<exit_code>-?\d+)']
        role: locator
        hits: [HOST n1, RANK 3, CODE -9]
        misses: [x]
      - {id: u.sticky, title: s, pattern: STICKY, role: candidate, class: user-code, traits: sticky, hits: [STICKY], misses: [x]}
      - {id: u.stuck, title: s, pattern: STUCK, role: root, class: user-code, traits: sticky, hits: [STUCK], misses: [x]}
      - {id: u.gpu, title: g, pattern: 'XBAD \d', extract: 'XBAD (?P<pci>\S+)', role: root, class: gpu-hardware, domain: gpu, hits: ['XBAD 00:1b'], misses: [x]}
      - {id: u.soft, title: g, pattern: 'XSOFT \d', extract: 'XSOFT (?P<pci>\S+)', role: candidate, class: gpu-hardware, domain: gpu, hits: ['XSOFT 00:1b'], misses: [x]}
      - {id: u.killer, title: k, pattern: KILLER, role: root, class: host-oom, traits: certain, hits: [KILLER], misses: [x]}
      - {id: u.left, title: l, pattern: LEFT, extract: '(?P<node>\w+) LEFT', role: confirm, mark: exit, class: process-failed, hits: [n1 LEFT], misses: [x]}
      - {id: u.gone, title: g, pattern: NODEGONE, extract: 'NODEGONE (?P<node>\S+)', role: root, class: node-lost, domain: node, mark: node-failure, hits: [NODEGONE n1], misses: [x]}
"""
NODES = r"""
    prefixes:
      - {id: prefix.node, title: n, pattern: '^(?P<node>n\d+): ', hits: ['n1: x'], misses: ['x']}
      - {id: prefix.rank, title: r, pattern: '^\[rank(?P<rank>\d+)\]: ?', hits: ['[rank3]: x'], misses: ['x']}
      - {id: prefix.task, title: t, pattern: '^ *(?P<task>\d{1,5}): ', hits: ['3: x'], misses: ['x']}
"""
NIC = "\n      - {id: nic-link, title: N, verdict: crashed, fault: network, retry: 'yes', exclude: on-repeat, budget: hw, why: w}\n"
PATHS = r"""
    paths:
      - {id: path.rank, title: r, pattern: '(?P<job_id>\d+)/rank_(?P<rank>\d+)\.log$', hits: ['7/rank_3.log'], misses: ['x']}
      - {id: path.node, title: n, pattern: '(?P<job_id>\d+)/(?P<node>n\d+)\.log$', hits: ['7/n3.log'], misses: ['x']}
"""


def crowd() -> Kit:
    return kit(
        {
            **LANGUAGE,
            "classes.yaml": LANGUAGE["classes.yaml"].rstrip() + NIC,
            "signatures/u.yaml": CROWD,
            "prefixes.yaml": NODES,
            "paths.yaml": PATHS,
        }
    )


def judged(made: Kit, *lines: str) -> AttemptVerdict:
    """One log of a run that moved, then what it said."""
    return replay(made, ["step=1", "step=2", *lines]).only


def judged_logs(made: Kit, logs: dict[str, list[str]]) -> AttemptVerdict:
    return replay(made, {p: "".join(f"{x}\n" for x in lines).encode() for p, lines in logs.items()}).only
