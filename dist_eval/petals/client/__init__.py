"""A client of a Petals swarm: joins one, shows its coverage, and sends requests through it.

- Swarm: `client` joins a swarm, whose addresses `peers` reads, and `reachability` checks which peers listen.
  `dht_records` reads its DHT and `announcements` checks the contents. `coverage` and `status` show them, and
  `directory` keeps the list of servers current.
- Requests: `forward` sends a batch through all blocks, `gradients` also backwards. Their `requests` go to the `servers`
  of a model, on `routes` that `router` chooses. `attempts` decides which server to ask and what to do after a failure,
  which `failures` classifies. `turns` sends a request when it is first in line and the server's `pacing`, given its
  `unanswered` requests, or another `admission` admits it.
- Transport: `transport` sends `inputs` by the `protocol` and checks the `outputs`. Large requests and sessions go
  through `streams`, where `tensor_stream` writes each `payload` to a `raw_stream` without copies. `kept_streams` stay
  open between requests.
- Chains: servers pass a `chain` on to each other, with `deep_prompts` kept there; `chain_pacing` limits its requests.
- Sessions: `inference_session` sends texts in chunks, in segments (`session_segment`) with a `server_cache` each;
  `session_room` decides how many sessions a run may open.
- `petals_version` knows which models the versions of Petals compute, and `hivemind_compat` adapts Petals to a current
  hivemind. `findings` are those of audits, and `records` the contents of JSON files.
"""

import os
import warnings

# By default hivemind shares tensors between processes through named files, which a killed process leaves in /dev/shm.
# hivemind reads this variable when it is first imported, which only happens in this package.
os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)  # used when hivemind is imported
