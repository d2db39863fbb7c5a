"""What acts on resources: drivers for each kind, the controller that carries wishes out, and the files of turns."""
