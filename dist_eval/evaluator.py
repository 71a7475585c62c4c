"""The conductor: one run, from its configuration to its report."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from dist_eval.base import Base, first_line
from dist_eval.checkpoint import TunedCheckpoint
from dist_eval.collectives import (
    Board,
    Launch,
    all_gather,
    gather_predictions,
    process_group,
    require_agreement,
    sum_over_ranks,
)
from dist_eval.config import EvaluationConfig
from dist_eval.data import TokenizedDataset, tokenize_dataset
from dist_eval.errors import CheckpointError, ConfigError, RunStopped, SwarmError
from dist_eval.journal import Fingerprint, Journal
from dist_eval.metrics import Totals, compute_metrics, require_same_totals
from dist_eval.model import Classifier, load_locally, load_on_swarm
from dist_eval.plan import Plan, plan_batches
from dist_eval.predictions import Coverage, Predictions, prove_coverage
from dist_eval.progress import Progress
from dist_eval.report import format_results
from dist_eval.run_folder import RunFolder
from dist_eval.stopping import Stop
from dist_eval.window import Window, largest_window
from dist_eval.work import FailurePolicy, Share, Work, share_out

_OPENING_SECONDS = 120.0
_SHORTEST_SECONDS = 1e-3
_CLAIM, _TO_DO, _COMPLETE = "claim", "to do", "complete"
_PREPARATION_SECONDS = 6 * 3600.0
"""Longest wait for the rank that tokenizes; if it dies, torchrun ends the waiting ranks at once."""


def evaluate_run(
    config: EvaluationConfig, launch: Launch, board: Board, own: Path, stop: Stop | None = None
) -> dict[str, Any] | None:
    """Evaluates a tuned classifier on a dataset; every rank calls it.

    Args:
        config: what to do.
        launch: where this process stands among the ranks.
        board: the ranks' store.
        own: this rank's private folder for sockets and tokenized data (see `dist_eval.lifetime.workspace`).
        stop: asked whether to go on.

    Returns:
        On the leader the metrics by name, else None.

    Raises:
        EvaluationError: the run cannot be done, on the rank that knows why.
        RunStopped: it was asked to stop before its end; on all ranks.
    """
    folder, stop = RunFolder(config), stop or Stop()
    with ExitStack() as stack:
        if launch.is_leader:
            folder.open(launch.attempt)
            stack.callback(folder.close)
            board.publish("opened", "")
        board.wait_for("opened", _OPENING_SECONDS)  # before that, a failing rank could not mark the run as failed
        torch.set_num_threads(1)  # one for each rank, so that sums are added up in the same order whatever their number
        tuned = TunedCheckpoint.load(str(config.checkpoint))
        base = Base.of(config, tuned)
        peers, check = stack.enter_context(open_swarm(config, base, launch, board))
        if launch.is_host_leader:
            board.publish(f"data/{launch.node}", str(prepare_data(config, base, tuned, own)))
        prepared = open_plan(base, tuned, launch, board) if launch.is_leader else None
        if prepared is not None:
            is_new = folder.claim(fingerprint_of(config, base, tuned, *prepared))
            board.publish(_CLAIM, _TO_DO if is_new else _COMPLETE)
        classifier, swarm = load_classifier(config, base, tuned, peers, own, check, seed=launch.rank)
        stack.callback(classifier.close)
        if board.wait_for(_CLAIM, _PREPARATION_SECONDS) == _COMPLETE:
            return present_complete(folder) if launch.is_leader else None
        data, plan = prepared or open_plan(base, tuned, launch, board)
        journal = Journal(folder.path, plan.sizes, tuned.num_labels, rank=launch.rank)
        stack.callback(journal.close)
        window = window_for(config, base, launch)
        board.meet("ready", _PREPARATION_SECONDS)
        with process_group(launch, board, config.collective_timeout):
            require_agreement({"tuned checkpoint": tuned.digest(), "data": data.facts.digest, "plan": plan.digest()})
            found = journal.read() if launch.is_host_leader else np.zeros(len(plan), dtype=bool)
            share, done = share_out(found, plan, launch)
            notice = classifier.backbone.notice
            progress = Progress(launch, board, len(data), done=done, stop=stop, folder=folder.path, notice=notice)
            failures = FailurePolicy(skip=config.on_error == "skip", limit=config.max_failed)
            work = Work(
                *(classifier, data, plan, journal, progress, window, stop), grace=config.stop_grace, failures=failures
            )
            with progress.shown():
                stop.in_order()
                left = work.do(share.shard)
                progress.wait_for_all(config.collective_timeout)
                require_complete(left, work.samples, done, stop, len(data))
                combined = combine(work, share, launch, plan, classifier)
        if not launch.is_leader:
            return None
        if combined.failed:
            failures.require_few(len(combined.failed), len(data), combined.failed[-1][1])
        coverage = prove_coverage(combined.predictions.index, len(data), (index for index, _ in combined.failed))
        require_same_totals(combined.totals, Totals.of(combined.predictions))
        metrics = compute_metrics(combined.predictions, tuned.label_names)
        facts = {
            "coverage": asdict(coverage),
            "failures": [{"index": index, "reason": reason} for index, reason in combined.failed],
            "data": asdict(data.facts),
            "model": base.facts(tuned),
            "plan": plan.facts(),
            "ranks": combined.ranks,
            "throughput": throughput(combined.ranks),
            "swarm": swarm,
        }
        folder.complete(combined.predictions, metrics, facts)
        print(format_results(metrics, facts, folder.path), flush=True)
        return metrics.values


def open_plan(base: Base, tuned: TunedCheckpoint, launch: Launch, board: Board) -> tuple[TokenizedDataset, Plan]:
    """Waits for the tokenized data of this host, and plans the batches."""
    data = TokenizedDataset(Path(board.wait_for(f"data/{launch.node}", _PREPARATION_SECONDS)))
    return data, plan_batches(data.lengths, token_budget=base.token_budget, prefix=tuned.pre_seq_len)


def fingerprint_of(
    config: EvaluationConfig, base: Base, tuned: TunedCheckpoint, data: TokenizedDataset, plan: Plan
) -> Fingerprint:
    """Returns what a run's results depend on, by names that a person reads when they differ."""
    return Fingerprint(
        {
            "base model": base.digest(),
            "tuned checkpoint": tuned.digest(),
            "names of the classes": json.dumps(tuned.label_names),
            "tokenizer": data.facts.tokenizer_digest,
            "dataset": data.facts.text_digest,
            "--max-length": str(data.facts.max_length),
            "--token-budget": str(base.token_budget),
            "--compression": config.compression,
            "--backend": config.backend,
            "token ids": data.facts.digest,
            "plan": plan.digest(),
        }
    )


