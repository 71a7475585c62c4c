"""Facts about a run's inputs (dataset, checkpoint, base model) as this rank sees them, and the memory they need."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

from dist_eval.data.readers import open_rows
from dist_eval.doctor.config import DoctorConfig
from dist_eval.doctor.facts import Gpu, RankFacts
from dist_eval.evaluation.task import target_of
from dist_eval.model.base_model_spec import BaseModelSpec, EvalTarget
from dist_eval.model.pretrained_classifier import PretrainedClassifier, local_device
from dist_eval.options.groups import ModelOptions
from dist_eval.process.files import samples_of
from dist_eval.process.parsing import parse_json

_FLOAT_BYTES = 4
_RANK_BYTES, _SERVER_BYTES = 650 << 20, 600 << 20
"""Memory of a rank and of a server besides weights: measured, see benchmarks/README.md."""


def collect_models(facts: RankFacts, config: DoctorConfig) -> BaseModelSpec:
    """Records the hashes of checkpoint and base model, and the memory that they need.

    Returns:
        The base model.

    Raises:
        EvaluationError: checkpoint or model do not exist, or do not fit together.
    """
    target = target_of(config)
    facts.digests["prompt and label words" if config.prompt else "tuned checkpoint"] = target.digest()
    base = BaseModelSpec.of(config.only(ModelOptions), target)
    facts.digests["base model"] = base.digest()
    collect_needs(facts, config, base, target)
    return base


def collect_needs(facts: RankFacts, config: DoctorConfig, base: BaseModelSpec, target: EvalTarget) -> None:
    """Records the memory that this rank will need, and the GPU that it would use."""
    is_local = config.backend == "local"
    weights = parameters_of(base) * _FLOAT_BYTES if is_local or config.starts_swarm else 0
    facts.memory_needed = _RANK_BYTES
    if config.uses_swarm and not isinstance(target, PretrainedClassifier):
        # a client holds the embeddings and the final norm
        facts.memory_needed += base.config.vocab_size * base.config.hidden_size * _FLOAT_BYTES
    if is_local and not _collect_gpu(facts, weights):
        facts.memory_needed += weights
    if config.starts_swarm:
        facts.servers_needed = weights + config.servers * _SERVER_BYTES


def _collect_gpu(facts: RankFacts, weights: int) -> bool:
    """Records the GPU that the rank would use; returns whether there is one."""
    import torch

    device = local_device(facts.local_rank)
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_name(device)
    facts.gpu = Gpu(device.index, name, int(free), int(total))
    facts.gpu_needed = weights
    return True


def parameters_of(base: BaseModelSpec) -> int:
    """Counts the parameters of a model, in its files or, if it is not downloaded yet, by its config."""
    return stored_parameters(base.name) or described_parameters(base.config)


def described_parameters(config: Any) -> int:
    """Counts the parameters of the model that a `transformers` config describes, without its head; needs no memory."""
    import torch
    from transformers import AutoModel

    with torch.device("meta"):
        model = AutoModel.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def stored_parameters(model: str) -> int:
    """Counts the parameters in a folder's safetensors files; 0 if it is not a folder, or has none.

    The header of a safetensors file is its length in 8 bytes, followed by JSON.
    """
    count = 0
    for path in sorted(Path(model).glob("*.safetensors")):
        with path.open("rb") as file:
            header: dict[str, Any] = parse_json(file.read(int.from_bytes(file.read(8), "little")))
        count += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return count


def collect_dataset(facts: RankFacts, config: DoctorConfig) -> None:
    """Records the hash of the dataset, and checks its columns, on the first rank of a host.

    Raises:
        DataError: the dataset or a column does not exist, or cannot be read.
        OSError: the dataset cannot be read.
    """
    if facts.local_rank:
        return
    source = open_rows(
        config.dataset or (), [*config.text_column, config.label_column], subset=config.subset, split=config.split
    )
    next(iter(source.batches), None)
    if source.shards:
        files = [shard.path for shard in source.shards]
        facts.dataset_bytes = sum(path.stat().st_size for path in files)
        facts.digests["dataset"] = file_digest(*files)


def file_digest(*paths: Path) -> str:
    """Returns a SHA-256 of files' sizes and samples: reading all of a large file takes longer than a check may."""
    digest = hashlib.sha256()
    for path in paths:
        for sample in samples_of(path):
            digest.update(sample)
    return digest.hexdigest()
