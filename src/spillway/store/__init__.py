"""What is remembered. `journal` is the seam; `memory` and `sqlite` stand behind it. Knows `model` only."""