def present_complete(folder: RunFolder) -> dict[str, Any]:
    """Tells a person that there is nothing to do, and returns the metrics of the complete run."""
    results = folder.results()
    accuracy = results["metrics"]["accuracy"]
    print(
        f"{folder.path} holds the complete results of this very run, finished {results['finished']}: accuracy "
        f"{accuracy:.4f} on {results['coverage']['seen']} examples. Nothing was sent; --overwrite runs it again.",
        flush=True,
    )
    return results["metrics"]


def window_for(config: EvaluationConfig, base: Base, launch: Launch) -> Window:
    """Returns a rank's window, within its share of the host's memory."""
    memory = psutil.virtual_memory().available * launch.hosts // launch.world_size
    largest = largest_window(base.token_budget, base.config.hidden_size, memory)
    return Window(config.in_flight, largest=largest, timeout=config.request_timeout)


@contextmanager
def open_swarm(
    config: EvaluationConfig, base: Base, launch: Launch, board: Board
) -> Iterator[tuple[list[str], Callable[[], None]]]:
    """Names the swarm's peers; for an embedded swarm the leader starts it and tells the others.

    Yields:
        Addresses of peers (none for the local backend and, because Petals knows them, for the public swarm), and a
        function that raises a `SwarmError` when a server of an embedded swarm has ended.

    Raises:
        ConfigError: an embedded swarm was asked for on several hosts.
    """
    if config.backend == "local" or config.swarm == "public" or config.initial_peers:
        yield config.initial_peers, lambda: None
    elif launch.hosts > 1:
        raise ConfigError(
            "--swarm embedded starts servers on loopback, which the other hosts of this run cannot reach. Start a "
            "swarm with `python -m dist_eval.swarm` and name it with --initial-peers."
        )
    elif not launch.is_leader:
        yield board.wait_for("peers", config.swarm_timeout).split(), lambda: None
    else:
        from dist_eval.swarm.private import PrivateSwarm, split_blocks

        blocks = base.config.num_hidden_layers
        with PrivateSwarm(
            base.name,
            num_blocks=blocks,
            dht_prefix=base.dht_prefix,
            spans=split_blocks(blocks, config.servers),
            echo=config.verbose,
        ) as swarm:
            board.publish("peers", " ".join(swarm.initial_peers))
            try:
                yield swarm.initial_peers, swarm.require_alive
            except SwarmError:
                swarm.require_alive()  # if a server of ours ended, that is the reason
                raise


