"""A Petals swarm: joining one, querying its coverage, starting one, and sending requests through it.

`client` joins a swarm, `coverage` queries it, by what `dht_records` finds in its DHT and `announcements` believes of
it, and `status` shows it; `private` starts servers on this host (`server`), `member` one server of a swarm that spans
hosts. `requests` and `gradients` send batches along the routes of `router`, over `transport`, as `attempts` decides;
`limited_p2p` limits what servers may answer, `window` how many batches are in flight, `pacing` says when a server can
use the next one, by its `pace`, `gate` lets it through then, and `dispatch` sends and measures it. `failures`
classifies errors, `findings` are those of audits, and `outage` waits for servers. `inference_session` sends texts
piece by piece, to a `server_cache` on each server of its route; `session_room` decides how many of them a run may
hold. `families` knows which models Petals serves, `config_keys` whether all of a model's config was read,
`petals_version` which models its versions compute; `hivemind_compat` makes it run on a current hivemind, `p2p_daemon`
patches hivemind's p2p daemon.
"""

import os

# By default hivemind shares tensors between processes through named files, which a killed process leaves in /dev/shm.
# It reads this variable once, when it is first imported, which only this package does.
os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
