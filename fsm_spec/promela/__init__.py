"""Tables and the scheduler as Promela, the language of the model checker Spin."""