def prepare_data(config: EvaluationConfig, base: Base, tuned: TunedCheckpoint, folder: Path) -> Path:
    """Tokenizes the dataset into a folder, once for all ranks of a host."""
    from transformers import AutoTokenizer

    own_tokenizer = tuned.folder is not None and (tuned.folder / "tokenizer_config.json").exists()
    place = str(tuned.folder) if own_tokenizer else base.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except Exception as error:  # transformers raises OSError, ValueError, errors of tokenizers and of the hub's client
        also = "" if own_tokenizer else f" (the checkpoint {tuned.folder} has none of its own)"
        raise CheckpointError(f"There is no readable tokenizer in {place}{also}: {first_line(error)}") from error
    tokenize_dataset(
        str(config.dataset),
        folder,
        tokenizer=tokenizer,
        text_columns=config.text_column,
        label_column=config.label_column,
        label_names=tuned.label_names,
        max_length=base.max_length,
        vocab_size=base.config.vocab_size,
        labels=config.labels,
        strict=config.strict,
        subset=config.subset,
        split=config.split,
    )
    return folder


def load_classifier(
    config: EvaluationConfig,
    base: Base,
    tuned: TunedCheckpoint,
    peers: list[str],
    sockets: Path,
    check: Callable[[], None] = lambda: None,
    *,
    seed: int = 0,
) -> tuple[Classifier, dict[str, Any] | None]:
    """Builds the classifier, for a swarm after waiting until all blocks have a server.

    Returns:
        The classifier and the section `swarm` of `results.json`.

    Raises:
        SwarmError: the swarm does not answer or misses blocks.
        CheckpointError: weights are missing or others than the checkpoint was tuned on.
    """
    if config.backend == "local":
        return load_locally(base.name, tuned), None
    from dist_eval.swarm.bridge import import_petals

    import_petals(sockets=sockets)
    from dist_eval.swarm.client import join_swarm, leave_swarm, public_peers, rejoin_swarm
    from dist_eval.swarm.coverage import wait_until_covered

    peers = peers or public_peers()

    def rejoin() -> None:
        check()
        rejoin_swarm(dht, peers)

    dht = join_swarm(peers, config.swarm_timeout, check=check)
    try:
        blocks = base.config.num_hidden_layers
        coverage = wait_until_covered(dht, base.dht_prefix, blocks, config.swarm_timeout, check=check)
        classifier = load_on_swarm(
            base.name,
            tuned,
            dht,
            dht_prefix=base.dht_prefix,
            request_timeout=config.request_timeout,
            max_retries=config.max_retries,
            compression=config.compression,
            seed=seed,
            outage_timeout=config.swarm_timeout,
            rejoin=rejoin,
        )
    except BaseException:
        leave_swarm(dht)
        raise
    return classifier, coverage.to_dict()


@dataclass(frozen=True)
class Combined:
    """What all ranks found together.

    Attributes:
        predictions: of all examples, in dataset order; on the leader only, elsewhere none.
        failed: examples without a prediction: position in the dataset, and why.
        totals: the ranks' own sums, added up by all_reduce.
        ranks: each rank's entry in the section `ranks` of `results.json`.
    """

    predictions: Predictions
    failed: list[tuple[int, str]]
    totals: Totals
    ranks: list[dict[str, Any]]


def require_complete(left: int, finished: int, before: int, stop: Stop, examples: int) -> None:
    """Makes sure that no rank has stopped before its end; every rank calls it.

    Args:
        left: batches that this rank has not done.
        finished: examples that it has done in this start.
        before: examples that earlier starts have done.
        stop: why it has stopped.
        examples: of the dataset.

    Raises:
        RunStopped: some rank has; on all ranks.
    """
    everybody = all_gather((left, finished))
    if any(left for left, _ in everybody):
        seen = before + sum(finished for _, finished in everybody)
        raise RunStopped(
            f"Stopped, because {stop.reason}: {seen} of {examples} examples are in the journal. Start the same command "
            "again to go on.",
            Coverage(examples, seen, duplicates=0, missing=examples - seen),
        )


def combine(work: Work, share: Share, launch: Launch, plan: Plan, classifier: Classifier) -> Combined:
    """Combines what stands in the journals; every rank calls it."""
    local, failed = work.collect(np.concatenate([share.resumed, share.shard]))
    facts = work.facts(launch, resumed=int(plan.sizes[share.resumed].sum()))
    facts["traffic"] = classifier.backbone.traffic()
    return Combined(
        predictions=gather_predictions(local),
        failed=sorted(itertools.chain.from_iterable(all_gather(failed))),
        totals=sum_over_ranks(Totals.of(local)),
        ranks=all_gather(facts),
    )


def throughput(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the section `throughput` of `results.json`: all ranks' work over the slowest rank's time."""
    seconds = max(max(work["seconds"] for work in ranks), _SHORTEST_SECONDS)
    return {
        "seconds": seconds,
        "examples_per_second": sum(work["samples"] for work in ranks) / seconds,
        "tokens_per_second": sum(work["tokens"] for work in ranks) / seconds,
    }
