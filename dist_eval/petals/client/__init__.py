"""A client of a Petals swarm: joining one, querying its coverage, and sending requests through it.

`client` joins a swarm, `coverage` queries it, by what `dht_records` finds in its DHT and `announcements` believes
of it, and `status` shows it. `requests` sends a batch to the `servers` of a model, one after the other, by `routes`
that `router` chooses: `attempts` decides whom to ask and what follows a failure, which `failures` classifies,
`turns` sends it when a `gate` lets it through, because the server can use it by its `pacing`, given the requests
`held` there, and `transport` sends its `inputs` in the words of `protocol`, and checks the `outputs`; a large one
goes by `streams`, whose `tensor_stream` writes each `payload` to a `raw_stream` from where it is, and reads answers
into their place. Servers pass it on to each other in a `chain`, and `chain_pacing` says how many requests it may
hold. `gradients` does so backwards. `limited_p2p` limits what servers may answer; `findings` are those of audits.
`inference_session` sends texts in chunks, to a `server_cache` on each server of its route; `session_room` decides
how many of them a run may hold. `petals_version` knows which models the versions of Petals compute,
`hivemind_compat` makes it run on a current hivemind, `reachability` knows which peers listen, `peers` reads their
addresses. `records` are what JSON files keep of a swarm.
"""

import os
import warnings

# By default hivemind shares tensors between processes through named files, which a killed process leaves in /dev/shm.
# It reads this variable once, when it is first imported, which only this package does.
os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)  # it uses that when it is imported
