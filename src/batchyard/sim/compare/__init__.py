"""Two configurations under the same load: both are run, and what came of them is told side by side."""
