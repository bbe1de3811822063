"""identity: what the path of a log says about job, task, node, rank and attempt."""

from __future__ import annotations

import pytest
from tests.conftest import Kit

from defib.engine.identity import Known, facts
from defib.engine.rulebook import Template
from defib.engine.words import JobKey, StreamFacts

SOME = (
    Template("elastic", "t", r"(?P<job_id>\d+)/attempt_(?P<attempt>\d+)/(?P<rank>\d+)/(?P<stream>stdout|stderr)\.log$"),
    Template("plain-elastic", "t", r"attempt_(?P<attempt>\d+)/(?P<rank>\d+)/\w+\.log$"),
    Template("array", "t", r"slurm-(?P<array_job>\d+)_(?P<array_task>\d+)\.out$"),
    Template("slurm", "t", r"slurm-(?P<job_id>\d+)\.out$"),
    Template("rank", "t", r"rank(?P<rank>\d+)\.(?:log|err)$"),
    Template("named", "t", r"(?P<job_name>[a-z]+)-r(?P<restart_count>\d+)\.(?P<stream>o|e)$"),
)


def of(*paths: str, cluster: str | None = None) -> list[StreamFacts]:
    return facts(list(paths), SOME, Known(cluster))


def test_a_job_id_in_the_path_is_the_key() -> None:
    (f,) = of("/logs/slurm-4711.out")
    assert f.job == JobKey(job_id="4711")
    assert (f.channel, f.rank, f.node, f.attempt) == ("out", None, None, None)


def test_an_array_task_is_a_job_of_its_own() -> None:
    a, b = of("/logs/slurm-4711_1.out", "/logs/slurm-4711_2.out")
    assert a.job == JobKey(job_id="4711", array_task="1")
    assert a.job != b.job


def test_attempt_and_rank_come_from_torchruns_folders() -> None:
    (f,) = of("run/4711/attempt_2/13/stderr.log")
    assert (f.job.job_id, f.attempt, f.rank, f.channel) == ("4711", 2, 13, "err")
    a, b = of("run/attempt_0/3/stderr.log", "run/attempt_1/4/stdout.log")
    assert a.job == b.job == JobKey(place="run")


def test_the_first_form_that_matches_wins() -> None:
    assert of("x/slurm-1_2.out")[0].job.array_task == "2"


@pytest.mark.parametrize("packed", ["", ".gz", ".zst", ".GZ"])
def test_packing_does_not_hide_what_a_path_says(packed: str) -> None:
    assert of(f"/l/slurm-4711.out{packed}")[0].job.job_id == "4711"


def test_files_of_one_stem_share_a_place_and_files_of_ranks_their_folder() -> None:
    out, err, other = of("/l/train.out", "/l/train.err", "/l/eval.out")
    assert out.job == err.job == JobKey(place="/l/train")
    assert (out.channel, err.channel, out.job_name) == ("out", "err", "train")
    assert other.job != out.job
    a, b = of("/l/run/rank0.log", "/l/run/rank1.err")
    assert a.job == b.job == JobKey(place="/l/run")
    assert (a.rank, b.rank) == (0, 1)


def test_names_restarts_and_channels() -> None:
    (f,) = of("d/train-r3.e")
    assert (f.job_name, f.restart_count, f.channel, f.job.place) == ("train", 3, "err", "d/train")


def test_what_the_caller_says_goes_first() -> None:
    assert of("/l/slurm-1.out", cluster="alps")[0].job.cluster == "alps"
    assert of("/l/slurm-1.out")[0].job.cluster is None


def test_a_number_that_is_none_is_unknown() -> None:
    assert of("/l/rank99999999999.log")[0].rank is None


def test_facts_are_in_the_order_of_the_paths_and_alone_the_same() -> None:
    paths = ["/l/slurm-4711.out", "x", "/l/run/rank3.log", "run/attempt_0/3/stderr.log", "", "a.txt"]
    assert of(*paths) == [of(p)[0] for p in paths]
    assert of() == []


@pytest.mark.parametrize(
    ("path", "job_id", "task"),
    [("/l/slurm-4711.out", "4711", None), ("/l/slurm-4711_3.out", "4711", "3"), ("/l/train.log", None, None)],
)
def test_the_shipped_forms(shipped: Kit, path: str, job_id: str | None, task: str | None) -> None:
    (f,) = facts([path], shipped.book.paths, Known())
    assert (f.job.job_id, f.job.array_task) == (job_id, task)
