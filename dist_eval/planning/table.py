"""The text that `dist-eval plan` prints."""

from __future__ import annotations

from dist_eval.distributed.display import in_words
from dist_eval.planning.record import CutTexts, LabelCount, NetworkValues, PlannedRun, TextLengths, TimeEstimate
from dist_eval.printable import printable_lines
from dist_eval.report.sections import format_selection
from dist_eval.results.inputs import DatasetSummary, PromptsSummary
from dist_eval.tables import format_count, text_table

_LABELS_IN_TABLE, _NAMES_SHOWN = 40, 10
_PREFIXES = ("B", "kB", "MB", "GB", "TB", "PB")


def format_plan(planned: PlannedRun) -> str:
    """Formats a plan for the terminal."""
    data, plan, ranks, part = planned.data, planned.plan, planned.ranks, format_selection(planned.data.selection)
    lines = [f"data: {format_count(planned.examples, 'example')} of {data.source}" + (f" ({part})" if part else "")]
    if planned.half_width is not None:
        lines.append(
            f"precision: the {100 * planned.confidence:g}% interval of an accuracy is at most "
            f"±{100 * planned.half_width:.2g} points"
        )
    if isinstance(data, DatasetSummary):
        lines += _text_lines(data, planned.lengths, planned.cut)
    if planned.prompts:
        lines += _prompt_lines(planned.prompts, planned.lengths)
    padding = plan.padded_tokens - plan.real_tokens
    of_these = f"{padding} padding ({padding / plan.padded_tokens:.1%})"
    most = "at most " if planned.prompts else ""
    each = f", up to {-(-plan.batches // ranks)} for each of {ranks} ranks" if ranks > 1 else ""
    lines += [
        f"tokens: {most}{plan.padded_tokens} to send, including {of_these}",
        f"batches: {plan.batches}{each}",
        *_traffic_lines(planned.network, most),
        "",
        *_label_lines(planned.labels),
        *_target_lines(planned),
        *([""] if planned.labels or planned.targets else []),
        *_time_lines(planned.time, ranks),
    ]
    return printable_lines("\n".join(lines))


def _prompt_lines(prompts: PromptsSummary, lengths: TextLengths) -> list[str]:
    cut = f"{format_count(prompts.truncated, 'prompt')} from the left, the longest of {prompts.longest} tokens"
    new_tokens = max(decoding.max_new_tokens for decoding in prompts.decodings)
    return [
        f"prompts: {_range_of(lengths)}; after each a text of at most {format_count(new_tokens, 'token')}",
        f"cut: {cut if prompts.truncated else 'none'}",
    ]


def _text_lines(data: DatasetSummary, lengths: TextLengths, cut: CutTexts | None) -> list[str]:
    limit = format_count(data.max_length, "token")
    lines = [f"texts: {_range_of(lengths)}"]
    if cut and cut.texts:
        lines.append(
            f"cut: {format_count(cut.texts, 'text')} to {limit}, which loses {format_count(cut.tokens, 'token')} "
            f"({cut.share:.1%}); the median loss of these texts is {cut.median:g}, the longest loses {cut.most} of "
            f"{data.longest}"
        )
    else:
        lines.append(f"cut: none, at most {limit} fit")
    kinds = {
        "with several lines": data.multiline,
        "without a token of its own": data.blank,
        "without a token that the tokenizer knows": data.unknown,
        "beginning with the tokenizer's BOS": data.with_begin,
    }
    if any(kinds.values()):
        lines.append(
            "unusual: " + ", ".join(f"{format_count(count, 'text')} {kind}" for kind, count in kinds.items() if count)
        )
    return lines


def _range_of(lengths: TextLengths) -> str:
    return f"{lengths.shortest} to {format_count(lengths.longest, 'token')}, median {lengths.median:g}"


def _traffic_lines(network: NetworkValues | None, most: str) -> list[str]:
    if network is None:
        return []
    sent = format_bytes(8 * network.ids + 2 * (network.prompts + network.deep_prompts))
    received, passed = format_bytes(2 * network.outputs), format_bytes(2 * network.activations)
    where = f"{sent} to the swarm, {received} back, {passed} from each server to the next"
    return [f"bytes: {most}{where}; up to twice that if servers compute in float32"]


def _label_lines(labels: list[LabelCount]) -> list[str]:
    if not labels:
        return []
    present = [row for row in labels if row.examples]
    shown = present
    if len(present) > _LABELS_IN_TABLE:
        shown = sorted(present, key=lambda row: -row.examples)[:_LABELS_IN_TABLE]
    rows = [["label", "examples", "share"], *([row.label, str(row.examples), f"{row.share:.4f}"] for row in shown)]
    lines = text_table(rows, ["<", ">", ">"])
    if len(shown) < len(present):
        lines.append(f"... and {len(present) - len(shown)} rarer ones")
    missing = [row.label for row in labels if not row.examples]
    if missing:
        more = f" and {len(missing) - _NAMES_SHOWN} more" if len(missing) > _NAMES_SHOWN else ""
        lines.append(f"without any example: {', '.join(missing[:_NAMES_SHOWN])}{more}")
    return lines


def _target_lines(planned: PlannedRun) -> list[str]:
    rows = [["target", "lowest", "mean", "highest"]] if planned.targets else []
    for target in planned.targets:
        rows.append([target.output, *(f"{value:.5g}" for value in (target.lowest, target.mean, target.highest))])
    return text_table(rows, ["<", ">", ">", ">"])


def _time_lines(time: TimeEstimate | None, ranks: int) -> list[str]:
    if time is None:
        return ["time: unknown without a probe"]
    limits = "too few answers for a range"
    if time.low is not None and time.high is not None:
        limits = f"{in_words(time.low)} to {in_words(time.high)}"
    return [
        f"time: about {in_words(time.seconds)} at the speed of the probe ({limits}), after "
        f"{in_words(time.start_up)} of start-up",
        f"probe: {format_count(time.probe_batches, 'batch', 'batches')} in {time.probe_seconds:.1f} s on "
        f"{format_count(ranks, 'rank')}, the first in "
        f"{time.first_answer:.2f} s; {time.tokens_per_second:.0f} tokens/s in its second half",
    ]


def format_bytes(count: float) -> str:
    """Formats bytes with three digits, such as "1.25 MB"."""
    for prefix in _PREFIXES[:-1]:
        if count < 999.5:
            return f"{count:.3g} {prefix}"
        count /= 1000
    return f"{count:.3g} {_PREFIXES[-1]}"
