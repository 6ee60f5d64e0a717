"""The only two time-outs of these tests. Nobody sleeps: a test waits for an event, or for the proof that none comes."""

import os

_SCALE = float(os.environ.get("HANDOFF_TEST_TIME_SCALE", "1"))

# Must not expire in a healthy run, however slow the machine.
PATIENCE = 60 * _SCALE
# Expires in a healthy run: long enough to see what must not happen, had it been going to.
BRIEF = 0.15 * _SCALE
