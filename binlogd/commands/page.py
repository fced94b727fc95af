"""`binlogd page`."""

from __future__ import annotations

import sys
from urllib.parse import quote

from binlogd.commands.options import AddrOption, ConfigOption, load_setup
from binlogd.commands.running import admin_token, page_address
from binlogd.errors import ConfigError


def page(config_file: ConfigOption = None, addr: AddrOption = None) -> None:
    """Print a link to the page of a node. A browser that opens the link may act there.

    The link contains the admin token after the #, which browsers do not send to a server. The page
    removes it from the address, and forgets it when the tab is closed. You must be able to read it.

        xdg-open "$(binlogd page)"
    """
    setup = load_setup(config_file, addr=addr)
    token = admin_token(setup)
    if not token:
        raise ConfigError(
            f"there is no token to read in {setup.data_dir}: start the node once, and ask as its"
            " owner; the page itself opens without it, and asks for it where it is needed"
        )
    sys.stdout.write(f"{page_address(setup)}/#token={quote(token, safe='')}\n")
