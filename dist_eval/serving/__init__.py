"""Servers of a Petals swarm, and the blocks of models that they compute.

`private` starts a swarm on this host, `member` one server of a swarm that spans hosts; both start `server`, a process
with a `petals_server`, which makes `server_tasks` of requests. `downloads` fetches what it needs of a model, `blocks`
computes it, in the memory that `block_memory` and `session_cache` predict; `quantization` and `lora` change weights.
`embedding` makes the first block's inputs of token ids, and `chain` passes requests on to the next server.
"""
