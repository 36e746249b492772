"""What this GPU really does. The only package that may import torch or triton, and only lazily."""
