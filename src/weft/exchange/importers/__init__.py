"""Importers: other tools' sessions read into turns, one package for each tool."""
