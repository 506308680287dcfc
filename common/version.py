"""The one place that holds the project's version; packaging, images and the chart follow it."""

VERSION = "0.1.0"
