"""Opens and gracefully closes Petals' own classifier, for scripts with their own tuning or evaluation loop.

Petals' classes of models need the packages that it pins, of 2023: an environment such as `launch/petals-2.2`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dist_eval.base_model.config import default_dht_prefix, read_base_config, read_config_file
from dist_eval.base_model.weights import load_pretrained, weight_map
from dist_eval.errors import CheckpointError, ConfigError
from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.model.tuned_model import put_tuned_tensors
from dist_eval.process.interpreter import has_packages_of_petals
from dist_eval.process.lifetime import helpers_die_with_us, multiprocessing_files_in, workspace
from dist_eval.process.logging_setup import silence_petals
from dist_eval.process.patching import patched
from dist_eval.swarm.dht_records import read_blocks

_CLASSES = ("llama", "bloom", "falcon")
_LOOK_UP_SECONDS = 30.0


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
        ConfigError: Petals' classes of models cannot be used with the installed transformers.
        SwarmError: the swarm does not answer or lacks blocks.
    """
    _require_petals(str(model))
    base = read_base_config(str(model))
    tuned = None if checkpoint is None else TunedCheckpoint.load(str(checkpoint))
    if tuned is not None:
        tuned.require_base(str(model), base)
        settings = {**settings, **tuned.model_settings()}
    prefix = dht_prefix or default_dht_prefix(str(model), base)
    silence_petals()
    with workspace() as scratch_dir, multiprocessing_files_in(scratch_dir):
        from dist_eval.swarm.hivemind_compat import prepare_hivemind

        prepare_hivemind(sockets=scratch_dir)
        from dist_eval.model.classifier import base_fingerprint
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
            manager = classifier.transformer.h.sequence_manager
            leave_swarm(dht, manager.state.p2p, manager.shutdown)


def load_petals_classifier(model: str, dht: Any, *, dht_prefix: str, **settings: Any) -> Any:
    """Loads Petals' classifier with random prompts and a random head, for tuning."""
    import petals
    from petals.client.routing import sequence_manager
    from petals.utils.auto_config import _CLASS_MAPPING

    weight_map(model)
    sequence_manager.get_remote_module_infos = _module_infos  # its own fails at a single implausible record
    settings = {"initial_peers": [], "dht_prefix": dht_prefix, "show_route": False, **settings}
    config = petals.AutoDistributedConfig.from_pretrained(model, **settings)
    classes = _CLASS_MAPPING[config.model_type]
    # the classifiers have no argument to pass an existing DHT node on to their base model
    with (
        _only_safetensors(),
        patched(classes.model, "__init__", functools.partialmethod(classes.model.__init__, dht=dht)),
    ):
        return load_pretrained(
            classes.model_for_sequence_classification,
            model,
            what=f"The base model {model}",
            optional=("score", "lm_head", "prompt_embeddings", "intermediate_prompt_embeddings"),
            config=config,
        )


def _module_infos(dht: Any, uids: Sequence[str], *, active_adapter: str | None, latest: bool) -> list[Any]:
    """Takes the place of `petals.utils.dht.get_remote_module_infos`, where Petals' client reads blocks of a model."""
    from hivemind.p2p import PeerID
    from petals.data_structures import RemoteModuleInfo, ServerInfo, ServerState

    prefix, _, first = uids[0].rpartition(".")
    records = read_blocks(dht, prefix, int(first) + len(uids), _LOOK_UP_SECONDS).blocks[int(first) :]
    return [
        RemoteModuleInfo(
            uid,
            {
                PeerID.from_base58(peer): ServerInfo(**{**dict(found), "state": ServerState[found.state.upper()]})
                for peer, found in servers.items()
                if active_adapter is None or active_adapter in found.adapters
            },
        )
        for uid, servers in zip(uids, records, strict=True)
    ]


@contextmanager
def _only_safetensors() -> Iterator[None]:
    """Refuses pickles, which transformers 4.34 reads despite `use_safetensors`; it also demands metadata."""
    from safetensors.torch import load_file
    from transformers import modeling_utils

    def load_state_dict(file: Any) -> Any:
        if not str(file).endswith(".safetensors"):
            raise CheckpointError(f"{file} is a pickle, which could run code")
        return load_file(file)

    with patched(modeling_utils, "load_state_dict", load_state_dict):
        yield


def _require_petals(model: str) -> None:
    if not has_packages_of_petals():
        raise ConfigError(
            f"Petals' own classes of models need its pinned packages of 2023, not transformers "
            f"{version('transformers')}: use the environment of launch/petals-2.2. Without these classes, "
            "`dist-eval run` and `dist-eval tune` evaluate and tune any model."
        )
    kind = read_config_file(model).get("model_type")
    if kind not in _CLASSES:
        raise CheckpointError(
            f"Petals 2.2 has no classes for {model}, of type {kind!r}, only for models of type {', '.join(_CLASSES)}: "
            "`dist-eval run` and `dist-eval tune` with current packages evaluate and tune it."
        )
