"""Servers of a Petals swarm, and the blocks of models that they compute.

`private` starts a swarm on this host, `member` one server of a swarm that spans hosts; both start `server`, a process
with a `petals_server`. Its `handler` makes `server_tasks` of requests, once `guarded_p2p` has bounded their number and
bytes and `guard` has checked their tensors and `metadata`. `downloads` fetches what a server needs of a model, and
`blocks` computes it, in the memory that `block_memory` and `session_cache` predict; `session_memory` is that of
sessions. `quantization` and `lora` change weights. `embedding` makes the first block's inputs of token ids, and `chain`
passes requests on to the next server.
"""
