"""Work of agents on tasks: what comes next by what is recorded, and who performs it."""
