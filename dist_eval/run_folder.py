"""A run's folder: whose it is, and `results.json`.

`results.json` is written first, with status "running", and replaced as a whole whenever something changes, so that
whoever looks sees a complete and true file. `SCHEMA_VERSION` counts changes that a reader could stumble over:

    schema_version    int
    status            "running", "complete", "incomplete" (it was asked to stop), "failed"; what is not complete goes on
                      where it was when the same command is started again
    error             null, or {message, rank, host, transient}: why it is incomplete or failed; transient is whether
                      the same command may get further although nobody changes anything
    started, finished ISO 8601 times in UTC, finished null while running
    problem_type      "single_label_classification", "multi_label_classification" or "regression"
    metrics           figure by name, null where undefined
    undefined         for each null figure, why
    custom_metrics    names of those figures that come from --metric
    intervals         for each figure {confidence, low, high, method, resamples, reason}: method is "wilson", "bca",
                      "percentile" or "jackknife" (see `dist_eval.statistics.intervals`), resamples null without any;
                      where there is no interval, low, high and method are null, and reason says why
    majority_share    share of the most frequent class, null unless each example has one class
    per_class         [{label, precision, recall, f1, support}], for a regression
                      [{label, mae, mse, rmse, r2, pearson, spearman}], one for each output
    confusion_matrix  {labels, matrix}: rows are true classes, columns predicted ones; with several labels an example
                      the matrix of each label, [[no taken for no, no for yes], [yes for no, yes for yes]]; null for a
                      regression
    coverage          {expected, seen, duplicates, missing, failed}; failed ones are part of the missing ones
    failures          [{index, reason}] of the failed examples, which are in no figure
    data              {source, examples, truncated, longest, multiline, blank, unknown, max_length, digest,
                      text_digest, tokenizer_digest}
    model             {base, checkpoint, tuning_mode, pre_seq_len, num_labels, weights_digest}
    plan              {batches, padded_tokens, real_tokens, digest}
    ranks             [{rank, host, began, batches, samples, resumed, tokens, padded_tokens, seconds, in_flight,
                      traffic, combined, accuracy, loss}]; began is when it sent its first batch, resumed are examples
                      of earlier starts, combined are all that it brought to the combination, accuracy and loss are
                      those of these (null without any; accuracy null for a regression), all else is of this start;
                      tokens include prompts, padded_tokens also padding,
                      in_flight is the last size of its window, traffic is null without a swarm, else {compression,
                      round_trips, retries, halved, bytes_sent, bytes_received, servers: [{peer, requests,
                      failures, wrong_answers,
                      token_blocks, latency_p50, latency_p95}]}; bytes are those of tensors, latencies in seconds
    spread            null with fewer than two ranks that brought examples, else {figure, lowest, lowest_rank, highest,
                      highest_rank, mean}: the ranks' own accuracy (for a regression loss), and what averaging them
                      would give
    throughput        {seconds, examples_per_second, tokens_per_second} of the forwards: tokens without padding, the
                      slowest rank's time
    swarm             null, or {dht_prefix, num_blocks, missing_blocks, replicas_per_block, servers}
    audit             null, or {fraction, batches, alone, unanswered, largest_difference, servers: [{peer, agreed,
                      disagreed, odd}], disputes, first_disputes: [{peers, blocks, difference, why}]}: batches that
                      got a second opinion, those for which no other server was there, those for which it failed
    backends          null without --compare-backends, else {compared, largest_difference, changed, examples:
                      [{index, swarm: {prediction, logits}, local: {prediction, logits}}], file}: the largest difference
                      of a logit, how many predictions changed (null for a regression) and the first of them; file
                      names the one with all of them (JSONL), if they are more
    config            all options; peer addresses are counted, not written
    environment       {python, platform, packages, git_commit}
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import subprocess
import time
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

from dist_eval.config import RunConfig
from dist_eval.errors import RunError
from dist_eval.figures import FIGURES, draw_figure, figure_name
from dist_eval.files import write_atomically
from dist_eval.journal import FOLDER as JOURNAL
from dist_eval.journal import Fingerprint, forget_journal, has_batches
from dist_eval.metrics import Metrics
from dist_eval.predictions import Predictions
from dist_eval.report import CHANGES, PREDICTIONS, RESULTS, print_error, write_predictions
from dist_eval.stopping import STOP_FILE, asked_by_a_person

SCHEMA_VERSION = 1
LOCK_FILE, _LOCK_SECONDS, _LOCK_POLL_SECONDS = "lock", 5.0, 0.2
_PACKAGES = ("dist_eval", "petals", "hivemind", "torch", "transformers", "datasets", "numpy", "scikit-learn")
_PEER = re.compile(
    r"(?:/[\w.:-]+)*/p2p/[1-9A-HJ-NP-Za-km-z]{40,}|\b(?:Qm|12D3Koo)[1-9A-HJ-NP-Za-km-z]{40,}"
)  # with its address, or the identity alone


class RunFolder:
    """The folder of one run.

    Args:
        config: the run's options; `config.output_folder` is the folder.

    Attributes:
        path: where it is.
        is_ours: whether the leader of this run has opened it; before that, another run may be using it.
        results_name: name of the file with the results.
        keeps: what a resumed run goes on from, for messages.
        others_have: what tells, without a file `results_name`, that the folder is that of something else.
    """

    results_name, keeps = RESULTS, "the journal"
    others_have: tuple[str, ...] = ("tuning.json",)

    def __init__(self, config: RunConfig) -> None:
        self.path = config.output_folder
        self._config = config
        self._lock: int | None = None
        self._before: dict[str, Any] = {}
        self.is_ours = False

    def open(self, attempt: int = 0) -> None:
        """Makes the folder this run's own, and writes `results.json` with status "running" unless it is complete.

        Args:
            attempt: how often torchrun has restarted the group.

        Raises:
            RunError: the folder cannot be written, or another run is using it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._require_own()
            (self.path / JOURNAL).mkdir(exist_ok=True, mode=0o700)
            self._take_lock()
            self.is_ours = True
            if attempt == 0:  # to start a run again is to want it to go on
                (self.path / STOP_FILE).unlink(missing_ok=True)
            if attempt == 0 and self._config.overwrite:
                self._forget()
            else:
                self._before = self._read()
            if self._before.get("status") != "complete":
                self._begin()
        except OSError as error:
            raise RunError(f"The output folder {self.path} cannot be written: {error.strerror or error}.") from error

    def _require_own(self) -> None:
        strange = [name for name in self.others_have if (self.path / name).exists()]
        if strange and not (self.path / self.results_name).exists():
            raise RunError(
                f"The output folder {self.path} holds {', '.join(strange)} of something else. Choose another --output."
            )

    def claim(self, fingerprint: Fingerprint) -> bool:
        """Compares what this run is with what the folder holds, and prepares its journal.

        Args:
            fingerprint: what the results depend on.

        Returns:
            Whether there is something to do; not if this very run is complete.

        Raises:
            RunError: the folder holds another run; the message names what differs.
        """
        try:
            status, earlier = self._before.get("status"), Fingerprint.load(self.path)
            if earlier is None and status == "complete":
                raise RunError(
                    f"{self.path} holds the results of a complete run, and no {JOURNAL} that says of what. Choose "
                    "another --output, or replace them with --overwrite."
                )
            if earlier is None:
                self._forget()
            changed = fingerprint.changed(earlier) if earlier else []
            if changed:
                if status != "complete":
                    self._write(self._before or {**self._read(), "status": "failed"})
                raise RunError(
                    f"{self.path} holds {'the results' if status == 'complete' else 'a part'} of another run: what "
                    f"differs is the {' and the '.join(changed)}. Choose another --output, or start afresh with "
                    "--overwrite."
                )
            if status == "complete" and earlier and not self._before.get("coverage", {}).get("failed"):
                return False
            if status == "complete":
                self._begin()
            fingerprint.save(self.path)
        except OSError as error:
            raise RunError(f"The output folder {self.path} cannot be written: {error.strerror or error}.") from error
        return True

    def close(self) -> None:
        """Lets other runs use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_resumable(self) -> bool:
        """Whether a new start would find finished batches."""
        return has_batches(self.path)

    def results(self) -> dict[str, Any]:
        """Returns what `results.json` holds, nothing if it cannot be read."""
        return self._read()

    def _forget(self) -> None:
        """Removes what a resumed run would go on from."""
        forget_journal(self.path)

    def _begin(self) -> None:
        for name in (PREDICTIONS, CHANGES, *FIGURES):
            (self.path / name).unlink(missing_ok=True)
        self._write(
            {
                "schema_version": SCHEMA_VERSION,
                "status": "running",
                "error": None,
                "started": now(),
                "finished": None,
                "config": self._options(),
                "environment": environment(),
            }
        )

    def _options(self) -> dict[str, Any]:
        options = self._config.to_dict()
        return {**options, "initial_peers": f"{len(self._config.initial_peers)} addresses, not recorded"}

    def _take_lock(self) -> None:
        # a lock of POSIX: it ends with the process, is not inherited by forks, and holds on network file systems
        self._lock = os.open(self.path / JOURNAL / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                if time.monotonic() > deadline:
                    holder = os.pread(self._lock, 200, 0).decode(errors="replace").strip() or "an unknown process"
                    raise RunError(
                        f"The output folder {self.path} is in use by another run ({holder}). Choose another --output, "
                        "or wait for its end."
                    ) from None
            time.sleep(_LOCK_POLL_SECONDS)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)

    def fail(
        self,
        message: str,
        *,
        rank: int,
        host: str,
        coverage: dict[str, int] | None = None,
        transient: bool = False,
    ) -> bool:
        """Marks the run as failed, on whichever rank knows why.

        Args:
            message: the reason.
            rank: the rank that failed.
            host: its host.
            coverage: the counts, if the reason is that the dataset is not covered.
            transient: whether a new start may get further although nobody changes anything.

        Returns:
            Whether it was marked; a run that does not belong to the folder leaves it as it is.

        Raises:
            OSError: the folder cannot be written any more.
        """
        error = {"message": message, "rank": rank, "host": host, "transient": transient}
        return self._end("failed", error, coverage)

    def stop(
        self, message: str, *, rank: int, host: str, coverage: dict[str, int] | None = None, transient: bool = True
    ) -> bool:
        """Marks the run as incomplete, so that torchrun's restarts do not go on either; all else is as with `fail`."""
        (self.path / STOP_FILE).touch()
        transient = transient and not asked_by_a_person(message)
        error = {"message": message, "rank": rank, "host": host, "transient": transient}
        return self._end("incomplete", error, coverage)

    def _end(self, status: str, error: dict[str, Any], coverage: dict[str, int] | None) -> bool:
        results = self._read()
        if self.is_ours and results.get("status") == "running":  # never touch what an earlier, complete run left
            message = error["message"]
            for address in self._config.initial_peers:
                message = message.replace(address, "(peer, not recorded)")
            error = {**error, "message": _PEER.sub("(peer, not recorded)", message)}
            ended = {**results, "status": status, "error": error, "finished": now()}
            self._write(ended if coverage is None else {**ended, "coverage": coverage})
            return True
        return False

    def complete(self, predictions: Predictions, metrics: Metrics, facts: dict[str, Any]) -> None:
        """Writes all files of a complete run; the picture comes last, because no result depends on it.

        Args:
            predictions: one for each example, in dataset order.
            metrics: their metrics.
            facts: the further sections of `results.json`.

        Raises:
            RunError: the files cannot be written.
        """
        try:
            write_predictions(self.path / PREDICTIONS, predictions)
            self._write(
                {
                    **self._read(),
                    "status": "complete",
                    "finished": now(),
                    "config": self._options(),
                    "problem_type": metrics.problem,
                    "metrics": metrics.values,
                    "undefined": metrics.undefined,
                    "custom_metrics": metrics.custom,
                    "majority_share": metrics.majority_share,
                    "per_class": metrics.per_class,
                    "confusion_matrix": {"labels": metrics.label_names, "matrix": metrics.confusion.tolist()}
                    if metrics.confusion.size
                    else None,
                    **facts,
                }
            )
        except OSError as error:
            raise RunError(
                f"The results cannot be written to {self.path}: {os.strerror(error.errno or 0)}. All predictions are "
                "in its journal: start the same command again once that is mended."
            ) from error
        picture = figure_name(metrics)
        try:
            draw_figure(self.path / picture, metrics, predictions)
        except Exception as error:  # fonts, memory: whatever it is, the numbers stand
            print_error(f"{picture} could not be drawn ({error!r}); all numbers are in {RESULTS}.")

    def revise_metrics(self, figures: dict[str, float | None], undefined: dict[str, str], names: set[str]) -> None:
        """Adds the figures of custom metrics to the results of a complete run, in place of earlier ones.

        Args:
            figures: figure by name.
            undefined: for each that is None, why.
            names: the metrics that they are of.

        Raises:
            RunError: the results cannot be written.
        """
        results = self._read()
        old = [name for name in results["custom_metrics"] if name.split("/")[0] in names]
        for section, new in (("metrics", figures), ("undefined", undefined)):
            results[section] = {**{name: v for name, v in results[section].items() if name not in old}, **new}
        results["custom_metrics"] = [*(name for name in results["custom_metrics"] if name not in old), *figures]
        later = "computed after the run, from its predictions; --overwrite runs it again, with an interval"
        nothing = dict.fromkeys(("low", "high", "method", "resamples"))
        unknown = {"confidence": self._config.to_dict()["confidence"], **nothing, "reason": later}
        kept = {name: one for name, one in results.get("intervals", {}).items() if name not in old}
        results["intervals"] = {**kept, **dict.fromkeys(figures, unknown)}
        results["config"]["metric"] = list(
            dict.fromkeys([*results["config"]["metric"], *self._config.to_dict()["metric"]])
        )
        try:
            self._write(results)
        except OSError as error:
            raise RunError(f"The results cannot be written to {self.path}: {os.strerror(error.errno or 0)}.") from error

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads((self.path / self.results_name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, results: dict[str, Any]) -> None:
        text = json.dumps(results, indent=2, allow_nan=False) + "\n"
        write_atomically(self.path / self.results_name, text.encode())


def now() -> str:
    """Returns the present time in UTC, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def environment() -> dict[str, Any]:
    """Returns the versions a result depends on."""
    packages: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
