"""What is asked of a model: classes, label words, log-likelihoods, generated texts.

`base_model_spec` reads what the options name; `backbone`, `classifier` and `pretrained_classifier` compute, `backends`
chooses between them. `language_model` and `label_words` need no tuned head: `output_embedding` turns hidden states into
log-likelihoods. `generation` continues prompts, token by token. `text_session` sends texts in chunks, `session_pool`
those that begin alike. `user_model` evaluates the model of a program of your own.
"""
