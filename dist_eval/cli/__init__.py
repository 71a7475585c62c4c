"""The command `dist-eval`: its subcommands (`main`), and the launch of those that use several processes (`launch`)."""
