"""The conductor: one run, from its configuration to its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

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
from dist_eval.errors import CheckpointError, ConfigError, SwarmError
from dist_eval.forward import predict_batches
from dist_eval.metrics import Totals, compute_metrics, require_same_totals
from dist_eval.model import Classifier, load_locally, load_on_swarm
from dist_eval.plan import Plan, plan_batches, shard_batches
from dist_eval.predictions import Collector, Predictions, prove_coverage
from dist_eval.progress import Progress
from dist_eval.report import RunFolder, format_results
from dist_eval.window import Window, largest_window

_OPENING_SECONDS = 120.0
_PREPARATION_SECONDS = 6 * 3600.0
"""Longest wait for the rank that tokenizes; if it dies, torchrun ends the waiting ranks at once."""


def evaluate_run(config: EvaluationConfig, launch: Launch, board: Board, own: Path) -> dict[str, Any] | None:
    """Evaluates a tuned classifier on a dataset; every rank calls it.

    Args:
        config: what to do.
        launch: where this process stands among the ranks.
        board: the ranks' store.
        own: this rank's private folder for sockets and tokenized data (see `dist_eval.lifetime.workspace`).

    Returns:
        On the leader the metrics by name, else None.

    Raises:
        EvaluationError: the run cannot be done, on the rank that knows why.
    """
    folder = RunFolder(config)
    if launch.is_leader:
        folder.open()
        board.publish("opened", "")
    board.wait_for("opened", _OPENING_SECONDS)  # before that, a failing rank could not mark the run as failed
    torch.set_num_threads(1)  # one for each rank, so that sums are added up in the same order whatever their number
    with ExitStack() as stack:
        tuned = TunedCheckpoint.load(str(config.checkpoint))
        base = Base.of(config, tuned)
        peers, check = stack.enter_context(open_swarm(config, base, launch, board))
        if launch.is_host_leader:
            board.publish(f"data/{launch.node}", str(prepare_data(config, base, tuned, own)))
        classifier, swarm = load_classifier(config, base, tuned, peers, own, check, seed=launch.rank)
        stack.callback(classifier.close)
        data = TokenizedDataset(Path(board.wait_for(f"data/{launch.node}", _PREPARATION_SECONDS)))
        plan = plan_batches(data.lengths, token_budget=base.token_budget, prefix=tuned.pre_seq_len)
        memory = psutil.virtual_memory().available * launch.hosts // launch.world_size
        largest = largest_window(base.token_budget, base.config.hidden_size, memory)
        window = Window(config.in_flight, largest=largest, timeout=config.request_timeout)
        progress = Progress(launch, board, len(data))
        board.meet("ready", _PREPARATION_SECONDS)
        with process_group(launch, board, config.collective_timeout), progress.shown():
            require_agreement({"tuned checkpoint": tuned.digest(), "data": data.facts.digest, "plan": plan.digest()})
            combined = predict_and_combine(
                classifier, data, plan, launch, progress, window, patience=config.collective_timeout
            )
        if not launch.is_leader:
            return None
        coverage = prove_coverage(combined.predictions.index, len(data))
        require_same_totals(combined.totals, Totals.of(combined.predictions))
        metrics = compute_metrics(combined.predictions, tuned.label_names)
        facts = {
            "coverage": asdict(coverage),
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
    from dist_eval.swarm.client import join_swarm, leave_swarm, public_peers
    from dist_eval.swarm.coverage import wait_until_covered

    dht = join_swarm(peers or public_peers(), config.swarm_timeout, check=check)
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
        totals: the ranks' own sums, added up by all_reduce.
        ranks: each rank's entry in the section `ranks` of `results.json`.
    """

    predictions: Predictions
    totals: Totals
    ranks: list[dict[str, Any]]


def predict_and_combine(
    classifier: Classifier,
    data: TokenizedDataset,
    plan: Plan,
    launch: Launch,
    progress: Progress,
    window: Window,
    *,
    patience: float,
) -> Combined:
    """Sends this rank's shard through the classifier and combines what all ranks found; every rank calls it.

    Args:
        classifier: the model.
        data: the tokenized examples, the same on all ranks.
        plan: all batches, the same on all ranks.
        launch: where this process stands. The process group is open.
        progress: told of each batch that is done, and asked to wait for the other ranks.
        window: how many batches of this rank may be under way at a time.
        patience: seconds without progress after which the ranks that are late are given up.

    Returns:
        What all ranks found.
    """
    start, began = time.monotonic(), datetime.now(timezone.utc)
    shard = shard_batches(plan, rank=launch.rank, world_size=launch.world_size)
    collector = Collector(sum(len(plan.batch(number)) for number in shard), classifier.num_labels)
    for _, predictions in predict_batches(classifier, data, plan, shard, window=window):
        collector.add(predictions)
        progress.add(len(predictions))
    local = collector.predictions()
    work = {
        "rank": launch.rank,
        "host": launch.host,
        "began": began.isoformat(timespec="milliseconds"),
        "batches": len(shard),
        "samples": len(local),
        "tokens": int(plan.real_tokens[shard].sum()),
        "padded_tokens": int(plan.tokens[shard].sum()),
        "seconds": time.monotonic() - start,
        "in_flight": window.size,
        "traffic": classifier.backbone.traffic(),
    }
    progress.wait_for_all(patience)
    return Combined(gather_predictions(local), sum_over_ranks(Totals.of(local)), all_gather(work))


def throughput(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the section `throughput` of `results.json`: all ranks' work over the slowest rank's time."""
    seconds = max(work["seconds"] for work in ranks)
    return {
        "seconds": seconds,
        "examples_per_second": sum(work["samples"] for work in ranks) / seconds,
        "tokens_per_second": sum(work["tokens"] for work in ranks) / seconds,
    }
