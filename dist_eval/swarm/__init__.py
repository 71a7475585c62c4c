"""A Petals swarm: joining one, querying its coverage, starting one, and sending requests through it.

`client` joins a swarm, `coverage` queries it, by what `dht_records` finds in its DHT and `announcements` believes of
it, and `status` shows it; `private` starts servers on this host (`server`), `member` one server of a swarm that spans
hosts. `requests` sends a batch to the `servers` of a model, one after the other, by `routes` that `router` chooses:
`attempts` decides whom to ask and what follows a failure, which `failures` classifies, `gate` lets a request through
when the server can use it by its `pacing`, and `transport` sends it. `gradients` does so backwards. `limited_p2p`
limits what servers may answer; `findings` are those of audits. `inference_session` sends texts in chunks, to a
`server_cache` on each server of its route; `session_room` decides how many of them a run may hold. `architecture`
finds out what of a decoder is where, `blocks` computes its blocks, which
`petals_server` serves in `server_tasks`; `families` reads
configs, `config_keys` checks that all of them was read, `petals_version` knows which models the versions of Petals
compute; `hivemind_compat` makes it run on a current hivemind, `reachability` knows which peers listen.
"""

import os

# By default hivemind shares tensors between processes through named files, which a killed process leaves in /dev/shm.
# It reads this variable once, when it is first imported, which only this package does.
os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
