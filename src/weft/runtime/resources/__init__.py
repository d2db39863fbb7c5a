"""What acts on resources: drivers for each kind, also of container engines, the controller, and the files of turns."""
