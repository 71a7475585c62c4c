"""Many runs in one table: `dist-eval summary`.

`document` describes each run and the options that differ; `__main__` prints and writes the table. `dist_eval.compare`
tests differences between runs.
"""
