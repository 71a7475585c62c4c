"""Many runs in one table: `dist-eval summary`.

`document` says what is known of each run, and which options differ; `__main__` prints and writes it. Differences
between runs are tested by `dist_eval.compare`.
"""
