"""A Petals swarm: joining one, looking at what it covers, and starting a private one on this host."""

import os

# hivemind would share tensors between processes through named files, which a killed process leaves in /dev/shm. It
# reads this once, when it is first imported; everything of ours that imports it lies in this package.
os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
