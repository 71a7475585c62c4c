"""One tuning run, from its configuration to its checkpoints."""

from __future__ import annotations

import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path

import torch

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.labels import find_classes
from dist_eval.data.readers import open_rows
from dist_eval.distributed.collectives import explaining_lost_ranks, process_group
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.distributed.stop import Stop
from dist_eval.errors import ConfigError
from dist_eval.evaluation.evaluator import prepare_data
from dist_eval.model.backends import load_classifier, open_swarm
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.model.classifier import Classifier, base_fingerprint
from dist_eval.runs.journal import Fingerprint
from dist_eval.swarm.families import read_base_config
from dist_eval.tracking import require_trackers
from dist_eval.tuning.config import TuningConfig
from dist_eval.tuning.epochs import Epochs
from dist_eval.tuning.folder import TuningFolder
from dist_eval.tuning.trainer import empty_checkpoint, first_values, precision_of

_OPENING_SECONDS, _PREPARATION_SECONDS = 120.0, 6 * 3600.0
_CLAIM, _TO_DO, _COMPLETE = "claim", "to do", "complete"
_FINGERPRINTED = (
    *("tuning_mode", "pre_seq_len", "epochs", "batch_size", "accumulation_steps", "learning_rate", "weight_decay"),
    *("warmup", "max_grad_norm", "seed", "best_metric", "precision", "device", "compression", "backend"),
)
"""Options that the checkpoints depend on."""


def tune(
    config: TuningConfig,
    topology: Topology,
    rank_store: RankStore,
    scratch_dir: Path,
    stop: Stop | None,
    folder: TuningFolder,
) -> TunedCheckpoint | None:
    """Tunes prompts and a head; every rank calls it.

    Args:
        config: the run's options.
        topology: this process's place among the ranks.
        rank_store: the store shared by the ranks.
        scratch_dir: this rank's private folder for sockets and tokenized data.
        stop: tells whether the run was asked to stop.
        folder: the run's folder.

    Returns:
        The tuned tensors after the last epoch; None if the run was complete already.

    Raises:
        EvaluationError: the run failed; on the rank that has the root cause.
        RunStopped: it was asked to stop before its end; on all ranks.
    """
    with ExitStack() as stack:
        if topology.is_leader:
            require_trackers(config.tracker)
            folder.open(topology.attempt)
            stack.callback(folder.close)
            rank_store.publish("opened", "")
        rank_store.wait_for("opened", _OPENING_SECONDS)
        folder.is_ours = True
        torch.set_num_threads(1)  # as in an evaluation, so that sums are added up in the same order
        device = device_of(config, topology)
        names = find_names(config, topology, rank_store)
        empty = empty_checkpoint(config, read_base_config(str(config.model)), names)
        base = BaseModelSpec.of(config, empty)
        peers, check = stack.enter_context(open_swarm(config, base, topology, rank_store))
        if topology.is_host_leader:
            rank_store.publish(f"data/{topology.node}", str(prepare_all(config, base, empty, scratch_dir)))
        train, evaluation = open_all(Path(rank_store.wait_for(f"data/{topology.node}", _PREPARATION_SECONDS)))
        if topology.is_leader:
            is_new = folder.claim(fingerprint_of(config, base, empty, train, evaluation, device))
            rank_store.publish(_CLAIM, _TO_DO if is_new else _COMPLETE)
        loaded, swarm = load_classifier(config, base, empty, peers, scratch_dir, check, topology=topology)
        assert isinstance(loaded, Classifier)
        stack.callback(loaded.close)
        if rank_store.wait_for(_CLAIM, _PREPARATION_SECONDS) == _COMPLETE:
            if topology.is_leader:
                print(f"{folder.path} holds the checkpoints of this very run. --overwrite runs it again.", flush=True)
            return None
        rank_store.barrier("ready", _PREPARATION_SECONDS)
        with (
            explaining_lost_ranks(topology, rank_store),
            process_group(topology, rank_store, config.collective_timeout),
            folder.recording_stop(rank=topology.rank, host=topology.host, is_leader=topology.is_leader),
        ):
            tuned = first_values(empty, loaded.backbone.word_embeddings.weight, config.seed)
            tuned = dataclasses.replace(tuned, base_fingerprint=base_fingerprint(loaded.backbone))
            classifier = Classifier(loaded.backbone, tuned)
            epochs = Epochs(
                config, topology, folder, stop or Stop(), base, classifier, train, evaluation, swarm, device
            )
            return epochs.run()


def device_of(config: TuningConfig, topology: Topology) -> torch.device:
    """Returns where a rank computes.

    Raises:
        ConfigError: --device cuda was given, and there is no GPU.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU here.")
    if config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", topology.local_rank % torch.cuda.device_count())


def find_names(config: TuningConfig, topology: Topology, rank_store: RankStore) -> list[str]:
    """Reads the names of the classes from the data, once for all ranks."""
    if topology.is_leader:
        source = open_rows(str(config.dataset), [config.label_column], subset=config.subset, split=config.split)
        names = find_classes(source, config.label_column, config.labels, config.num_labels)
        rank_store.publish("classes", json.dumps(names))
    return list(json.loads(rank_store.wait_for("classes", _PREPARATION_SECONDS)))


def prepare_all(config: TuningConfig, base: BaseModelSpec, tuned: TunedCheckpoint, scratch_dir: Path) -> Path:
    """Tokenizes the training data, and the evaluation data if there is any, once for all ranks of a host."""
    folder = scratch_dir / "data"
    for name, data in (("train", {}), ("evaluation", config.evaluation_data)):
        if data is not None:
            (folder / name).mkdir(parents=True)
            prepare_data(dataclasses.replace(config, **data), base, tuned, folder / name)
    return folder


def open_all(folder: Path) -> tuple[TokenizedDataset, TokenizedDataset | None]:
    """Opens the training and evaluation data that `prepare_all` wrote."""
    evaluation = folder / "evaluation"
    return TokenizedDataset(folder / "train"), TokenizedDataset(evaluation) if evaluation.exists() else None


def fingerprint_of(
    config: TuningConfig,
    base: BaseModelSpec,
    tuned: TunedCheckpoint,
    train: TokenizedDataset,
    evaluation: TokenizedDataset | None,
    device: torch.device,
) -> Fingerprint:
    """Returns the inputs and options that a run's checkpoints depend on, by names for error messages."""
    options = {"--" + name.replace("_", "-"): str(getattr(config, name)) for name in _FINGERPRINTED}
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
