"""`binlogd status`."""

from __future__ import annotations

import json
import sys

from binlogd.commands.options import AddrOption, ConfigOption, JsonOption, load_setup
from binlogd.commands.running import get_json
from binlogd.console import print_status


def status(
    config_file: ConfigOption = None, addr: AddrOption = None, as_json: JsonOption = False
) -> None:
    """Show how a running binlogd stands: lag, watermarks, checkpoint, who blocks."""
    setup = load_setup(config_file, addr=addr)
    document = get_json(setup, "/status")
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
        return
    print_status(document)
