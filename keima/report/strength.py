"""An evaluation in words: as fields of a log line, as keys with values, and as sentences. Metrics that were not
measured are left out.
"""

from collections.abc import Callable, Mapping
from typing import Any

from keima.base.reports.formats import format_elo, format_elo_gain, format_percent, format_return, format_score
from keima.base.reports.run_reports import EvaluationReport, ScoreReport

FORECAST_FORMS: Mapping[str, Callable[..., str]] = {  # the values that a run is expected to have at its end
    "expected_gain": lambda *values: f"{format_elo_gain(*values)} Elo",
    "expected_error": lambda *values: f"search error {format_percent(*values)}",
    "expected_score": lambda *values: f"score {format_score(*values)}",
}


def strength_fields(evaluation: EvaluationReport) -> list[str]:
    """Return the metrics as short fields: "elo 812 ± 40", "search error 4.1 ± 0.8 %"."""
    fields = []
    if evaluation.elo is not None:
        fields.append(f"elo {format_elo(evaluation.elo, evaluation.elo_margin)}")
    if evaluation.elo_gain is not None:
        gain = format_elo_gain(evaluation.elo_gain, evaluation.elo_gain_margin)
        fields.append(f"{gain} on model {evaluation.gain_over}")
    if evaluation.elo_progress is not None:
        gain = format_elo_gain(evaluation.elo_progress, evaluation.elo_progress_margin)
        fields.append(f"{gain} since model {evaluation.progress_since}")
    if evaluation.search_error is not None:
        fields.append(f"search error {format_percent(evaluation.search_error, evaluation.search_error_margin)}")
    if evaluation.policy_error is not None:
        fields.append(f"policy error {format_percent(evaluation.policy_error)}")
    if evaluation.random_return is not None:
        fields.append(f"return vs random {format_return(evaluation.random_return, evaluation.random_return_margin)}")
    if evaluation.earlier_return is not None:
        fields.append(f"vs earlier {format_return(evaluation.earlier_return, evaluation.earlier_return_margin)}")
    if evaluation.random_not_lost is not None and evaluation.elo is None:
        fields.append(f"not lost to random {format_percent(evaluation.random_not_lost)}")
    if evaluation.score is not None:
        fields.append(f"measured score {score_report_text(evaluation.score)}")
    fields += [f"expected at the end: {text}" for text in forecast_texts(vars(evaluation))]
    if evaluation.accepted is not None:
        fields.append("accepted" if evaluation.accepted else "rejected by the gate")
    return fields


def forecast_texts(measured: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return what to expect at the end of the run: "+120 ± 60 Elo, +40 by another hour, +55 by another machine",
    "search error 1.8 ± 0.6 %".

    Args:
        measured: the fields of an ``EvaluationReport``, or the metrics of an iteration.
        prefix: of its keys.
    """
    expected = [
        form(value, measured.get(f"{prefix}{key}_margin"))
        for key, form in FORECAST_FORMS.items()
        if (value := measured.get(prefix + key)) is not None
    ]
    more = [
        f"{format_elo_gain(value)} by another {what}"
        for what in ("hour", "machine")
        if (value := measured.get(f"{prefix}gain_of_{what}")) is not None
    ]
    return [", ".join([*expected[:1], *more]), *expected[1:]] if expected else []


def strength_pairs(evaluation: EvaluationReport) -> list[str]:
    """Return the ratings as keys with values: "elo=812 ± 40", "not_lost_to_random=0.990"."""
    pairs = []
    if evaluation.elo is not None:
        pairs.append(f"elo={format_elo(evaluation.elo, evaluation.elo_margin)}")
    if evaluation.random_not_lost is not None:
        pairs.append(f"not_lost_to_random={evaluation.random_not_lost:.3f}")
    return pairs


def strength_sentences(evaluation: EvaluationReport) -> list[str]:
    """Return the metrics as sentences without a full stop, so that text in brackets may follow."""
    sentences = []
    if evaluation.elo is not None:
        sentences.append(f"Elo {format_elo(evaluation.elo, evaluation.elo_margin)}, where a random player is 0")
    if evaluation.elo_gain is not None:
        gain = format_elo_gain(evaluation.elo_gain, evaluation.elo_gain_margin)
        sentences.append(f"Elo {gain} compared with model {evaluation.gain_over}")
    if evaluation.elo_progress is not None:
        gain = format_elo_gain(evaluation.elo_progress, evaluation.elo_progress_margin)
        since = f"model {evaluation.progress_since}, the first that beat a random player"
        sentences.append(f"Elo {gain} compared with {since}")
    if evaluation.random_return is not None:
        mean = format_return(evaluation.random_return, evaluation.random_return_margin)
        sentences.append(f"Mean return {mean} against random players in all other seats")
    if evaluation.earlier_return is not None:
        mean = format_return(evaluation.earlier_return, evaluation.earlier_return_margin)
        sentences.append(f"Mean return {mean} against earlier versions in all other seats")
    if evaluation.random_not_lost is not None:
        sentences.append(
            f"{format_percent(evaluation.random_not_lost)} of its games with a random player were not lost"
        )
    if evaluation.search_error is not None:
        error = format_percent(evaluation.search_error, evaluation.search_error_margin)
        bare = "" if evaluation.policy_error is None else f", {format_percent(evaluation.policy_error)} without search"
        sentences.append(f"It throws away game value in {error} of solved positions{bare}")
    if evaluation.score is not None:
        sentences.append(f"Mean score of {evaluation.score.games:,} games: {score_report_text(evaluation.score)}")
    return sentences


def score_report_text(score: ScoreReport) -> str:
    """Return scores in one line: 12,345 ± 678 (median 11,000, best 36,000; 2048: 41.0 %). Milestones that no game has
    reached are left out.
    """
    reached = "".join(
        f"; {part.milestone}: {format_percent(part.share)}" for part in score.milestones if part.share > 0
    )
    median, best = format_score(score.median), format_score(score.best)
    return f"{format_score(score.mean, score.margin)} (median {median}, best {best}{reached})"
