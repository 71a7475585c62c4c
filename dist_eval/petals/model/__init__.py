"""The swarm model: a family's own transformers class whose layers a swarm computes.

`auto` has the public names; it reads the model and the options, and opens a `connection`. `base` and `classes` derive
from the family's classes, with stubs as layers (`layers`), and `blocks` sends texts through the swarm. `rows` removes
padding, and selects the needed outputs. `cache` is the cache of `generate`, with sessions on the servers. `generation`
has `generate` and `inference_session`. `prompts` adds tuned tensors to a model, `tuned` copies them, and
`checkpoint` reads (`checkpoint_files`) and writes them.
"""
