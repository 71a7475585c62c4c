"""What a program is asked to do: options in `groups`, made into a `config`, and parsed by `commandline`."""
