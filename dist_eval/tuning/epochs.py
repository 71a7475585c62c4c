"""The training loop over epochs: updates, evaluation, checkpoints, and the state that a resumed run continues from."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import plan_batches, shard_batches
from dist_eval.data.tokenizers import load_tokenizer
from dist_eval.distributed.collectives import all_gather, of_leader, require_agreement
from dist_eval.distributed.display import TimeLeft, display_on
from dist_eval.distributed.stop import Stop, common_reason
from dist_eval.errors import RunStopped
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.scoring import gather, score
from dist_eval.inference.forward import predict_batches
from dist_eval.metrics.catalogue import lower_is_better
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.classifier import Classifier
from dist_eval.options.tuning import PROJECT, LearningOptions, TuningConfig
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.results.tuning import BestEpoch, EpochResults, TuningProgress, TuningRank
from dist_eval.tracking import Trackers
from dist_eval.tuning.folder import BEST, LAST, TuningFolder, TuningState, pack_state, unpack_state, write_state
from dist_eval.tuning.trainer import Trainer, global_batches, snapshot

_NOTICE_SECONDS = 0.5


class TuningDisplay:
    """Shows the progress of a tuning."""

    def __init__(self, total: int, done: int) -> None:
        self._display, self._time_left = display_on(sys.stderr, total, "tuning", "update"), TimeLeft()
        self._total, self._before, self._done = total, done, done
        self._time_left.update(total - done, time.monotonic())

    def updated(self, epoch: int, loss: float) -> None:
        """Counts an update of an epoch (numbered from 0), with its mean loss in nats."""
        self._done += 1
        now = time.monotonic()
        self._time_left.update(self._total - self._done, now)
        details = f"epoch {epoch + 1}, loss {loss:.4f}"
        self._display.show(self._done, self._before, self._time_left.seconds(now), details)

    def say(self, text: str) -> None:
        """Prints a line beside the progress."""
        self._display.note(text)

    @contextmanager
    def watching(self, notice: Callable[[], str]) -> Iterator[None]:
        """Shows notices from a thread within the context; then closes the display."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_NOTICE_SECONDS):
                if text := notice():
                    self.say(text)

        thread = threading.Thread(target=watch, name="notices", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(2 * _NOTICE_SECONDS)
            self._display.close()


def evaluate_classifier(
    context: RunContext[TuningConfig, TuningFolder],
    base: BaseModelSpec,
    classifier: Classifier,
    data: TokenizedDataset,
    *,
    stopping: Callable[[], bool],
) -> Metrics | None:
    """Evaluates a classifier as an evaluation run does; every rank calls it."""
    topology = context.topology
    plan = plan_batches(data.lengths, token_budget=base.token_budget, extra_tokens=classifier.tuned.pre_seq_len)
    numbers = shard_batches(len(plan), rank=topology.rank, world_size=topology.world_size)
    outcomes = predict_batches(
        classifier,
        data,
        plan,
        numbers,
        window=context.window(base),
        stopping=stopping,
        drain_timeout=context.config.stop_grace,
    )
    parts = [Predictions.empty(classifier.num_labels)]
    for outcome in outcomes:
        rows = plan.batch(outcome.batch)
        parts.append(Predictions.from_answers(rows, np.asarray(data.labels)[rows], outcome.answers))
    require_no_stop(context.stop, "during an evaluation")
    gathered = gather(Predictions.concatenate(parts))
    return score(gathered, len(data), classifier.tuned.label_names)[1] if topology.is_leader else None


def require_no_stop(stop: Stop, when: str) -> None:
    """Raises `RunStopped` on all ranks if a stop was requested on any; every rank calls it."""
    reason = common_reason(all_gather(stop.reason))
    if reason:
        stop.request(reason)
        raise RunStopped(f"stopped {when} because {reason}: start the same command again to resume from there", None)


@dataclass
class Epochs:
    """The training loop of a tuning."""

    context: RunContext[TuningConfig, TuningFolder]  # this rank's part of the run
    base: BaseModelSpec  # the base model
    classifier: Classifier  # the base model with the initial tuned tensors
    train: TokenizedDataset  # the training examples
    evaluation: TokenizedDataset | None  # the evaluation examples, if any
    device: torch.device  # where to compute

    def __post_init__(self) -> None:
        self.config, self.topology = self.context.config, self.context.topology
        self.folder, self.stop = self.context.folder, self.context.stop

    def run(self) -> TunedCheckpoint:
        """Runs the remaining epochs; every rank calls it."""
        self._trainer = Trainer(
            self.config.select(LearningOptions),
            self.classifier,
            self.train,
            self.topology,
            updates=self._updates * self.config.epochs,
            token_budget=self.base.token_budget,
            window=self.context.window(self.base, gradients=self._prompt_gradients),
            device=self.device,
        )
        require_agreement({"device and precision": f"{self.device.type} {self._trainer.precision}"})
        self._state = self._resume()
        with ExitStack() as stack:
            self._display, self._trackers = None, Trackers()
            if self.topology.is_leader:
                done = self._updates * self._state.epoch + self._state.updates
                self._display = TuningDisplay(self._updates * self.config.epochs, done)
                stack.enter_context(self._display.watching(self.classifier.backbone.notice))
                self._trackers = self.context.open_trackers(PROJECT)
            self.stop.defer_signals()
            while self._state.epoch < self.config.epochs:
                began = time.monotonic()
                self._run_epoch()
                digest = snapshot(self._trainer.tuned).digest()
                require_agreement({"tuned checkpoint": digest, "data": self.train.facts.digest})
                self._end_epoch(self._evaluate(), time.monotonic() - began)
        tuned = snapshot(self._trainer.tuned)
        ranks = all_gather(
            TuningRank(rank=self.topology.rank, host=self.topology.host, traffic=self.classifier.backbone.traffic())
        )
        if self.topology.is_leader:
            self.folder.finish(self._results(tuned), ranks)
            self.folder.show_checkpoints()
        return tuned

    @property
    def _prompt_gradients(self) -> int:
        """Size of the gradients of a batch's deep prompts, in tensors of the batch's size."""
        tuned = self.classifier.tuned
        if tuned.deep_prompts is None:
            return 0
        of_batch = tuned.pre_seq_len / (tuned.pre_seq_len + float(np.mean(self.train.lengths)))
        return ceil(len(tuned.deep_prompts) * of_batch)

    @property
    def _updates(self) -> int:
        return -(-len(self.train) // self.config.examples_per_update)

    def _resume(self) -> TuningState:
        """Restores the state saved on the leader's disk on all ranks; returns it."""
        found = of_leader(unpack_state(self.folder.state) if self.topology.is_leader else None)
        state = TuningState()
        if found is not None:
            state, tensors, rest = found
            self._trainer.restore(tensors, rest)
        if self.topology.is_leader:
            self._place_checkpoints(state)
        return state

    def _run_epoch(self) -> None:
        config, state = self.config, self._state
        batches = global_batches(len(self.train), config.examples_per_update, seed=config.seed, epoch=state.epoch)
        for rows in batches[state.updates :]:
            self._update(rows)
            step = state.epoch * len(batches) + state.updates
            is_due = config.save_every and step % config.save_every == 0
            if self._is_stopping or is_due or state.updates == len(batches):
                self._save()
            if self._is_stopping:
                require_no_stop(
                    self.stop, f"in epoch {state.epoch + 1} after {state.updates} of {len(batches)} updates"
                )

    def _update(self, rows: np.ndarray) -> None:
        state, rate = self._state, self._trainer.learning_rate
        update = self._trainer.update(rows, self._stop_requested)
        self._is_stopping = update.is_last
        if not update.is_applied:
            return
        state.updates += 1
        state.loss_sum, state.examples = state.loss_sum + update.loss_sum, state.examples + update.examples
        if self._display:
            loss = update.loss_sum / update.examples
            self._display.updated(state.epoch, loss)
            self._trackers.log({"loss": loss, "learning_rate": rate}, state.epoch * self._updates + state.updates)

    def _stop_requested(self) -> bool:
        if self.topology.is_leader:
            self.stop.look_for_file(self.folder.path)
        return self.stop.requested

    def _save(self) -> None:
        if self.topology.is_leader:
            write_state(self.folder.state, pack_state(self._state, *self._trainer.state()))

    def _evaluate(self) -> Metrics | None:
        if self.evaluation is None:
            return None
        current = Classifier(self.classifier.backbone, snapshot(self._trainer.tuned))
        return evaluate_classifier(self.context, self.base, current, self.evaluation, stopping=self._stop_requested)

    def _end_epoch(self, metrics: Metrics | None, seconds: float) -> None:
        """Saves the results of an epoch, which is finished once the state is written."""
        state, tuned = self._state, snapshot(self._trainer.tuned)
        entry = EpochResults(
            epoch=state.epoch + 1,
            loss=state.loss_sum / state.examples if state.examples else None,
            updates=state.updates,
            seconds=seconds,
            metrics=metrics.values if metrics else None,
        )
        if self._is_best(entry):
            state.best = state.epoch
        if self._display:
            tokenizer = load_tokenizer(self.base.name)
            for name in (LAST, BEST) if state.best == state.epoch else (LAST,):
                self.folder.stage_checkpoint(name, state.epoch, tuned, tokenizer)
        state.end_epoch(entry)
        self._save()
        if self._display:
            self._place_checkpoints(state)
            self.folder.update_results(self._results(tuned))
            self._display.say(self.folder.describe(entry))
            metric_values = {f"eval_{name}": value for name, value in (entry.metrics or {}).items()}
            self._trackers.log({"epoch_loss": entry.loss, **metric_values}, state.epoch * self._updates)

    def _is_best(self, entry: EpochResults) -> bool:
        """Returns whether an epoch is the best so far; False except on the leader, which has the metrics."""
        if not entry.metrics:
            return False
        score = self._score_of(entry)
        return self._state.best is None or score > self._score_of(self._state.history[self._state.best])

    def _score_of(self, entry: EpochResults) -> float:
        """Returns the value of `--best-metric`, negated if lower is better."""
        value = (entry.metrics or {})[self.config.best_metric]
        if value is None:
            return -float("inf")
        return -value if lower_is_better(self.config.best_metric) else value

    def _place_checkpoints(self, state: TuningState) -> None:
        self.folder.place_checkpoints({LAST: state.epoch - 1, BEST: state.best})

    def _results(self, tuned: TunedCheckpoint) -> TuningProgress:
        state, best, metric = self._state, None, self.config.best_metric
        if state.best is not None:
            value = (state.history[state.best].metrics or {})[metric]
            best = BestEpoch(epoch=state.best + 1, metric=metric, value=value)
        return TuningProgress(
            epochs=state.history,
            best=best,
            data=self.train.facts,
            evaluation_data=self.evaluation.facts if self.evaluation else None,
            model=self.base.summary(tuned),
            swarm=self.context.swarm,
        )
