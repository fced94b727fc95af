"""One running binlogd, put together and led: what `app` gives a life and an end.

`assembly` and `upstreams` make the parts that the configuration asks for; `receiving` is the Pump's
half and hears who pulls, `replication` the Drainer's; `membership` says in the registry who is
here; `operations` is the node as its routes see it, `watching` as its page does; `reloading` reads
the configuration again, `closing` ends it in order.
"""
