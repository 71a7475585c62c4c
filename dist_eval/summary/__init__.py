"""Many runs in one table: `dist-eval summary`.

`rows` says what is known of each run, `document` shows it with the options that differ, and `__main__`
prints and writes it. Differences between runs are tested by `dist_eval.compare`.
"""
