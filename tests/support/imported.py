"""What a process of binlogd begins with, where it is forked instead of started: all of its code."""

import gc

import binlogd.node.into_kafka  # noqa: F401 - of what a configuration asks for, no command does
import tests.support.program  # noqa: F401 - what a forked process is asked to do stands there
from binlogd.cli import command_line

command_line()  # imports every command
gc.freeze()
