"""The swarm model: a family's own transformers class whose layers a swarm computes.

`auto` has the public names; it reads the model and the options, and opens a `connection`. `classes` makes the family's
class one whose layers are stubs (`layers`); `blocks` sends texts through the swarm. `rows` removes padding before, and
knows which outputs are needed. `cache` is the cache that `generate` uses: it knows the sessions on the servers.
`generation` has `generate` itself, and `inference_session`. `prompts` are the tuned tensors in such a model.
"""
