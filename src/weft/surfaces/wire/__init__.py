"""What every surface says alike: the one JSON form of each record, and how advice is phrased."""
