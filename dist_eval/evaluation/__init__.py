"""A run: `evaluator` conducts it from the options to the results.

`work` does a rank's batches and puts them into the `journal`, with an `audit` or a `backend_comparison` if asked;
`combination` puts together what all ranks found; `run_folder` holds it, `completed` presents a run that is complete.
"""
