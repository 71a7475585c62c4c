"""A Petals swarm: joining one, looking at what it covers, starting one, and sending requests through it.

`client` joins and `coverage` looks; `private` starts servers of this host (`server`), `member` one of a swarm that
spans hosts. `requests` and `gradients` go by `routes` as `transport` packs them; `outage` waits for servers, `failures`
tells what went wrong; `bridge` makes Petals run on a current hivemind, and `daemon` keeps its p2p daemon in order.
"""

import os

# hivemind would share tensors between processes through named files, which a killed process leaves in /dev/shm. It
# reads this once, when it is first imported; everything of ours that imports it lies in this package.
os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
