"""Servers of a Petals swarm, and the blocks of models that they compute.

`private` starts a swarm on this host, `member` one server of a swarm that spans hosts; both start `server`, a process
with a `petals_server`. Its `handler` turns each `request` into `server_tasks`, after `guarded_p2p` has bounded their
number and bytes, and `guard` has checked their tensors and `metadata`. `downloads` fetches a server's part of a model,
and `blocks` computes it: `block_runner` runs the tasks, and `task_sizes` decides how many blocks each has.
`block_memory` and `session_cache` predict memory, and `session_memory` allocates sessions. `shared_memory` and
`task_pool` move tensors between processes. `quantization` and `lora` change weights. `embedding` embeds token ids,
`kept_prompts` keeps deep prompts, and `chain` and `chained_session` pass requests on to the next server.
"""
