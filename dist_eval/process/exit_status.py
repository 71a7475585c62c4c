"""The exit statuses of all programs of this package."""

from __future__ import annotations

COMPLETE = 0
FAILED = 1
WRONG_OPTIONS = 2
# whoever stopped the run decides whether to start it again
STOPPED_BY_A_PERSON = 3

# the same command resumes the run; what sysexits.h has for "try again"
STOPPED = 75

INTERRUPTED = 130
