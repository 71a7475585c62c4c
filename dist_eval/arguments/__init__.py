"""How a program declares and reads its options: `fields` of dataclasses, read by `types`, parsed by `commandline`.

It knows no option: those of runs are in `dist_eval.options`, those of other programs beside them.
"""
