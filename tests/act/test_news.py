"""News reach a command and a web hook, each as JSON; what cannot be delivered is told, and nobody waits for it."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from defib.adapters.news import News
from defib.adapters.rescue import checked
from defib.engine.errors import ConfigError
from defib.engine.recover.words import Notify

HOSTILE = Notify("human", "k:1", "job 7: $(touch /tmp/x) \x1b[2J `id` \n; rm", "c")


def until(done) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def hook() -> Iterator[tuple[str, list[bytes]]]:
    """An address of this machine, and what was sent to it."""
    got: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/x", got
    server.shutdown()
    thread.join()
    server.server_close()


def script(tmp_path: Path, body: str) -> tuple[str, ...]:
    path = tmp_path / "tell"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return (str(path), "first")


def test_a_command_gets_the_news_on_its_input_and_nothing_of_it_as_words(tmp_path: Path) -> None:
    news = News(
        script(
            tmp_path,
            f'echo "$# $1" > {tmp_path}/words; cat > {tmp_path}/got.part; mv {tmp_path}/got.part {tmp_path}/got',
        )
    )
    news(HOSTILE)
    until((tmp_path / "got").exists)
    news.close()
    said = json.loads((tmp_path / "got").read_text())
    assert (said["kind"], said["case"]) == ("human", "c")
    assert "\x1b" not in said["sentence"]
    assert (tmp_path / "words").read_text() == "1 first\n"


def test_a_web_hook_gets_the_same(hook: tuple[str, list[bytes]]) -> None:
    address, got = hook
    news = News(hook=address)
    news(HOSTILE)
    until(lambda: got)
    news.close()
    assert json.loads(got[0])["key"] == "k:1"


def test_what_fails_is_told_and_does_not_stop_the_next(tmp_path: Path, hook: tuple[str, list[bytes]]) -> None:
    told: list[str] = []
    news = News(("/nowhere/at/all",), hook[0], told.append)
    news(HOSTILE)
    news(HOSTILE)
    until(lambda: len(hook[1]) == 2)
    news.close()
    assert news.failed == 2
    assert "could not be delivered" in told[0]


def test_a_command_that_hangs_is_ended_and_nobody_waits(tmp_path: Path) -> None:
    told: list[str] = []
    news = News(script(tmp_path, "sleep 60"), say=told.append, deadline_s=0.3)
    begun = time.monotonic()
    for _ in range(2000):
        news(HOSTILE)
    assert time.monotonic() - begun < 2
    assert news.waiting <= 1000
    until(lambda: told)
    news._queue.clear()
    news.close()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"mode": "act"}, "unknown key 'mode'"),
        ({"notify": "page me"}, "not a list"),
        ({"notify": ["page"]}, "no full path"),
        ({"webhook": "file:///etc/passwd"}, "no http address"),
        ({"stop_files": [""]}, "not a list"),
    ],
)
def test_a_table_that_is_none_is_refused(table: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as e:
        checked(table, "defib.toml")
    assert said in str(e.value.problems[0])
