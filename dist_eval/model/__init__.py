"""Computes a model's answers: classes, label words, log-likelihoods, generated texts.

`base_model_spec` reads the model that the options name. `backbone`, `swarm_backbone`, `classifier` and
`pretrained_classifier` compute; `backends` chooses between them. `language_model` and `label_words` need no tuned head:
`output_embedding` turns hidden states into log-likelihoods. `generation` continues prompts token by token, by the
model's `generation_config`. `text_session` sends texts in chunks, `session_pool` texts with a common prefix.
`user_model` evaluates the model of your own program.
"""
