"""The classifier: prompts and head run in this process, the base model's blocks on a swarm or in this process.

`base_model_spec` and `checkpoint` read what the options name; `backbone`, `classifier` and `pretrained_classifier`
compute, `backends` chooses between them. `language_model` and `label_words` need no tuned head: `output_embedding`
turns hidden states into log-likelihoods. `generation` continues prompts, token by token.
`text_session` sends texts in chunks, `session_pool` those that begin alike. `swarm_model` is a model for programs of
one's own, and `user_model` for what these programs evaluate.
"""
