"""The command `dist-eval`: its subcommands (`main`), and how those that use several processes start them (`launch`)."""
