"""dist_eval's own `evaluate`: a model that a program has opened, and a DataLoader that pads by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.alternatives.common import Task, timed


def classify(scratch_dir: Path, **task: Any) -> dict[str, Any]:
    """Classifies the dataset of a task."""
    from transformers import DataCollatorWithPadding

    from dist_eval import AutoDistributedModelForSequenceClassification, evaluate

    settings = Task(**task)
    rows, tokenizer = settings.tokenized()

    def loader(rows: Any) -> Any:
        return DataLoader(rows, settings.batch_size, collate_fn=DataCollatorWithPadding(tokenizer))

    with AutoDistributedModelForSequenceClassification.from_pretrained(
        settings.model,
        initial_peers=settings.initial_peers,
        checkpoint=settings.checkpoint,
        dht_prefix=settings.dht_prefix,
    ) as model:
        evaluate(model, loader(rows[: settings.batch_size]))
        requests = model.connection.requests
        before = requests.traffic()
        result, seconds = timed(lambda: evaluate(model, loader(rows), return_predictions=True))
        traffic = requests.traffic()
    counted = ("round_trips", "bytes_sent", "bytes_received")
    own = {name: getattr(traffic, name) - getattr(before, name) for name in counted}
    return {"seconds": seconds, "answers": result["predictions"].tolist(), "facts": {"ranks": [{"traffic": own}]}}
