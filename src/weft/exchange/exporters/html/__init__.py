"""Threads, trees and sets of sessions as one HTML page that needs nothing else."""

from weft.exchange.exporters.html.page import Html as Html
