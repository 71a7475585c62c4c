"""The conductor of prompt tuning: opens all that a run needs, and lets it go through its epochs."""

from __future__ import annotations

import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path

import torch

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.labels import find_classes
from dist_eval.data.readers import open_rows
from dist_eval.distributed.collectives import giving_way, process_group
from dist_eval.distributed.rank_store import Board, Launch
from dist_eval.distributed.stop import Stop
from dist_eval.errors import ConfigError
from dist_eval.evaluation.evaluator import prepare_data
from dist_eval.evaluation.journal import Fingerprint
from dist_eval.model.backends import load_classifier, open_swarm
from dist_eval.model.base_model_spec import Base, read_base_config
from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.model.classifier import Classifier, base_fingerprint
from dist_eval.tracking import require_trackers
from dist_eval.tuning.config import TuningConfig
from dist_eval.tuning.epochs import Epochs
from dist_eval.tuning.folder import TuningFolder
from dist_eval.tuning.trainer import empty_checkpoint, first_values, precision_of

_OPENING_SECONDS, _PREPARATION_SECONDS = 120.0, 6 * 3600.0
_CLAIM, _TO_DO, _COMPLETE = "claim", "to do", "complete"
_FOLLOWED = (
    *("tuning_mode", "pre_seq_len", "epochs", "batch_size", "accumulation_steps", "learning_rate", "weight_decay"),
    *("warmup", "max_grad_norm", "seed", "best_metric", "precision", "device", "compression", "backend"),
)
"""Options that the checkpoints depend on."""


def tune(
    config: TuningConfig, launch: Launch, board: Board, own: Path, stop: Stop | None, folder: TuningFolder
) -> TunedCheckpoint | None:
    """Tunes prompts and a head; every rank calls it.

    Args:
        config: what to do.
        launch: where this process stands among the ranks.
        board: the ranks' store.
        own: this rank's private folder for sockets and tokenized data.
        stop: asked whether to go on.
        folder: the run's folder.

    Returns:
        The tuned tensors after the last epoch; None if there was nothing to do.

    Raises:
        EvaluationError: the run cannot be done, on the rank that knows why.
        RunStopped: it was asked to stop before its end; on all ranks.
    """
    with ExitStack() as stack:
        if launch.is_leader:
            require_trackers(config.tracker)
            folder.open(launch.attempt)
            stack.callback(folder.close)
            board.publish("opened", "")
        board.wait_for("opened", _OPENING_SECONDS)
        folder.is_ours = True
        torch.set_num_threads(1)  # as in an evaluation: sums are added up in the same order
        device = device_of(config, launch)
        names = find_names(config, launch, board)
        empty = empty_checkpoint(config, read_base_config(str(config.model)), names)
        base = Base.of(config, empty)
        peers, check = stack.enter_context(open_swarm(config, base, launch, board))
        if launch.is_host_leader:
            board.publish(f"data/{launch.node}", str(prepare_all(config, base, empty, own)))
        train, evaluation = open_all(Path(board.wait_for(f"data/{launch.node}", _PREPARATION_SECONDS)))
        if launch.is_leader:
            is_new = folder.claim(fingerprint_of(config, base, empty, train, evaluation, device))
            board.publish(_CLAIM, _TO_DO if is_new else _COMPLETE)
        loaded, swarm = load_classifier(config, base, empty, peers, own, check, launch=launch)
        assert isinstance(loaded, Classifier)
        stack.callback(loaded.close)
        if board.wait_for(_CLAIM, _PREPARATION_SECONDS) == _COMPLETE:
            if launch.is_leader:
                print(f"{folder.path} holds the checkpoints of this very run. --overwrite runs it again.", flush=True)
            return None
        board.meet("ready", _PREPARATION_SECONDS)
        with (
            giving_way(launch, board),
            process_group(launch, board, config.collective_timeout),
            folder.noting_a_stop(rank=launch.rank, host=launch.host, is_leader=launch.is_leader),
        ):
            tuned = first_values(empty, loaded.backbone.word_embeddings.weight, config.seed)
            tuned = dataclasses.replace(tuned, base_fingerprint=base_fingerprint(loaded.backbone))
            classifier = Classifier(loaded.backbone, tuned)
            epochs = Epochs(config, launch, folder, stop or Stop(), base, classifier, train, evaluation, swarm, device)
            return epochs.go_through()


def device_of(config: TuningConfig, launch: Launch) -> torch.device:
    """Returns where a rank computes.

    Raises:
        ConfigError: a GPU was asked for, and there is none.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU here.")
    if config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", launch.local_rank % torch.cuda.device_count())


def find_names(config: TuningConfig, launch: Launch, board: Board) -> list[str]:
    """Reads the names of the classes from the data, once for all ranks."""
    if launch.is_leader:
        source = open_rows(str(config.dataset), [config.label_column], subset=config.subset, split=config.split)
        names = find_classes(source, config.label_column, config.labels, config.num_labels)
        board.publish("classes", json.dumps(names))
    return list(json.loads(board.wait_for("classes", _PREPARATION_SECONDS)))


def prepare_all(config: TuningConfig, base: Base, tuned: TunedCheckpoint, own: Path) -> Path:
    """Tokenizes the examples to learn from, and those to evaluate on if there are any, once for all ranks of a host."""
    folder = own / "data"
    for name, data in (("train", {}), ("evaluation", config.evaluation_data)):
        if data is not None:
            (folder / name).mkdir(parents=True)
            prepare_data(dataclasses.replace(config, **data), base, tuned, folder / name)
    return folder


def open_all(folder: Path) -> tuple[TokenizedDataset, TokenizedDataset | None]:
    """Opens what `prepare_all` wrote."""
    evaluation = folder / "evaluation"
    return TokenizedDataset(folder / "train"), TokenizedDataset(evaluation) if evaluation.exists() else None


def fingerprint_of(
    config: TuningConfig,
    base: Base,
    tuned: TunedCheckpoint,
    train: TokenizedDataset,
    evaluation: TokenizedDataset | None,
    device: torch.device,
) -> Fingerprint:
    """Returns what a run's checkpoints depend on, by names that a person reads when they differ."""
    options = {"--" + name.replace("_", "-"): str(getattr(config, name)) for name in _FOLLOWED}
    options.update({"--device": device.type, "--precision": precision_of(config, device)})
    return Fingerprint(
        {
            "base model": base.digest(),
            "names of the classes": json.dumps(tuned.label_names),
            "tokenizer": train.facts.tokenizer_digest,
            "dataset": train.facts.text_digest,
            "evaluation data": evaluation.facts.text_digest if evaluation else "none",
            "--max-length": str(train.facts.max_length),
            "--token-budget": str(base.token_budget),
            **options,
            "token ids": train.facts.digest,
        }
    )
