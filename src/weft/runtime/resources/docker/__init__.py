"""Volumes, containers and images of a container engine that speaks Docker's API: Docker itself, or Podman.

Plain synchronous code without a ledger. `ContainerEngine` is the connection; `DockerVolumes`, `DockerContainers` and
`DockerImages` describe, probe, snapshot, restore and remove. Whatever they make in the engine carries labels that name
the resource and the operation, so that whoever goes on after a crash finds it.
"""
