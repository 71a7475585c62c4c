"""The exit statuses of all programs of this package."""

from __future__ import annotations

COMPLETE = 0
FAILED = 1
WRONG_OPTIONS = 2
STOPPED_BY_A_PERSON = 3
"""Whoever stopped the run decides whether to start it again."""

STOPPED = 75
"""The same command resumes the run; what sysexits.h has for "try again"."""

INTERRUPTED = 130
