"""What people and programs meet: only here are the environment, the arguments and the home folder read."""
