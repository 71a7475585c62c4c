"""Opens and gracefully closes Petals' own classifier, for scripts with their own tuning or evaluation loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.model.tuned_model import put_tuned_tensors
from dist_eval.process.lifetime import helpers_die_with_us, multiprocessing_files_in, workspace
from dist_eval.process.logging_setup import silence_petals
from dist_eval.swarm.families import default_dht_prefix, read_base_config


@contextmanager
def open_petals_classifier(
    model: str | Path,
    initial_peers: Sequence[str],
    *,
    checkpoint: str | Path | None = None,
    dht_prefix: str | None = None,
    timeout: float = 120.0,
    **settings: Any,
) -> Iterator[Any]:
    """Opens a Petals `Distributed*ForSequenceClassification`, and leaves its swarm at the end of the context.

    It patches Petals to run on a current hivemind, and waits until the swarm serves all blocks. The helper processes
    end with the context, or with this process, even if it is killed. Enter the context before opening a process group:
    Petals forks, and the fork would inherit the group's connections.

    Args:
        model: folder or hub name of the base model.
        initial_peers: addresses of the swarm's peers.
        checkpoint: folder of a tuned checkpoint, whose prompts and head are loaded.
        dht_prefix: name under which the swarm announces the model; by default Petals' rule for the model's name.
        timeout: seconds to wait for the swarm.
        **settings: other fields of the model's config, such as `tuning_mode`, `pre_seq_len` and `num_labels` for a
            model that is to be tuned, `active_adapter` for a LoRA adapter that servers hold, or `request_timeout` and
            `max_retries`.

    Yields:
        The model, in eval mode, float32 on the CPU.

    Raises:
        CheckpointError: base model or checkpoint cannot be read, or do not fit together.
        SwarmError: the swarm does not answer or lacks blocks.
    """
    base = read_base_config(str(model))
    tuned = None if checkpoint is None else TunedCheckpoint.load(str(checkpoint))
    if tuned is not None:
        tuned.require_base(str(model), base)
        settings = {**settings, **tuned.model_settings()}
    prefix = dht_prefix or default_dht_prefix(str(model), base)
    silence_petals()
    with workspace() as scratch_dir, multiprocessing_files_in(scratch_dir):
        from dist_eval.swarm.hivemind_compat import import_petals

        import_petals(sockets=scratch_dir)
        from dist_eval.model.classifier import base_fingerprint, load_petals_classifier
        from dist_eval.swarm.client import join_swarm, leave_swarm
        from dist_eval.swarm.coverage import wait_until_covered

        with helpers_die_with_us():
            dht = join_swarm(list(initial_peers), timeout)
            try:
                adapter = settings.get("active_adapter")
                wait_until_covered(dht, prefix, base.num_hidden_layers, timeout, config=base, adapter=adapter)
                classifier = load_petals_classifier(str(model), dht, dht_prefix=prefix, **settings)
            except BaseException:
                leave_swarm(dht)
                raise
        try:
            if tuned is not None:
                remote = classifier.transformer
                tuned.require_base(str(model), base, base_fingerprint(remote.word_embeddings, remote.ln_f))
                put_tuned_tensors(tuned, classifier)
            yield classifier.eval()
        finally:
            leave_swarm(dht, classifier.transformer.h.sequence_manager)
