"""How a model becomes the files of a version, and how it is opened again: one module per kind of model."""
