"""A tuning run, from its configuration to its checkpoints."""

from __future__ import annotations

import dataclasses
import json
from functools import cache, partial
from pathlib import Path

import torch

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.labels import find_classes
from dist_eval.data.readers import open_rows
from dist_eval.distributed.collectives import of_leader, require_agreement
from dist_eval.distributed.rank_store import Topology
from dist_eval.errors import ConfigError
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.inputs import write_dataset
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.classifier import Classifier
from dist_eval.options.groups import DataOptions, ModelOptions
from dist_eval.options.tuning import LearningOptions, TuningConfig
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.model.loading import base_fingerprint
from dist_eval.revisions import pinned
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.tuning.epochs import Epochs
from dist_eval.tuning.folder import TuningFolder
from dist_eval.tuning.trainer import empty_checkpoint, initial_parameters, precision_of

TuningContext = RunContext[TuningConfig, TuningFolder]

# Options that the checkpoints depend on
_FINGERPRINTED = (
    *("tuning_mode", "pre_seq_len", "epochs", "batch_size", "accumulation_steps", "learning_rate", "weight_decay"),
    *("warmup", "max_grad_norm", "seed", "best_metric", "precision", "device", "compression", "backend"),
)


def tune(context: TuningContext) -> TunedCheckpoint | None:
    """Tunes prompts and a head; every rank calls it."""
    config = context.config
    with context:
        device = device_of(config, context.topology)
        empty = empty_checkpoint(
            config.select(LearningOptions),
            read_base_config(str(config.model), pinned("model", str(config.model))),
            find_names(context),
            base_model=config.model,
            adapter=config.adapter,
        )
        base = BaseModelSpec.read(config.select(ModelOptions), empty, with_gradients=True)
        if not context.has_results:
            context.open_swarm(base)
        context.publish_dataset(partial(tokenize, config, base, empty))
        datasets = cache(lambda: open_datasets(context.wait_for_dataset()))
        context.claim(lambda: context.folder.claim(fingerprint_of(config, base, empty, *datasets(), device)))
        loaded = None if context.has_results else context.load_model(base, empty)
        if context.is_complete() or loaded is None:
            if context.topology.is_leader:
                path = context.folder.path
                print(f"{path} already contains the checkpoints of this run. --overwrite runs it again.", flush=True)
                context.folder.show_checkpoints()
            return None
        assert isinstance(loaded, Classifier)
        train, evaluation = datasets()
        with context.process_group():
            backbone = loaded.backbone
            local_weights = base_fingerprint(backbone.word_embeddings, backbone.final_norm)
            inputs = fingerprint_of(config, base, empty, train, evaluation, device).values
            require_agreement({**inputs, "embeddings of the model": local_weights})
            drawn = initial_parameters(empty, backbone.word_embeddings.weight, config.seed)
            head, prompts = of_leader((drawn.head, drawn.prompts))  # kinds of CPU may draw differently
            tuned = dataclasses.replace(drawn, head=head, prompts=prompts, base_fingerprint=local_weights)
            return Epochs(context, base, Classifier(backbone, tuned), train, evaluation, device).run()


def device_of(config: TuningConfig, topology: Topology) -> torch.device:
    """Returns the device of a rank."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU on this host.")
    if config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", topology.local_rank % torch.cuda.device_count())


def find_names(context: TuningContext) -> list[str]:
    """Reads the names of the classes from the data, once for all ranks."""

    def read() -> str:
        config = context.config
        source = open_rows(config.dataset or (), [config.label_column], subset=config.subset, split=config.split)
        return json.dumps(find_classes(source, config.label_column, config.labels, config.num_labels))

    context.publish_as_leader("classes", read)
    return list(json.loads(context.wait_for("classes")))


def tokenize(config: TuningConfig, base: BaseModelSpec, tuned: TunedCheckpoint, folder: Path) -> None:
    """Writes the tokenized training data, and the evaluation data if there is any, to subfolders of a folder."""
    for name, data in (("train", {}), ("evaluation", config.evaluation_data)):
        if data is not None:
            (folder / name).mkdir()
            write_dataset(folder / name, dataclasses.replace(config.select(DataOptions), **data), base, tuned)


def open_datasets(folder: Path) -> tuple[TokenizedDataset, TokenizedDataset | None]:
    """Opens the training and evaluation data that `tokenize` wrote."""
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
    options.update({"--device": device.type, "--precision": precision_of(config.precision, device)})
    return Fingerprint(
        {
            **base.identity(),
            "names of the classes": json.dumps(tuned.label_names),
            "tokenizer": train.facts.tokenizer_digest,
            "dataset": train.facts.text_digest,
            "evaluation data": evaluation.facts.text_digest if evaluation else "none",
            "--max-length": str(train.facts.max_length),
            "--token-budget": str(base.token_budget),
            **options,
            "token ids": train.facts.digest,
        },
        {"dataset": train.file_digests(), "evaluation data": evaluation.file_digests() if evaluation else {}},
    )
