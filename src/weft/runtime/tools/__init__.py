"""The tools that an agent is offered: what each would do, who allowed it, and how it is run."""
