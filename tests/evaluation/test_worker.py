"""A rank's work: unfinished batches are predicted, and those that a faulty server answered are predicted again."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import tokenized_digits

from dist_eval.data.answers import BatchOutcome, logits_columns
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import BatchPlan, plan_batches
from dist_eval.distributed.collectives import process_group
from dist_eval.distributed.progress import Progress
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.distributed.stop import Stop
from dist_eval.errors import RunError, RunStopped
from dist_eval.evaluation import worker
from dist_eval.evaluation.worker import BatchWorker, FailurePolicy, assign_batches
from dist_eval.inference.in_flight import Window
from dist_eval.inference.models import SendOptions
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.runs.journal import Journal

ROWS, CLASSES, FAULTY = 40, 3, "faulty"
ALONE = Topology()


class Classifier:
    """Two servers that take turns; one of them answers falsely until it is excluded.

    Args:
        journal: where the verdict is written.
        verdict_at: the call in which the faulty server is found.
    """

    columns = logits_columns(CLASSES)
    retries = 0

    def __init__(self, journal: Journal, verdict_at: int) -> None:
        self._journal, self._verdict_at = journal, verdict_at
        self._distrusted: set[str] = set()
        self.calls = 0

    def answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        self.calls += 1
        server = "honest" if self.calls % 2 or FAULTY in self._distrusted else FAULTY
        if self.calls == self._verdict_at:
            self._journal.exclude(FAULTY)
        record.route.append(RouteSegment(server, 0, 4, "float32"))
        return {"logits": torch.full((len(lengths), CLASSES), 1.0 if server == "honest" else 666.0)}

    def stop_sending(self) -> None:
        pass

    def exclude(self, servers: Iterable[str]) -> None:
        self._distrusted |= set(servers)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenizedDataset:
    return tokenized_digits(tmp_path_factory.mktemp("data"), ROWS, CLASSES)


@pytest.fixture
def plan(data: TokenizedDataset) -> BatchPlan:
    return plan_batches(data.lengths, token_budget=16, extra_tokens=0)


def work_of(
    classifier: Classifier, data: TokenizedDataset, plan: BatchPlan, journal: Journal, stop: Stop | None = None
) -> BatchWorker:
    rank_store, stop = RankStore(ALONE), stop or Stop()
    progress = Progress(ALONE, rank_store, len(data), stop=stop, stream=io.StringIO())
    parts = classifier, data, plan, journal, progress, Window(1), stop, ALONE
    return BatchWorker(*parts, drain_timeout=5.0, failures=FailurePolicy())


@pytest.mark.parametrize("verdict_at", [2, 7, 20])
def test_batches_answered_by_a_faulty_server_are_predicted_again(
    verdict_at: int, data: TokenizedDataset, plan: BatchPlan, tmp_path: Path
) -> None:
    assert len(plan) > 8
    journal = Journal(tmp_path, plan.sizes, Classifier.columns)
    earlier = Journal(tmp_path, plan.sizes, Classifier.columns)
    for batch, server, precision in ((0, FAULTY, "float16"), (1, "honest", "bfloat16")):
        answers = np.empty(plan.sizes[batch], dtype=Classifier.columns)
        answers["logits"] = 666.0 if server == FAULTY else 1.0
        earlier.append(BatchOutcome(batch, answers, [RouteSegment(server, 0, 4, precision)]))
    earlier.close()
    classifier = Classifier(journal, min(verdict_at, len(plan) - 2))
    with process_group(ALONE, RankStore(ALONE), 60.0):
        own = work_of(classifier, data, plan, journal)
        assigned_batches = own.run(stall_timeout=60.0)
    output = own.output(assigned_batches, lambda rows, answers: {"index": rows, "logits": answers["logits"]}, None)
    found, work = output.columns, output.work
    assert sorted(assigned_batches.tolist()) == list(range(len(plan)))
    assert sorted(found["index"].tolist()) == list(range(ROWS))
    assert (found["logits"] == 1.0).all(), "a false answer counts"
    assert (output.failed, output.findings.faulty) == ([], {FAULTY})
    assert output.precisions == {"bfloat16", "float32"}, "of the answers that count, those of earlier starts included"
    assert classifier.calls > len(plan) - 2
    assert work.resumed == plan.sizes[:2].sum()
    assert work.samples > ROWS - work.resumed
    journal.close()


def test_a_stopped_rank_reports_how_far_it_is(data: TokenizedDataset, plan: BatchPlan, tmp_path: Path) -> None:
    journal, stop = Journal(tmp_path, plan.sizes, Classifier.columns), Stop()
    stop.request("somebody said so")
    with process_group(ALONE, RankStore(ALONE), 60.0), pytest.raises(RunStopped) as caught:
        work_of(Classifier(journal, 0), data, plan, journal, stop).run(stall_timeout=60.0)
    assert f"somebody said so: 0 of {ROWS} examples are in the journal" in str(caught.value)


def test_too_many_failures_are_an_error_with_a_reason() -> None:
    FailurePolicy(skip=True, limit=2).require_few(2, 10, "refused")
    with pytest.raises(RunError, match=r"3 examples failed, more than --max-failed 2 allows. One of them: refused"):
        FailurePolicy(skip=True, limit=2).require_few(3, 10, "refused")
    with pytest.raises(RunError, match=r"All 2 examples failed"):
        FailurePolicy(skip=True, limit=5).require_few(2, 2, "refused")


@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=5))
def test_every_batch_is_assigned_to_exactly_one_rank(found_by_rank: list[list[bool]]) -> None:
    plan = plan_batches(np.full(12, 10, dtype=np.int32), token_budget=10, extra_tokens=0)
    world_size = len(found_by_rank)
    firsts = np.min([np.where(found, rank, world_size) for rank, found in enumerate(found_by_rank)], axis=0)
    shares = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "all_reduce_min", lambda value: firsts)
        for rank, found in enumerate(found_by_rank):
            share, done, left = assign_batches(np.array(found), plan, Topology(rank=rank, world_size=world_size))
            assert done == np.any(found_by_rank, axis=0).sum()
            assert left == 10 * (12 - done)
            assert all(found[batch] for batch in share.resumed), "a rank can bring only what it knows"
            shares.append(share)
    everything = [batch for share in shares for batch in (*share.resumed, *share.shard)]
    assert sorted(everything) == list(range(12))
    assert not any(np.any(found_by_rank, axis=0)[batch] for share in shares for batch in share.shard)
