"""Paired comparison of runs on the same data: changed predictions, and statistical tests of the differences.

The first run is the baseline of all others, or all pairs are compared. Runs on different data are rejected with the
reason, because a difference between them would not be attributable to the models. If runs have groups of examples
(`--group-column`), whole groups are resampled; McNemar's test, which assumes independent examples, is then not used.

`comparison` compares runs of any kind, which `loading` reads: `evaluations` on a dataset, `tasks` of the
lm-evaluation-harness or prompts. `changes` finds the examples whose prediction changed.
`tables` shows them as a document, as JSON, and as CSV.
"""
