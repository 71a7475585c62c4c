"""The command `dist-eval`: its subcommands (`main`), and the launch of those that use several processes (`launch`).

`program` runs one rank from its command line to its exit status, and `completion` prints a shell completion script.
"""
